package explain

import (
	"cmp"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
)

var testNow = time.Date(2026, 11, 23, 3, 0, 0, 0, time.UTC)

// world is an ExternalBackend and all that surrounds it. input plans it as the manager does.
type world struct {
	spec string
	// answers and verdicts are those of targets. A verdict is Healthy, "" for none, or a reason.
	answers  map[string]plan.Answer
	verdicts map[string]string
	denied   map[string]string // by address
	audited  bool
	max      int
	// sibling is what an older sibling publishes.
	sibling []endpointslice.Endpoint
	// before is the spec whose slices were published before.
	before    string
	overrides []v1alpha1.ExternalBackendOverride
	policies  []v1alpha1.ExternalBackendPolicy
	// change changes what the status is made from, such as a conflict.
	change func(*plan.StatusInput)
	// withdrawn takes all slices away.
	withdrawn, noService, unseen bool
}

// input plays the manager.
func (w *world) input(t *testing.T) Input {
	t.Helper()
	in := Input{Backend: w.backend(t, w.spec), Now: testNow, Overrides: w.overrides, Policies: w.policies}
	in.NamespaceLabels = map[string]string{corev1.LabelMetadataName: "shop"}
	if w.unseen {
		return in
	}
	var published []*discoveryv1.EndpointSlice
	if w.before != "" {
		earlier := *w
		earlier.spec = w.before
		_, published, _ = earlier.publish(t, w.backend(t, w.before), nil)
	}
	overridden := plan.Override(in.Backend, true, w.overrides, testNow)
	for i := range in.Overrides {
		in.Overrides[i].Status = plan.OverrideStatus(&in.Overrides[i], overridden.Outcomes[i], testNow)
	}
	in.Service, in.Slices, in.Backend.Status = w.publish(t, overridden.Backend, published)
	if w.noService {
		in.Service = nil
	}
	if w.withdrawn {
		in.Slices = nil
	}
	return in
}

func (w *world) backend(t *testing.T, spec string) *v1alpha1.ExternalBackend {
	t.Helper()
	b := &v1alpha1.ExternalBackend{
		ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "shop", UID: "uid-of-db", Generation: 1},
		Status:     v1alpha1.ExternalBackendStatus{ObservedGeneration: -1},
	}
	if err := yaml.UnmarshalStrict([]byte(spec), &b.Spec); err != nil {
		t.Fatal(err)
	}
	return b
}

// publish writes Service, slices and status.
func (w *world) publish(t *testing.T, b *v1alpha1.ExternalBackend, existing []*discoveryv1.EndpointSlice) (
	*corev1.Service, []*discoveryv1.EndpointSlice, v1alpha1.ExternalBackendStatus,
) {
	t.Helper()
	if invalid := plan.Validate(b, nil); invalid != "" && w.change == nil {
		t.Fatalf("the spec is invalid: %s", invalid)
	}
	service := plan.Service(b, nil, false).Write
	service.Spec.IPFamilies, service.Spec.ClusterIP = []corev1.IPFamily{corev1.IPv4Protocol},
		cmp.Or(service.Spec.ClusterIP, "10.96.0.10")
	pub := endpointslice.Published(existing)
	var cache plan.Cache
	candidates := cache.Candidates(plan.Input{
		Backend: b, Families: plan.FamiliesOf(service), Headless: plan.Headless(service),
		ServesPort: func(p *v1alpha1.Port) bool { return plan.ServesPort(service, p) },
		Answers:    w.answers, Permit: w.permit, Published: pub,
		Siblings: []plan.Sibling{{Name: "older", Older: true, Endpoints: w.sibling}}, Max: cmp.Or(w.max, 100), Now: testNow,
	}, endpointslice.Template{Namespace: "shop", Service: "db", Backend: "db", Max: 100})
	probes, _ := candidates.Probes(nil)
	publication := plan.Publish(plan.PublishInput{
		Backend: b, Published: pub, State: func(i int) plan.ProbeState { return w.state(&probes[i]) },
		PublishNotReady: service.Spec.PublishNotReadyAddresses, Now: testNow,
	}, &candidates)
	_, changes := endpointslice.Plan(endpointslice.Template{Namespace: "shop", Service: "db", Backend: "db", Max: 100},
		candidates.Endpoints, publication.Conditions, nil)

	status := plan.StatusInput{
		Backend: b, Service: service, References: &plan.References{}, Programmed: v1alpha1.ReasonProgrammed,
		Candidates: &candidates, Publication: &publication, Now: testNow.Add(-47 * time.Minute),
		Override: plan.Override(w.backend(t, w.spec), true, w.overrides, testNow).Applied,
	}
	if w.change != nil {
		w.change(&status)
	}
	return service, changes.Create, plan.Status(status).Status
}

func (w *world) permit(_ string, addr netip.Addr, _ []endpointslice.Port) plan.Refusal {
	kind := w.denied[addr.String()]
	return plan.Refusal{Denied: kind != "" && !w.audited, WouldDeny: kind != "" && w.audited, Kind: kind}
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

// endpointAt returns a ready endpoint for port 5432.
func endpointAt(address string) endpointslice.Endpoint {
	return endpointslice.Endpoint{
		Addr: netip.MustParseAddr(address), Ports: []endpointslice.Port{{Port: 5432, Protocol: corev1.ProtocolTCP}},
		Conditions: endpointslice.Conditions{Ready: true, Serving: true, Healthy: true},
	}
}

// overrideOf returns an override with that spec, an hour old.
func overrideOf(t *testing.T, name, spec string) v1alpha1.ExternalBackendOverride {
	t.Helper()
	o := v1alpha1.ExternalBackendOverride{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: "shop", CreationTimestamp: metav1.NewTime(testNow.Add(-time.Hour)),
	}}
	o.Spec.ExternalBackendRef.Name, o.Spec.ExpirationTime = "db", metav1.NewTime(testNow.Add(time.Hour))
	if err := yaml.UnmarshalStrict([]byte(spec), &o.Spec); err != nil {
		t.Fatal(err)
	}
	return o
}
