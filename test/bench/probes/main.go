// Command probes measures the prober over a veth pair, beside HAProxy's health checks and beside
// the leanest loop that Go allows. It measures the CPU time of a check, the memory of a target
// between two checks, how punctual the checks of 20,000 targets are, how soon a death is known, and
// how soon it is written into a slice. The targets are in a network namespace of their own. It
// prints tables in Markdown, and exits with 1 where a goal is missed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness/lab"
)

// parts are the parts of the benchmark, in the order in which they run. The flag -only chooses one.
// Each part opens the network that it needs.
var parts = []struct {
	name string
	run  func(*report) error
}{
	{"cpu", cpu},
	{"memory", memory},
	{"pace", pace},
	{"detection", detection},
	{"writes", writes},
}

// roles are the parts that this program plays when it starts itself again. The first argument is
// the role, the second one is its job.
var roles = map[string]func(string) error{"engine": beEngine, "lean": beLean, "victim": beVictim}

func main() {
	if len(os.Args) == 3 && roles[os.Args[1]] != nil {
		end(roles[os.Args[1]](os.Args[2]))
		return
	}
	only := flag.String("only", "", "run this part alone: "+strings.Join(names(), ", "))
	flag.IntVar(&rounds, "rounds", rounds, "how often the CPU time of each check is measured; the median counts")
	flag.Parse()
	if *only != "" && !slices.Contains(names(), *only) {
		end(fmt.Errorf("there is no part %q", *only))
	}
	if devcluster.Nsenter() == "" { // still outside of the namespace
		end(prepare(*only))
	}
	devcluster.Enter()
	log.SetLogger(logr.Discard()) // controller-runtime complains otherwise
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, *only)
	stop()
	end(err)
}

func names() []string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

func end(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// prepare looks for the programs that are needed, and builds those that are missing.
func prepare(only string) error {
	wanted := func(parts ...string) bool { return only == "" || slices.Contains(parts, only) }
	if _, err := haproxyPath(); err != nil && wanted("cpu", "detection") {
		return errors.New("HAProxy is missing, install it with: apt-get install haproxy")
	}
	if wanted("writes") {
		return lab.Prepare(context.Background(), os.Stderr, false)
	}
	return nil
}

func haproxyPath() (string, error) {
	if path, err := exec.LookPath("haproxy"); err == nil {
		return path, nil
	}
	return exec.LookPath("/usr/sbin/haproxy")
}

func run(ctx context.Context, only string) (err error) {
	dir, err := os.MkdirTemp("", "probes-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	identity, err := newIdentity()
	if err != nil {
		return err
	}
	r := &report{ctx: ctx, dir: dir, identity: identity}
	if err := os.WriteFile(r.ca(), identity.authority, 0o600); err != nil {
		return err
	}
	for _, p := range parts {
		if only != "" && only != p.name {
			continue
		}
		if err := p.run(r); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	if len(r.missed) > 0 {
		return fmt.Errorf("missed: %s", strings.Join(r.missed, "; "))
	}
	return nil
}

// report takes the results of all parts, and holds what the parts share.
type report struct {
	ctx      context.Context
	dir      string
	identity identity
	missed   []string
}

// ca returns the path of the authority that has signed the targets' certificate.
func (r *report) ca() string { return filepath.Join(r.dir, "ca.pem") }

// judge returns a cell that says whether a goal is met, and remembers a goal that is not.
func (r *report) judge(what string, met bool) string {
	if met {
		return "met"
	}
	r.missed = append(r.missed, what)
	return "**missed**"
}

// title begins a section.
func (r *report) title(format string, args ...any) {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		load = []byte("unknown")
	}
	fmt.Printf("\n### %s\n\nLoad average: %s.\n\n", fmt.Sprintf(format, args...), strings.Fields(string(load))[0])
}

// row prints a line of a table.
func (r *report) row(cells ...any) {
	var line strings.Builder
	for _, cell := range cells {
		fmt.Fprintf(&line, "| %v ", cell)
	}
	fmt.Println(line.String() + "|")
}

// head prints the first two lines of a table.
func (r *report) head(cells ...string) {
	fmt.Println("| " + strings.Join(cells, " | ") + " |\n|" + strings.Repeat("---|", len(cells)))
}
