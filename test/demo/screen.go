package main

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/term"

	"github.com/external-backend/operator/test/harness/lab"
)

// Control sequences of terminals (ECMA-48, and xterm's alternate screen).
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K\n"
	clearBelow  = "\x1b[J"
	bold        = "\x1b[1m"
	red         = "\x1b[31m"
	green       = "\x1b[32m"
	plain       = "\x1b[0m"
)

// barWidth is the length of the bar of a backend that answers all requests.
const barWidth = 20

// draw draws the screen. Without a screen, it writes the new lines.
func (v *view) draw() {
	width, height := 80, 24
	if v.live {
		if w, h, err := term.GetSize(int(os.Stdout.Fd())); err == nil && w >= 20 && h >= 5 {
			width, height = w, h
		}
	}
	tally := v.load.Tally()
	v.mu.Lock()
	lines := v.lines
	v.lines = nil
	if v.live {
		lines = v.screenLocked(tally, height)
	}
	v.mu.Unlock()
	var out strings.Builder
	if !v.live {
		for _, line := range lines {
			fmt.Fprintln(&out, line)
		}
		fmt.Print(out.String())
		return
	}
	out.WriteString(home)
	for _, line := range lines[:min(len(lines), height-1)] {
		out.WriteString(cut(line, width) + clearLine)
	}
	fmt.Print(out.String() + clearBelow)
}

// screenLocked returns the lines of the screen. Story and events share the lines that are left.
func (v *view) screenLocked(tally lab.Tally, height int) []string {
	now := time.Since(v.begin)
	passed := clock(min(now, v.length))
	if v.length != untilCtrlC {
		passed += " of " + clock(v.length)
	}
	lines := []string{
		fmt.Sprintf("%sExternal Backend Operator%s: traffic follows health  %s, Ctrl-C ends", bold, plain, passed),
		"Live page: " + v.page, "",
		bold + "BACKEND  MACHINE      ENDPOINT        ANSWERED  PER SECOND" + plain,
	}
	for _, b := range v.backends {
		rate := v.rates[b.Name()]
		bar := strings.Repeat("#", min(barWidth, rate*barWidth*int(interval)/int(time.Second)))
		lines = append(lines, fmt.Sprintf("%-7s  %s  %s  %8d  %3d %s", b.Name(), painted(v.machines[b.Name()], 11, "serves"),
			painted(v.states[b.V4.String()], 14, inRotation), tally.Answers[b.Name()], rate, bar))
	}
	lines = append(lines, fmt.Sprintf("%-36s  %8d  %3d", "requests without an answer", tally.Failed, v.rates[""]), "",
		bold+"$ kubectl get externalbackend"+plain)
	lines = append(lines, v.table...)
	left := max(2, height-len(lines)-6)
	lines = append(lines, "", bold+"EVENTS"+plain)
	lines = append(lines, last(v.events, left/2)...)
	lines = append(lines, "", bold+"WHAT HAPPENS"+plain)
	return append(lines, last(v.story, left-left/2)...)
}

// painted returns text of this width, green if it is good, otherwise red.
func painted(text string, width int, good string) string {
	color := red
	if text == good {
		color = green
	}
	return color + fmt.Sprintf("%-*s", width, text) + plain
}

// cut shortens a line to width visible characters.
func cut(line string, width int) string {
	var out strings.Builder
	escape := false
	for _, r := range line {
		switch {
		case r == '\x1b':
			escape = true
		case escape:
			escape = r != 'm'
			out.WriteRune(r)
			continue
		case width == 0:
			continue
		default:
			width--
		}
		out.WriteRune(r)
	}
	return out.String()
}

func last[T any](list []T, n int) []T { return list[max(0, len(list)-n):] }

// align aligns cells in columns.
func align(rows [][]string) []string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

// withoutAge returns a table of kubectl without its last column, the age.
func withoutAge(rows [][]string) [][]string {
	short := make([][]string, len(rows))
	for i, row := range rows {
		short[i] = row[:max(0, len(row)-1)]
	}
	return short
}

// summary returns the text at the end.
func (v *view) summary(tally lab.Tally) string {
	var out strings.Builder
	if isTerminal(os.Stdout) { // without a screen, these lines were written already
		fmt.Fprintf(&out, "What happened:\n  %s\n\n", strings.Join(v.story, "\n  "))
	}
	fmt.Fprintln(&out, "In short:")
	for i := range v.outages {
		fmt.Fprintf(&out, "  %s\n", &v.outages[i])
	}
	fmt.Fprintf(&out, "  %d requests in all", tally.Sent)
	for _, b := range v.backends {
		fmt.Fprintf(&out, ", %d answered by %s", tally.Answers[b.Name()], b.Name())
	}
	fmt.Fprintf(&out, ", %d by nobody\n", tally.Failed)
	return out.String()
}
