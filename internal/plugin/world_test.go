package plugin

import (
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/view"
)

var testNow = time.Date(2026, 11, 23, 3, 0, 0, 0, time.UTC)

// world is an ExternalBackend db and what surrounds it. objects plans it as the manager does.
type world struct {
	spec string
	// answers and verdicts are those of targets. A verdict is Healthy, "" for none, or a reason.
	answers   map[string]plan.Answer
	verdicts  map[string]string
	denied    map[string]string // by address
	overrides []v1alpha1.ExternalBackendOverride
	policies  []v1alpha1.ExternalBackendPolicy
	events    []eventsv1.Event
	// change changes what the status is made from, such as a conflict.
	change func(*plan.StatusInput)
}

// objects plays the manager, and reads all that it has written.
func (w *world) objects(t testing.TB) *view.Objects {
	t.Helper()
	b := &v1alpha1.ExternalBackend{ObjectMeta: metav1.ObjectMeta{
		Name: "db", Namespace: "shop", UID: "uid-of-db", Generation: 1,
		CreationTimestamp: metav1.NewTime(testNow.Add(-26 * time.Hour)),
	}}
	if err := yaml.UnmarshalStrict([]byte(w.spec), &b.Spec); err != nil {
		t.Fatal(err)
	}
	o := &view.Objects{Backend: b, Overrides: w.overrides, Policies: w.policies, Events: w.events}
	o.Namespace = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}

	overridden := plan.Override(b, true, w.overrides, testNow)
	for i := range o.Overrides {
		o.Overrides[i].Status = plan.OverrideStatus(&o.Overrides[i], overridden.Outcomes[i], testNow)
	}
	w.publish(o, overridden)
	return o
}

// publish writes Service, slices and status.
func (w *world) publish(o *view.Objects, overridden plan.Overridden) {
	b := overridden.Backend
	o.Service = plan.Service(b, nil, false).Write
	o.Service.Spec.IPFamilies, o.Service.Spec.ClusterIPs = []corev1.IPFamily{corev1.IPv4Protocol}, []string{"10.96.0.10"}
	traits := plan.TraitsOf(o.Service)
	template := plan.SliceTemplate(b, nil, &traits, nil, 100)
	var cache plan.Cache
	in := plan.EndpointsInput{
		Input:    plan.Input{Backend: b, Answers: w.answers, Permit: w.permit, Max: 10000, Now: testNow},
		Traits:   traits,
		Template: template,
		Existing: endpointslice.Published(nil),
		Probe: func(c *plan.Candidates) func(int) plan.ProbeState {
			probes, _ := c.Probes(nil)
			return func(i int) plan.ProbeState { return w.state(&probes[i]) }
		},
	}
	planned := cache.PlanEndpoints(in)
	_, changes := endpointslice.Plan(template, planned.Candidates.Endpoints, planned.Conditions, nil)
	o.Slices = changes.Create

	status := plan.StatusInput{
		Backend: b, Service: o.Service, References: &plan.References{}, Programmed: v1alpha1.ReasonProgrammed,
		Candidates: &planned.Candidates, Publication: &planned.Publication, Now: testNow.Add(-47 * time.Minute),
		Override: overridden.Applied,
	}
	if w.change != nil {
		w.change(&status)
	}
	o.Backend.Status = plan.Status(status).Status
}

func (w *world) permit(_ string, addr netip.Addr, _ []endpointslice.Port) plan.Refusal {
	kind := w.denied[addr.String()]
	return plan.Refusal{Denied: kind != "", Kind: kind}
}

func (w *world) state(p *plan.Probe) plan.ProbeState {
	switch v := w.verdicts[p.ID.Target]; v {
	case "":
		return plan.ProbeState{}
	case "Healthy":
		return plan.ProbeState{Verdict: plan.Healthy}
	default:
		return plan.ProbeState{Verdict: plan.Unhealthy, Reason: v}
	}
}

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

// overrideOf returns an override of db with that spec, an hour old, that ends in two hours.
func overrideOf(t testing.TB, name, spec string) v1alpha1.ExternalBackendOverride {
	t.Helper()
	o := v1alpha1.ExternalBackendOverride{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: "shop", CreationTimestamp: metav1.NewTime(testNow.Add(-time.Hour)),
	}}
	o.Spec.ExternalBackendRef.Name, o.Spec.ExpirationTime = "db", metav1.NewTime(testNow.Add(2*time.Hour))
	if err := yaml.UnmarshalStrict([]byte(spec), &o.Spec); err != nil {
		t.Fatal(err)
	}
	return o
}

// eventAt returns an event about db that happened some time before now.
func eventAt(before time.Duration, kind, reason, note string) eventsv1.Event {
	return eventsv1.Event{EventTime: metav1.NewMicroTime(testNow.Add(-before)), Type: kind, Reason: reason, Note: note}
}
