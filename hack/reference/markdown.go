package main

import (
	"fmt"
	"regexp"
	"strings"
)

// cells writes one row of a table.
func cells(out *strings.Builder, values ...string) {
	fmt.Fprintf(out, "| %s |\n", strings.Join(values, " | "))
}

// header writes the first two rows of a table.
func header(out *strings.Builder, names ...string) {
	cells(out, names...)
	out.WriteString(strings.Repeat("|---", len(names)) + "|\n")
}

// escaper makes plain text show as it is, in a table, too.
var escaper = strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`, "`", "\\`")

// escape returns text in one line, with nothing in it that Markdown would interpret.
func escape(text string) string {
	return escaper.Replace(strings.Join(strings.Fields(text), " "))
}

// code returns text as code. In a table a pipe has to be escaped even there.
func code(text string) string {
	fence := "`"
	if strings.Contains(text, "`") {
		fence = "``"
	}
	return fence + strings.ReplaceAll(text, "|", `\|`) + fence
}

// stopped returns text with a full stop at its end.
func stopped(text string) string {
	text = strings.TrimSpace(text)
	if text == "" || strings.HasSuffix(text, ".") {
		return text
	}
	return text + "."
}

// fieldName matches words that are written as they are even at the beginning of a sentence.
var fieldName = regexp.MustCompile(`^(\W|\w*[A-Z.]\w)`)

// sentence returns text with a capital letter at its beginning, unless that is the name of a field,
// and a full stop at its end.
func sentence(text string) string {
	text = stopped(text)
	if text == "" || fieldName.MatchString(text) {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// paragraph returns text wrapped at the width of Markdown in this repository.
func paragraph(text string) string {
	const width = 120
	var out strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case column > 0 && column+1+len(word) > width:
			out.WriteByte('\n')
			column = 0
		case column > 0:
			out.WriteByte(' ')
			column++
		}
		out.WriteString(word)
		column += len(word)
	}
	return out.String() + "\n"
}

// anchor returns the fragment by which GitHub links to a heading.
func anchor(heading string) string {
	var out strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ':
			out.WriteByte('-')
		case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			out.WriteRune(r)
		}
	}
	return out.String()
}
