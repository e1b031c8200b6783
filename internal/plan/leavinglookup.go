package plan

import (
	"net/netip"

	"github.com/external-backend/operator/api/v1alpha1"
)

// leavingLookup finds what was known about published endpoints.
type leavingLookup struct {
	backend *v1alpha1.ExternalBackend
	targets map[string]int // name to index in spec.targets
	probes  map[ProbeID]Probe
	names   map[netip.Addr]string // those of the previous plan; nil after a restart
}

func newLeavingLookup(b *v1alpha1.ExternalBackend, probes []Probe, named []NamedAddr) leavingLookup {
	l := leavingLookup{
		backend: b,
		targets: make(map[string]int, len(b.Spec.Targets)),
		probes:  make(map[ProbeID]Probe, len(probes)),
	}
	for i := range b.Spec.Targets {
		l.targets[b.Spec.Targets[i].Name] = i
	}
	for _, p := range probes {
		l.probes[p.ID] = p
	}
	if named == nil {
		return l
	}
	l.names = make(map[netip.Addr]string, len(named))
	for _, n := range named {
		l.names[n.Addr] = n.Name
	}
	return l
}

// nameOf returns the DNS name by which policy judges a published endpoint. It is the name in the
// previous plan. After a restart it is the name of the target that the slice says: everybody who
// may write slices can change that, so it counts only for targets of the spec, and known is false
// for others.
func (l *leavingLookup) nameOf(e *Endpoint) (name string, known bool) {
	if l.names != nil {
		return l.names[e.Addr], true
	}
	i, known := l.targets[e.Target]
	if known {
		name = targetName(&l.backend.Spec.Targets[i])
	}
	return name, known
}

// mayBeOurs reports whether a DNS name led to the address in the previous plan. After a restart
// nobody knows, and every address may be ours.
func (l *leavingLookup) mayBeOurs(addr netip.Addr) bool {
	_, ok := l.names[addr]
	return ok || l.names == nil
}
