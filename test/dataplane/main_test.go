// Package dataplane sends requests through the real kube-proxy, and asks the real CoreDNS, while
// targets break, drain and move.
package dataplane

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

func TestMain(m *testing.M) { harness.Main(m, devcluster.Options{}) }

const (
	// httpCheck and tcpCheck judge quickly: a verdict takes about 100 ms of failures, or one success a
	// second.
	httpCheck = "{httpGet: {path: " + lab.HealthPath + "}, " + pace + "}"
	tcpCheck  = "{tcpSocket: {port: 9000}, " + pace + "}"
	pace      = "periodSeconds: 1, timeoutSeconds: 1, confirmPeriodMilliseconds: 100, failureThreshold: 2"

	// enough requests to tell by: with two backends and kube-proxy's even choice, 2^-60 is the chance
	// to miss one.
	enough  = 60
	timeout = 3 * time.Second
	// interval of a load's requests.
	interval = 10 * time.Millisecond
)

// clusterAddrs are the Service's port at each of its ClusterIPs.
func clusterAddrs(h *harness.Test, service string, port int) []string {
	h.T.Helper()
	var addrs []string
	for _, ip := range h.Service(service).Spec.ClusterIPs {
		addrs = append(addrs, net.JoinHostPort(ip, strconv.Itoa(port)))
	}
	return addrs
}

// wantAnswers sends requests from the node, and wants answers to all of them from these machines
// and no other.
func wantAnswers(h *harness.Test, network, addr string, from ...*lab.Machine) {
	h.T.Helper()
	wantAnswersTo(h.Node(), h, network, addr, from...)
}

// wantAnswersTo is wantAnswers for a client elsewhere.
func wantAnswersTo(client *devcluster.Namespace, h *harness.Test, network, addr string, from ...*lab.Machine) {
	h.T.Helper()
	send := lab.Sender(client, network, addr)
	answers := map[string]int{}
	for range enough {
		ctx, cancel := context.WithTimeout(h.T.Context(), timeout)
		answer, err := send(ctx)
		cancel()
		if err != nil {
			h.T.Fatalf("%s request to %s: %v; before, there answered %v", network, addr, err, answers)
		}
		answers[answer]++
	}
	var want []string
	for _, m := range from {
		want = append(want, m.Name())
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(answers)); !slices.Equal(got, want) {
		h.T.Errorf("requests to %s are answered by %v, not by %v", addr, answers, want)
	}
}

// wantRefusal wants a request to fail.
func wantRefusal(h *harness.Test, network, addr string) {
	h.T.Helper()
	ctx, cancel := context.WithTimeout(h.T.Context(), timeout)
	defer cancel()
	if answer, err := lab.Sender(h.Node(), network, addr)(ctx); err == nil {
		h.T.Errorf("a request to %s is answered by %s, and there should be nobody", addr, answer)
	}
}

// A load that must lose nothing.
type load struct {
	*lab.Load
	h    *harness.Test
	addr string
}

// startLoad sends HTTP requests from the node at a steady rate, until the test ends or
// stopUnharmed.
func startLoad(h *harness.Test, addr string) load {
	l := load{lab.StartLoad(h.T.Context(), interval, timeout, lab.Sender(h.Node(), "http", addr)), h, addr}
	h.T.Cleanup(func() { l.Stop() })
	return l
}

// more waits until the load has sent a good number of further requests.
func (l load) more() {
	l.h.T.Helper()
	until := l.Tally().Sent + enough
	l.h.Eventually("requests to "+l.addr, func() error {
		if sent := l.Tally().Sent; sent < until {
			return fmt.Errorf("%d of %d were sent", sent, until)
		}
		return nil
	})
}

// reaches waits until the machine answers requests of the load.
func (l load) reaches(m *lab.Machine) {
	l.h.T.Helper()
	before := l.Tally().Answers[m.Name()]
	l.h.Eventually("requests that reach "+m.Name(), func() error {
		if tally := l.Tally(); tally.Answers[m.Name()] <= before {
			return fmt.Errorf("there answered %v, %d failed", tally.Answers, tally.Failed)
		}
		return nil
	})
}

// spares wants none of the load's further requests to reach a server, once those that are on their
// way have arrived.
func (l load) spares(s *lab.Server) {
	l.h.T.Helper()
	l.more()
	before := s.Requests()
	l.more()
	if late := s.Requests() - before; late > 0 {
		l.h.T.Errorf("%d requests reached a backend that is out of rotation", late)
	}
}

// stopUnharmed ends the load, of which every request must have been answered.
func (l load) stopUnharmed() {
	l.h.T.Helper()
	tally := l.Stop()
	l.h.T.Logf("of %d requests to %s, there answered %v", tally.Sent, l.addr, tally.Answers)
	for _, f := range tally.Failures {
		l.h.T.Errorf("a request to %s at %s was lost: %v", l.addr, f.At.Format(time.StampMilli), f.Err)
	}
	if tally.Failed > 0 || tally.Sent < enough {
		l.h.T.Errorf("%d of %d requests were lost", tally.Failed, tally.Sent)
	}
}

// all gives every one of these endpoints the same state.
func all(state string, at ...netip.AddrPort) harness.States {
	states := harness.States{}
	for _, a := range at {
		states[a] = state
	}
	return states
}

// with is states and the more specific ones.
func with(states ...harness.States) harness.States {
	sum := harness.States{}
	for _, s := range states {
		maps.Copy(sum, s)
	}
	return sum
}

// targets is the YAML of spec.targets: names and addresses in turn.
func targets(nameAndAddress ...any) string {
	var text strings.Builder
	for i := 0; i < len(nameAndAddress); i += 2 {
		fmt.Fprintf(&text, "\n  - {name: %s, address: \"%s\"}", nameAndAddress[i], nameAndAddress[i+1])
	}
	return text.String()
}
