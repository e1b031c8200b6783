package endpointslice

import (
	discoveryv1 "k8s.io/api/discovery/v1"
)

// effects are what an update of a slice changes for its consumers.
type effects struct {
	// gains means that endpoints come in, loses that endpoints go.
	gains, loses bool
	// conditionsChange means that an endpoint that stays changes its conditions.
	conditionsChange bool
	// makesReady means that an endpoint becomes ready, or comes in ready.
	makesReady bool
	// takesReady means that an endpoint stops being ready or goes, or that an endpoint of last resort
	// (serving and terminating, none ready) stops serving.
	takesReady bool
	// beforeMove means that this is the update before the slice's endpoints move elsewhere.
	beforeMove bool
	// receivesUpdated means that endpoints come in from a slice that has such an update.
	receivesUpdated bool
}

// independent reports whether the update makes endpoints ready and need not wait for another one.
func (e *effects) independent() bool {
	return e.makesReady && !e.loses && !e.beforeMove && !e.receivesUpdated
}

// onlyTakesReady reports whether the update takes readiness away and gives none.
func (e *effects) onlyTakesReady() bool { return e.takesReady && !e.makesReady }

// onlyMakesReady reports whether the update gives readiness and takes none away.
func (e *effects) onlyMakesReady() bool { return e.makesReady && !e.takesReady }

// writePhases are the steps in which updates are written. An update belongs to the first phase that
// includes it. What adds comes before what removes, and above all what becomes ready before what
// stops being ready, so that traffic that moves from one slice to another finds an endpoint at all
// times.
var writePhases = []struct {
	name     string
	includes func(e *effects) bool
}{
	{"makes ready before a move", func(e *effects) bool { return e.beforeMove && e.onlyMakesReady() }},
	{"makes ready", func(e *effects) bool { return e.independent() && !e.takesReady }},
	{"makes and takes ready", (*effects).independent},
	{"before a move", func(e *effects) bool { return e.beforeMove }},
	{"makes ready after a move", func(e *effects) bool { return !e.loses && e.onlyMakesReady() }},
	{"gains endpoints", func(e *effects) bool { return e.gains && !e.onlyTakesReady() }},
	{"changes endpoints", func(e *effects) bool { return !e.loses && !e.onlyTakesReady() }},
	{"gains endpoints, takes ready", func(e *effects) bool { return e.gains }},
	{"makes ready, loses endpoints", func(e *effects) bool { return e.makesReady }},
	{"takes ready or loses endpoints", func(*effects) bool { return true }},
}

// sliceUpdate is an update of a slice and its index in writePhases.
type sliceUpdate struct {
	slice *discoveryv1.EndpointSlice
	phase int
}

func newSliceUpdate(s *discoveryv1.EndpointSlice, e effects) sliceUpdate {
	i := 0
	for !writePhases[i].includes(&e) {
		i++
	}
	return sliceUpdate{s, i}
}

// noteConditions notes what changes in the conditions of an endpoint that stays.
func (e *effects) noteConditions(have *discoveryv1.Endpoint, want *Conditions) {
	if sameConditions(&have.Conditions, want) {
		return
	}
	e.conditionsChange = true
	ready, serving, terminating := readConditions(have)
	lastResort := serving && terminating && !(want.Serving && want.Terminating)
	e.makesReady = e.makesReady || want.Ready && !ready
	e.takesReady = e.takesReady || (ready || lastResort) && !want.Ready
}
