package explain

import (
	"fmt"
	"strings"
	"unicode"
)

// Text returns the chain for a terminal. The first "no" is marked with ">".
func (c *Chain) Text() string {
	var out strings.Builder
	fmt.Fprintf(&out, "ExternalBackend %s/%s", c.Namespace, c.Backend)
	if c.Target != "" {
		fmt.Fprintf(&out, ", target %s", c.Target)
	}
	if c.Address != "" {
		fmt.Fprintf(&out, ", %s", c.Address)
	}
	out.WriteString("\n")
	if c.Remark != "" {
		fmt.Fprintf(&out, "%s\n", printable(c.Remark))
	}
	fmt.Fprintf(&out, "%s\n\n", printable(c.Conclusion()))

	for i := range c.Links {
		c.Links[i].write(&out, i == c.Cause)
	}
	return out.String()
}

// Conclusion says in a sentence whether the endpoint gets traffic, and why not.
func (c *Chain) Conclusion() string {
	switch {
	case c.GetsTraffic == Yes:
		return "It gets traffic."
	case c.Cause >= 0:
		return "It gets no traffic. " + c.Links[c.Cause].Evidence[0]
	}
	return "Whether it gets traffic is unknown."
}

// write writes the question and the answer in one line, and below it the evidence.
func (l *Link) write(out *strings.Builder, first bool) {
	mark := ' '
	if first {
		mark = '>'
	}
	reason := ""
	if l.Reason != "" {
		reason = " (" + l.Reason + ")"
	}
	fmt.Fprintf(out, "%c %-7s  %s%s\n", mark, l.Answer, l.Title, printable(reason))
	for _, text := range l.Evidence {
		fmt.Fprintf(out, "           %s\n", printable(text))
	}
	if l.Hint != "" {
		fmt.Fprintf(out, "           Hint: %s\n", printable(l.Hint))
	}
}

// printable replaces what could steer a terminal, such as the beginning of a color.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD'
	}, text)
}
