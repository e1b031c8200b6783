package importer

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// readExternalName reads a Service of type ExternalName. It becomes an alias of the new one.
func readExternalName(d *draft, s *corev1.Service) {
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		d.addPort(fmt.Sprintf("spec.ports[%d]", i), v1alpha1.Port{
			Name: p.Name, Port: p.Port, Protocol: p.Protocol, AppProtocol: p.AppProtocol,
		})
	}
	if len(s.Spec.Ports) == 0 {
		for _, p := range d.options.Ports {
			d.addPort("--port", v1alpha1.Port{Name: p.Name, Port: p.Port})
		}
		d.refuseIf(len(d.options.Ports) == 0, "spec.ports",
			"a CNAME leads to every port, and an ExternalBackend to those that it names; name them by --port")
	}
	d.addTarget("spec.externalName", "", s.Spec.ExternalName, v1alpha1.Target{})
	d.observe()
	d.moveClients()
	d.Next = append(d.Next[:2],
		fmt.Sprintf("$ kubectl patch service %s -n {NAMESPACE} --type merge -p "+
			`'{"spec":{"externalName":"{NAME}.{NAMESPACE}.svc.cluster.local"}}'`, s.Name),
		"To go back, write the old externalName again.")
}

// moveClients gives the ExternalBackend a name beside that of the source, whose Service stays until
// its clients have moved.
func (d *draft) moveClients() {
	source := d.Backend.Name
	if len(source) > 55 {
		source = source[:55]
	}
	d.Next = []string{
		"$ kubectl apply -f FILE",
		"$ kubectl wait extbe/{NAME} -n {NAMESPACE} --for=condition=Ready",
		"Move clients to {NAME}.{NAMESPACE}.svc, one after the other. Then delete " + d.Source + ".",
		stepLetCheckDecide,
	}
	d.Backend.Name = source + "-servers"
}
