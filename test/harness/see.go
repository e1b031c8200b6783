package harness

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
)

// The states that an endpoint's conditions spell, as [Endpoint.State] tells them.
const (
	Healthy         = "ready,serving"
	Unhealthy       = "-"
	Standby         = "-"                   // in a standby tier, healthy or not
	Draining        = "serving,terminating" // healthy, in the active tier
	DrainingStandby = "terminating"         // in a standby tier, or unhealthy
	FailOpen        = "ready,serving"       // unhealthy, and ready all the same
	NotReadyToo     = "ready"               // published as ready because of publishNotReadyAddresses alone
)

// Endpoint is an endpoint of ours as a slice publishes it.
type Endpoint struct {
	At       netip.AddrPort // with the first of the slice's ports
	Slice    string
	Hostname string
	State    string // those of ready, serving, terminating that are true; "-" for none, and a ? for one that is not set
}

// Slices are the EndpointSlices behind a Service, whoever wrote them, by name.
func (h *Test) Slices(service string) []discoveryv1.EndpointSlice {
	h.T.Helper()
	var list discoveryv1.EndpointSliceList
	h.ok(
		h.Client.List(h.T.Context(), &list, client.InNamespace(h.Namespace),
			client.MatchingLabels{discoveryv1.LabelServiceName: service}),
	)
	slices.SortFunc(list.Items, func(a, b discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	return list.Items
}

// Endpoints are the endpoints in the operator's slices behind a Service, sorted.
func (h *Test) Endpoints(service string) []Endpoint {
	h.T.Helper()
	var endpoints []Endpoint
	for _, slice := range h.Slices(service) {
		if slice.Labels[discoveryv1.LabelManagedBy] != v1alpha1.ManagedBy ||
			slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for _, e := range slice.Endpoints {
			addr, err := netip.ParseAddr(e.Addresses[0])
			h.ok(err)
			one := Endpoint{Slice: slice.Name, State: state(e.Conditions)}
			if len(slice.Ports) > 0 {
				one.At = netip.AddrPortFrom(addr, uint16(*slice.Ports[0].Port))
			}
			if e.Hostname != nil {
				one.Hostname = *e.Hostname
			}
			endpoints = append(endpoints, one)
		}
	}
	slices.SortFunc(endpoints, func(a, b Endpoint) int { return a.At.Compare(b.At) })
	return endpoints
}

func state(c discoveryv1.EndpointConditions) string {
	var words []string
	for _, condition := range []struct {
		name string
		is   *bool
	}{{"ready", c.Ready}, {"serving", c.Serving}, {"terminating", c.Terminating}} {
		switch {
		case condition.is == nil:
			words = append(words, condition.name+"?")
		case *condition.is:
			words = append(words, condition.name)
		}
	}
	return cmp.Or(strings.Join(words, ","), "-")
}

// States are endpoints and their states, such as [Healthy].
type States map[netip.AddrPort]string

// States are the states of the operator's endpoints behind a Service. One that moves stands in two
// slices for a moment, as "Healthy and Healthy" does.
func (h *Test) States(service string) States {
	h.T.Helper()
	states := States{}
	for _, e := range h.Endpoints(service) {
		if is, twice := states[e.At]; twice {
			e.State = is + " and " + e.State
		}
		states[e.At] = e.State
	}
	return states
}

// WaitStates waits until the operator's endpoints behind a Service are exactly these.
func (h *Test) WaitStates(service string, want States) {
	h.T.Helper()
	h.Eventually("the endpoints of "+service, func() error {
		if diff := gocmp.Diff(want, h.States(service), gocmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			return errors.New("-want +got:\n" + diff)
		}
		return nil
	})
}

// WaitRoutes waits until kube-proxy sends what comes for a Service to exactly these.
func (h *Test) WaitRoutes(service string, want ...netip.AddrPort) {
	h.T.Helper()
	slices.SortFunc(want, netip.AddrPort.Compare)
	h.Eventually("kube-proxy's rules for "+service, func() error {
		routes, err := h.Routes(h.T.Context(), h.Namespace, service)
		if err == nil && !slices.Equal(routes, want) {
			err = fmt.Errorf("it routes to %v, not %v", routes, want)
		}
		return err
	})
}

// Backend is an ExternalBackend as the API server has it.
func (h *Test) Backend(name string) *v1alpha1.ExternalBackend {
	h.T.Helper()
	b := &v1alpha1.ExternalBackend{}
	h.ok(h.Client.Get(h.T.Context(), h.Key(name), b))
	return b
}

// Service is a Service as the API server has it.
func (h *Test) Service(name string) *corev1.Service {
	h.T.Helper()
	s := &corev1.Service{}
	h.ok(h.Client.Get(h.T.Context(), h.Key(name), s))
	return s
}

// WaitCondition waits until a condition of the ExternalBackend's current generation is as given; an
// empty reason stands for any.
func (h *Test) WaitCondition(name, condition string, status metav1.ConditionStatus,
	reason string) *v1alpha1.ExternalBackend {
	h.T.Helper()
	var b *v1alpha1.ExternalBackend
	h.Eventually(fmt.Sprintf("condition %s=%s %s of %s", condition, status, reason, name), func() error {
		b = h.Backend(name)
		is := meta.FindStatusCondition(b.Status.Conditions, condition)
		if is == nil || is.Status != status || reason != "" && is.Reason != reason || is.ObservedGeneration != b.Generation {
			return fmt.Errorf("generation %d has conditions %s", b.Generation, conditions(b.Status.Conditions))
		}
		return nil
	})
	return b
}

func conditions(all []metav1.Condition) string {
	var text strings.Builder
	for _, c := range all {
		fmt.Fprintf(&text, "\n  %s=%s %s (of generation %d): %s", c.Type, c.Status, c.Reason, c.ObservedGeneration, c.Message)
	}
	return text.String()
}

// WaitReady waits until the ExternalBackend is Ready.
func (h *Test) WaitReady(name string) *v1alpha1.ExternalBackend {
	h.T.Helper()
	return h.WaitCondition(name, v1alpha1.ConditionReady, metav1.ConditionTrue, "")
}

// Events are the reasons and notes of the events about an ExternalBackend, such as
// "EndpointUnhealthy: ...".
func (h *Test) Events(name string) []string {
	h.T.Helper()
	var list eventsv1.EventList
	h.ok(h.Client.List(h.T.Context(), &list, client.InNamespace(h.Namespace)))
	var texts []string
	for _, e := range list.Items {
		if e.Regarding.Kind == "ExternalBackend" && e.Regarding.Name == name {
			texts = append(texts, e.Reason+": "+e.Note)
		}
	}
	return texts
}

// WaitEvent waits for an event with the reason.
func (h *Test) WaitEvent(name, reason string) {
	h.T.Helper()
	h.Eventually(fmt.Sprintf("event %s of %s", reason, name), func() error {
		events := h.Events(name)
		if !slices.ContainsFunc(events, func(e string) bool { return strings.HasPrefix(e, reason+": ") }) {
			return fmt.Errorf("there are %q", events)
		}
		return nil
	})
}
