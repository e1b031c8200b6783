package endpointslice

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// ComparePorts orders ports by name, then protocol, then number.
func ComparePorts(a, b Port) int {
	if c := strings.Compare(a.Name, b.Name); c != 0 {
		return c
	}
	if c := strings.Compare(string(a.Protocol), string(b.Protocol)); c != 0 {
		return c
	}
	return int(a.Port) - int(b.Port)
}

// SamePort reports whether an EndpointSlice says the same of both ports.
func SamePort(a, b Port) bool {
	return ComparePorts(a, b) == 0 && appProtocolOf(a) == appProtocolOf(b)
}

func appProtocolOf(p Port) string { return valueOr(p.AppProtocol, "") }

// portsOf appends the ports of a slice to ports, sorted and with the API's defaults.
func portsOf(s *discoveryv1.EndpointSlice, ports []Port) []Port {
	for _, sp := range s.Ports {
		p := Port{
			Name:     valueOr(sp.Name, ""),
			Port:     valueOr(sp.Port, -1), // -1: all ports, which we never write
			Protocol: valueOr(sp.Protocol, corev1.ProtocolTCP),
		}
		if valueOr(sp.AppProtocol, "") != "" {
			p.AppProtocol = sp.AppProtocol
		}
		ports = append(ports, p)
	}
	slices.SortFunc(ports, ComparePorts)
	return ports
}

// sortedPorts returns ports in order, with the API's default protocol. It returns ports itself if
// that is how they are.
func sortedPorts(ports []Port) []Port {
	noProtocol := func(p Port) bool { return p.Protocol == "" }
	if slices.IsSortedFunc(ports, ComparePorts) && !slices.ContainsFunc(ports, noProtocol) {
		return ports
	}

	ports = slices.Clone(ports)
	for i := range ports {
		if ports[i].Protocol == "" {
			ports[i].Protocol = corev1.ProtocolTCP
		}
	}
	slices.SortFunc(ports, ComparePorts)
	return ports
}

// SameList reports whether two lists are the same piece of memory.
func SameList[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// endpointPorts returns ports as an EndpointSlice has them.
func endpointPorts(ports []Port) []discoveryv1.EndpointPort {
	list := make([]discoveryv1.EndpointPort, len(ports))
	for i, p := range ports {
		list[i] = discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol}
		if app := appProtocolOf(p); app != "" {
			list[i].AppProtocol = &app
		}
	}
	return list
}
