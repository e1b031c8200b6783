package dataplane

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/external-backend/operator/test/harness"
)

// A backend that fails its checks gets no request once its endpoint is not ready and kube-proxy has
// followed, although it still serves. Once it is healthy again, it gets requests again.
func TestUnhealthyEndpointGetsNoRequest(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	const (
		ipv4 = "{ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}"
		ipv6 = "{ipFamilyPolicy: SingleStack, ipFamilies: [IPv6]}"
		dual = "{ipFamilyPolicy: RequireDualStack}"
		web  = "name: web, port: 80, targetPort: 8080"
	)
	for _, tc := range []struct {
		name, network, service, port, check string
		v4, v6                              bool
	}{
		{"ipv4", "http", ipv4, web, harness.HTTPCheck, true, false},
		{"ipv6", "http", ipv6, web, harness.HTTPCheck, false, true},
		{"dual-stack", "http", dual, web, harness.HTTPCheck, true, true},
		{"tcp-unnamed", "tcp", dual, `name: "", port: 80, targetPort: 8080`, tcpCheck, true, true},
		{"udp", "udp", dual, "name: dgram, port: 80, targetPort: 8080, protocol: UDP", tcpCheck, true, true},
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
			h.ApplyBackend(tc.name, `
service: %s
ports: [{%s}]
targets: %s
healthCheck: %s
`, tc.service, tc.port, targets(list...), tc.check)
			healthy := harness.All(harness.Healthy, at...)
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
			h.WaitStates(tc.name, harness.Union(harness.All(harness.Unhealthy, at...), harness.All(harness.Healthy, left...)))
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

// A backend that refuses connections, or drops all packets, leaves rotation, and comes back once it
// works again.
func TestBrokenBackendLeavesRotationAndComesBack(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	for _, tc := range []struct{ name, network, check string }{
		{"http", "http", harness.HTTPCheck},
		{"tcp", "tcp", "{tcpSocket: {}, " + harness.FastPace + "}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := h.Sub(t)
			a, b := h.Machine("a"), h.Machine("b")
			h.Serve(a, tc.network, 8080)
			server := h.Serve(b, tc.network, 8080)
			h.ApplyBackend(tc.name, `
service: {ipFamilyPolicy: RequireDualStack}
ports: [{name: web, port: 80, targetPort: 8080}]
targets: %s
healthCheck: %s
`, targets("a4", a.V4, "a6", a.V6, "b4", b.V4, "b6", b.V6), tc.check)
			left := []netip.AddrPort{a.At4(8080), a.At6(8080)}
			gone := []netip.AddrPort{b.At4(8080), b.At6(8080)}
			both := slices.Concat(left, gone)
			for _, fault := range []struct {
				name       string
				begin, end func() error
			}{
				{"killed", func() error { server.Stop(); return nil }, server.Start},
				{"black-holed", b.BlackHole, func() error { return b.Undrop() }},
			} {
				h.WaitStates(tc.name, harness.All(harness.Healthy, both...))
				h.WaitRoutes(tc.name, both...)
				if err := fault.begin(); err != nil {
					t.Fatal(err)
				}
				h.WaitStates(tc.name, harness.Union(harness.All(harness.Healthy, left...), harness.All(harness.Unhealthy, gone...)))
				h.WaitRoutes(tc.name, left...)
				for _, addr := range clusterAddrs(h, tc.name, 80) {
					wantAnswers(h, tc.network, addr, a)
				}
				if err := fault.end(); err != nil {
					t.Fatal(err)
				}
				h.WaitStates(tc.name, harness.All(harness.Healthy, both...))
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
