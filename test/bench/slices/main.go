// Command slices runs the slice planner and the reconciler of Kubernetes' own endpointslice
// controller on the same traces, and prints what both write and what it costs. It exits with 1 if a
// goal is missed.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

func main() {
	only := flag.String("only", "", "run the traces whose name contains this")
	flag.Parse()
	fmt.Printf("%s %s/%s, %d processors, at most %d endpoints to a slice\n\n", runtime.Version(), runtime.GOOS,
		runtime.GOARCH, runtime.NumCPU(), perSlice)
	fmt.Printf(row, "trace", "", "steps", "writes", "/ W*", "JSON, MB", "protobuf", "slices / ideal", "worst",
		"CPU, ms/step", "allocations", "missing")
	fmt.Printf(row, "---", "---", "--:", "--:", "--:", "--:", "--:", "--:", "--:", "--:", "--:", "--:")
	var goals []goal
	var writes, least int
	for _, t := range traces() {
		if !strings.Contains(t.name, *only) {
			continue
		}
		theirs := run(newUpstream(), t)
		runtime.GC()
		mine := run(newOurs(), t)
		runtime.GC()
		theirs.print(t.name, "upstream")
		mine.print("", "ours")
		writes, least = writes+mine.writes, least+mine.least
		goals = append(goals, judge(t.name, mine, theirs)...)
	}
	goals = append(goals, goal{"all traces: writes / W*", ratio(writes, least), 1.10})
	fmt.Println()
	os.Exit(report(goals))
}

// row is the format of a line of the table, as in the documentation.
const row = "| %-46s | %-8s | %6s | %6s | %5s | %9s | %8s | %14s | %5s | %12s | %11s | %7s |\n"

func (r *result) print(trace, contender string) {
	fixed := func(x float64, digits int) string { return strconv.FormatFloat(x, 'f', digits, 64) }
	steps := float64(r.steps)
	fmt.Printf(row, trace, contender, strconv.Itoa(r.steps), strconv.Itoa(r.writes), fixed(ratio(r.writes, r.least), 2),
		fixed(float64(r.json)/1e6, 2), fixed(float64(r.protobuf)/1e6, 2), fixed(r.end, 2), fixed(r.worst, 2),
		fixed(r.cpu.Seconds()*1000/steps, 3), fixed(float64(r.allocations)/steps, 0), strconv.Itoa(r.missing))
}

// ratio returns a/b, or 1 if both are equal.
func ratio[T int | time.Duration](a, b T) float64 {
	if a == b {
		return 1
	}
	return float64(a) / float64(b)
}

// goal is a figure with its upper limit.
type goal struct {
	name       string
	got, limit float64
}

func judge(trace string, mine, theirs result) []goal {
	writes := 1.03
	switch {
	case strings.HasSuffix(trace, "oldest first"):
		writes = 1.0 / 20
	case strings.Contains(trace, "unready and back"):
		writes = 1 / 2.5
	}
	return []goal{
		{trace + ": writes / upstream's", ratio(mine.writes, theirs.writes), writes},
		{trace + ": slices over 2 x ideal + 1", float64(mine.over), 0},
		{trace + ": CPU / upstream's", ratio(mine.cpu, theirs.cpu), 1.0 / 20},
		{trace + ": endpoints missing", float64(mine.missing), 0},
	}
}

func report(goals []goal) (status int) {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, g := range goals {
		verdict := "met"
		if g.got > g.limit {
			verdict, status = "MISSED", 1
		}
		fmt.Fprintf(table, "%s\t%.4f\tat most %.4f\t%s\n", g.name, g.got, g.limit, verdict)
	}
	table.Flush()
	return status
}
