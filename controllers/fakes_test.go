package controllers

import (
	"context"
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/resolve"
)

// cachedClient reads from the cache and writes to the API server, as a manager's does.
type cachedClient struct {
	client.WithWatch
	env *testEnv
}

func (c cachedClient) Get(
	ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption,
) error {
	return c.env.cache.Get(ctx, key, o, options...)
}

func (c cachedClient) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return c.env.cache.List(ctx, list, options...)
}

// fakeResolver returns the answers that the test sets. Like the real one it returns the seeds of
// other names.
type fakeResolver struct {
	known map[string]resolve.Answer
	seeds map[resolve.Question]resolve.Answer
}

func (f *fakeResolver) Sync(_ types.NamespacedName, _ resolve.Config, names []resolve.Wanted) {
	before := f.seeds
	f.seeds = map[resolve.Question]resolve.Answer{}
	for _, n := range names {
		a, ok := before[n.Question]
		if !ok {
			a = resolve.Answer{Status: resolve.Pending, Addrs: n.Seed}
		}
		if known, ok := f.known[n.Name]; ok {
			a = known
		}
		f.seeds[n.Question] = a
	}
}
func (f *fakeResolver) Snapshot(types.NamespacedName) map[resolve.Question]resolve.Answer {
	return f.seeds
}
func (f *fakeResolver) Forget(types.NamespacedName) { f.seeds = nil }

// fakeProber returns the verdicts that the test sets. Like the real one it returns the seeds of
// other addresses.
type fakeProber struct {
	verdicts map[netip.Addr]probe.Verdict
	known    map[probe.ID]probe.State
	order    []probe.ID
	check    *probe.Check
	blind    bool // no endpoint answers, and the prober considers itself blind
}

func (f *fakeProber) Sync(_ types.NamespacedName, check *probe.Check, endpoints []probe.Endpoint) {
	f.check = check
	before := f.known
	f.known, f.order = map[probe.ID]probe.State{}, nil
	for _, e := range endpoints {
		state, ok := before[e.ID]
		if !ok {
			state.Verdict = e.Seed
		}
		if v, ok := f.verdicts[e.ID.Addr]; ok {
			state = probe.State{Verdict: v, Probed: true}
		}
		f.known[e.ID] = state
		f.order = append(f.order, e.ID)
	}
}
func (f *fakeProber) States(types.NamespacedName) []probe.State {
	out := make([]probe.State, len(f.order))
	for i, id := range f.order {
		out[i] = f.known[id]
		out[i].Blind = f.blind
	}
	return out
}
func (f *fakeProber) Forget(types.NamespacedName) { f.known, f.order = nil, nil }

// ownEvents are the events of the ExternalBackend since the last take, each as "Type Reason text".
type ownEvents []string

func (r *ownEvents) Eventf(_, _ runtime.Object, kind, reason, _, format string, args ...any) {
	*r = append(*r, fmt.Sprintf("%s %s "+format, append([]any{kind, reason}, args...)...))
}

// take returns the events and forgets them.
func (r *ownEvents) take() []string {
	out := *r
	*r = nil
	return out
}
