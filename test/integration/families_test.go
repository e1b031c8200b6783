package integration

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

// ipFamilies and ipFamilyPolicy have the same effect as in a plain Service, and later writes keep
// what the API server has added.
func TestServiceFamiliesAreThoseOfPlainService(t *testing.T) {
	h := parallel(t)
	const v4, v6 = corev1.IPv4Protocol, corev1.IPv6Protocol
	kinds := map[v1alpha1.ServiceType]string{
		v1alpha1.ServiceTypeClusterIP: "",
		v1alpha1.ServiceTypeHeadless:  corev1.ClusterIPNone,
	}
	policies := []corev1.IPFamilyPolicy{
		"", corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack,
	}
	var names []string
	plain := map[string]*corev1.Service{}
	for kind, ip := range kinds {
		for _, families := range [][]corev1.IPFamily{nil, {v4}, {v6}, {v4, v6}, {v6, v4}} {
			for _, policy := range policies {
				if len(families) == 2 && policy == corev1.IPFamilyPolicySingleStack {
					continue // the schema refuses it
				}
				name := fmt.Sprintf("f%d", len(names))
				s := &corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Name: "plain-" + name, Namespace: h.Namespace},
					Spec: corev1.ServiceSpec{
						ClusterIP:  ip,
						IPFamilies: families,
						Ports:      []corev1.ServicePort{{Name: "web", Port: 80}},
					},
				}
				b := &v1alpha1.ExternalBackend{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: h.Namespace}}
				b.Spec.Service = &v1alpha1.Service{Type: kind, IPFamilies: families}
				if policy != "" {
					s.Spec.IPFamilyPolicy, b.Spec.Service.IPFamilyPolicy = &policy, &policy
				}
				b.Spec.Ports = []v1alpha1.Port{{Name: "web", Port: 80}}
				b.Spec.Targets = []v1alpha1.Target{{Name: "a", Address: "198.51.100.1"}, {Name: "b", Address: "2001:db8::1"}}
				if err := h.Client.Create(t.Context(), s); err != nil {
					continue // the API server would refuse ours, too
				}
				if err := h.Client.Create(t.Context(), b); err != nil {
					t.Fatal(err)
				}
				names, plain[name] = append(names, name), s
			}
		}
	}
	if len(names) < 30 {
		t.Fatalf("only %d combinations are valid", len(names))
	}
	check := func() {
		for _, name := range names {
			h.WaitReady(name)
			got, want := h.Service(name).Spec, plain[name].Spec
			if !slices.Equal(got.IPFamilies, want.IPFamilies) || *got.IPFamilyPolicy != *want.IPFamilyPolicy {
				t.Errorf("%s (%v): %v %s, want %v %s", name, h.Backend(name).Spec.Service, got.IPFamilies,
					*got.IPFamilyPolicy, want.IPFamilies, *want.IPFamilyPolicy)
			}
		}
	}
	check()
	for _, name := range names { // the manager writes a Service that the API server has completed
		b := h.Backend(name)
		b.Spec.Service.Labels = map[string]v1alpha1.LabelValue{"looked": "again"}
		if err := h.Client.Update(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	check()
}

// An address of a family that the Service does not have is reported, and published once the Service
// has the family.
func TestEndpointsFollowServiceFamilies(t *testing.T) {
	h := parallel(t)
	const spec = `
service: {ipFamilyPolicy: %s, ipFamilies: [%s]}
ports: [{name: web, port: 80}]
targets:
- {name: a, address: 198.51.100.1}
- {name: b, address: "2001:db8::1"}
`
	v4, v6 := at("198.51.100.1:80"), at("[2001:db8::1]:80")
	for _, tc := range []struct {
		name, policy, families string
		want                   []netip.AddrPort
		lacking                string
	}{
		{"v4", "SingleStack", "IPv4", []netip.AddrPort{v4}, "b"},
		{"v6", "SingleStack", "IPv6", []netip.AddrPort{v6}, "a"},
		{"both", "RequireDualStack", "IPv6, IPv4", []netip.AddrPort{v4, v6}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := h.Sub(t)
			h.ApplyBackend(tc.name, spec, tc.policy, tc.families)
			h.WaitReady(tc.name)
			h.WaitStates(tc.name, harness.All(harness.Healthy, tc.want...))
			if tc.lacking != "" {
				waitTarget(h, tc.name, tc.lacking, "Unprobed", "FamilyNotServed")
			}
			waitProgrammed(h, tc.name)
			for _, s := range h.Slices(tc.name) {
				for _, e := range s.Endpoints {
					if len(e.Addresses) != 1 ||
						netip.MustParseAddr(e.Addresses[0]).Is4() != (s.AddressType == discoveryv1.AddressTypeIPv4) {
						t.Errorf("slice %s of type %s has endpoint %v", s.Name, s.AddressType, e.Addresses)
					}
				}
			}
		})
	}
	service := h.Service("v4")
	h.ApplyBackend("v4", spec, "RequireDualStack", "IPv4, IPv6")
	h.WaitStates("v4", harness.All(harness.Healthy, v4, v6))
	waitTarget(h, "v4", "b", "Unprobed", "")
	h.ApplyBackend("v4", spec, "SingleStack", "IPv4")
	h.WaitStates("v4", harness.All(harness.Healthy, v4))
	waitTarget(h, "v4", "b", "Unprobed", "FamilyNotServed")
	if now := h.Service("v4"); now.UID != service.UID || now.Spec.ClusterIP != service.Spec.ClusterIP {
		t.Errorf("the Service was replaced: %+v", now)
	}
}
