package page

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/ui"
	"github.com/external-backend/operator/internal/view"
)

// world is a source of ExternalBackends without a cluster.
type world struct {
	changed func() // tells the page

	mu        sync.Mutex
	backends  map[string]*view.Objects
	followers map[int]func() // what to call after a change
	followed  int            // how many there have been
	moves     []ui.Move
}

func newWorld() *world {
	return &world{backends: map[string]*view.Objects{}, followers: map[int]func(){}}
}

// put adds or replaces an ExternalBackend.
func (w *world) put(o *view.Objects) {
	w.mu.Lock()
	w.backends[o.Backend.Namespace+"/"+o.Backend.Name] = o
	for _, changed := range w.followers {
		changed()
	}
	w.mu.Unlock()
	if w.changed != nil {
		w.changed()
	}
}

func (w *world) Rows() ([]view.Row, string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rows := make([]view.Row, 0, len(w.backends))
	for _, o := range w.backends {
		rows = append(rows, view.BuildRow(o.Backend))
	}
	return rows, ""
}

func (w *world) Read(_ context.Context, namespace, name string) (*view.Objects, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if o := w.backends[namespace+"/"+name]; o != nil {
		return o, nil
	}
	return nil, fmt.Errorf("there is no ExternalBackend %q in namespace %q", name, namespace)
}

func (w *world) Follow(_ context.Context, namespace, name string, changed func()) (
	read func(context.Context) (*view.Objects, error), stop func(),
) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.followed++
	number := w.followed
	w.followers[number] = changed
	read = func(ctx context.Context) (*view.Objects, error) { return w.Read(ctx, namespace, name) }
	return read, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.followers, number)
	}
}

// Plan plans to note the move.
func (w *world) Plan(_ context.Context, m *ui.Move) (*ui.Change, error) {
	return &ui.Change{
		Headline: fmt.Sprintf("%s %s of %s/%s", m.Action, m.Target, m.Namespace, m.Name), Manifest: "kind: " + hostile,
		Prediction: &view.Prediction{ReadyBefore: 5, ReadyAfter: 4},
		Apply: func(context.Context) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.moves = append(w.moves, *m)
			return nil
		},
	}, nil
}

// made returns the moves that were confirmed.
func (w *world) made() []ui.Move {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.moves)
}

// backend is an ExternalBackend to be planned.
type backend struct {
	namespace, name string
	targets         []v1alpha1.Target
	answers         map[string][]plan.Addr
	// sick are addresses with the reason of their verdict.
	sick   map[string]string
	events []eventsv1.Event
	unread []view.Unread
}

// objects plans the ExternalBackend, and returns what the manager would write.
func (b *backend) objects() *view.Objects {
	now := time.Now()
	object := &v1alpha1.ExternalBackend{ObjectMeta: metav1.ObjectMeta{
		Name: b.name, Namespace: b.namespace, UID: "uid", Generation: 1,
		CreationTimestamp: metav1.NewTime(now.Add(-26 * time.Hour)),
	}}
	object.Spec = v1alpha1.ExternalBackendSpec{
		Ports: []v1alpha1.Port{{Name: "sql", Port: 5432}}, Targets: b.targets,
		HealthCheck: &v1alpha1.HealthCheck{TCPSocket: &v1alpha1.TCPSocket{}},
	}
	o := &view.Objects{Backend: object, Events: b.events, Unread: b.unread}
	o.Namespace = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.namespace}}
	o.Service = plan.Service(object, nil, false).Write
	o.Service.Spec.IPFamilies, o.Service.Spec.ClusterIPs = []corev1.IPFamily{corev1.IPv4Protocol}, []string{"10.96.0.10"}

	answers := map[string]plan.Answer{}
	for target, addrs := range b.answers {
		answers[target] = plan.Answer{Status: plan.AnswerCurrent, Addrs: addrs}
	}
	traits := plan.TraitsOf(o.Service)
	template := plan.SliceTemplate(object, nil, &traits, nil, 1000)
	var cache plan.Cache
	planned := cache.PlanEndpoints(plan.EndpointsInput{
		Input:  plan.Input{Backend: object, Answers: answers, Max: 20000, Now: now, Permit: permitAll},
		Traits: traits, Template: template, Existing: endpointslice.Published(nil),
		Probe: func(c *plan.Candidates) func(int) plan.ProbeState {
			probes, _ := c.Probes(nil)
			return func(i int) plan.ProbeState { return b.state(&probes[i]) }
		},
	})
	_, changes := endpointslice.Plan(template, planned.Candidates.Endpoints, planned.Conditions, nil)
	o.Slices = changes.Create
	object.Status = plan.Status(plan.StatusInput{
		Backend: object, Service: o.Service, References: &plan.References{}, Programmed: v1alpha1.ReasonProgrammed,
		Candidates: &planned.Candidates, Publication: &planned.Publication, Now: now.Add(-47 * time.Minute),
	}).Status
	return o
}

func permitAll(string, netip.Addr, []endpointslice.Port) plan.Refusal { return plan.Refusal{} }

func (b *backend) state(p *plan.Probe) plan.ProbeState {
	if reason := b.sick[p.Dial.Addr().String()]; reason != "" {
		return plan.ProbeState{Verdict: plan.Unhealthy, Reason: reason}
	}
	return plan.ProbeState{Verdict: plan.Healthy}
}
