package importer

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/external-backend/operator/api/v1alpha1"
)

// clusterEndpoint is what we read of labring's ClusterEndpoint, of sealos.io or sealyun.com.
type clusterEndpoint struct {
	header
	Spec struct {
		ClusterIP      string                `json:"clusterIP"`
		Hosts          []string              `json:"hosts"`
		Ports          []clusterEndpointPort `json:"ports"`
		PeriodSeconds  int32                 `json:"periodSeconds"`
		TimeoutSeconds int32                 `json:"timeoutSeconds"`
	} `json:"spec"`
}

type clusterEndpointPort struct {
	Name             string          `json:"name"`
	Protocol         corev1.Protocol `json:"protocol"`
	Port             int32           `json:"port"`
	TargetPort       int32           `json:"targetPort"`
	Hosts            []string        `json:"hosts"` // newer ones have them here, in place of the spec
	TimeoutSeconds   int32           `json:"timeoutSeconds"`
	SuccessThreshold int32           `json:"successThreshold"`
	FailureThreshold int32           `json:"failureThreshold"`

	HTTPGet   *clusterEndpointHTTP `json:"httpGet"`
	TCPSocket *enabled             `json:"tcpSocket"`
	GRPC      *enabled             `json:"grpc"`
	UDPSocket *udpSocket           `json:"udpSocket"`
}

type clusterEndpointHTTP struct {
	Path        string                `json:"path"`
	Scheme      string                `json:"scheme"`
	HTTPHeaders []v1alpha1.HTTPHeader `json:"httpHeaders"`
}

type enabled struct {
	Enable  bool   `json:"enable"`
	Service string `json:"service"` // of gRPC
}

type udpSocket struct {
	Enable bool `json:"enable"`
	Data   any  `json:"data"`
}

func readClusterEndpoint(d *draft, u *unstructured.Unstructured) {
	var in clusterEndpoint
	if !d.read(u, &in) {
		return
	}
	s := &in.Spec
	switch s.ClusterIP {
	case "":
	case corev1.ClusterIPNone:
		d.service().Type = v1alpha1.ServiceTypeHeadless
	default:
		d.refuse("spec.clusterIP", "a new Service gets its ClusterIP from the cluster")
	}

	for i := range s.Ports {
		p, field := &s.Ports[i], fmt.Sprintf("spec.ports[%d]", i)
		added := d.addPort(field, v1alpha1.Port{
			Name: p.Name, Port: p.Port, TargetPort: p.TargetPort, Protocol: p.Protocol,
		})
		if added {
			d.addCheck(field, p, len(s.Ports) > 1)
		}
	}
	if h := d.spec.HealthCheck; h != nil {
		h.PeriodSeconds = d.seconds("spec.periodSeconds", s.PeriodSeconds)
		if h.TimeoutSeconds == 0 {
			h.TimeoutSeconds = d.seconds("spec.timeoutSeconds", s.TimeoutSeconds)
		}
	}
	in.addHosts(d)
	d.moveClients()
}

// addHosts adds the hosts of the first port. Each target of an ExternalBackend has all ports, so
// another port must have the same hosts.
func (in *clusterEndpoint) addHosts(d *draft) {
	field, hosts := "spec.hosts", in.Spec.Hosts
	for i := range in.Spec.Ports {
		own := in.Spec.Ports[i].Hosts
		if len(own) == 0 {
			own = in.Spec.Hosts
		}
		switch {
		case i == 0 && len(in.Spec.Ports[0].Hosts) > 0:
			field, hosts = "spec.ports[0].hosts", own
		case !sets.New(own...).Equal(sets.New(hosts...)):
			d.refuse(fmt.Sprintf("spec.ports[%d].hosts", i), "each target has all ports, and another port has other hosts")
		}
	}
	for i, host := range hosts {
		if !slices.Contains(hosts[:i], host) {
			d.addTarget(fmt.Sprintf("%s[%d]", field, i), "", host, v1alpha1.Target{})
		}
	}
}

// addCheck makes the check of a port that of the ExternalBackend, which has one.
func (d *draft) addCheck(field string, p *clusterEndpointPort, several bool) {
	h := &v1alpha1.HealthCheck{Mode: v1alpha1.HealthCheckModeObserve}
	port := &intstr.IntOrString{Type: intstr.String, StrVal: p.Name}
	if !several {
		port = nil
	}
	switch {
	case p.UDPSocket != nil && p.UDPSocket.Enable:
		d.refuse(field+".udpSocket", "checks speak TCP")
		return
	case p.HTTPGet != nil:
		d.addHTTPCheck(field+".httpGet", h, p.HTTPGet, port)
	case p.TCPSocket != nil && p.TCPSocket.Enable:
		h.TCPSocket = &v1alpha1.TCPSocket{Port: port}
	case p.GRPC != nil && p.GRPC.Enable:
		h.GRPC = &v1alpha1.GRPC{Port: port, Service: p.GRPC.Service}
	default:
		return
	}
	if d.spec.HealthCheck != nil {
		d.refuse(field, "an ExternalBackend has one check, and that of an earlier port is taken")
		return
	}
	h.TimeoutSeconds = d.seconds(field+".timeoutSeconds", p.TimeoutSeconds)
	h.SuccessThreshold = d.threshold(field+".successThreshold", p.SuccessThreshold)
	h.FailureThreshold = d.threshold(field+".failureThreshold", p.FailureThreshold)
	d.spec.HealthCheck = h
}

func (d *draft) addHTTPCheck(field string, h *v1alpha1.HealthCheck, in *clusterEndpointHTTP, port *intstr.IntOrString) {
	get := &v1alpha1.HTTPGet{Port: port}
	switch scheme := strings.ToUpper(in.Scheme); scheme {
	case "", "HTTP":
	case "HTTPS":
		get.Scheme = corev1.URISchemeHTTPS
		h.TLS = &v1alpha1.TLS{Verification: v1alpha1.TLSVerificationNone}
	default:
		d.refuse(field+".scheme", "%q must be HTTP or HTTPS", clip(in.Scheme))
	}
	get.Path = d.path(field+".path", in.Path)
	for i, header := range in.HTTPHeaders {
		d.addHeader(fmt.Sprintf("%s.httpHeaders[%d]", field, i), get, header)
	}
	h.HTTPGet = get
}
