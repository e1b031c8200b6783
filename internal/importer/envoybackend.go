package importer

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/external-backend/operator/api/v1alpha1"
)

// envoyBackend is what we read of Envoy Gateway's gateway.envoyproxy.io Backend.
type envoyBackend struct {
	header
	Spec struct {
		Type         string          `json:"type"`
		Endpoints    []envoyEndpoint `json:"endpoints"`
		AppProtocols []string        `json:"appProtocols"`
		Fallback     bool            `json:"fallback"`
		TLS          map[string]any  `json:"tls"`
	} `json:"spec"`
}

type envoyEndpoint struct {
	Hostname string         `json:"hostname"`
	FQDN     *envoyFQDN     `json:"fqdn"`
	IP       *envoyIP       `json:"ip"`
	Unix     map[string]any `json:"unix"`
	Zone     string         `json:"zone"`
}

type envoyFQDN struct {
	Hostname string `json:"hostname"`
	Port     int32  `json:"port"`
}

type envoyIP struct {
	Address string `json:"address"`
	Port    int32  `json:"port"`
}

func readEnvoyBackend(d *draft, u *unstructured.Unstructured) {
	var in envoyBackend
	if !d.read(u, &in) {
		return
	}
	s := &in.Spec
	d.refuseIf(s.Type != "" && s.Type != "Endpoints", "spec.type", clip(s.Type)+" can't be expressed; name the endpoints")
	d.refuseIf(s.Fallback, "spec.fallback",
		"it is the standby of another Backend; add its endpoints to that ExternalBackend, with tier: 1")
	for _, key := range slices.Sorted(maps.Keys(s.TLS)) {
		d.refuse("spec.tls."+clip(key), "TLS to targets is the gateway's affair; write a BackendTLSPolicy for the Service")
	}

	addEnvoyPort(d, s.Endpoints, s.AppProtocols)
	for i := range s.Endpoints {
		addEnvoyEndpoint(d, fmt.Sprintf("spec.endpoints[%d]", i), &s.Endpoints[i])
	}
	d.observe()
	d.moveClients()
	d.Backend.Name = u.GetName() // a Backend has no Service
	d.Next[2] = "Let the routes name the Service: backendRefs: [{name: {NAME}, port: " + portOf(d) + "}]. Then delete " +
		d.Source + "."
}

func portOf(d *draft) string {
	if len(d.spec.Ports) == 0 {
		return "PORT"
	}
	return fmt.Sprint(d.spec.Ports[0].Port)
}

// addEnvoyPort adds the only port. Its number is that of the first endpoint.
func addEnvoyPort(d *draft, endpoints []envoyEndpoint, protocols []string) {
	port := v1alpha1.Port{}
	for i := range endpoints {
		if port.Port = endpoints[i].port(); isPort(port.Port) {
			break
		}
	}
	known := map[string]string{
		"gateway.envoyproxy.io/h2c": "kubernetes.io/h2c",
		"gateway.envoyproxy.io/ws":  "kubernetes.io/ws",
		"gateway.envoyproxy.io/wss": "kubernetes.io/wss",
	}
	for i, p := range protocols {
		switch name, is := known[p]; {
		case !is:
			d.refuse(fmt.Sprintf("spec.appProtocols[%d]", i), "%q can't be expressed", clip(p))
		case port.AppProtocol != nil:
			d.refuse(fmt.Sprintf("spec.appProtocols[%d]", i), "a port has one application protocol")
		default:
			port.AppProtocol = &name
		}
	}
	if len(endpoints) > 0 {
		d.addPort("spec.endpoints[0]", port)
	}
}

func (e *envoyEndpoint) port() int32 {
	switch {
	case e.IP != nil:
		return e.IP.Port
	case e.FQDN != nil:
		return e.FQDN.Port
	}
	return 0
}

func addEnvoyEndpoint(d *draft, field string, e *envoyEndpoint) {
	d.refuseIf(e.Hostname != "", field+".hostname", "the Host header is the gateway's affair; set it in the route")
	var where string
	switch {
	case e.Unix != nil:
		d.refuse(field+".unix", "a target is an address, and no socket of a file system")
		return
	case e.IP != nil && e.FQDN == nil:
		field, where = field+".ip", e.IP.Address
	case e.FQDN != nil && e.IP == nil:
		field, where = field+".fqdn", e.FQDN.Hostname
	default:
		d.refuse(field, "exactly one of ip and fqdn is wanted")
		return
	}
	t := v1alpha1.Target{Zone: e.Zone}
	switch port := e.port(); {
	case !isPort(port):
		d.refuse(field+".port", "it must be 1 to 65535")
		return
	case len(d.spec.Ports) > 0 && port != d.spec.Ports[0].Port:
		t.Ports = []v1alpha1.TargetPort{{TargetPort: port}}
	}
	d.addTarget(field, "", where, t)
}
