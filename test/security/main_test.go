// Package security attacks the manager with the targets, names, policies and objects of tenants
// that want to reach forbidden addresses. Canaries listen at these addresses and record every
// visitor. A recorder checks everything that is published at any moment.
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

// pace is the pace of most health checks. It is fast, but has long timeouts for a busy machine.
var pace = v1alpha1.HealthCheck{
	PeriodSeconds:             3,
	TimeoutSeconds:            10,
	ConfirmPeriodMilliseconds: 1000,
	FailureThreshold:          3,
}

// environment is shared by all tests of the package: servers at allowed addresses, a nameserver
// that gives hostile answers, and canaries at all forbidden addresses.
type environment struct {
	allowed  *allowedServers
	dns      *hostileDNS
	canaries *canaries
}

var (
	shared         environment
	once           sync.Once
	errEnvironment = errors.New("the environment could not be set up, see the first test")
)

// sharedEnvironment sets the environment up for the first test that needs it. It ends with the lab.
func sharedEnvironment(h *harness.Test) environment {
	h.T.Helper()
	once.Do(func() {
		shared = environment{allowed: newAllowedServers(h), dns: newHostileDNS(h), canaries: newCanaries(h)}
		errEnvironment = nil
	})
	if errEnvironment != nil {
		h.T.Fatal(errEnvironment)
	}
	return shared
}

// endpointsAt returns the published states of a Service's endpoints by address.
func endpointsAt(h *harness.Test, service string) map[netip.Addr]string {
	h.T.Helper()
	out := map[netip.Addr]string{}
	for _, e := range h.Endpoints(service) {
		out[e.At.Addr()] = e.State
	}
	return out
}

// targetOf returns a target's entry in status.
func targetOf(b *v1alpha1.ExternalBackend, name string) v1alpha1.TargetStatus {
	for _, t := range b.Status.Targets {
		if t.Name == name {
			return t
		}
	}
	return v1alpha1.TargetStatus{}
}

// describe returns a condition as text.
func describe(c *metav1.Condition) string {
	if c == nil {
		return "not there"
	}
	return fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
}

// findAddress returns the first address in a text for which is returns true, in whatever form the
// text spells it.
func findAddress(text string, is func(netip.Addr) bool) (netip.Addr, bool) {
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
