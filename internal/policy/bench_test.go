package policy

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// benchInput has 1,000 rules in 10 policies for one namespace, each with 10
// CIDRs, a wildcard and a port range, and the ranges of a cluster of 1,000 nodes.
func benchInput() Input {
	var in Input
	for i := range 10 {
		p := v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i)}}
		for j := range 100 {
			n := i*100 + j
			rule := v1alpha1.PolicyRule{Ports: []v1alpha1.PolicyPort{{Port: int32(1000 + n), EndPort: int32(2000 + n)}}}
			for k := range 10 {
				rule.CIDRs = append(
					rule.CIDRs,
					fmt.Sprintf("%d.%d.%d.0/24", 20+n%100, n/100, k),
					fmt.Sprintf("2001:db8:%x:%x::/64", n, k),
				)
			}
			if n%2 == 0 {
				rule.Hostnames = []string{fmt.Sprintf("*.h%d.example.com", n)}
			}
			p.Spec.Allow = append(p.Spec.Allow, rule)
		}
		in.Policies = append(in.Policies, p)
	}
	for n := range 1000 {
		pod := netip.AddrFrom4([4]byte{10, byte(n >> 8), byte(n), 0})
		in.ClusterRanges.Discovered = append(in.ClusterRanges.Discovered, netip.PrefixFrom(pod, 24))
		in.ClusterRanges.NodeAddresses = append(
			in.ClusterRanges.NodeAddresses,
			netip.AddrFrom4([4]byte{172, 16, byte(n >> 8), byte(n)}),
		)
	}
	return in
}

func BenchmarkTarget1000Rules(b *testing.B) {
	s, _ := Compile(benchInput())
	v := s.For(nil)
	for _, c := range []struct {
		what, name, addr string
		port             uint16
		allowed          bool
	}{
		{"literalAllowed", "", "119.9.5.7", 1999, true},
		{"literalRefused", "", "198.51.100.7", 1999, false},
		{"nameAllowed", "db.h998.example.com", "118.9.5.7", 1999, true},
		{"nameRefused", "db.h997.example.com", "118.9.5.7", 1999, false},
		{"IPv6Allowed", "", "2001:db8:3e7:5::7", 1999, true},
		{"podRefused", "", "10.1.5.7", 1999, false},
		{"NAT64Refused", "", "64:ff9b:1::a01:507", 1999, false},
	} {
		a := netip.MustParseAddr(c.addr)
		b.Run(c.what, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if d := v.Target(c.name, a, Port{corev1.ProtocolTCP, c.port}); d.Allowed != c.allowed {
					b.Fatal(d)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
		})
	}
}

func BenchmarkCompile1000Rules(b *testing.B) {
	in := benchInput()
	for b.Loop() {
		Compile(in)
	}
}

func BenchmarkFor1000Rules(b *testing.B) {
	s, _ := Compile(benchInput())
	for b.Loop() {
		s.For(nil)
	}
}
