package controllers

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/fleet"
	"github.com/external-backend/operator/internal/probe"
)

const (
	// agreementPeriod is for how long a replica has to disagree with the majority before it gives
	// its share away, and to agree before it takes one again.
	agreementPeriod = time.Minute
	// agreementLook is how often that is looked at.
	agreementLook = 2 * time.Second
	// sampleSize is how many ExternalBackends a replica that is set aside probes to find out
	// whether it agrees again, and samplePeriod is how often.
	sampleSize   = 20
	samplePeriod = 10 * time.Second
)

// agreement decides whether a replica gives its share away. Its methods take the time, and do no
// I/O.
type agreement struct {
	aside bool
	since time.Time // since when it says otherwise than aside; zero: it does not
}

// look notes whether the replica is wrong about most of its endpoints. It reports whether aside
// has changed.
func (a *agreement) look(wrong bool, now time.Time) (changed bool) {
	switch {
	case wrong == a.aside:
		a.since = time.Time{}
	case a.since.IsZero():
		a.since = now
	case now.Sub(a.since) >= agreementPeriod:
		a.aside, a.since = wrong, time.Time{}
		return true
	}
	return false
}

// watchAgreement gives the share of this replica away while most replicas disagree with it about
// most of its endpoints.
type watchAgreement struct {
	subjects *subjects
	// overruled returns about how many endpoints the prober disagrees with most replicas, and how
	// many there are.
	overruled func() (overruled, endpoints int)
	replica   *fleet.Replica
	events    *replicaEvents

	aside atomic.Bool
}

func newWatchAgreement(
	s *subjects, overruled func() (int, int), replica *fleet.Replica, events *replicaEvents,
) *watchAgreement {
	return &watchAgreement{subjects: s, overruled: overruled, replica: replica, events: events}
}

// run looks until ctx ends.
func (w *watchAgreement) run(ctx context.Context) error {
	var a agreement
	var sampled time.Time
	wrong := false
	ticker := time.NewTicker(agreementLook)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now := w.subjects.reconciler.now()
		overruled, endpoints := w.overruled()
		if !a.aside {
			wrong = overruled*2 > endpoints
		} else if now.Sub(sampled) >= samplePeriod {
			wrong, sampled = !w.reachesMost(ctx), now
		}
		if a.look(wrong, now) {
			w.replica.SetAside(a.aside)
			w.aside.Store(a.aside)
			w.events.share(a.aside, overruled, endpoints)
		}
	}
}

// reachesMost probes endpoints that others publish as healthy, each once, and reports whether
// most of them do not stay silent. Without any it reports true.
func (w *watchAgreement) reachesMost(ctx context.Context) bool {
	var mu sync.Mutex
	var group sync.WaitGroup
	reached, probed := 0, 0
	for _, key := range w.sample(ctx) {
		group.Go(func() {
			verdict, reason := w.probeOne(ctx, key)
			mu.Lock()
			defer mu.Unlock()
			if verdict == probe.Unknown {
				return
			}
			probed++
			if reason != probe.ReasonTimeout && reason != probe.ReasonUnreachable {
				reached++
			}
		})
	}
	group.Wait()
	return reached*2 >= probed
}

// sample returns some ExternalBackends with healthy endpoints, other ones each time.
func (w *watchAgreement) sample(ctx context.Context) (keys []types.NamespacedName) {
	var list v1alpha1.ExternalBackendList
	if err := w.subjects.reconciler.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	for i := range list.Items {
		b := &list.Items[i]
		if b.Spec.HealthCheck != nil && b.Status.Endpoints != nil && b.Status.Endpoints.Ready > 0 {
			keys = append(keys, client.ObjectKeyFromObject(b))
		}
	}
	seed := maphash.MakeSeed()
	slices.SortFunc(keys, func(a, b types.NamespacedName) int {
		if maphash.Comparable(seed, a) < maphash.Comparable(seed, b) {
			return -1
		}
		return 1
	})
	return keys[:min(len(keys), sampleSize)]
}

// probeOne probes one endpoint of an ExternalBackend that others publish as ready.
func (w *watchAgreement) probeOne(ctx context.Context, key types.NamespacedName) (probe.Verdict, string) {
	r := w.subjects.reconciler
	published, err := r.slicesOf(ctx, key)
	if err != nil {
		return probe.Unknown, ""
	}
	var b v1alpha1.ExternalBackend
	if err := r.Get(ctx, key, &b); err != nil {
		return probe.Unknown, ""
	}
	for _, e := range endpointslice.Published(published).Endpoints() {
		if !e.Ready || e.Target == "" || len(e.Ports) == 0 {
			continue
		}
		id := probe.ID{Target: e.Target, Addr: e.Addr, Port: uint16(e.Ports[0].Port)}
		check, endpoints, err := w.subjects.find(ctx, key, b.Generation, []probe.ID{id})
		if err != nil || len(endpoints) == 0 || w.subjects.permit(key, endpoints[0].Dial) != nil {
			return probe.Unknown, ""
		}
		trace := probe.Run(ctx, check, endpoints[0])
		return trace.Verdict, trace.Reason
	}
	return probe.Unknown, ""
}
