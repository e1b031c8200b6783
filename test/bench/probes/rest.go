package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/external-backend/operator/test/bench/meter"
)

const (
	many         = 100_000 // targets between two checks
	keptShare    = 70      // percent of the files that a process may have open, for kept connections
	maxKept      = 20_000  // more handshakes would take too long
	keptPatience = 40 * time.Second
)

// answers passes on what an engine's process has measured, and drops its other lines.
type answers chan measured

func (a answers) heard(line string, _ time.Time) {
	var m measured
	if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &m) == nil {
		a <- m
	}
}

// ask asks an engine's process for what it has measured since it was asked last.
func (a answers) ask(ctx context.Context, p *process) (measured, error) {
	if err := p.say("measured?"); err != nil {
		return measured{}, err
	}
	select {
	case m := <-a:
		return m, nil
	case <-p.read:
		return measured{}, p.alive()
	case <-ctx.Done():
		return measured{}, ctx.Err()
	}
}

// memory measures the memory of a target between two checks.
func memory(r *report) error {
	t, stop, err := openTargets(r.identity)
	if err != nil {
		return err
	}
	err = r.memory(t)
	if e := stop(); err == nil {
		err = e
	}
	return err
}

func (r *report) memory(t *targets) error {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return err
	}
	kept := int(min(maxKept, files.Cur*keptShare/100))
	const kib = 1 << 10
	r.title("Memory of a target between two checks")
	r.head(
		"check",
		"targets",
		"connections kept",
		"live heap and stacks, bytes a target",
		"resident, bytes a target",
		"goal",
		"",
	)
	for _, row := range []struct {
		kind    string
		targets int
		goal    int64
	}{
		{"TCP", many, kib},
		{"HTTP, kept alive", kept, (1 + 8) * kib},
		{"HTTPS, kept alive", kept, (1 + 32) * kib},
		{"gRPC, kept alive (HAProxy: new connection)", kept, (1 + 8) * kib},
	} {
		g := group{
			Name:    "resting",
			Kind:    kindOf(row.kind),
			Count:   row.targets,
			Confirm: 12 * time.Second,
			Period:  time.Minute,
			Timeout: 10 * time.Second,
		}
		if !kinds[g.Kind].keep {
			g.Period = time.Hour
		}
		m, open, err := r.rest(t, g)
		if err != nil {
			return fmt.Errorf("%s: %w", row.kind, err)
		}
		live := m.Live / int64(row.targets)
		r.row(row.kind, row.targets, open, live, m.Resident/int64(row.targets), row.goal,
			r.judge(fmt.Sprintf("memory, %s: %d bytes", row.kind, live), live <= row.goal))
	}
	return nil
}

// rest makes an engine check every target of a group once, and measures the engine then.
func (r *report) rest(t *targets, g group) (m measured, open int64, err error) {
	said := make(answers, 1)
	p, err := startRole(r.ctx, "engine", job{CA: r.ca(), Groups: []group{g}}, said.heard)
	if err != nil {
		return m, 0, err
	}
	defer p.kill()
	// The first checks are spread over the confirm period.
	if err := sleep(r.ctx, g.Confirm+2*time.Second); err != nil {
		return m, 0, err
	}
	// On a busy machine some handshakes come late.
	for began := time.Now(); kinds[g.Kind].keep && t.open.Load() < int64(g.Count) && time.Since(began) < keptPatience; {
		if err := sleep(r.ctx, time.Second); err != nil {
			return m, 0, err
		}
	}
	m, err = said.ask(r.ctx, p)
	return m, t.open.Load(), err
}

// kindOf returns the index of the kind with that name.
func kindOf(name string) int {
	for i, k := range kinds {
		if k.name == name {
			return i
		}
	}
	panic("no kind is named " + name)
}

const (
	paced       = 20_000
	silent      = paced * 40 / 100
	pacedPeriod = 2 * time.Second
	paceWarmUp  = 8 * time.Second // in which the silent targets get their verdicts
	paceWindow  = 10 * time.Second
)

// silentFirst is the first address of the silent targets. The targets' namespace drops their
// packets.
const silentFirst = 1<<16 + 1<<15 - 1

// pace measures how punctual probes are, with and without targets that don't answer.
func pace(r *report) error {
	t, stop, err := openTargets(r.identity)
	if err != nil {
		return err
	}
	err = r.pace(t)
	if e := stop(); err == nil {
		err = e
	}
	return err
}

func (r *report) pace(t *targets) error {
	route := t.namespace.Command(
		r.ctx,
		"ip",
		"route",
		"add",
		"blackhole",
		fmt.Sprintf("%s/17", meter.Address(silentFirst)),
		"table",
		"local",
	)
	if out, err := route.CombinedOutput(); err != nil {
		return fmt.Errorf("ip route: %w: %s", err, out)
	}
	r.title("Punctuality, %d targets every %v over TCP, for %v", paced, pacedPeriod, paceWindow)
	r.head(
		"of them black-holed",
		"checks of the others, a second",
		"their period is off by: p50",
		"p99",
		"max",
		"lateness of all, p99 at most",
		"CPU",
		"goal: p99 under 50 ms",
	)
	for _, dead := range []int{0, silent} {
		groups := []group{
			{Name: "live", Count: paced - dead},
			{Name: "silent", First: silentFirst, Count: dead},
		}
		for i := range groups {
			groups[i].Period, groups[i].Confirm, groups[i].Timeout = pacedPeriod, 200*time.Millisecond, time.Second
		}
		said := make(answers, 1)
		p, err := startRole(r.ctx, "engine", job{Groups: groups, Pace: true}, said.heard)
		if err != nil {
			return err
		}
		m, cpu, took, err := r.watchPace(p, said)
		p.kill()
		if err != nil {
			return err
		}
		met := r.judge(
			fmt.Sprintf("punctuality with %d silent: p99 %s", dead, meter.Milliseconds(m.Gaps.At(99))),
			m.Gaps.At(99) < 50*time.Millisecond,
		)
		r.row(
			dead,
			fmt.Sprintf("%.0f", float64(m.Probes)/took.Seconds()),
			meter.Milliseconds(m.Gaps.At(50)),
			meter.Milliseconds(m.Gaps.At(99)),
			meter.Milliseconds(m.Gaps.At(100)),
			fmt.Sprintf("%.1f ms", 1000*m.Late),
			fmt.Sprintf("%.0f %% of a core", 100*cpu.Seconds()/took.Seconds()),
			met,
		)
	}
	return nil
}

func (r *report) watchPace(p *process, said answers) (m measured, cpu, took time.Duration, err error) {
	if err = sleep(r.ctx, paceWarmUp); err != nil {
		return
	}
	if _, err = said.ask(r.ctx, p); err != nil {
		return
	}
	began := time.Now()
	before, err := p.cpuTime()
	if err != nil {
		return
	}
	if err = sleep(r.ctx, paceWindow); err != nil {
		return
	}
	after, err := p.cpuTime()
	if err != nil {
		return
	}
	took = time.Since(began)
	if m, err = said.ask(r.ctx, p); err == nil && len(m.Gaps) == 0 {
		err = errors.New("no target was probed twice")
	}
	return m, after - before, took, err
}
