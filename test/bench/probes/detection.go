package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/bench/meter"
)

const (
	deaths      = 200 // of each kind
	perRound    = 40  // how many die within one period
	deathRounds = deaths / perRound
	deadline    = 20 * time.Second

	// chance is the difference between the medians of this many deaths that chance alone exceeds once
	// in twenty times. A death comes at any moment of a period, so its wait for the next check is
	// spread evenly over 2 s.
	chance = 200 * time.Millisecond

	detectPeriod  = 2 * time.Second
	detectConfirm = 200 * time.Millisecond
	detectTimeout = time.Second

	// What HAProxy is told, for the same.
	haproxyPace    = "  timeout connect 500ms\n  timeout check 500ms\n  default-server check inter 2s fastinter 200ms fall 3\n"
	haproxySettles = 5 * time.Second // its servers begin as if two checks had failed
)

// The kinds of death. Victims are killed; they are checked over TCP and over HTTP. Holes neither
// get nor send packets any more.
const (
	victims = "victims" // addresses from 0 on, by TCP
	webs    = "webs"    // the same, by HTTP
	holes   = "holes"   // addresses from deaths on, by TCP

	// refused is not a kind of its own. It is about the victims by TCP, and counts from the first
	// check after the death. The wait for that check depends on chance alone, and is spread alike for
	// every prober that checks every 2 s.
	refused = "refused"
)

func deathGroups() []group {
	groups := []group{
		{Name: victims, Kind: kindOf("TCP"), Beside: ofVictim},
		{Name: webs, Kind: kindOf("HTTP, kept alive"), Beside: ofVictim},
		{Name: holes, Kind: kindOf("TCP"), First: deaths},
	}
	for i := range groups {
		g := &groups[i]
		g.Count, g.Period, g.Confirm, g.Timeout = deaths, detectPeriod, detectConfirm, detectTimeout
	}
	return groups
}

// verdicts notes when a prober has first reported a target.
type verdicts struct {
	mu   sync.Mutex
	at   map[string]time.Time // by "GROUP INDEX"
	news chan struct{}        // holds an item after something was added
}

func newVerdicts() *verdicts {
	return &verdicts{at: map[string]time.Time{}, news: make(chan struct{}, 1)}
}

func (v *verdicts) add(group, index string, at time.Time) {
	v.mu.Lock()
	if key := group + " " + index; v.at[key].IsZero() {
		v.at[key] = at
	}
	v.mu.Unlock()
	select {
	case v.news <- struct{}{}:
	default:
	}
}

// await waits until each of these targets of a group was reported, and returns the times.
func (v *verdicts) await(ctx context.Context, group string, targets []int) ([]time.Time, error) {
	for {
		var at []time.Time
		v.mu.Lock()
		for _, i := range targets {
			if t := v.at[fmt.Sprintf("%s %d", group, i)]; !t.IsZero() {
				at = append(at, t)
			}
		}
		v.mu.Unlock()
		if len(at) == len(targets) {
			return at, nil
		}
		select {
		case <-v.news:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w, with verdicts on %d of %d %s", ctx.Err(), len(at), len(targets), group)
		}
	}
}

// prober is a process whose verdicts are noted.
type prober struct {
	name    string
	victim  uint16 // the port at which it checks victims over TCP
	process *process
	alive   *verdicts
	dead    *verdicts
}

func (p *prober) heardEngine(line string, at time.Time) {
	switch fields := strings.Fields(line); {
	case len(fields) != 3:
	case fields[2] == "Unhealthy":
		p.dead.add(fields[0], fields[1], at)
	case fields[2] == "Healthy":
		p.alive.add(fields[0], fields[1], at)
	}
}

var haproxyDown = regexp.MustCompile(`Server (\w+)/(\d+) is DOWN`)

func (p *prober) heardHAProxy(line string, at time.Time) {
	if match := haproxyDown.FindStringSubmatch(line); match != nil {
		p.dead.add(match[1], match[2], at)
	}
}

// startVictims starts a process for each of n addresses from first on, and returns once all of them
// serve.
func startVictims(ctx context.Context, namespace *devcluster.Namespace, first, n int) ([]*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var all []*exec.Cmd
	for i := range n {
		cmd := namespace.Command(ctx, self, "victim", meter.Address(first+i).String())
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
		stdout, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			return all, err
		}
		all = append(all, cmd)
		if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
			return all, fmt.Errorf("a victim says %q: %w", line, err)
		}
	}
	return all, nil
}

// bury kills the victims that still run.
func bury(victims []*exec.Cmd) {
	for _, v := range victims {
		_ = v.Process.Kill()
		_ = v.Wait()
	}
}

// detection measures how soon a death is known.
func detection(r *report) (err error) {
	t, stop, err := openTargets(r.identity)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	all, err := startVictims(r.ctx, t.namespace, 0, deaths)
	defer bury(all)
	if err != nil {
		return err
	}
	probers, err := startProbers(r)
	for _, p := range probers {
		defer p.process.kill()
	}
	if err != nil {
		return err
	}
	if err := awaitAlive(r.ctx, probers[0]); err != nil {
		return err
	}
	seen, err := seeDials(t.namespace)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, seen.close()) }()
	took, err := takeLives(r, t, all, probers, seen)
	if err != nil {
		return err
	}
	printDetection(r, took)
	return nil
}

func startProbers(r *report) ([]*prober, error) {
	ours := &prober{name: "ours", victim: portTCP + ofVictim, alive: newVerdicts(), dead: newVerdicts()}
	theirs := &prober{name: "HAProxy", victim: portTCP + ofVictim2, dead: newVerdicts()}
	groups := deathGroups()
	var err error
	if ours.process, err = startRole(r.ctx, "engine", job{Groups: groups}, ours.heardEngine); err != nil {
		return nil, err
	}
	var backends strings.Builder
	for _, g := range groups {
		if g.Beside == ofVictim {
			g.Beside = ofVictim2
		}
		directives := haproxyPace
		if kinds[g.Kind].http {
			directives += "  option httpchk\n  http-check send meth GET uri / ver HTTP/1.1 hdr Host " + serverName + "\n"
		}
		backends.WriteString(backend(g, directives))
	}
	theirs.process, err = startHAProxy(r.ctx, r.dir, backends.String(), theirs.heardHAProxy)
	if err != nil {
		return []*prober{ours}, err
	}
	return []*prober{ours, theirs}, nil
}

// awaitAlive waits until our prober has found all targets alive.
func awaitAlive(ctx context.Context, ours *prober) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	for _, g := range deathGroups() {
		if _, err := ours.alive.await(ctx, g.Name, every(1, g.First, g.Count)); err != nil {
			return err
		}
	}
	return sleep(ctx, haproxySettles)
}

// every returns n numbers from first on, step apart.
func every(step, first, n int) []int {
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = first + i*step
	}
	return numbers
}

// takeLives ends all victims and makes all holes, in rounds. It returns how long each prober took
// to report them, by group and prober.
func takeLives(
	r *report,
	t *targets,
	all []*exec.Cmd,
	probers []*prober,
	seen *dials,
) (map[string][2]meter.Spread, error) {
	took := map[string][2]meter.Spread{}
	note := func(dead []int, died []time.Time, groups ...string) error {
		ctx, cancel := context.WithTimeout(r.ctx, deadline)
		defer cancel()
		for _, group := range groups {
			both, fromCheck := took[group], took[refused]
			for i, p := range probers {
				known, err := p.dead.await(ctx, group, dead)
				if err != nil {
					return fmt.Errorf("%s: %w", p.name, err)
				}
				for j := range known {
					both[i] = append(both[i], known[j].Sub(died[j]))
					if group == victims {
						first := seen.after(netip.AddrPortFrom(meter.Address(dead[j]), p.victim), died[j])
						fromCheck[i] = append(fromCheck[i], known[j].Sub(first))
					}
				}
			}
			took[group], took[refused] = both, fromCheck
		}
		return nil
	}
	for round := range deathRounds {
		dead := every(deathRounds, round, perRound)
		died, err := spread(r.ctx, dead, func(victim int) error { return all[victim].Process.Kill() })
		if err != nil {
			return nil, err
		}
		if err := note(dead, died, victims, webs); err != nil {
			return nil, err
		}
		dead = every(deathRounds, deaths+round, perRound)
		died, err = spread(r.ctx, dead, func(hole int) error {
			return t.namespace.Drop(netip.AddrPortFrom(meter.Address(hole), 0))
		})
		if err != nil {
			return nil, err
		}
		if err := note(dead, died, holes); err != nil {
			return nil, err
		}
	}
	return took, nil
}

// spread ends targets one by one, evenly over a period and in random order. So they die at every
// moment of a prober's period, whatever the order of its checks. It returns when each target died.
func spread(ctx context.Context, targets []int, end func(int) error) ([]time.Time, error) {
	died := make([]time.Time, len(targets))
	ticker := time.NewTicker(detectPeriod / time.Duration(len(targets)))
	defer ticker.Stop()
	for _, i := range rand.Perm(len(targets)) {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		died[i] = time.Now()
		if err := end(targets[i]); err != nil {
			return nil, err
		}
	}
	return died, nil
}

func printDetection(r *report, took map[string][2]meter.Spread) {
	r.title("From a death to its verdict, %d deaths of each sort, %d within %v", deaths, perRound, detectPeriod)
	r.head("death", "prober", "least", "p50", "p99", "largest", "goal", "")
	for _, row := range []struct {
		group, name string
		bound       time.Duration // 0: HAProxy's
	}{
		{victims, "killed process, TCP (refused)", 0},
		{refused, "the same, from the first check after it", 0},
		{holes, "dropped packets, TCP (black hole)", 0},
		{webs, "killed process, HTTP kept alive", time.Second},
	} {
		ours, theirs := took[row.group][0], took[row.group][1]
		goal, verdict := "sooner than HAProxy at p50 and p99", "a tie, but for chance"
		later := max(ours.At(50)-theirs.At(50), ours.At(99)-theirs.At(99))
		if row.bound > 0 {
			goal, later = "p99 under "+row.bound.String(), ours.At(99)-row.bound
		}
		if row.bound > 0 || row.group == refused || later < 0 || later > chance {
			verdict = r.judge("detection, "+row.name, later < 0)
		}
		cells := func(name string, s meter.Spread) []any {
			return []any{row.name, name, seconds(s.At(0)), seconds(s.At(50)), seconds(s.At(99)), seconds(s.At(100))}
		}
		r.row(append(cells("ours", ours), goal, verdict)...)
		r.row(append(cells("HAProxy", theirs), "", "")...)
	}
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 3, 64) + " s" }
