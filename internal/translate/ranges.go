package translate

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/external-backend/operator/internal/policy"
)

// ClusterRanges returns the Service, pod and node addresses of this cluster. It leaves out what
// can't be parsed.
func ClusterRanges(
	declared []netip.Prefix, nodes []corev1.Node, cidrs []networkingv1.ServiceCIDR,
) policy.ClusterRanges {
	out := policy.ClusterRanges{Declared: declared}
	discover := func(texts ...string) {
		for _, text := range texts {
			if p, err := netip.ParsePrefix(text); err == nil {
				out.Discovered = append(out.Discovered, p)
			}
		}
	}
	for i := range cidrs {
		discover(cidrs[i].Spec.CIDRs...)
	}
	for i := range nodes {
		discover(nodes[i].Spec.PodCIDR)
		discover(nodes[i].Spec.PodCIDRs...)
		for _, a := range nodes[i].Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil {
				out.NodeAddresses = append(out.NodeAddresses, ip)
			}
		}
	}
	return out
}
