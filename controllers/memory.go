package controllers

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/writecache"
)

// memory is what one ExternalBackend's reconciles hand on to the next one. All of it can be lost:
// what matters is read back from the cluster. But for dial, it belongs to the one reconcile of its
// key that runs at a time.
type memory struct {
	// uid is the ExternalBackend's: one that is made anew under the same name begins anew.
	uid types.UID
	// seen is the Service that was looked at last, by its UID and ClusterIP.
	seen seenService
	// notReadyToo is publishNotReadyAddresses of the Service when it was there last.
	notReadyToo bool
	// beside is what other ExternalBackends on the Service published when it was looked at last: one
	// that hands an address over has just let it go.
	beside []endpointslice.Endpoint
	// gone tells since when the ExternalBackends that slices of ours behind the Service name are known
	// to be gone.
	gone map[string]time.Time
	// valid is the last spec that could be acted on, and of which generation; nil where there was none
	// since the process started.
	valid           *v1alpha1.ExternalBackendSpec
	validGeneration int64
	// withdrawn is what policy refuses of what stood where there was no spec to act on, and the labels
	// of its slices: it comes back when policy permits it again.
	withdrawn       []endpointslice.Endpoint
	withdrawnLabels map[string]string
	// started: names and probes have been handed to the engines since the process started.
	started bool
	tier    *plan.TierState
	// plan is what the last plan leaves to the next one.
	plan plan.Cache
	// named are the addresses of the last plan and the names that led to them; nil before the first.
	named []plan.NamedAddr
	verdicts
	// endpoints are the probes in the engine's words, as of generation.
	endpoints  []probe.Endpoint
	generation int64
	refs       references

	// writes are our last writes of the Service and the slices, until the cache shows them.
	writes   writecache.Overlay
	crossing crossing

	// taken are names of slices that other people's objects have.
	taken map[string]bool
	// refusals is how many reconciles in a row the API server refused something. refusedSlices are the
	// slices that it refused to create, by name, with the number of their last try.
	refusals      int
	refusedSlices map[string]int
	sliceTries    int
	// markedEndpoints is the resource version of the Endpoints object when it was marked last.
	markedEndpoints string

	status     *v1alpha1.ExternalBackendStatus
	statusTime time.Time
	reported   *lastReported
	targets    plan.TargetMemory
	events     eventBudget
	logged     eventBudget

	// dial tells under which name an address may be dialled; the probing engine asks at any time.
	mu   sync.Mutex
	dial map[netip.AddrPort]string
	// statusVersion is the resource version that the status was written with.
	statusVersion string
	// wrote is when slices were written last, on which the coalescing of flips goes by.
	wrote time.Time
}

// seenService tells a Service that was made anew from the one before.
type seenService struct {
	uid       types.UID
	clusterIP string
}

// memories holds the memory of every ExternalBackend.
type memories struct {
	mu    sync.Mutex
	byKey map[types.NamespacedName]*memory
}

// of finds or makes the memory of key.
func (m *memories) of(key types.NamespacedName) *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byKey == nil {
		m.byKey = map[types.NamespacedName]*memory{}
	}
	if m.byKey[key] == nil {
		m.byKey[key] = &memory{refusedSlices: map[string]int{}}
	}
	return m.byKey[key]
}

// peek finds the memory of key, or nil.
func (m *memories) peek(key types.NamespacedName) *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byKey[key]
}

func (m *memories) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byKey, key)
}

// mayDial returns the name under which addr may be dialled.
func (m *memory) mayDial(addr netip.AddrPort) (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name, ok := m.dial[addr]
	return name, ok
}

func (m *memory) setDial(dial map[netip.AddrPort]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dial = dial
}

func (m *memory) lastWrite() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.wrote
}

func (m *memory) setLastWrite(t time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wrote = t
}

func (m *memory) writtenStatus() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.statusVersion
}

func (m *memory) wroteStatus(status *v1alpha1.ExternalBackendStatus, version string, now time.Time) {
	m.status, m.statusTime = status, now
	m.mu.Lock()
	defer m.mu.Unlock()
	m.statusVersion = version
}

// inForce is b as it is to be acted on: with the spec that was valid last, where its own is not.
// What becomes of its objects at its end is for its own to say all the same.
func (m *memory) inForce(b *v1alpha1.ExternalBackend, valid bool) *v1alpha1.ExternalBackend {
	switch {
	case valid && (m.valid == nil || m.validGeneration != b.Generation):
		spec := b.Spec // alone: b has much that nobody needs any more
		m.valid, m.validGeneration = &spec, b.Generation
	case !valid && m.valid != nil:
		former := *b
		former.Spec = *m.valid
		former.Spec.DeletionPolicy = b.Spec.DeletionPolicy
		return &former
	}
	return b
}

func (m *memory) take(name string) {
	if m.taken == nil {
		m.taken = map[string]bool{}
	}
	m.taken[name] = true
}

// refusedSlice remembers that the API server refused to create s.
func (m *memory) refusedSlice(s *discoveryv1.EndpointSlice) {
	m.sliceTries++
	m.refusedSlices[s.Name] = m.sliceTries
}

// inTurn orders slices that are to be created so that those come last that were refused last. Where
// the API server refuses only some, all others are created all the same.
func (m *memory) inTurn(create []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	before := m.refusedSlices
	m.refusedSlices = map[string]int{}
	if len(before) == 0 {
		return create
	}
	for _, s := range create { // the others are planned no more
		if n, ok := before[s.Name]; ok {
			m.refusedSlices[s.Name] = n
		}
	}
	return slices.SortedStableFunc(slices.Values(create), func(a, b *discoveryv1.EndpointSlice) int {
		return cmp.Compare(m.refusedSlices[a.Name], m.refusedSlices[b.Name])
	})
}

// keptGrace is how long slices that were kept with their Service wait for their ExternalBackend
// before another one on that Service takes them over: whoever deletes or applies several at once
// does so in some order.
const keptGrace = 10 * time.Second

// abandoned are those of kept whose ExternalBackend has been gone for keptGrace; next is when there
// will be more.
func (m *memory) abandoned(kept []*discoveryv1.EndpointSlice, now time.Time) (due []*discoveryv1.EndpointSlice, next time.Time) {
	gone := make(map[string]time.Time)
	for _, s := range kept {
		name := s.Labels[v1alpha1.LabelName]
		gone[name] = now
		if since, ok := m.gone[name]; ok {
			gone[name] = since
		}
		if at := gone[name].Add(keptGrace); at.After(now) {
			next = earlier(next, at)
		} else {
			due = append(due, s)
		}
	}
	m.gone = gone
	return due, next
}
