package main

import (
	"iter"
	"math/rand/v2"
	"slices"
)

// backend is one endpoint of a trace. Its number gives its address and its age.
type backend struct {
	id    int
	zone  string
	ready bool
}

// state is the wanted endpoints of one step, in the order of age.
type state []backend

func fresh(first, n int, zone string) state {
	s := make(state, n)
	for i := range s {
		s[i] = backend{id: first + i, zone: zone, ready: true}
	}
	return s
}

// trace is a sequence of wanted states. ground is the state before the first step; it is not
// measured. Without ground, every step starts from an empty store.
type trace struct {
	name   string
	ground state
	steps  iter.Seq[state]
}

// traces returns all traces. Every run has the same random choices.
func traces() []trace {
	return []trace{
		{"rest, 10,000 endpoints, 20 syncs", fresh(0, 10_000, ""), repeat(20, fresh(0, 10_000, ""))},
		{"create 1,000, 50 times", nil, repeat(50, fresh(0, 1000, ""))},
		{"create 10,000, 5 times", nil, repeat(5, fresh(0, 10_000, ""))},
		{"create 100,000", nil, repeat(1, fresh(0, 100_000, ""))},
		{"1,000 single flips in 10,000", fresh(0, 10_000, ""), flips(10_000, 1000)},
		{"replace 5,000 by 50, oldest first", fresh(0, 5000, ""), replaceOldest(5000, 50)},
		{"replace 5,000 by 50, random, three times over", fresh(0, 5000, ""), replaceRandom(5000, 50, 3)},
		{"replace 5,000 by 50, oldest first, with surge", fresh(0, 5000, ""), replaceSurging(5000, 50)},
		{"shrink 10,000 to 1,000, then 1,000 small steps", fresh(0, 10_000, ""), shrink(10_000, 1000, 1000)},
		{"20,000 small changes around 500", fresh(0, 500, ""), wander(500, 20_000)},
		{"one of three zones (3,000) unready and back", threeZones(1000),
			zoneOut(1000, func(b *backend) bool { b.ready = false; return true })},
		{"one of three zones (3,000) gone and back", threeZones(1000), zoneOut(1000, func(*backend) bool { return false })},
		{"256 addresses, 8 replaced, 1,000 times", fresh(0, 256, ""), rotate(256, 8, 1000)},
	}
}

func random() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

func repeat(n int, s state) iter.Seq[state] {
	return func(yield func(state) bool) {
		for range n {
			if !yield(s) {
				return
			}
		}
	}
}

func flips(n, times int) iter.Seq[state] {
	return func(yield func(state) bool) {
		r, s := random(), fresh(0, n, "")
		for range times {
			s = slices.Clone(s)
			i := r.IntN(n)
			s[i].ready = !s[i].ready
			if !yield(s) {
				return
			}
		}
	}
}

func replaceOldest(n, by int) iter.Seq[state] {
	return func(yield func(state) bool) {
		for first := by; first <= n; first += by {
			if !yield(fresh(first, n, "")) {
				return
			}
		}
	}
}

// replaceRandom replaces all n endpoints in random order, by at a time, and does so several times:
// after a single time, the result would vary by 1 % with the order.
func replaceRandom(n, by, times int) iter.Seq[state] {
	return func(yield func(state) bool) {
		r, s := random(), fresh(0, n, "")
		for first := range times {
			leaving := r.Perm(n)
			for next := 0; next < n; next += by {
				gone := map[int]bool{}
				for _, i := range leaving[next : next+by] {
					gone[first*n+i] = true
				}
				s = slices.DeleteFunc(slices.Clone(s), func(b backend) bool { return gone[b.id] })
				s = append(s, fresh((first+1)*n+next, by, "")...)
				if !yield(s) {
					return
				}
			}
		}
	}
}

func replaceSurging(n, by int) iter.Seq[state] {
	return func(yield func(state) bool) {
		for first := 0; first < n; first += by {
			if !yield(fresh(first, n+by, "")) || !yield(fresh(first+by, n, "")) {
				return
			}
		}
	}
}

func shrink(from, to, then int) iter.Seq[state] {
	return func(yield func(state) bool) {
		r, s := random(), fresh(0, from, "")
		r.Shuffle(from, func(i, j int) { s[i], s[j] = s[j], s[i] })
		s = s[:to]
		if yield(s) {
			small(r, s, to, from, then, yield)
		}
	}
}

func wander(n, times int) iter.Seq[state] {
	return func(yield func(state) bool) { small(random(), fresh(0, n, ""), n, n, times, yield) }
}

// small changes one to five endpoints at a time, and keeps their number near n: some leave, some
// come, some flip.
func small(r *rand.Rand, s state, n, next, times int, yield func(state) bool) {
	for range times {
		s = slices.Clone(s)
		for range 1 + r.IntN(5) {
			i := r.IntN(len(s))
			switch grow := r.IntN(2*n) > len(s); {
			case r.IntN(3) == 0:
				s[i].ready = !s[i].ready
			case grow:
				s = append(s, backend{id: next, ready: true})
				next++
			case len(s) > 1:
				s = slices.Delete(s, i, i+1)
			}
		}
		if !yield(s) {
			return
		}
	}
}

func threeZones(n int) state {
	var s state
	for i := range 3 * n { // zones alternate, as with an autoscaler
		s = append(s, backend{id: i, zone: []string{"a", "b", "c"}[i%3], ready: true})
	}
	return s
}

// zoneOut changes the endpoints of zone b, and then reverts the change. keep reports whether an
// endpoint stays.
func zoneOut(n int, keep func(*backend) bool) iter.Seq[state] {
	return func(yield func(state) bool) {
		var out state
		for _, b := range threeZones(n) {
			if b.zone != "b" || keep(&b) {
				out = append(out, b)
			}
		}
		_ = yield(out) && yield(threeZones(n))
	}
}

func rotate(n, by, times int) iter.Seq[state] {
	return func(yield func(state) bool) {
		r, s := random(), fresh(0, n, "")
		for step := range times {
			s = slices.Clone(s)
			r.Shuffle(n, func(i, j int) { s[i], s[j] = s[j], s[i] })
			copy(s, fresh(n+step*by, by, ""))
			if !yield(s) {
				return
			}
		}
	}
}
