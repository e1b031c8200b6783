package integration

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// If the API server refuses an update, the field is reported, and Service and endpoints stay. Once
// the change is reverted, all is well.
func TestRefusedUpdateKeepsService(t *testing.T) {
	h := parallel(t)
	for _, tc := range []struct{ name, good, bad, field string }{
		{"class", "service: {type: LoadBalancer, loadBalancerClass: example.com/one}" + onePort,
			"service: {type: LoadBalancer, loadBalancerClass: example.com/two}" + onePort,
			"spec.loadBalancerClass"},
		{"families", "service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}" + onePort,
			"service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv6]}" + onePort,
			"ipFamilies[0]"},
		{"node-port",
			"service: {type: NodePort}\nports: [{name: web, port: 80, targetPort: 8080, nodePort: 30412}]\ntargets: [{name: a, address: 198.51.100.1}]",
			"service: {type: NodePort}\nports: [{name: web, port: 80, targetPort: 8080, nodePort: 80}]\ntargets: [{name: a, address: 198.51.100.1}]", "spec.ports[0].nodePort"},
		{"no-longer-headless", "service: {type: Headless}" + onePort,
			"service: {type: NodePort}\nports: [{name: web, port: 80, targetPort: 8080, nodePort: 80}]\ntargets: [{name: a, address: 198.51.100.1}]", "spec.ports[0].nodePort"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := h.Sub(t)
			h.ApplyBackend(tc.name, tc.good)
			h.WaitReady(tc.name)
			service := h.Service(tc.name)
			h.ApplyBackend(tc.name, tc.bad)
			h.WaitCondition(tc.name, "Programmed", metav1.ConditionFalse, "ApplyFailed")
			h.WaitCondition(tc.name, "Ready", metav1.ConditionFalse, "ApplyFailed")
			waitMessage(h, tc.name, "Programmed", tc.field)
			wantStalled(h, tc.name, "")
			h.WaitStates(tc.name, oneEndpoint)
			now := h.Service(tc.name)
			if now.UID != service.UID || now.DeletionTimestamp != nil || !equality.Semantic.DeepEqual(now.Spec, service.Spec) {
				t.Errorf("the Service was replaced: %+v", now)
			}
			// The change from headless takes two steps, and the first one succeeds.
			if now.ResourceVersion != service.ResourceVersion && tc.name != "no-longer-headless" {
				t.Error("the Service has been written")
			}
			h.WaitEvent(tc.name, "ApplyFailed")
			h.ApplyBackend(tc.name, tc.good)
			h.WaitReady(tc.name)
			waitProgrammed(h, tc.name)
		})
	}
}

// If the API server refuses to create the Service, the field is reported, and a corrected spec
// takes effect.
func TestRefusedCreationIsReported(t *testing.T) {
	h := parallel(t)
	const spec = "service: {type: NodePort}\nports: [{name: web, port: 80, targetPort: 8080, nodePort: %d}]\ntargets: [{name: a, address: 198.51.100.1}]"
	h.ApplyBackend("web", spec, 80)
	h.WaitCondition("web", "Programmed", metav1.ConditionFalse, "ApplyFailed")
	waitMessage(h, "web", "Programmed", "spec.ports[0].nodePort")
	h.WaitCondition("web", "Ready", metav1.ConditionFalse, "ApplyFailed")
	h.ApplyBackend("web", spec, 30413)
	h.WaitReady("web")

	// Another Service has this node port. Another number takes effect.
	h.ApplyBackend("late", spec, 30413)
	h.WaitCondition("late", "Programmed", metav1.ConditionFalse, "ApplyFailed")
	waitMessage(h, "late", "Programmed", "nodePort")
	h.ApplyBackend("late", spec, 30414)
	h.WaitReady("late")
}
