package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var testNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestChooseTier(t *testing.T) {
	healthy := func(p int32) TierCount { return TierCount{Number: p, Endpoints: 2, Verdicts: 2, Healthy: 2} }
	dead := func(p int32) TierCount { return TierCount{Number: p, Endpoints: 2, Verdicts: 2} }
	fresh := func(p int32) TierCount { return TierCount{Number: p, Endpoints: 2} }
	defaults := Failover{MinHealthyPercent: 1, FailbackDelay: time.Minute}
	active := func(p int32) TierState { return TierState{Active: &p} }
	since := func(p int32, ago time.Duration, tiers ...int32) TierState {
		s := TierState{Active: &p, Since: map[int32]time.Time{}}
		for _, tier := range tiers {
			s.Since[tier] = testNow.Add(-ago)
		}
		return s
	}
	tests := []struct {
		name     string
		failover Failover
		tiers    []TierCount
		prev     TierState
		want     *int32
		next     time.Duration // from now; 0: never
	}{
		{name: "no targets", failover: defaults},
		{name: "one healthy tier", failover: defaults, tiers: []TierCount{healthy(0)}, want: new(int32(0))},
		{
			name: "the lowest that qualifies", failover: defaults,
			tiers: []TierCount{healthy(1), healthy(2)}, want: new(int32(1)),
		},
		{name: "no verdicts: the lowest", failover: defaults, tiers: []TierCount{fresh(3), fresh(4)}, want: new(int32(3))},
		{
			name:     "a standby wins no race at the start",
			failover: defaults,
			tiers:    []TierCount{fresh(0), healthy(1)},
			want:     new(int32(0)),
		},
		{
			name:     "nor where one endpoint of the better tier is unjudged",
			failover: defaults,
			tiers:    []TierCount{{Endpoints: 2, Verdicts: 1}, healthy(1)},
			want:     new(int32(0)),
		},
		{
			name:     "nor where a name of the better tier has no answer yet",
			failover: defaults,
			tiers:    []TierCount{{Pending: true}, healthy(1)},
			want:     new(int32(0)),
		},
		{
			name:     "a better tier that cannot qualify any more, whatever its last verdict",
			failover: Failover{MinHealthyPercent: 50},
			tiers:    []TierCount{{Endpoints: 100, Verdicts: 99}, healthy(1)},
			prev:     active(0),
			want:     new(int32(1)),
		},
		{
			name:     "one that just may",
			failover: Failover{MinHealthyPercent: 50},
			tiers:    []TierCount{{Endpoints: 4, Verdicts: 3, Healthy: 1}, healthy(1)},
			prev:     active(0),
			want:     new(int32(0)),
		},
		{
			name:     "one that misses by one",
			failover: Failover{MinHealthyPercent: 51},
			tiers:    []TierCount{{Endpoints: 4, Verdicts: 3, Healthy: 1}, healthy(1)},
			prev:     active(0),
			want:     new(int32(1)),
		},
		{name: "one that cannot qualify, but for a name without an answer", failover: Failover{MinHealthyPercent: 50},
			tiers: []TierCount{{Endpoints: 4, Verdicts: 4, Pending: true}, healthy(1)}, prev: active(0), want: new(int32(0))},
		{
			name:     "an active tier whose addresses are all new stays",
			failover: defaults,
			tiers:    []TierCount{dead(0), fresh(1), healthy(2)},
			prev:     active(1),
			want:     new(int32(1)),
		},
		{
			name:     "it stays, too, where the better tier has no verdict either",
			failover: defaults,
			tiers:    []TierCount{fresh(0), fresh(1)},
			prev:     active(1),
			want:     new(int32(1)),
		},
		{name: "but not where a better tier has something healthy", failover: Failover{MinHealthyPercent: 51},
			tiers: []TierCount{{Endpoints: 3, Verdicts: 2, Healthy: 1}, fresh(1)}, prev: active(1), want: new(int32(0))},
		{
			name:     "one healthy endpoint is enough by default",
			failover: defaults,
			tiers:    []TierCount{{Endpoints: 100, Verdicts: 100, Healthy: 1}, healthy(1)},
			want:     new(int32(0)),
		},
		{
			name:     "unjudged endpoints are no part of the share",
			failover: Failover{MinHealthyPercent: 100},
			tiers:    []TierCount{{Endpoints: 9, Verdicts: 1, Healthy: 1}},
			want:     new(int32(0)),
		},
		{
			name:     "below minHealthyPercent",
			failover: Failover{MinHealthyPercent: 51},
			tiers:    []TierCount{{Endpoints: 2, Verdicts: 2, Healthy: 1}, healthy(1)},
			want:     new(int32(1)),
		},
		{
			name:     "at minHealthyPercent",
			failover: Failover{MinHealthyPercent: 50},
			tiers:    []TierCount{{Endpoints: 2, Verdicts: 2, Healthy: 1}, healthy(1)},
			want:     new(int32(0)),
		},
		{
			name:     "a better tier without endpoints is passed over",
			failover: defaults,
			tiers:    []TierCount{{Number: 0}, healthy(1)},
			want:     new(int32(1)),
		},
		{name: "all dead: none", failover: defaults, tiers: []TierCount{dead(0), dead(1)}, prev: active(0)},
		{
			name:     "dead active hands over at once",
			failover: defaults,
			tiers:    []TierCount{dead(0), healthy(1)},
			prev:     active(0),
			want:     new(int32(1)),
		},
		{
			name:     "Manual hands over at once, too",
			failover: Failover{MinHealthyPercent: 1, Manual: true},
			tiers:    []TierCount{dead(0), healthy(1)},
			prev:     active(0),
			want:     new(int32(1)),
		},
		{
			name:     "an unjudged newcomer in a dead better tier takes nothing back",
			failover: defaults,
			tiers:    []TierCount{{Endpoints: 3, Verdicts: 2}, healthy(1)},
			prev:     active(1),
			want:     new(int32(1)),
		},
		{
			name:     "an unjudged newcomer where none was active",
			failover: Failover{MinHealthyPercent: 60},
			tiers:    []TierCount{{Endpoints: 2, Verdicts: 1}, {Number: 1, Endpoints: 2, Verdicts: 2, Healthy: 1}},
			prev:     TierState{None: true},
		},
		{
			name:     "a standby that recovers beside an unjudged newcomer, where none was active",
			failover: defaults,
			tiers:    []TierCount{{Endpoints: 2, Verdicts: 1}, healthy(1)},
			prev:     TierState{None: true},
		},
		{
			name:     "no telling after a restart whether one was active: none, where it is not the lowest",
			failover: Failover{MinHealthyPercent: 60},
			tiers: []TierCount{
				fresh(0),
				{Number: 1, Endpoints: 2, Verdicts: 2, Healthy: 1},
			},
			prev: TierState{Active: new(int32(1)), None: true},
		},
		{
			name:     "the lowest, where it is",
			failover: Failover{MinHealthyPercent: 60},
			tiers:    []TierCount{{Endpoints: 3, Verdicts: 2, Healthy: 1}, dead(1)},
			prev:     TierState{Active: new(int32(0)), None: true},
			want:     new(int32(0)),
		},
		{
			name:     "the first endpoints of all are no newcomers",
			failover: defaults,
			tiers:    []TierCount{fresh(0), healthy(1)},
			prev:     TierState{},
			want:     new(int32(0)),
		},
		{
			name:     "failback waits",
			failover: defaults,
			tiers:    []TierCount{healthy(0), healthy(1)},
			prev:     active(1),
			want:     new(int32(1)),
			next:     time.Minute,
		},
		{
			name:     "failback still waits",
			failover: defaults,
			tiers:    []TierCount{healthy(0), healthy(1)},
			prev:     since(1, 59*time.Second, 0, 1),
			want:     new(int32(1)),
			next:     time.Second,
		},
		{
			name:     "failback after the delay",
			failover: defaults,
			tiers:    []TierCount{healthy(0), healthy(1)},
			prev:     since(1, time.Minute, 0, 1),
			want:     new(int32(0)),
		},
		{
			name:     "a break starts the delay anew",
			failover: defaults,
			tiers:    []TierCount{healthy(0), healthy(1)},
			prev:     since(1, time.Hour, 1),
			want:     new(int32(1)),
			next:     time.Minute,
		},
		{
			name:     "no delay",
			failover: Failover{MinHealthyPercent: 1},
			tiers:    []TierCount{healthy(0), healthy(1)},
			prev:     active(1),
			want:     new(int32(0)),
		},
		{
			name:     "a middle tier that has waited long enough",
			failover: defaults,
			tiers:    []TierCount{healthy(0), healthy(1), healthy(2)},
			prev:     since(2, time.Hour, 1, 2),
			want:     new(int32(1)),
			next:     time.Minute,
		},
		{
			name:     "the delay holds only while the active tier qualifies",
			failover: defaults,
			tiers:    []TierCount{healthy(0), dead(1)},
			prev:     since(1, time.Second, 0),
			want:     new(int32(0)),
		},
		{
			name:     "Manual stays",
			failover: Failover{MinHealthyPercent: 1, Manual: true},
			tiers:    []TierCount{healthy(0), healthy(1)},
			prev:     since(1, time.Hour, 0, 1),
			want:     new(int32(1)),
		},
		{
			name:     "Manual leaves a dead tier for a better one",
			failover: Failover{MinHealthyPercent: 1, Manual: true},
			tiers:    []TierCount{healthy(0), dead(1)},
			prev:     active(1),
			want:     new(int32(0)),
		},
		{
			name:     "pinned, although dead",
			failover: Failover{MinHealthyPercent: 1, Pinned: new(int32(1))},
			tiers:    []TierCount{healthy(0), dead(1)},
			prev:     active(0),
			want:     new(int32(1)),
		},
		{
			name:     "a tier that has gone is not held",
			failover: defaults,
			tiers:    []TierCount{healthy(0), healthy(2)},
			prev:     active(1),
			want:     new(int32(0)),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, next := ChooseTier(tt.failover, tt.tiers, tt.prev, testNow)
			if diff := cmp.Diff(tt.want, got.Active); diff != "" {
				t.Errorf("active tier (-want +got):\n%s", diff)
			}
			var wait time.Duration
			if !next.IsZero() {
				wait = next.Sub(testNow)
			}
			if wait != tt.next {
				t.Errorf("next look in %s, want %s", wait, tt.next)
			}
		})
	}
}

func TestPublishedTier(t *testing.T) {
	e := func(tier int32, healthy, serving bool) Endpoint {
		return Endpoint{Target: "t", Tier: tier, Conditions: Conditions{Healthy: healthy, Serving: serving}}
	}
	terminating := e(1, true, true)
	terminating.Terminating = true
	tests := []struct {
		name      string
		published []Endpoint
		want      TierState
	}{
		{name: "nothing"},
		{name: "nothing that serves", published: []Endpoint{e(0, false, false), e(1, true, false)}},
		{
			name:      "one tier",
			published: []Endpoint{e(0, false, false), e(1, true, true), e(1, true, true), e(2, true, false)},
			want:      TierState{Active: new(int32(1))},
		},
		{
			name:      "one tier, without a standby that was held back",
			published: []Endpoint{e(0, false, false), e(1, true, true)},
			want:      TierState{Active: new(int32(1)), None: true},
		},
		{name: "several tiers", published: []Endpoint{e(0, true, true), e(1, true, true)}, want: TierState{None: true}},
		{
			name:      "fail-open in a single tier",
			published: []Endpoint{e(0, true, true), e(0, false, true)},
			want:      TierState{None: true},
		},
		{
			name:      "what leaves keeps its tier",
			published: []Endpoint{e(0, false, false), terminating, e(2, true, false)},
			want:      TierState{Active: new(int32(1))},
		},
		{
			name:      "what is of no target says nothing",
			published: []Endpoint{{Conditions: Conditions{Healthy: true, Serving: true}}, e(1, true, true), e(2, true, false)},
			want:      TierState{Active: new(int32(1))},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, PublishedTier(tt.published)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
