package endpointslice

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var httpPorts = []Port{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}

// pool returns n healthy endpoints of one target, from the given number on.
func pool(target, zone string, first, n int) []Endpoint {
	list := make([]Endpoint, 0, n)
	for i := first; i < first+n; i++ {
		list = append(list, Endpoint{
			Target:     target,
			Addr:       netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}),
			Ports:      httpPorts,
			Zone:       zone,
			Conditions: Conditions{Ready: true, Serving: true, Healthy: true},
		})
	}
	return list
}

// at returns one healthy endpoint.
func at(target, addr string) Endpoint {
	return Endpoint{
		Target: target, Addr: netip.MustParseAddr(addr), Ports: httpPorts,
		Conditions: Conditions{Ready: true, Serving: true, Healthy: true},
	}
}

// inSlices returns the slices that publish endpoints.
func inSlices(endpoints ...Endpoint) []*discoveryv1.EndpointSlice {
	return changesOf(testTemplate(100), endpoints, nil).Create
}

// testTemplate is for slices of at most limit endpoints.
func testTemplate(limit int) Template {
	owner := metav1.OwnerReference{
		APIVersion:         "v1",
		Kind:               "Service",
		Name:               "orders",
		UID:                "u-1",
		Controller:         new(true),
		BlockOwnerDeletion: new(true),
	}
	return Template{Namespace: "shop", Service: "orders", Backend: "orders-db", Owner: &owner, Max: limit}
}

// everyNth returns the first endpoint of every n.
func everyNth(list []Endpoint, n int) (some []Endpoint) {
	for i := 0; i < len(list); i += n {
		some = append(some, list[i])
	}
	return some
}

// cluster is the slices that the API server holds, by name.
type cluster map[string]*discoveryv1.EndpointSlice

func (c cluster) list() []*discoveryv1.EndpointSlice { return slices.Collect(maps.Values(c)) }

// write is one write of a plan.
type write struct {
	verb  string
	slice *discoveryv1.EndpointSlice
}

// writesOf returns the writes of a plan in their order.
func writesOf(c Changes) (list []write) {
	for _, s := range c.Create {
		list = append(list, write{"create", s})
	}
	for _, s := range c.Update {
		list = append(list, write{"update", s})
	}
	for _, s := range c.Delete {
		list = append(list, write{"delete", s})
	}
	return list
}

// apply applies one write.
func (c cluster) apply(t *testing.T, w write) {
	_, exists := c[w.slice.Name]
	if exists != (w.verb != "create") {
		t.Errorf("%s of %s, which exists: %v", w.verb, w.slice.Name, exists)
	}
	if w.verb == "delete" {
		delete(c, w.slice.Name)
		return
	}
	c[w.slice.Name] = w.slice
}

// changesOf is Plan without the layout.
func changesOf(t Template, desired []Endpoint, existing []*discoveryv1.EndpointSlice) Changes {
	_, changes := Plan(t, desired, nil, existing)
	return changes
}

// plan plans, applies the changes to the cluster and returns them.
func (c cluster) plan(t *testing.T, template Template, desired []Endpoint) Changes {
	t.Helper()
	changes := changesOf(template, desired, c.list())
	for _, w := range writesOf(changes) {
		c.apply(t, w)
	}
	return changes
}

// verbs says in short how many slices are created, updated and deleted.
func verbs(c Changes) string {
	return fmt.Sprintf("+%d ~%d -%d", len(c.Create), len(c.Update), len(c.Delete))
}

// sizes returns the sizes of the slices, ordered by name.
func sizes(c cluster) []int {
	var list []int
	for _, name := range slices.Sorted(maps.Keys(c)) {
		list = append(list, len(c[name].Endpoints))
	}
	return list
}

// phasesOf returns the names of the slices that a plan updates, each with its phase, in their
// order.
func phasesOf(t Template, desired []Endpoint, existing []*discoveryv1.EndpointSlice) (list []string) {
	p := newPlanner(t, newMetadata(&t), wantedEndpoints{desired: desired}, existing)
	p.plan()
	p.changes()
	for _, u := range p.update {
		list = append(list, u.slice.Name+": "+writePhases[u.phase].name)
	}
	return list
}
