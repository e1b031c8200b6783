package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/external-backend/operator/test/bench/meter"
)

const (
	checked = 500             // targets
	window  = 3 * time.Second // the time over which a prober's CPU time is measured
)

// rounds is how often each prober is measured with each kind of check. The probers take turns.
var rounds = 3

// cost is the CPU time of a prober's checks of one kind.
type cost struct {
	perCheck []time.Duration // CPU time, one for each round
	perSec   []float64       // checks that reached the targets
}

// median returns the median of perCheck, or 0 where nothing was measured.
func (c *cost) median() time.Duration {
	if len(c.perCheck) == 0 {
		return 0
	}
	return meter.Spread(c.perCheck).At(50)
}

// String returns the median. Where the rounds differ, it adds the least and the largest value.
func (c *cost) String() string {
	if len(c.perCheck) == 0 {
		return "-"
	}
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	return fmt.Sprintf("%.1f (%.1f to %.1f)", us(c.median()), us(slices.Min(c.perCheck)), us(slices.Max(c.perCheck)))
}

// cpu measures the CPU time of a check.
func cpu(r *report) error {
	t, stop, err := openTargets(r.identity)
	if err != nil {
		return err
	}
	probers := []struct {
		name  string
		has   func(kind) bool
		start func(ctx context.Context, g group) (*process, error)
	}{
		{"ours", func(kind) bool { return true }, func(ctx context.Context, g group) (*process, error) {
			return startRole(ctx, "engine", job{CA: r.ca(), Groups: []group{g}}, ignore)
		}},
		{"HAProxy", kind.haproxy, func(ctx context.Context, g group) (*process, error) {
			return startHAProxy(ctx, r.dir, backend(g, kinds[g.Kind].directives(r.ca())), ignore)
		}},
		{"lean", func(k kind) bool { return k.period != byDefault }, func(ctx context.Context, g group) (*process, error) {
			return startRole(ctx, "lean", job{CA: r.ca(), Groups: []group{g}}, ignore)
		}},
	}
	costs := make([][3]cost, len(kinds))
	for round := range rounds {
		fmt.Fprintf(os.Stderr, "probes: CPU time, round %d of %d\n", round+1, rounds)
		for i, k := range kinds {
			for j, prober := range probers {
				if !prober.has(k) {
					continue
				}
				p, err := prober.start(r.ctx, group{Name: "checked", Kind: i, Count: k.count()})
				if err == nil {
					err = costs[i][j].measure(r.ctx, t, k, p)
					p.kill()
				}
				if err != nil {
					_ = stop()
					return fmt.Errorf("%s, %s: %w", prober.name, k.name, err)
				}
			}
		}
	}
	printCosts(r, costs)
	return stop()
}

func ignore(string, time.Time) {}

// backend returns a group as a backend of HAProxy.
func backend(g group, directives string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "backend %s\n%s", g.Name, directives)
	for i := range g.Count {
		fmt.Fprintf(&text, "  server %d %s:%d\n", g.First+i, meter.Address(g.First+i), g.port())
	}
	return text.String()
}

// measure lets a prober run for a while.
func (c *cost) measure(ctx context.Context, t *targets, k kind, p *process) error {
	if err := sleep(ctx, k.warmUp()); err != nil {
		return err
	}
	spent, done, at, err := look(ctx, t, k, p)
	if err != nil {
		return err
	}
	if err := sleep(ctx, window); err != nil {
		return err
	}
	spentAfter, doneAfter, atAfter, err := look(ctx, t, k, p)
	if err != nil {
		return err
	}
	checks := doneAfter - done
	if checks == 0 {
		return fmt.Errorf("no check has reached the targets: %s", p.stderr.String())
	}
	c.perCheck = append(c.perCheck, (spentAfter-spent)/time.Duration(checks))
	c.perSec = append(c.perSec, float64(checks)/atAfter.Sub(at).Seconds())
	return nil
}

func look(
	ctx context.Context,
	t *targets,
	k kind,
	p *process,
) (spent time.Duration, checks int64, at time.Time, err error) {
	if err = p.alive(); err != nil {
		return
	}
	if spent, err = p.cpuTime(); err != nil {
		return
	}
	at = time.Now()
	checks, err = t.checks(ctx, k)
	return
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func printCosts(r *report, costs [][3]cost) {
	r.title(
		"CPU time of a check, %d targets (by default %d), median of %d rounds of %v",
		checked,
		10*checked,
		rounds,
		window,
	)
	r.head(
		"check",
		"every",
		"ours, us",
		"HAProxy, us",
		"lean loop, us",
		"ours / HAProxy",
		"goal",
		"",
		"ours / lean",
		"checks a second: ours, HAProxy, lean",
	)
	for i, k := range kinds {
		ours, theirs, lean := &costs[i][0], &costs[i][1], &costs[i][2]
		ratio, goal, verdict := "-", "-", ""
		against := theirs
		if j := slices.IndexFunc(kinds, func(other kind) bool { return other.name == k.like }); j >= 0 {
			against = &costs[j][1]
		}
		if against.median() > 0 {
			x := float64(ours.median()) / float64(against.median())
			ratio = fmt.Sprintf("%.2f", x)
			if k.goal > 0 {
				goal = fmt.Sprintf("%.3g", k.goal)
				verdict = r.judge(fmt.Sprintf("CPU time, %s: %.3f of HAProxy's", k.name, x), x <= k.goal)
			}
		}
		if k.like != "" {
			ratio += " (of " + k.like + ")"
		}
		rates := make([]string, 0, 3)
		for _, c := range []*cost{ours, theirs, lean} {
			if len(c.perSec) > 0 {
				rates = append(rates, fmt.Sprintf("%.0f", slices.Min(c.perSec)))
			} else {
				rates = append(rates, "-")
			}
		}
		ofLean := "-"
		if lean.median() > 0 {
			ofLean = fmt.Sprintf("%.2f", float64(ours.median())/float64(lean.median()))
		}
		r.row(k.name, k.period, ours, theirs, lean, ratio, goal, verdict, ofLean, strings.Join(rates, ", "))
	}
}
