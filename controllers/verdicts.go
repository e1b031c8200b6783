package controllers

import (
	"net/netip"
	"slices"

	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/probe"
)

// verdicts are what is known of the probed endpoints at one moment; states are parallel to probes.
type verdicts struct {
	probes []plan.Probe
	states []probe.State
}

// state is that of one probe, in the planner's words.
func (v verdicts) state(i int) plan.ProbeState {
	if i >= len(v.states) {
		return plan.ProbeState{}
	}
	return plan.ProbeState{Verdict: plan.Verdict(v.states[i].Verdict), Reason: v.states[i].Reason, Detail: v.states[i].Detail}
}

// blind reports whether some endpoint is silent while the prober takes itself for blind.
func (v verdicts) blind() bool {
	return slices.ContainsFunc(v.states, func(s probe.State) bool { return s.Blind })
}

// transition is the news of one endpoint.
type transition struct {
	id      probe.ID
	at      netip.AddrPort // where it is probed
	was, is probe.State
}

// cause says why the endpoint is unhealthy: the fixed word, and what was seen where there is more
// to say.
func (t *transition) cause() string {
	if t.is.Detail == "" {
		return t.is.Reason
	}
	return t.is.Reason + " (" + t.is.Detail + ")"
}

// since tells which endpoints have another verdict than in before, or flap where they did not, in
// the order of their IDs. What is not in before was Unknown.
func (v verdicts) since(before verdicts) []transition {
	var out []transition
	add := func(i int, was probe.State) {
		if is := v.states[i]; is.Verdict != was.Verdict || is.Flapping != was.Flapping {
			out = append(out, transition{id: probe.ID(v.probes[i].ID), at: v.probes[i].Dial, was: was, is: is})
		}
	}
	if same(v.probes, before.probes) {
		for i := range v.states {
			add(i, before.states[i])
		}
	} else {
		known := make(map[plan.ProbeID]probe.State, len(before.states))
		for i := range before.states {
			known[before.probes[i].ID] = before.states[i]
		}
		for i := range v.states {
			add(i, known[v.probes[i].ID])
		}
	}
	slices.SortFunc(out, func(a, b transition) int { return a.id.Compare(b.id) })
	return out
}

// same: the two are one list.
func same(a, b []plan.Probe) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
