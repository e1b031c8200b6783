package integration

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// When an ExternalBackend without slices is deleted, the next one gets the Service that it had
// adopted, although no slice changes.
func TestNextBackendAdoptsAfterDeletion(t *testing.T) {
	h := parallel(t)
	for how, name := range map[metav1.DeletionPropagation]string{
		metav1.DeletePropagationBackground: "background", metav1.DeletePropagationForeground: "foreground",
	} {
		t.Run(name, func(t *testing.T) {
			h := h.Sub(t)
			h.ApplyService(name, "ports: [{name: web, port: 80}]")
			const spec = "service: {name: %s, adoptionPolicy: IfSelectorless}\nports: [{name: web, port: 80}]\ntargets: [%s]"
			first, second := name+"-1", name+"-2"
			h.ApplyBackend(first, spec, name, "")
			waitProgrammed(h, first)
			h.ApplyBackend(second, spec, name, "{name: a, address: 198.51.100.1}")
			waitConflict(h, second)

			b := h.Backend(first)
			remove(h, b, client.PropagationPolicy(how))
			waitGone(h, b, first)
			h.WaitReady(second)
		})
	}
}
