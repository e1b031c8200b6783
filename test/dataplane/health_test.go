package dataplane

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// pair is two machines that serve the same, and how to make one of them fail its checks while it
// goes on serving.
type pair struct {
	a, b   *lab.Machine
	sa, sb *lab.Server
	sicken func(sick bool) // b
}

func newPair(h *harness.Test, network string, port int) pair {
	h.T.Helper()
	p := pair{a: h.Machine("a"), b: h.Machine("b")}
	p.sa, p.sb = h.Serve(p.a, network, port), h.Serve(p.b, network, port)
	if network == "http" {
		p.sicken = p.sb.SetSick
		return p
	}
	// A port of its own for checks.
	h.Serve(p.a, "tcp", 9000)
	checked := h.Serve(p.b, "tcp", 9000)
	p.sicken = func(sick bool) {
		h.T.Helper()
		if checked.Stop(); !sick {
			if err := checked.Start(); err != nil {
				h.T.Fatal(err)
			}
		}
	}
	return p
}

// TestUnhealthyGetsNothing makes a backend fail its checks while it goes on serving. Once its
// endpoint is not ready and kube-proxy has followed, no request may reach it; once it is healthy
// again, some must.
func TestUnhealthyGetsNothing(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	for _, tc := range []struct {
		name, network, service, port, check string
		v4, v6                              bool
	}{
		{"ipv4", "http", "{ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}", "{name: web, port: 80, targetPort: 8080}", httpCheck, true, false},
		{"ipv6", "http", "{ipFamilyPolicy: SingleStack, ipFamilies: [IPv6]}", "{name: web, port: 80, targetPort: 8080}", httpCheck, false, true},
		{"dual-stack", "http", "{ipFamilyPolicy: RequireDualStack}", "{name: web, port: 80, targetPort: 8080}", httpCheck, true, true},
		{"tcp-unnamed", "tcp", "{ipFamilyPolicy: RequireDualStack}", `{name: "", port: 80, targetPort: 8080}`, tcpCheck, true, true},
		{"udp", "udp", "{ipFamilyPolicy: RequireDualStack}", "{name: dgram, port: 80, targetPort: 8080, protocol: UDP}", tcpCheck, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := h.Sub(t)
			p := newPair(h, tc.network, 8080)
			var at, left []netip.AddrPort
			var list []any
			if tc.v4 {
				at, left = append(at, p.a.At4(8080), p.b.At4(8080)), append(left, p.a.At4(8080))
				list = append(list, "a4", p.a.V4, "b4", p.b.V4)
			}
			if tc.v6 {
				at, left = append(at, p.a.At6(8080), p.b.At6(8080)), append(left, p.a.At6(8080))
				list = append(list, "a6", p.a.V6, "b6", p.b.V6)
			}
			h.Apply(`
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: %s}
spec:
  service: %s
  ports: [%s]
  targets: %s
  healthCheck: %s
`, tc.name, tc.service, tc.port, targets(list...), tc.check)
			healthy := all(harness.Healthy, at...)
			h.WaitStates(tc.name, healthy)
			h.WaitRoutes(tc.name, at...)
			addrs := clusterAddrs(h, tc.name, 80)
			for _, addr := range addrs {
				wantAnswers(h, tc.network, addr, p.a, p.b)
			}

			var moved []func()
			if tc.network == "udp" {
				for _, addr := range addrs {
					moved = append(moved, flow(h, addr, p.b, p.a))
				}
			}

			p.sicken(true)
			h.WaitStates(tc.name, with(all(harness.Unhealthy, at...), all(harness.Healthy, left...)))
			h.WaitRoutes(tc.name, left...)
			for _, wait := range moved {
				wait()
			}
			before := p.sb.Requests()
			for _, addr := range addrs {
				wantAnswers(h, tc.network, addr, p.a)
			}
			if late := p.sb.Requests() - before; late > 0 {
				t.Errorf("%d requests reached the backend after its endpoint was not ready", late)
			}

			p.sicken(false)
			h.WaitStates(tc.name, healthy)
			h.WaitRoutes(tc.name, at...)
			for _, addr := range addrs {
				wantAnswers(h, tc.network, addr, p.a, p.b)
			}
		})
	}
}

// TestBrokenBackends kills a backend (connections are refused) and black-holes it (packets are
// dropped), under load, and brings it back.
func TestBrokenBackends(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	for _, tc := range []struct{ name, network, check string }{
		{"http", "http", httpCheck},
		{"tcp", "tcp", "{tcpSocket: {}, " + pace + "}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := h.Sub(t)
			a, b := h.Machine("a"), h.Machine("b")
			h.Serve(a, tc.network, 8080)
			server := h.Serve(b, tc.network, 8080)
			h.Apply(`
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: %s}
spec:
  service: {ipFamilyPolicy: RequireDualStack}
  ports: [{name: web, port: 80, targetPort: 8080}]
  targets: %s
  healthCheck: %s
`, tc.name, targets("a4", a.V4, "a6", a.V6, "b4", b.V4, "b6", b.V6), tc.check)
			left := []netip.AddrPort{a.At4(8080), a.At6(8080)}
			gone := []netip.AddrPort{b.At4(8080), b.At6(8080)}
			both := slices.Concat(left, gone)
			for _, fault := range []struct {
				name        string
				breaks, end func() error
			}{
				{"killed", func() error { server.Stop(); return nil }, server.Start},
				{"black-holed", b.BlackHole, func() error { return b.Undrop() }},
			} {
				h.WaitStates(tc.name, all(harness.Healthy, both...))
				h.WaitRoutes(tc.name, both...)
				if err := fault.breaks(); err != nil {
					t.Fatal(err)
				}
				h.WaitStates(tc.name, with(all(harness.Healthy, left...), all(harness.Unhealthy, gone...)))
				h.WaitRoutes(tc.name, left...)
				for _, addr := range clusterAddrs(h, tc.name, 80) {
					wantAnswers(h, tc.network, addr, a)
				}
				if err := fault.end(); err != nil {
					t.Fatal(err)
				}
				h.WaitStates(tc.name, all(harness.Healthy, both...))
				h.WaitRoutes(tc.name, both...)
				for _, addr := range clusterAddrs(h, tc.name, 80) {
					wantAnswers(h, tc.network, addr, a, b)
				}
			}
			h.WaitEvent(tc.name, "EndpointUnhealthy")
			h.WaitEvent(tc.name, "EndpointHealthy")
		})
	}
}

// flow opens a UDP flow that goes to one machine, and returns how to wait until it goes to the
// other: kube-proxy moves flows when it has changed its rules, and until then a new flow may be
// taken for an old one with the same port.
func flow(h *harness.Test, addr string, from, to *lab.Machine) (waitMoved func()) {
	h.T.Helper()
	for range enough {
		conn, err := h.Node().Dial(h.T.Context(), "udp", addr)
		if err != nil {
			h.T.Fatal(err)
		}
		h.T.Cleanup(func() { conn.Close() })
		who := func() string {
			packet := make([]byte, 256)
			if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
				h.T.Fatal(err)
			}
			if _, err := conn.Write([]byte("who is there")); err != nil {
				return err.Error()
			}
			n, err := conn.Read(packet)
			if err != nil {
				return err.Error()
			}
			return string(packet[:n])
		}
		if who() != from.Name() {
			continue
		}
		return func() {
			h.T.Helper()
			h.Eventually("a UDP flow to move to "+to.Name(), func() error {
				if is := who(); is != to.Name() {
					return fmt.Errorf("it is at %s", is)
				}
				return nil
			})
		}
	}
	h.T.Fatalf("no flow to %s leads to %s", addr, from.Name())
	return nil
}
