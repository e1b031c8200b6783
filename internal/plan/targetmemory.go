package plan

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// TargetMemory holds since when each target has been in its state, in the order of spec.targets. It
// covers the targets that status omits, too. A nil TargetMemory knows nothing.
type TargetMemory []targetSince

// targetSince is small, because a manager keeps one for each target.
type targetSince struct {
	name string
	// since is the Unix time of the last transition, or 0 if nobody knows it. It ends in 2106.
	since uint32
	// severity stands for the state: its index in stateSeverity.
	severity int8
}

// transitionTime returns the time of the last transition, or nil if nobody knows it.
func (s *targetSince) transitionTime() *metav1.Time {
	if s.since == 0 {
		return nil
	}
	return new(metav1.Unix(int64(s.since), 0))
}

// stateSeverity orders the states of targets, worst first.
var stateSeverity = []v1alpha1.TargetState{
	v1alpha1.TargetStateUnhealthy, v1alpha1.TargetStateUnresolved, v1alpha1.TargetStateDenied,
	v1alpha1.TargetStateUnknown, v1alpha1.TargetStateDraining, v1alpha1.TargetStateDisabled,
	v1alpha1.TargetStateUnprobed, v1alpha1.TargetStateHealthy,
}

func severityOf(state v1alpha1.TargetState) int8 { return int8(slices.Index(stateSeverity, state)) }

// restoreTargetMemory reads back what the status written last says.
func restoreTargetMemory(listed []v1alpha1.TargetStatus) TargetMemory {
	var m TargetMemory
	for i := range listed {
		if t := &listed[i]; t.LastTransitionTime != nil {
			since := uint32(t.LastTransitionTime.Unix())
			m = append(m, targetSince{name: t.Name, since: since, severity: severityOf(t.State)})
		}
	}
	return m
}

// update returns the memory of all targets at now. newSince is since when a target that m lacks has
// been in its state. If no state has changed, update returns m itself.
func (m TargetMemory) update(all []v1alpha1.TargetStatus, now, newSince uint32) TargetMemory {
	if m.matches(all) {
		return m
	}

	next := make(TargetMemory, len(all))
	var byName map[string]*targetSince // made on first use: mostly the order stays
	for i := range all {
		var before *targetSince
		if i < len(m) && m[i].name == all[i].Name {
			before = &m[i]
		} else {
			if byName == nil {
				byName = m.byName()
			}
			before = byName[all[i].Name]
		}

		next[i] = targetSince{name: all[i].Name, since: now, severity: severityOf(all[i].State)}
		switch {
		case before == nil:
			next[i].since = newSince
		case before.severity == next[i].severity:
			next[i].since = before.since
		}
	}
	return next
}

// matches reports whether m holds the targets of all, in this order and in their states.
func (m TargetMemory) matches(all []v1alpha1.TargetStatus) bool {
	if len(m) != len(all) {
		return false
	}
	for i := range m {
		if m[i].name != all[i].Name || m[i].severity != severityOf(all[i].State) {
			return false
		}
	}
	return true
}

func (m TargetMemory) byName() map[string]*targetSince {
	out := make(map[string]*targetSince, len(m))
	for i := range m {
		out[m[i].name] = &m[i]
	}
	return out
}
