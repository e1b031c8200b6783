package view

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
)

// Build makes what is shown of an ExternalBackend.
func Build(o *Objects) Backend {
	b := o.Backend
	out := Backend{
		Namespace: b.Namespace, Name: b.Name, Created: b.CreationTimestamp.UTC(),
		Outdated:   b.Status.ObservedGeneration != b.Generation,
		Endpoints:  b.Status.Endpoints,
		Check:      describeCheck(b.Spec.HealthCheck),
		Override:   b.Status.Override,
		Conditions: b.Status.Conditions,
		Unread:     o.Unread,
	}
	out.State, out.Summary = StateOf(b)
	out.Service = buildService(o)
	out.Overrides = buildOverrides(o)

	e := readEndpoints(o)
	out.Targets = buildTargets(o, e)
	out.Unattributed = e.unattributed
	out.Tiers = buildTiers(o, e)
	out.Names = buildNames(o, out.Targets)
	out.Slices = buildSlices(o, e)
	out.Policy = buildPolicy(o)
	out.Events = buildEvents(o.Events)
	for i := range o.Siblings {
		out.Siblings = append(out.Siblings, o.Siblings[i].Name)
	}
	slices.Sort(out.Siblings)
	return out
}

// StateOf sums up the status of an ExternalBackend, and says why.
func StateOf(b *v1alpha1.ExternalBackend) (state State, summary string) {
	ready := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case ready == nil:
		return StateUnknown, "The operator has not written a status yet."
	case ready.Status == metav1.ConditionFalse:
		return StateDown, ready.Message
	case ready.Status == metav1.ConditionUnknown:
		return StateUnknown, ready.Message
	case b.Status.ObservedGeneration != b.Generation:
		return StateUnknown, "The operator has not acted on the latest spec yet."
	}

	for i := range b.Status.Conditions {
		if c := &b.Status.Conditions[i]; !AsItShouldBe(c) {
			if c.Status == metav1.ConditionUnknown {
				return StateUnknown, fmt.Sprintf("%s is Unknown. %s", c.Type, c.Message)
			}
			return StateDegraded, c.Message
		}
	}
	return StateHealthy, ready.Message
}

// AsItShouldBe reports whether a condition tells of nothing wrong.
func AsItShouldBe(c *metav1.Condition) bool {
	if c.Type == v1alpha1.ConditionStalled {
		return c.Status == metav1.ConditionFalse
	}
	return c.Status == metav1.ConditionTrue
}

// describeCheck says in a few words how endpoints are checked.
func describeCheck(h *v1alpha1.HealthCheck) string {
	if h == nil {
		return "none"
	}
	kind := "TCP"
	switch {
	case h.HTTPGet != nil:
		kind = fmt.Sprintf("%s GET %s", h.HTTPGet.EffectiveScheme(), h.HTTPGet.EffectivePath())
	case h.GRPC != nil:
		kind = "gRPC"
	}
	text := fmt.Sprintf("%s every %s", kind, h.EffectivePeriod())
	if h.EffectiveMode() == v1alpha1.HealthCheckModeObserve {
		text += ", only observed"
	}
	return text
}

func buildService(o *Objects) Service {
	b := o.Backend
	out := Service{
		Name: b.EffectiveServiceName(), Type: b.Status.ServiceType,
		Known: o.WhyUnread(PartService) == nil, Exists: o.Service != nil, Referenced: b.Spec.ServiceRef != nil,
	}
	if o.Service == nil {
		return out
	}
	out.ClusterIPs = o.Service.Spec.ClusterIPs
	for _, p := range o.Service.Spec.Ports {
		out.Ports = append(out.Ports, portText(p.Name, p.Port, p.Protocol))
	}
	return out
}

// portText writes a port as people read it, such as "http:80/TCP".
func portText(name string, port int32, protocol corev1.Protocol) string {
	text := fmt.Sprintf("%d/%s", port, cmp.Or(protocol, corev1.ProtocolTCP))
	if name != "" {
		text = name + ":" + text
	}
	return text
}

// buildOverrides lists the overrides: the applied one first, then the others as they were created.
func buildOverrides(o *Objects) []Override {
	var out []Override
	for i := range o.Overrides {
		override := &o.Overrides[i]
		applied := conditionOf(override.Status.Conditions, v1alpha1.ConditionApplied)
		out = append(out, Override{
			Name: override.Name, Effect: plan.DescribeOverride(&override.Spec),
			Until: metav1.NewTime(override.EndTime()), Created: override.CreationTimestamp,
			Applied: applied.Status, Reason: applied.Reason, Message: applied.Message,
		})
	}
	slices.SortFunc(out, func(a, b Override) int {
		return cmp.Or(
			-compareBool(a.Applied == metav1.ConditionTrue, b.Applied == metav1.ConditionTrue),
			a.Created.Compare(b.Created.Time), cmp.Compare(a.Name, b.Name),
		)
	})
	return out
}

// conditionOf returns a condition; one that is missing is Unknown.
func conditionOf(conditions []metav1.Condition, name string) metav1.Condition {
	if c := meta.FindStatusCondition(conditions, name); c != nil {
		return *c
	}
	return metav1.Condition{Type: name, Status: metav1.ConditionUnknown}
}

func buildPolicy(o *Objects) Policy {
	permitted := conditionOf(o.Backend.Status.Conditions, v1alpha1.ConditionPermitted)
	out := Policy{
		Permitted: permitted.Status, Reason: permitted.Reason, Message: permitted.Message,
		Known: o.WhyUnread(PartPolicies) == nil && o.Namespace != nil,
	}
	if !out.Known {
		return out
	}
	for i := range o.Policies {
		p := &o.Policies[i]
		selector, err := metav1.LabelSelectorAsSelector(&p.Spec.NamespaceSelector)
		if err != nil || !selector.Matches(labels.Set(o.Namespace.Labels)) {
			continue
		}
		out.Selecting = append(out.Selecting, PolicySummary{
			Name: p.Name, Mode: p.Spec.EffectiveMode(), Rules: len(p.Spec.Allow),
			Accepted: conditionOf(p.Status.Conditions, v1alpha1.ConditionAccepted).Status,
		})
	}
	slices.SortFunc(out.Selecting, func(a, b PolicySummary) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// buildEvents lists events, newest first.
func buildEvents(events []eventsv1.Event) []Event {
	out := make([]Event, 0, len(events))
	for i := range events {
		e := &events[i]
		shown := Event{Type: e.Type, Reason: e.Reason, Message: e.Note, Count: 1, Last: metav1.NewTime(e.EventTime.Time)}
		if e.Series != nil {
			shown.Count, shown.Last = e.Series.Count, metav1.NewTime(e.Series.LastObservedTime.Time)
		}
		if shown.Last.IsZero() { // an event of the older API
			shown.Count, shown.Last = max(e.DeprecatedCount, 1), e.DeprecatedLastTimestamp
		}
		out = append(out, shown)
	}
	slices.SortStableFunc(out, func(a, b Event) int {
		return cmp.Or(b.Last.Compare(a.Last.Time), cmp.Compare(a.Message, b.Message))
	})
	return out
}

// compareBool sorts false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
