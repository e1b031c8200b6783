package harness

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
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

// The states of an endpoint, as [Endpoint.State] spells them: the conditions that are true.
const (
	Healthy         = "ready,serving"
	Unhealthy       = "-"
	Standby         = "-"                   // in a standby tier, healthy or not
	Draining        = "serving,terminating" // healthy, in the active tier
	DrainingStandby = "terminating"         // in a standby tier, or unhealthy
	FailOpen        = "ready,serving"       // unhealthy, but ready
	NotReadyToo     = "ready"               // ready only because of publishNotReadyAddresses
)

// Endpoint is an endpoint of the operator as a slice publishes it.
type Endpoint struct {
	At       netip.AddrPort // the port is the first one of the slice
	Slice    string
	Hostname string
	// State lists the conditions that are true, in the order ready, serving, terminating. A condition
	// that is not set has a ? behind it. "-" stands for none.
	State string
}

// Slices returns the EndpointSlices behind a Service, sorted by name, whoever wrote them.
func (h *Test) Slices(service string) []discoveryv1.EndpointSlice {
	h.T.Helper()
	var list discoveryv1.EndpointSliceList
	h.ok(h.Client.List(h.T.Context(), &list, client.InNamespace(h.Namespace),
		client.MatchingLabels{discoveryv1.LabelServiceName: service}))
	slices.SortFunc(list.Items, func(a, b discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	return list.Items
}

// Endpoints returns the endpoints in the operator's slices behind a Service, sorted.
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

// States maps endpoints to their states, such as [Healthy].
type States map[netip.AddrPort]string

// All gives each of these endpoints the same state.
func All(state string, at ...netip.AddrPort) States {
	states := States{}
	for _, a := range at {
		states[a] = state
	}
	return states
}

// Union joins states. Where two name the same endpoint, the later one counts.
func Union(states ...States) States {
	sum := States{}
	for _, s := range states {
		maps.Copy(sum, s)
	}
	return sum
}

// States returns the states of the operator's endpoints behind a Service. While an endpoint moves,
// two slices may hold it; its state is then "x and y".
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

// WaitStates waits until the operator's endpoints behind a Service are exactly as wanted.
func (h *Test) WaitStates(service string, want States) {
	h.T.Helper()
	h.Eventually("the endpoints of "+service, func() error {
		return h.CompareStates(service, want)
	})
}

// CompareStates returns an error unless the operator's endpoints behind a Service are as wanted.
func (h *Test) CompareStates(service string, want States) error {
	h.T.Helper()
	same := gocmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
	if diff := gocmp.Diff(want, h.States(service), same); diff != "" {
		return errors.New("-want +got:\n" + diff)
	}
	return nil
}

// OnlyOurs returns an error unless there are slices behind the Service and all are the operator's.
func (h *Test) OnlyOurs(service string) error {
	h.T.Helper()
	all := h.Slices(service)
	for _, s := range all {
		if by := s.Labels[discoveryv1.LabelManagedBy]; by != v1alpha1.ManagedBy {
			return fmt.Errorf("slice %s is managed by %q", s.Name, by)
		}
	}
	if len(all) == 0 {
		return errors.New("there is no slice")
	}
	return nil
}

// WaitRoutes waits until kube-proxy sends the connections of a Service to exactly these endpoints.
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

// Backend reads an ExternalBackend from the API server.
func (h *Test) Backend(name string) *v1alpha1.ExternalBackend {
	h.T.Helper()
	b := &v1alpha1.ExternalBackend{}
	h.ok(h.Client.Get(h.T.Context(), h.Key(name), b))
	return b
}

// Service reads a Service from the API server.
func (h *Test) Service(name string) *corev1.Service {
	h.T.Helper()
	s := &corev1.Service{}
	h.ok(h.Client.Get(h.T.Context(), h.Key(name), s))
	return s
}

// WaitCondition waits until a condition of the ExternalBackend's current generation has this status
// and reason. An empty reason stands for any.
func (h *Test) WaitCondition(
	name, condition string, status metav1.ConditionStatus, reason string) *v1alpha1.ExternalBackend {
	h.T.Helper()
	var b *v1alpha1.ExternalBackend
	h.Eventually(fmt.Sprintf("condition %s=%s %s of %s", condition, status, reason, name), func() error {
		b = h.Backend(name)
		is := meta.FindStatusCondition(b.Status.Conditions, condition)
		if is == nil || is.Status != status || is.ObservedGeneration != b.Generation ||
			reason != "" && is.Reason != reason {
			return fmt.Errorf("generation %d has conditions %s", b.Generation, conditions(b.Status.Conditions))
		}
		return nil
	})
	return b
}

// WaitOverride waits until the condition Applied of an ExternalBackendOverride has the reason.
func (h *Test) WaitOverride(name, reason string) {
	h.T.Helper()
	h.Eventually(fmt.Sprintf("override %s to be %s", name, reason), func() error {
		o := &v1alpha1.ExternalBackendOverride{}
		if err := h.Client.Get(h.T.Context(), h.Key(name), o); err != nil {
			return err
		}
		if is := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionApplied); is == nil || is.Reason != reason {
			return fmt.Errorf("it has conditions %s", conditions(o.Status.Conditions))
		}
		return nil
	})
}

func conditions(all []metav1.Condition) string {
	var text strings.Builder
	for _, c := range all {
		fmt.Fprintf(&text, "\n  %s=%s %s (of generation %d): %s",
			c.Type, c.Status, c.Reason, c.ObservedGeneration, c.Message)
	}
	return text.String()
}

// WaitReady waits until the ExternalBackend is Ready.
func (h *Test) WaitReady(name string) *v1alpha1.ExternalBackend {
	h.T.Helper()
	return h.WaitCondition(name, v1alpha1.ConditionReady, metav1.ConditionTrue, "")
}

// Events returns the events about an ExternalBackend, each as "Reason: note".
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

// WaitEvent waits until there is an event with the reason.
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
