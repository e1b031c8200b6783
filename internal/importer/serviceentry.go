package importer

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/external-backend/operator/api/v1alpha1"
)

// serviceEntry is what we read of Istio's networking.istio.io ServiceEntry.
type serviceEntry struct {
	header
	Spec struct {
		Hosts            []string               `json:"hosts"`
		Addresses        []string               `json:"addresses"`
		Ports            []serviceEntryPort     `json:"ports"`
		Location         string                 `json:"location"`
		Resolution       string                 `json:"resolution"`
		Endpoints        []serviceEntryEndpoint `json:"endpoints"`
		WorkloadSelector map[string]any         `json:"workloadSelector"`
		ExportTo         []string               `json:"exportTo"`
		SubjectAltNames  []string               `json:"subjectAltNames"`
	} `json:"spec"`
}

type serviceEntryPort struct {
	Number     int32  `json:"number"`
	Protocol   string `json:"protocol"`
	Name       string `json:"name"`
	TargetPort int32  `json:"targetPort"`
}

type serviceEntryEndpoint struct {
	Address        string            `json:"address"`
	Ports          map[string]int32  `json:"ports"`
	Labels         map[string]string `json:"labels"`
	Network        string            `json:"network"`
	Locality       string            `json:"locality"`
	Weight         int64             `json:"weight"`
	ServiceAccount string            `json:"serviceAccount"`
}

// header is what every object has, and what is not looked at.
type header struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
}

func readServiceEntry(d *draft, u *unstructured.Unstructured) {
	var in serviceEntry
	if !d.read(u, &in) {
		return
	}
	s := &in.Spec
	d.refuseIf(len(s.Addresses) > 0, "spec.addresses", "a Service gets its ClusterIP from the cluster")
	d.refuseIf(s.Location == "MESH_INTERNAL", "spec.location", "clients send no mutual TLS of the mesh to an ExternalBackend")
	d.refuseIf(s.WorkloadSelector != nil, "spec.workloadSelector", "name the targets")
	d.refuseIf(len(s.ExportTo) > 0 && !slices.Equal(s.ExportTo, []string{"*"}), "spec.exportTo",
		"a Service is seen by all namespaces; a NetworkPolicy or an AuthorizationPolicy limits its clients")
	d.refuseIf(len(s.SubjectAltNames) > 0, "spec.subjectAltNames",
		"only clients of the mesh verify them; keep them in a DestinationRule for the Service's host")

	for i := range s.Ports {
		d.addServiceEntryPort(fmt.Sprintf("spec.ports[%d]", i), &s.Ports[i])
	}
	for i, host := range s.Hosts {
		d.refuseIf(strings.Contains(host, "*"), fmt.Sprintf("spec.hosts[%d]", i), "a wildcard has no addresses")
	}
	if len(s.Hosts) > 0 {
		d.note("Clients use the Service's name. Keep a ServiceEntry for %s that leads to it (docs/migration.md) "+
			"while clients use that host.", clip(s.Hosts[0]))
	}
	d.addServiceEntryTargets(s.Hosts, s.Resolution, s.Endpoints)
	d.observe()
	d.checkTLS(&in)
	d.moveClients()
	d.Backend.Name = u.GetName() // a ServiceEntry has no Service
}

func (d *draft) addServiceEntryPort(field string, p *serviceEntryPort) {
	port := v1alpha1.Port{Name: p.Name, Port: p.Number, TargetPort: p.TargetPort}
	switch protocol := strings.ToLower(p.Protocol); protocol {
	case "udp":
		port.Protocol = corev1.ProtocolUDP
	case "", "tcp":
	case "http", "https", "http2", "grpc", "grpc-web", "mongo", "mysql", "redis", "tls":
		if p.Name != protocol && !strings.HasPrefix(p.Name, protocol+"-") {
			port.AppProtocol = &protocol
		}
	default:
		d.refuse(field+".protocol", "%q is no protocol of Istio", clip(p.Protocol))
	}
	d.addPort(field, port)
}

// addServiceEntryTargets adds the endpoints, or else the hosts.
func (d *draft) addServiceEntryTargets(hosts []string, resolution string, endpoints []serviceEntryEndpoint) {
	switch resolution {
	case "STATIC", "DNS":
	case "", "NONE":
		d.refuse("spec.resolution", "the client's destination address can't be kept; use STATIC or DNS")
		return
	default:
		d.refuse("spec.resolution", "%s can't be expressed; use STATIC or DNS", clip(resolution))
	}
	for i := range endpoints {
		d.addServiceEntryEndpoint(fmt.Sprintf("spec.endpoints[%d]", i), resolution, &endpoints[i])
	}
	if len(endpoints) > 0 || resolution == "STATIC" {
		return
	}
	if len(hosts) > 1 {
		d.refuse("spec.hosts", "each host has its own addresses; write an ExternalBackend for each")
	}
	if len(hosts) > 0 && !strings.Contains(hosts[0], "*") {
		d.addTarget("spec.hosts[0]", "", hosts[0], v1alpha1.Target{})
	}
}

func (d *draft) addServiceEntryEndpoint(field, resolution string, e *serviceEntryEndpoint) {
	d.refuseIf(len(e.Labels) > 0, field+".labels", "targets have no labels, and there are no subsets")
	d.refuseIf(e.Network != "", field+".network", "targets are reached directly")
	d.refuseIf(e.Weight != 0, field+".weight", "endpoints of a Service have no weights")
	d.refuseIf(e.ServiceAccount != "", field+".serviceAccount", "targets have no identity in the mesh")
	t := v1alpha1.Target{}
	locality := strings.Split(e.Locality, "/")
	if len(locality) > 1 {
		t.Zone = locality[1]
	}
	d.refuseIf(len(locality) > 2, field+".locality", "a target has a zone, and no subzone")

	for _, name := range slices.Sorted(maps.Keys(e.Ports)) {
		at := slices.IndexFunc(d.spec.Ports, func(p v1alpha1.Port) bool { return p.Name == name })
		if at < 0 || !isPort(e.Ports[name]) {
			d.refuse(field+".ports", "%q must be a port of spec.ports, and its number 1 to 65535", clip(name))
			continue
		}
		if p := &d.spec.Ports[at]; e.Ports[name] != cmp.Or(p.TargetPort, p.Port) {
			t.Ports = append(t.Ports, v1alpha1.TargetPort{Name: name, TargetPort: e.Ports[name]})
		}
	}
	if _, err := netip.ParseAddr(e.Address); err != nil && resolution == "STATIC" {
		d.refuse(field+".address", "%q must be an IP address where resolution is STATIC", clip(e.Address))
		return
	}
	d.addTarget(field+".address", "", e.Address, t)
}

// checkTLS lets the check speak TLS where clients do.
func (d *draft) checkTLS(in *serviceEntry) {
	if d.spec.HealthCheck == nil || len(in.Spec.Hosts) == 0 || strings.Contains(in.Spec.Hosts[0], "*") {
		return
	}
	isTCP := func(p serviceEntryPort) bool { return !strings.EqualFold(p.Protocol, "udp") }
	first := slices.IndexFunc(in.Spec.Ports, isTCP)
	if first < 0 || !isHostname(in.Spec.Hosts[0]) {
		return
	}
	switch strings.ToLower(in.Spec.Ports[first].Protocol) {
	case "https", "tls":
		d.spec.HealthCheck.TCPSocket.Transport = v1alpha1.TransportTLS
		d.spec.HealthCheck.TLS = &v1alpha1.TLS{ServerName: in.Spec.Hosts[0]}
	}
}
