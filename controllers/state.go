package controllers

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/writecache"
)

// backendState is what one reconcile of an ExternalBackend leaves to the next. All of it can be
// lost: what matters is read back from the cluster. It belongs to the one reconcile of its key that
// runs at a time, except for the methods that say otherwise.
type backendState struct {
	// uid is the UID of the ExternalBackend. A new object of the same name gets a new state.
	uid types.UID
	// term is that of the replica's share in which the state was begun.
	term int
	// writes are our last writes of the Service and the slices, until the cache shows them.
	writes   writecache.Overlay
	planning planningState
	engines  engineState
	reported reportState
	// lastWrite is when slices were written last.
	lastWrite atomic.Pointer[time.Time]
}

// lastSliceWrite returns when slices were written last. Anybody may call it at any time.
func (s *backendState) lastSliceWrite() time.Time {
	if t := s.lastWrite.Load(); t != nil {
		return *t
	}
	return time.Time{}
}

// planningState is what the next plan goes by.
type planningState struct {
	// valid is the last valid spec, and validGeneration its generation. It is nil as long as there
	// was none since the process started.
	valid           *v1alpha1.ExternalBackendSpec
	validGeneration int64
	refs            references
	// publishNotReady is publishNotReadyAddresses of the Service when it was there last.
	publishNotReady bool
	// siblings are those of the last plan. A sibling that hands an address over has just stopped to
	// publish it.
	siblings []plan.Sibling
	// goneSince says since when the former ExternalBackends of retained slices are known to be
	// gone.
	goneSince map[string]time.Time

	tier  *plan.TierState
	cache plan.Cache
	// named are the addresses of the last plan and the names that led to them; nil before the
	// first.
	named []plan.NamedAddr

	// refused are the endpoints that policy took away while there was no valid spec. They come back
	// when policy allows them again, in slices with refusedLabels.
	refused       []endpointslice.Endpoint
	refusedLabels map[string]string

	headless headlessTransition
	creation creationOrder
	// takenNames are names of slices that objects of others have.
	takenNames map[string]bool
	// refusals is how many reconciles in a row the API server refused something.
	refusals int
	// markedEndpoints is the resource version of the Endpoints object when it was marked last.
	markedEndpoints string
}

// inForce returns b as it is to be acted on: with its own spec if that is valid, else with the last
// valid spec. The deletion policy is always that of its own spec.
func (s *planningState) inForce(b *v1alpha1.ExternalBackend, valid bool) *v1alpha1.ExternalBackend {
	switch {
	case valid && (s.valid == nil || s.validGeneration != b.Generation):
		spec := b.Spec // a copy, so that the rest of b can be freed
		s.valid, s.validGeneration = &spec, b.Generation
	case !valid && s.valid != nil:
		former := *b
		former.Spec = *s.valid
		former.Spec.DeletionPolicy = b.Spec.DeletionPolicy
		return &former
	}
	return b
}

// takeName records that an object of somebody else has the name of a slice.
func (s *planningState) takeName(name string) {
	if s.takenNames == nil {
		s.takenNames = map[string]bool{}
	}
	s.takenNames[name] = true
}

// headlessTransition is the way of a Service from a virtual IP to none, or back.
type headlessTransition struct {
	// from is the Service before the transition; nil where there was none.
	from *corev1.Service
	// service and ports are the spec of a transition that the API server refused, and why says why.
	service *v1alpha1.Service
	ports   []v1alpha1.Port
	why     string
}

// engineState is what the engines were told, and what the prober said.
type engineState struct {
	// namesHandedOver reports whether the resolver has been given names since the engines were last
	// stopped.
	namesHandedOver bool
	verdicts
	// endpoints are the probes of verdicts as the prober knows them, as of generation.
	endpoints  []probe.Endpoint
	generation int64

	// dial holds the addresses that may be dialled, each with the name that led to it.
	dial atomic.Pointer[map[netip.AddrPort]string]
}

// mayDial returns the name that led to addr, and whether addr may be dialled. The prober calls it
// at any time.
func (s *engineState) mayDial(addr netip.AddrPort) (string, bool) {
	dial := s.dial.Load()
	if dial == nil {
		return "", false
	}
	name, ok := (*dial)[addr]
	return name, ok
}

// stopProbing forgets all probes.
func (s *engineState) stopProbing() {
	s.verdicts, s.endpoints = verdicts{}, nil
	s.dial.Store(nil)
}

// reportState is what users have been told.
type reportState struct {
	// status is the status that was written last, at statusTime.
	status     *v1alpha1.ExternalBackendStatus
	statusTime time.Time
	// statusVersion is the resource version that this write returned.
	statusVersion atomic.Pointer[string]
	targets       plan.TargetMemory
	refusals      plan.PolicyRefusals
	last          *lastReported
	// withdraws is set once policy takes away endpoints that are published, until that is reported.
	// withdrew is what it was at the last report.
	withdraws, withdrew bool
	// service identifies the Service that was seen last.
	service seenService
	events  eventBudget
	logged  eventBudget
}

// writtenVersion returns the resource version of the last write of status; "" before the first.
// Anybody may call it at any time.
func (s *reportState) writtenVersion() string {
	if v := s.statusVersion.Load(); v != nil {
		return *v
	}
	return ""
}

// stateStore holds the state of every ExternalBackend.
type stateStore struct {
	byKey sync.Map // *backendState by types.NamespacedName
}

// of returns the state of key. It makes one if there is none.
func (s *stateStore) of(key types.NamespacedName) *backendState {
	state, _ := s.byKey.LoadOrStore(key, &backendState{})
	return state.(*backendState)
}

// peek returns the state of key, or nil.
func (s *stateStore) peek(key types.NamespacedName) *backendState {
	state, _ := s.byKey.Load(key)
	found, _ := state.(*backendState)
	return found
}

func (s *stateStore) forget(key types.NamespacedName) { s.byKey.Delete(key) }

// count returns how many states there are.
func (s *stateStore) count() (n int) {
	s.byKey.Range(func(_, _ any) bool { n++; return true })
	return n
}
