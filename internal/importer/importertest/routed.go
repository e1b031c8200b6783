package importertest

import (
	"fmt"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// Routed describes the endpoints that kube-proxy may send requests to, as it reads them: from all
// slices together, each port on its own, and absent conditions by their defaults. It is sorted.
func Routed(list []discoveryv1.EndpointSlice) []string {
	var out []string
	for i := range list {
		s := &list[i]
		for j := range s.Endpoints {
			e := &s.Endpoints[j]
			c := &e.Conditions
			ready := is(c.Ready, true)
			serving, terminating := is(c.Serving, ready), is(c.Terminating, false)
			if !ready && !serving {
				continue
			}
			for k := range s.Ports {
				p := &s.Ports[k]
				zone := ""
				if e.Zone != nil {
					zone = *e.Zone
				}
				state := fmt.Sprintf("%t %t %t", ready, serving, terminating)
				out = append(out, describe(*p.Name, int(*p.Port), e.Addresses[0], zone, state))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func is(condition *bool, absent bool) bool {
	if condition == nil {
		return absent
	}
	return *condition
}

// describe writes down one port of an endpoint.
func describe(port string, number int, ip, zone, state string) string {
	return fmt.Sprintf("%s %s %d %q %s", port, ip, number, zone, state)
}
