package integration

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
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
	var names []string
	plain := map[string]*corev1.Service{}
	for kind, ip := range kinds {
		for _, families := range [][]corev1.IPFamily{nil, {v4}, {v6}, {v4, v6}, {v6, v4}} {
			for _, policy := range []corev1.IPFamilyPolicy{"", corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack} {
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
					continue // so would be ours
				}
				if err := h.Client.Create(t.Context(), b); err != nil {
					t.Fatal(err)
				}
				names, plain[name] = append(names, name), s
			}
		}
	}
	if len(names) < 30 {
		t.Fatalf("%d of these are valid", len(names))
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
	for _, name := range names { // a second look at what the API server has completed
		b := h.Backend(name)
		b.Spec.Service.Labels = map[string]v1alpha1.LabelValue{"looked": "again"}
		if err := h.Client.Update(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	check()
}
