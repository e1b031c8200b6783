package main

import (
	"encoding/json"
	"runtime"
	"slices"
	"syscall"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// result is the result of one contender on one trace.
type result struct {
	steps, writes, least int     // least is the sum of W*
	json, protobuf       int     // bytes of created and updated slices
	end, worst           float64 // slices / ideal
	over                 int     // slices beyond 2 x ideal + 1, at worst
	missing              int     // endpoints that are wanted before and after a step, but missing in between
	cpu                  time.Duration
	allocations          uint64
}

// run runs a contender on a trace.
func run(c contender, t trace) result {
	st := newStore()
	if t.ground != nil {
		c.prepare(t.ground)
		c.sync(nil, st)
	}
	var r result
	for s := range t.steps {
		if t.ground == nil {
			st = newStore()
		}
		c.prepare(s)
		existing := slices.Clone(st.list)
		st.journal = nil
		r.measure(func() { c.sync(existing, st) })
		r.steps++
		r.least += least(s, existing)
		r.read(s, existing, st)
	}
	return r
}

// measure calls f, and adds its allocations and the processor time of the whole process, including
// garbage collection.
func (r *result) measure(f func()) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begin := processorTime()
	f()
	r.cpu += processorTime() - begin
	runtime.ReadMemStats(&after)
	r.allocations += after.Mallocs - before.Mallocs
}

func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // the arguments are valid
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// least calculates W* of a step, for the layout that the contender itself has made.
func least(s state, existing []*discoveryv1.EndpointSlice) int {
	wanted := make(map[string]bool, len(s))
	for _, b := range s {
		wanted[address(b.id).String()] = b.ready
	}
	added, written, room := len(s), 0, 0
	for _, slice := range existing {
		kept, changed := 0, false
		for i := range slice.Endpoints {
			ready, ok := wanted[slice.Endpoints[i].Addresses[0]]
			if ok {
				kept++
			}
			changed = changed || !ok || *slice.Endpoints[i].Conditions.Ready != ready
		}
		added -= kept
		if changed {
			written++
			room += perSlice - kept
		}
	}
	return written + ceil(max(0, added-room), perSlice)
}

func ceil(a, b int) int { return (a + b - 1) / b }

// read adds the writes of a step, and checks what consumers see in between.
func (r *result) read(s state, existing []*discoveryv1.EndpointSlice, st *store) {
	copies := map[string]int{}
	count := func(slice *discoveryv1.EndpointSlice, by int) {
		if slice != nil {
			for i := range slice.Endpoints {
				copies[slice.Endpoints[i].Addresses[0]] += by
			}
		}
	}
	if len(st.journal) > 0 {
		for _, slice := range existing {
			count(slice, 1)
		}
	}
	stays := map[string]bool{}
	for _, b := range s {
		if a := address(b.id).String(); copies[a] > 0 {
			stays[a] = true
		}
	}
	for _, w := range st.journal {
		r.writes++
		count(w.after, 1)
		count(w.before, -1)
		if w.before != nil {
			for i := range w.before.Endpoints {
				if a := w.before.Endpoints[i].Addresses[0]; stays[a] && copies[a] == 0 {
					r.missing++
				}
			}
		}
		if w.after != nil {
			text, err := json.Marshal(w.after)
			if err != nil {
				panic(err) // every slice can be encoded as JSON
			}
			r.json += len(text)
			r.protobuf += w.after.Size()
		}
	}
	ideal := ceil(len(s), perSlice)
	r.end = float64(len(st.list)) / float64(ideal)
	r.worst = max(r.worst, r.end)
	r.over = max(r.over, len(st.list)-2*ideal-1)
}
