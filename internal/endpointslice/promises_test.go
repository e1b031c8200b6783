package endpointslice

import (
	"fmt"
	"maps"
	"slices"

	gocmp "github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// checkCrash crashes after every write and plans again with what is then stored.
func (h *history) checkCrash(writes []write) {
	stored := maps.Clone(h.stored)
	for _, w := range writes {
		stored.apply(h.t, w)
		restarted := *h
		restarted.stored, restarted.regular = maps.Clone(stored), false
		restarted.walk(writesOf(changesOf(h.template, h.desired(), stored.list())))
		restarted.checkRest()
	}
}

// walk applies writes and checks what consumers see after each.
func (h *history) walk(writes []write) {
	start := h.seen()
	for i, w := range writes {
		if w.verb != "create" && h.stored[w.slice.Name] != nil &&
			w.slice.ResourceVersion != h.stored[w.slice.Name].ResourceVersion {
			h.t.Errorf("resourceVersion of %s lost", w.slice.Name)
		}
		h.stored.apply(h.t, w)
		if len(w.slice.Endpoints) > h.template.Max && w.verb != "delete" {
			h.t.Errorf("%s writes %d endpoints to a slice", w.verb, len(w.slice.Endpoints))
		}
		now := h.seen()
		if h.regular && someReady(start) && h.wantsReady() && !someReady(now) {
			h.t.Errorf("write %d of %d: nothing is ready, which was so before and will be again", i+1, len(writes))
		}
		h.checkVisible(fmt.Sprintf("write %d of %d", i+1, len(writes)), start, now)
	}
}

// checkVisible checks that no wanted endpoint is missing in now that was visible in start, and that
// none has different conditions in two slices.
func (h *history) checkVisible(when string, start, now map[ipPorts][]conditions) {
	for key, before := range start {
		if _, ok := h.wanted[key]; !ok {
			continue
		}
		if len(now[key]) == 0 {
			h.t.Errorf("%s: %s is missing", when, key)
		}
		if !h.regular || len(before) > 1 {
			continue
		}
		if len(slices.Compact(slices.Clone(now[key]))) > 1 {
			h.t.Errorf("%s: %s has the conditions %v", when, key, now[key])
		}
	}
}

// conditions are those that consumers know.
type conditions struct{ ready, serving, terminating bool }

// seen is what consumers see of each endpoint.
func (h *history) seen() map[ipPorts][]conditions {
	seen := make(map[ipPorts][]conditions, len(h.wanted))
	for _, s := range h.stored {
		ports := h.portList(portsOf(s))
		for i := range s.Endpoints {
			if e, ok := readEndpoint(&s.Endpoints[i], s.AddressType); ok {
				key := ipPorts{e.Addr, ports}
				seen[key] = append(seen[key], conditions{e.Ready, e.Serving, e.Terminating})
			}
		}
	}
	return seen
}

// someReady reports whether consumers see a ready endpoint.
func someReady(seen map[ipPorts][]conditions) bool {
	for _, said := range seen {
		if slices.ContainsFunc(said, func(c conditions) bool { return c.ready }) {
			return true
		}
	}
	return false
}

// wantsReady reports whether a wanted endpoint is ready.
func (h *history) wantsReady() bool {
	for _, e := range h.wanted {
		if e.Ready {
			return true
		}
	}
	return false
}

// checkRest checks the state after a whole plan.
func (h *history) checkRest() {
	found := 0
	groups := map[groupKey][3]int{} // slices, endpoints, half-empty slices
	for _, s := range h.stored {
		if s.DeletionTimestamp != nil {
			if len(s.Endpoints) > 0 {
				h.t.Errorf("%s, which is being deleted, still has endpoints", s.Name)
			}
			continue
		}
		if n := len(s.Endpoints); n == 0 || n > h.template.Max {
			h.t.Errorf("%s holds %d endpoints", s.Name, n)
		}
		h.checkMetadata(s)
		found += h.checkEndpoints(s)
		n := groups[h.group(s)]
		n[0], n[1] = n[0]+1, n[1]+len(s.Endpoints)
		if 2*len(s.Endpoints) <= h.template.Max {
			n[2]++
		}
		groups[h.group(s)] = n
	}
	if found != len(h.wanted) {
		h.t.Errorf("%d endpoints published, %d wanted", found, len(h.wanted))
	}
	for group, n := range groups {
		if ideal := ceilDiv(n[1], h.template.Max); n[0] > 2*ideal+1 {
			h.t.Errorf("%d slices for %d endpoints, %d to a slice, in group %v", n[0], n[1], h.template.Max, group)
		}
		if h.regular && n[2] > 2 {
			h.t.Errorf("%d half-empty slices in group %v", n[2], group)
		}
	}
	h.checkPublished()
	if again := changesOf(h.template, h.desired(), h.stored.list()); len(writesOf(again)) > 0 {
		h.t.Errorf("a finished plan is followed by another: %+v", again)
	}
}

// checkEndpoints checks that a slice publishes wanted endpoints as they should be, and returns how
// many there are.
func (h *history) checkEndpoints(s *discoveryv1.EndpointSlice) (found int) {
	ports := portsOf(s)
	for i := range s.Endpoints {
		have, ok := readEndpoint(&s.Endpoints[i], s.AddressType)
		have.Ports = ports
		want, wanted := h.wanted[h.key(&have)]
		if !ok || !wanted {
			h.t.Errorf("%s publishes %v, which is not wanted", s.Name, s.Endpoints[i].Addresses)
			continue
		}
		found++
		if !sameEndpoint(&s.Endpoints[i], &want, &h.template) ||
			!sameConditions(&s.Endpoints[i].Conditions, &want.Conditions) {
			h.t.Errorf("%s publishes %+v, wanted is %+v", s.Name, s.Endpoints[i], want)
		}
	}
	return found
}

// checkMetadata checks a slice's labels and owners.
func (h *history) checkMetadata(s *discoveryv1.EndpointSlice) {
	want := map[string]string{
		"kubernetes.io/service-name":             "orders",
		"endpointslice.kubernetes.io/managed-by": "external-backend.io",
		"external-backend.io/name":               "orders-db",
	}
	maps.Copy(want, h.template.Labels)
	if h.template.Headless {
		want["service.kubernetes.io/headless"] = ""
	}
	if !maps.Equal(s.Labels, want) {
		h.t.Errorf("labels of %s: %s", s.Name, gocmp.Diff(want, s.Labels))
	}
	if len(s.OwnerReferences) != 1 || !sameOwner(&s.OwnerReferences[0], h.template.Owner) {
		h.t.Errorf("owners of %s: %v", s.Name, s.OwnerReferences)
	}
}

// checkPublished checks what is read back.
func (h *history) checkPublished() {
	published := Published(h.stored.list()).Endpoints()
	if len(published) != len(h.wanted) {
		h.t.Errorf("%d endpoints read back, %d wanted", len(published), len(h.wanted))
	}
	for i := range published {
		want := h.wanted[h.key(&published[i])]
		if got := published[i]; !slices.Equal(got.Ports, want.Ports) || !sameButPorts(got, want) {
			h.t.Errorf("read back: %+v, wanted: %+v", got, want)
		}
	}
}

// sameButPorts reports whether a and b differ at most in their ports and in Unread.
func sameButPorts(a, b Endpoint) bool {
	a.Unread, b.Unread = false, false
	return a.Target == b.Target && a.Addr == b.Addr && a.Hostname == b.Hostname && a.Zone == b.Zone &&
		a.NodeName == b.NodeName && a.Conditions == b.Conditions && a.Tier == b.Tier && a.Rank == b.Rank &&
		a.DrainUntil.Equal(b.DrainUntil)
}

// groupPrice is what a plan writes in a group, and what W* is computed from.
type groupPrice struct{ written, free, added, writes, untouchedDeleted, twice int }

// checkPrice compares the number of writes with W*, which it computes from its definition, group by
// group.
func (h *history) checkPrice(existing []*discoveryv1.EndpointSlice, changes Changes) {
	prices := map[groupKey]*groupPrice{}
	of := func(key groupKey) *groupPrice {
		if prices[key] == nil {
			prices[key] = &groupPrice{}
		}
		return prices[key]
	}
	for _, e := range h.wanted {
		of(groupKey{addressFamily(e.Addr), h.portList(e.Ports)}).added++
	}
	untouched := map[string]bool{}
	for _, s := range existing {
		untouched[s.Name] = h.countExisting(s, of(h.group(s)))
	}
	updated := map[string]bool{}
	for _, w := range writesOf(changes) {
		price := of(h.group(w.slice))
		price.writes++
		if updated[w.slice.Name] {
			price.twice++
		}
		updated[w.slice.Name] = w.verb == "update"
		if w.verb == "delete" && untouched[w.slice.Name] {
			price.untouchedDeleted++
		}
	}

	for key, n := range prices {
		least := n.written + ceilDiv(max(0, n.added-n.free), h.template.Max)
		if n.writes != least+n.untouchedDeleted+n.twice || n.untouchedDeleted > 1 {
			h.t.Errorf("%d writes where W* is %d, %d of them for compaction, in group %v",
				n.writes, least, n.untouchedDeleted, key)
		}
		if n.twice > 0 && n.twice > h.halfEmptyAndChanged()-2 {
			h.t.Errorf("%d slices are written twice, of %d that are half-empty and change", n.twice, h.halfEmptyAndChanged())
		}
	}
}

// countExisting adds an existing slice to the price of its group. It reports whether nothing in the
// slice has to change.
func (h *history) countExisting(s *discoveryv1.EndpointSlice, price *groupPrice) (untouched bool) {
	kept, changed := 0, h.drifted(s)
	for _, e := range Published([]*discoveryv1.EndpointSlice{s}).Endpoints() {
		want, ok := h.wanted[h.key(&e)]
		if ok {
			kept++
		}
		changed = changed || !ok || !sameButPorts(e, want)
	}
	price.added -= kept
	if changed {
		price.written++
		price.free += h.template.Max - kept
	}
	return !changed
}

// halfEmptyAndChanged counts, for the group with the most, the slices that become half-empty and
// whose endpoints change their conditions: those that may become donors at the price of one more
// write.
func (h *history) halfEmptyAndChanged() (most int) {
	count := map[groupKey]int{}
	for _, s := range h.stored {
		kept, changed := 0, false
		ports := portsOf(s)
		for i := range s.Endpoints {
			e, ok := readEndpoint(&s.Endpoints[i], s.AddressType)
			e.Ports = ports
			want, wanted := h.wanted[h.key(&e)]
			if !ok || !wanted {
				continue
			}
			kept++
			changed = changed || !sameConditions(&s.Endpoints[i].Conditions, &want.Conditions)
		}
		if changed && 2*kept <= h.template.Max {
			group := h.group(s)
			count[group]++
			most = max(most, count[group])
		}
	}
	return most
}

// drifted reports whether a slice's metadata or hints have to change.
func (h *history) drifted(s *discoveryv1.EndpointSlice) bool {
	_, headless := s.Labels["service.kubernetes.io/headless"]
	for key, value := range h.template.Labels {
		if s.Labels[key] != value {
			return true
		}
	}
	ours := 3 + len(h.template.Labels)
	if headless {
		ours++
	}
	return headless != h.template.Headless || len(s.Labels) != ours
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
