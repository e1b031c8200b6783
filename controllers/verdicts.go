package controllers

import (
	"net/netip"
	"slices"

	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/probe"
)

// verdicts are what the prober knows of the endpoints at one moment. states is parallel to probes.
type verdicts struct {
	probes []plan.Probe
	states []probe.State
}

// state returns the state of one probe in the type of the planner.
func (v verdicts) state(i int) plan.ProbeState {
	if i >= len(v.states) {
		return plan.ProbeState{}
	}
	s := &v.states[i]
	return plan.ProbeState{Verdict: plan.Verdict(s.Verdict), Reason: s.Reason, Detail: s.Detail}
}

// blind reports whether an endpoint is silent while the prober takes itself for blind.
func (v verdicts) blind() bool {
	return slices.ContainsFunc(v.states, func(s probe.State) bool { return s.Blind })
}

// transition is the change of the verdict of one endpoint.
type transition struct {
	id      probe.ID
	at      netip.AddrPort // where it is probed
	was, is probe.State
}

// cause says why the endpoint is unhealthy: the reason, and the detail if there is one.
func (t *transition) cause() string {
	if t.is.Detail == "" {
		return t.is.Reason
	}
	return t.is.Reason + " (" + t.is.Detail + ")"
}

// since returns the endpoints that have another verdict than in before, or that flap and did not,
// in the order of their IDs. An endpoint that is not in before was Unknown.
func (v verdicts) since(before verdicts) []transition {
	var out []transition
	add := func(i int, was probe.State) {
		if is := v.states[i]; is.Verdict != was.Verdict || is.Flapping != was.Flapping {
			out = append(out, transition{id: probe.ID(v.probes[i].ID), at: v.probes[i].Dial, was: was, is: is})
		}
	}
	if endpointslice.SameList(v.probes, before.probes) {
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
