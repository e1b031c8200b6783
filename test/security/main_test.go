// Package security attacks the manager: with targets, names, policies and objects of tenants that
// want to reach what they must not. Whoever comes to a forbidden address is counted there, and
// whatever is published at any moment is looked at.
package security

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m, devcluster.Options{WithoutDNS: true}) }

// pace is how most health checks are paced: often, but with patience for a machine that is busy.
var pace = v1alpha1.HealthCheck{
	PeriodSeconds:             3,
	TimeoutSeconds:            10,
	ConfirmPeriodMilliseconds: 1000,
	FailureThreshold:          3,
}

// world is what surrounds all tests of the package: servers that may be reached, a nameserver that
// lies, and canaries at all that is forbidden.
type world struct {
	good     *farm
	dns      *liar
	canaries *canaries
}

var (
	surroundings world
	once         sync.Once
	errWorld     = errors.New("the world could not be made, see the first test")
)

// theWorld makes the world with the first test that wants it. It goes with the lab.
func theWorld(h *harness.Test) world {
	h.T.Helper()
	once.Do(func() {
		surroundings = world{good: newFarm(h), dns: newLiar(h), canaries: newCanaries(h)}
		errWorld = nil
	})
	if errWorld != nil {
		h.T.Fatal(errWorld)
	}
	return surroundings
}

// endpointsAt are the published states of a Service by address.
func endpointsAt(h *harness.Test, service string) map[netip.Addr]string {
	h.T.Helper()
	out := map[netip.Addr]string{}
	for _, e := range h.Endpoints(service) {
		out[e.At.Addr()] = e.State
	}
	return out
}

// targetOf is what status tells of a target.
func targetOf(b *v1alpha1.ExternalBackend, name string) v1alpha1.TargetStatus {
	for _, t := range b.Status.Targets {
		if t.Name == name {
			return t
		}
	}
	return v1alpha1.TargetStatus{}
}

// describe is a condition as a sentence.
func describe(c *metav1.Condition) string {
	if c == nil {
		return "not there"
	}
	return fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
}

// named tells whether a text has an address in it, in whatever form it is spelled.
func named(text string, is func(netip.Addr) bool) (netip.Addr, bool) {
	words := strings.FieldsFunc(text, func(r rune) bool { return !strings.ContainsRune("0123456789abcdefABCDEF:.", r) })
	for _, word := range words {
		word = strings.TrimRight(word, ".")
		if a, err := netip.ParseAddr(word); err == nil && is(a) {
			return a, true
		}
		if at, err := netip.ParseAddrPort(word); err == nil && is(at.Addr()) {
			return at.Addr(), true
		}
	}
	return netip.Addr{}, false
}
