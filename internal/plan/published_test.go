package plan

import (
	"fmt"
	"maps"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/external-backend/operator/internal/endpointslice"
)

// annotationEndpoints says of the endpoints of a slice what an EndpointSlice has no fields for.
const annotationEndpoints = "external-backend.io/endpoints"

// cluster is the slices that are stored, by name.
type cluster map[string]*discoveryv1.EndpointSlice

func (c cluster) list() []*discoveryv1.EndpointSlice { return slices.Collect(maps.Values(c)) }

// standing publishes endpoints and reads them back.
func standing(endpoints ...Endpoint) *endpointslice.PublishedEndpoints {
	return endpointslice.Published(inSlices(endpoints...))
}

func inSlices(endpoints ...Endpoint) []*discoveryv1.EndpointSlice {
	template := endpointslice.Template{Namespace: "default", Service: "shop", Backend: "shop", Max: 100}
	_, changes := endpointslice.Plan(template, endpoints, nil, nil)
	return changes.Create
}

// verbs tells a plan in short: how many slices are created, updated and deleted.
func verbs(c endpointslice.Changes) string {
	return fmt.Sprintf("+%d ~%d -%d", len(c.Create), len(c.Update), len(c.Delete))
}
