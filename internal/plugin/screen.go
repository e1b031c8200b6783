package plugin

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/util/duration"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// style is how a text looks on a terminal.
type style string

const (
	plain style = ""
	bold  style = "1"
	faint style = "2"
	bad   style = "31"
	good  style = "32"
	warn  style = "33"
)

// screen collects a text for people.
type screen struct {
	bytes.Buffer
	// colours reports whether styles are written.
	colours bool
	now     time.Time
	// all reports whether lists are written to their ends.
	all bool
}

// newScreen returns an empty screen for the output of p. It has colours only on a terminal.
func (p *plugin) newScreen(all bool) *screen {
	return &screen{colours: hasColours(p.Out), now: p.now(), all: all}
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// hasColours reports whether colours may be written to w: it is a terminal, and the user does not
// object (https://no-color.org).
func hasColours(w io.Writer) bool {
	return isTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// styled returns a text in a style. The text is made printable.
func (s *screen) styled(look style, text string) string {
	text = printable(text)
	if !s.colours || look == plain || text == "" {
		return text
	}
	return "\x1b[" + string(look) + "m" + text + "\x1b[0m"
}

// linef writes a line. Its arguments must be printable.
func (s *screen) linef(format string, args ...any) { fmt.Fprintf(s, format+"\n", args...) }

// section writes an empty line and a table below a header.
func (s *screen) section(t *table) {
	if len(t.rows) == 0 {
		return
	}
	s.WriteByte('\n')
	t.writeTo(s)
}

// bound returns how many of n rows to write, if a screen has room for few of them.
func (s *screen) bound(n, few int) int {
	if s.all {
		return n
	}
	return min(n, few)
}

// more writes how many rows were left out.
func (s *screen) more(n, shown int, what string) {
	if n > shown {
		s.linef("%s", s.styled(faint, fmt.Sprintf("... and %d more %s (--all shows them)", n-shown, what)))
	}
}

// ago says how long ago a time was; "" for a time that nobody knows.
func (s *screen) ago(t *metav1.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return duration.HumanDuration(s.now.Sub(t.Time))
}

// printable returns text with a question mark in place of each character that could control a
// terminal or reorder its text.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// cell is one cell of a table.
type cell struct {
	text string
	look style
}

// table is a table with a header and as many columns as that has.
type table struct {
	header []string
	rows   [][]cell
}

// add adds a row.
func (t *table) add(cells ...cell) { t.rows = append(t.rows, cells) }

// writeTo writes the table. A column is as wide as its widest cell, and the last one ends with its
// text. A column without any text is left out.
func (t *table) writeTo(s *screen) {
	widths := make([]int, len(t.header))
	for _, row := range t.rows {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	header := make([]cell, len(t.header))
	last := 0
	for i, title := range t.header {
		header[i] = cell{title, faint}
		if widths[i] > 0 {
			widths[i], last = max(widths[i], len(title)), i
		}
	}

	for _, row := range append([][]cell{header}, t.rows...) {
		var line strings.Builder
		for i, c := range row {
			if widths[i] == 0 {
				continue
			}
			line.WriteString(s.styled(c.look, c.text))
			if i < last {
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text)+2))
			}
		}
		s.linef("%s", strings.TrimRight(line.String(), " "))
	}
}
