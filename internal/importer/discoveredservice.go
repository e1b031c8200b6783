package importer

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/external-backend/operator/api/v1alpha1"
)

// discoveredService is what we read of a DiscoveredService of discovery.k8sready.com, which belongs
// to pierinho13's external-service-discovery-operator.
type discoveredService struct {
	header
	Spec struct {
		Discovery struct {
			Static *struct {
				Addresses []string `json:"addresses"`
			} `json:"static"`
			DNS *struct {
				Names []string `json:"names"`
			} `json:"dns"`
		} `json:"discovery"`
		Ports []struct {
			Name       string          `json:"name"`
			Port       int32           `json:"port"`
			TargetPort int32           `json:"targetPort"`
			Protocol   corev1.Protocol `json:"protocol"`
		} `json:"ports"`
		HealthCheck *discoveredCheck `json:"healthCheck"`
	} `json:"spec"`
}

type discoveredCheck struct {
	Type             string  `json:"type"`
	Port             int32   `json:"port"`
	Path             string  `json:"path"`
	Host             string  `json:"host"`
	ExpectedStatuses []int32 `json:"expectedStatuses"`
	Interval         string  `json:"interval"`
	Timeout          string  `json:"timeout"`
	SuccessThreshold int32   `json:"successThreshold"`
	FailureThreshold int32   `json:"failureThreshold"`
}

func readDiscoveredService(d *draft, u *unstructured.Unstructured) {
	var in discoveredService
	if !d.read(u, &in) {
		return
	}
	s := &in.Spec
	// It publishes nothing but IPv4, whatever a name resolves to.
	d.service().IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	d.service().IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
	for i, p := range s.Ports {
		d.addPort(fmt.Sprintf("spec.ports[%d]", i), v1alpha1.Port{
			Name: p.Name, Port: p.Port, TargetPort: p.TargetPort, Protocol: p.Protocol,
		})
	}
	if static := s.Discovery.Static; static != nil {
		for i, address := range static.Addresses {
			field := fmt.Sprintf("spec.discovery.static.addresses[%d]", i)
			if addr, err := netip.ParseAddr(address); err != nil || !addr.Is4() {
				d.refuse(field, "%q must be an IPv4 address", clip(address))
				continue
			}
			d.addTarget(field, "", address, v1alpha1.Target{})
		}
	}
	if dns := s.Discovery.DNS; dns != nil {
		for i, name := range dns.Names {
			d.addTarget(fmt.Sprintf("spec.discovery.dns.names[%d]", i), "", name, v1alpha1.Target{})
		}
		d.note("The manager resolves names by TTL, with the nameservers of its own resolv.conf.")
	}
	if s.HealthCheck == nil {
		d.observe()
	} else {
		d.addDiscoveredCheck("spec.healthCheck", s.HealthCheck)
	}
	d.moveClients()
}

func (d *draft) addDiscoveredCheck(field string, in *discoveredCheck) {
	h := &v1alpha1.HealthCheck{
		Mode:             v1alpha1.HealthCheckModeObserve,
		PeriodSeconds:    d.duration(field+".interval", in.Interval),
		TimeoutSeconds:   d.duration(field+".timeout", in.Timeout),
		SuccessThreshold: d.threshold(field+".successThreshold", in.SuccessThreshold),
		FailureThreshold: d.threshold(field+".failureThreshold", in.FailureThreshold),
	}
	if !isPort(in.Port) {
		d.refuse(field+".port", "%d must be 1 to 65535", in.Port)
		return
	}
	port := new(intstr.FromInt32(in.Port))
	switch in.Type {
	case "TCP":
		h.TCPSocket = &v1alpha1.TCPSocket{Port: port}
	case "HTTP", "HTTPS":
		h.HTTPGet = &v1alpha1.HTTPGet{Port: port, Path: d.path(field+".path", in.Path)}
		if in.Type == "HTTPS" {
			h.HTTPGet.Scheme = corev1.URISchemeHTTPS
		}
		if in.Host != "" {
			d.addHeader(field+".host", h.HTTPGet, v1alpha1.HTTPHeader{Name: "Host", Value: in.Host})
		}
		for i, status := range in.ExpectedStatuses {
			at := fmt.Sprintf("%s.expectedStatuses[%d]", field, i)
			switch {
			case status < 100 || status > 599:
				d.refuse(at, "%d must be 100 to 599", status)
			case len(h.HTTPGet.ExpectedStatuses) == maxHeaders:
				d.refuse(at, "a check expects at most %d statuses", maxHeaders)
			default:
				h.HTTPGet.ExpectedStatuses = append(h.HTTPGet.ExpectedStatuses, strconv.Itoa(int(status)))
			}
		}
	default:
		d.refuse(field+".type", "%q must be HTTP, HTTPS or TCP", clip(in.Type))
		return
	}
	d.spec.HealthCheck = h
}

// duration returns whole seconds; 0 is absent.
func (d *draft) duration(field, text string) int32 {
	if text == "" {
		return 0
	}
	t, err := time.ParseDuration(text)
	if err != nil || t < time.Second || t > maxSeconds*time.Second || t%time.Second != 0 {
		d.refuse(field, "%q must be whole seconds, from 1s to 1h", clip(text))
		return 0
	}
	return int32(t / time.Second)
}
