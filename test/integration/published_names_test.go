package integration

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// A Service of type ExternalName has no slices and causes no DNS query.
func TestExternalNameNeedsNoSlicesAndNoDNS(t *testing.T) {
	h := parallel(t)
	ns := startScriptedDNS(h)
	ns.set("db.example.com", answerWith("198.51.100.1"))
	ns.set("db2.example.com", answerWith("198.51.100.1"))
	const spec = `
service: {type: %s}
ports: [{name: web, port: 80, targetPort: 8080}]
targets: [{name: a, hostname: %s}]
dns: {nameservers: ["%s"], minTTLSeconds: 1}
`
	h.ApplyBackend("web", spec, "ExternalName", "db.example.com", ns.V4)
	b := h.WaitReady("web")
	s := h.Service("web")
	if s.Spec.Type != corev1.ServiceTypeExternalName || s.Spec.ExternalName != "db.example.com" ||
		b.Status.ServiceType != "ExternalName" {
		t.Errorf("the Service is %+v, status says %+v", s.Spec, b.Status)
	}
	waitProgrammed(h, "web")
	for _, condition := range []string{"NamesResolved", "ResolvedRefs", "Permitted", "Accepted"} {
		h.WaitCondition("web", condition, metav1.ConditionTrue, condition)
	}
	h.WaitCondition("web", "Healthy", metav1.ConditionTrue, "NotProbed")
	h.ApplyBackend("web", spec, "ExternalName", "db2.example.com", ns.V4)
	h.WaitReady("web")
	if s := h.Service("web"); s.Spec.ExternalName != "db2.example.com" {
		t.Errorf("the Service is an alias of %s", s.Spec.ExternalName)
	}
	waitNoSlices(h, "web")
	if n := ns.queries(); n > 0 {
		t.Errorf("%d queries were sent", n)
	}

	// After a change of the type and back, it is the same Service.
	h.ApplyBackend("web", spec, "ClusterIP", "db2.example.com", ns.V4)
	h.WaitStates("web", oneEndpoint)
	h.WaitReady("web")
	h.ApplyBackend("web", spec, "ExternalName", "db2.example.com", ns.V4)
	waitNoSlices(h, "web")
	h.WaitReady("web")
	if now := h.Service("web"); now.UID != s.UID || now.Spec.Type != corev1.ServiceTypeExternalName {
		t.Errorf("the Service is %+v", now)
	}
	if b := h.Backend("web"); b.Status.Endpoints != nil && b.Status.Endpoints.Total > 0 {
		t.Errorf("status.endpoints is %+v", b.Status.Endpoints)
	}
}

// With Passthrough, the name itself is published in a slice of type FQDN. It is neither resolved
// nor probed.
func TestPassthroughPublishesName(t *testing.T) {
	h := parallel(t)
	ns := startScriptedDNS(h)
	ns.set("db.example.com", answerWith("198.51.100.1"))
	const spec = `
service: {type: Headless, labels: {team: shop}}
ports: [{name: web, port: 80, targetPort: 8080}]
targets: [{name: a, hostname: db.example.com, zone: z1%s}]
dns: {resolution: %s, nameservers: ["%s"], minTTLSeconds: 1}
`
	h.ApplyBackend("web", spec, "", "Passthrough", ns.V4)
	h.WaitReady("web")
	all := h.Slices("web")
	if len(all) != 1 {
		t.Fatalf("there are %d slices", len(all))
	}
	s := all[0]
	if s.AddressType != discoveryv1.AddressTypeFQDN || len(s.Endpoints) != 1 ||
		!slices.Equal(s.Endpoints[0].Addresses, []string{"db.example.com"}) ||
		*s.Ports[0].Port != 8080 ||
		*s.Ports[0].Name != "web" {
		t.Errorf("the slice is %+v", s)
	}
	if s.Labels["team"] != "shop" || s.Labels[discoveryv1.LabelManagedBy] != v1alpha1.ManagedBy ||
		s.Labels[v1alpha1.LabelName] != "web" {
		t.Errorf("the slice's labels are %v", s.Labels)
	}
	if c := s.Endpoints[0].Conditions; c.Ready == nil || !*c.Ready || c.Serving == nil || !*c.Serving ||
		c.Terminating == nil ||
		*c.Terminating {
		t.Errorf("the endpoint's conditions are %+v", c)
	}
	waitTarget(h, "web", "a", "Unprobed", "")
	h.WaitCondition("web", "Healthy", metav1.ConditionTrue, "NotProbed")
	h.WaitCondition("web", "NamesResolved", metav1.ConditionTrue, "NamesResolved")
	if n := ns.queries(); n > 0 {
		t.Errorf("%d queries were sent", n)
	}

	h.ApplyBackend("web", spec, ", adminState: Disabled", "Passthrough", ns.V4)
	waitNoSlices(h, "web")
	h.WaitCondition("web", "Ready", metav1.ConditionFalse, "NoReadyEndpoints")
	h.ApplyBackend("web", spec, "", "Resolve", ns.V4)
	h.WaitStates("web", oneEndpoint)
	h.ApplyBackend("web", spec, "", "Passthrough", ns.V4)
	h.Eventually("the name alone to be published", func() error {
		if all := h.Slices("web"); len(all) != 1 || all[0].AddressType != discoveryv1.AddressTypeFQDN {
			return fmt.Errorf("there are %+v", all)
		}
		return nil
	})
}
