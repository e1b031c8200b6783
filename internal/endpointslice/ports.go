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

// portsOf returns the ports of a slice, sorted and with the API's defaults.
func portsOf(s *discoveryv1.EndpointSlice) []Port {
	ports := make([]Port, len(s.Ports))
	for i, sp := range s.Ports {
		ports[i] = Port{
			Name:        valueOr(sp.Name, ""),
			Port:        valueOr(sp.Port, -1), // -1: all ports, which we never write
			Protocol:    valueOr(sp.Protocol, corev1.ProtocolTCP),
			AppProtocol: valueOr(sp.AppProtocol, ""),
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
		list[i] = discoveryv1.EndpointPort{
			Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol, AppProtocol: optional(p.AppProtocol),
		}
	}
	return list
}
