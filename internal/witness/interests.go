package witness

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/internal/probe"
)

// foundTime is for how long a check and its endpoints are used without being found out anew.
const foundTime = 10 * time.Second

// minKept is for how long an endpoint is probed after the last question about it, at least.
const minKept = 10 * time.Second

// interests are the endpoints that others ask about. Its methods take the time, and do no I/O.
type interests struct {
	most    int // endpoints in all
	total   int
	byOwner map[types.NamespacedName]*interest
}

// interest is one ExternalBackend that others ask about.
type interest struct {
	check      *probe.Check // of this ExternalBackend, with its pace as a witness
	own        *probe.Check // as it was found
	generation int64
	found      time.Time        // when the check was found last
	endpoints  []probe.Endpoint // as the engine has them; replaced, never changed
	until      map[probe.ID]time.Time
}

func newInterests(most int) *interests {
	return &interests{most: most, byOwner: map[types.NamespacedName]*interest{}}
}

// add notes that endpoints are asked about, which have been silent for that long. It returns the
// interest, and which of them are not probed because too many are. A namespace gets its share of
// the places only, as soon as half of them are taken.
func (n *interests) add(
	owner types.NamespacedName, generation int64, check *probe.Check, endpoints []probe.Endpoint,
	silent time.Duration, now time.Time,
) (i *interest, busy map[probe.ID]bool) {
	i = n.byOwner[owner]
	if i == nil || i.generation != generation || i.own.TLS != nil && i.own.TLS.Identity != check.TLS.Identity {
		n.drop(owner)
		i = &interest{
			check: paced(check, silent), own: check, generation: generation, until: map[probe.ID]time.Time{},
		}
		n.byOwner[owner] = i
	}
	i.found = now
	until := now.Add(kept(check))
	busy = map[probe.ID]bool{}
	added := slices.Clip(i.endpoints) // the engine keeps the former list
	for _, e := range endpoints {
		if _, known := i.until[e.ID]; !known {
			if n.total >= n.most || n.total >= n.most/2 && n.ofNamespace(owner.Namespace) >= n.fairShare(owner.Namespace) {
				busy[e.ID] = true
				continue
			}
			added = append(added, e)
			n.total++
		}
		i.until[e.ID] = until
	}
	i.endpoints = added
	return i, busy
}

// renew notes that endpoints are asked about again. It reports false if one of them is not
// probed, or if what to probe was found out too long ago.
func (n *interests) renew(owner types.NamespacedName, generation int64, ids []probe.ID, now time.Time) bool {
	i := n.byOwner[owner]
	if i == nil || i.generation != generation || now.Sub(i.found) >= foundTime {
		return false
	}
	for _, id := range ids {
		if _, known := i.until[id]; !known {
			return false
		}
	}
	for _, id := range ids {
		i.until[id] = now.Add(kept(i.own))
	}
	return true
}

// restart forgets endpoints, so that they are probed anew. It returns the interest without them,
// or nil if none of them was probed.
func (n *interests) restart(owner types.NamespacedName, ids map[probe.ID]bool) *interest {
	i := n.byOwner[owner]
	if i == nil {
		return nil
	}
	left := slices.DeleteFunc(slices.Clone(i.endpoints), func(e probe.Endpoint) bool { return ids[e.ID] })
	if len(left) == len(i.endpoints) {
		return nil
	}
	for id := range ids {
		delete(i.until, id)
	}
	n.total -= len(i.endpoints) - len(left)
	i.endpoints = left
	return i
}

// fairShare returns how many endpoints a namespace may have while places are short.
func (n *interests) fairShare(namespace string) int {
	namespaces := map[string]bool{namespace: true}
	for owner := range n.byOwner {
		namespaces[owner.Namespace] = true
	}
	return n.most / len(namespaces)
}

func (n *interests) ofNamespace(namespace string) (count int) {
	for owner, i := range n.byOwner {
		if owner.Namespace == namespace {
			count += len(i.until)
		}
	}
	return count
}

// drop forgets an ExternalBackend.
func (n *interests) drop(owner types.NamespacedName) {
	if i := n.byOwner[owner]; i != nil {
		n.total -= len(i.until)
		delete(n.byOwner, owner)
	}
}

// expire forgets what nobody has asked about for long. It returns the ExternalBackends that have
// changed; those that are gone have a nil interest.
func (n *interests) expire(now time.Time) map[types.NamespacedName]*interest {
	changed := map[types.NamespacedName]*interest{}
	for owner, i := range n.byOwner {
		left := slices.DeleteFunc(slices.Clone(i.endpoints), func(e probe.Endpoint) bool {
			return now.After(i.until[e.ID])
		})
		if len(left) == len(i.endpoints) && len(left) > 0 {
			continue
		}
		for _, e := range i.endpoints {
			if now.After(i.until[e.ID]) {
				delete(i.until, e.ID)
				n.total--
			}
		}
		i.endpoints, changed[owner] = left, i
		if len(left) == 0 {
			delete(n.byOwner, owner)
			changed[owner] = nil
		}
	}
	return changed
}

// paced returns check with a shorter time between probes, so that its verdict comes when the
// asking replica's does, which began to probe earlier by silent.
func paced(check *probe.Check, silent time.Duration) *probe.Check {
	out := *check
	out.Period = min(check.Period, check.Confirm) // so a Healthy one is no older than the owner's next question
	if gaps := check.FailureThreshold - 1; gaps > 0 {
		out.Confirm = max(check.Confirm-silent/time.Duration(gaps), check.Confirm/2)
	}
	return &out
}

// kept is for how long an endpoint is probed after the last question about it: until the replica
// that asks needs the opinion, and longer.
func kept(check *probe.Check) time.Duration {
	return time.Duration(max(check.FailureThreshold, check.SuccessThreshold))*check.Confirm + check.Timeout + minKept
}
