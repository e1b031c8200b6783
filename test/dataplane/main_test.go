// Package dataplane tests traffic: it sends requests through the real kube-proxy, and asks the real
// CoreDNS, while targets break, drain and move.
package dataplane

import (
	"context"
	"fmt"
	"maps"
	"net"
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
	// tcpCheck checks a port that serves nothing but checks.
	tcpCheck = "{tcpSocket: {port: 9000}, " + harness.FastPace + "}"

	// enough is a number of requests that reaches every backend: kube-proxy chooses evenly, so one of
	// two backends gets none with a probability of 2^-60.
	enough = 60

	// timeout bounds a request. A lost request is never answered, so a long timeout finds it as well,
	// and a slow machine does not count as a loss.
	timeout  = 15 * time.Second
	interval = 20 * time.Millisecond // between two requests of a load
)

// setUp starts a manager, and a pair of machines that serve HTTP on port 8080.
func setUp(t *testing.T) (*harness.Test, pair) {
	t.Helper()
	h := harness.New(t)
	h.StartManager()
	return h, newPair(h, "http", 8080)
}

// clusterAddrs returns the Service's port at each of its ClusterIPs.
func clusterAddrs(h *harness.Test, service string, port int) []string {
	h.T.Helper()
	var addrs []string
	for _, ip := range h.Service(service).Spec.ClusterIPs {
		addrs = append(addrs, net.JoinHostPort(ip, strconv.Itoa(port)))
	}
	return addrs
}

// wantAnswers sends requests from the node. It fails the test unless each request is answered, by
// one of these machines, and each machine answers at least one.
func wantAnswers(h *harness.Test, network, addr string, from ...*lab.Machine) {
	h.T.Helper()
	wantAnswersTo(h.Node(), h, network, addr, from...)
}

// wantAnswersTo is wantAnswers for another client.
func wantAnswersTo(client *devcluster.Namespace, h *harness.Test, network, addr string, from ...*lab.Machine) {
	h.T.Helper()
	send := lab.Sender(client, network, addr)
	answers := map[string]int{}
	for range enough {
		ctx, cancel := context.WithTimeout(h.T.Context(), timeout)
		answer, err := send(ctx)
		cancel()
		if err != nil {
			h.T.Fatalf("%s request to %s: %v; earlier requests were answered by %v", network, addr, err, answers)
		}
		answers[answer]++
	}
	var want []string
	for _, m := range from {
		want = append(want, m.Name())
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(answers)); !slices.Equal(got, want) {
		h.T.Errorf("requests to %s are answered by %v, want %v", addr, answers, want)
	}
}

// wantRefusal sends a request, and fails the test if it is answered.
func wantRefusal(h *harness.Test, network, addr string) {
	h.T.Helper()
	ctx, cancel := context.WithTimeout(h.T.Context(), timeout)
	defer cancel()
	if answer, err := lab.Sender(h.Node(), network, addr)(ctx); err == nil {
		h.T.Errorf("a request to %s is answered by %s, want no answer", addr, answer)
	}
}

// load is an HTTP load of which no request may be lost.
type load struct {
	*lab.Load
	h    *harness.Test
	addr string
}

// startLoad sends HTTP requests from the node at a steady rate, until stopWithoutLoss or the end of
// the test.
func startLoad(h *harness.Test, addr string) load {
	l := load{lab.StartLoad(h.T.Context(), interval, timeout, lab.Sender(h.Node(), "http", addr)), h, addr}
	h.T.Cleanup(func() { l.Stop() })
	return l
}

// waitMore waits until the load has sent enough further requests.
func (l load) waitMore() {
	l.h.T.Helper()
	until := l.Tally().Sent + enough
	l.h.Eventually("requests to "+l.addr, func() error {
		if sent := l.Tally().Sent; sent < until {
			return fmt.Errorf("%d of %d were sent", sent, until)
		}
		return nil
	})
}

// waitAnswerFrom waits until the machine answers a further request of the load.
func (l load) waitAnswerFrom(m *lab.Machine) {
	l.h.T.Helper()
	before := l.Tally().Answers[m.Name()]
	l.h.Eventually("a request that reaches "+m.Name(), func() error {
		if tally := l.Tally(); tally.Answers[m.Name()] <= before {
			return fmt.Errorf("answers came from %v, %d requests failed", tally.Answers, tally.Failed)
		}
		return nil
	})
}

// wantNoneAt fails the test if a request of the load still reaches the server after the requests in
// flight have arrived.
func (l load) wantNoneAt(s *lab.Server) {
	l.h.T.Helper()
	l.waitMore()
	before := s.Requests()
	l.waitMore()
	if late := s.Requests() - before; late > 0 {
		l.h.T.Errorf("%d requests reached a backend that is out of rotation", late)
	}
}

// stopWithoutLoss stops the load, and fails the test unless every request was answered.
func (l load) stopWithoutLoss() {
	l.h.T.Helper()
	tally := l.Stop()
	l.h.T.Logf("%d requests to %s were answered by %v", tally.Sent, l.addr, tally.Answers)
	for _, f := range tally.Failures {
		l.h.T.Errorf("a request to %s at %s was lost: %v", l.addr, f.At.Format(time.StampMilli), f.Err)
	}
	if tally.Failed > 0 || tally.Sent < enough {
		l.h.T.Errorf("%d of %d requests were lost", tally.Failed, tally.Sent)
	}
}

// targets returns the YAML of spec.targets, from pairs of a name and an address.
func targets(nameAndAddress ...any) string {
	var text strings.Builder
	for i := 0; i < len(nameAndAddress); i += 2 {
		fmt.Fprintf(&text, "\n- {name: %s, address: \"%s\"}", nameAndAddress[i], nameAndAddress[i+1])
	}
	return text.String()
}
