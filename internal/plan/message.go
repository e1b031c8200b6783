package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxMessage is the length of the longest message of a condition, in bytes. Events repeat such
// messages, and the API server accepts no longer events. It refuses a whole status for a message of
// more than 32 KiB.
const maxMessage = 1024

// bounded returns text, cut to limit bytes. It cuts after a word, and says how many characters it
// left out.
func bounded(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	end := limit - len(omission(text))
	if space := strings.LastIndexByte(text[:end], ' '); space > end/2 { // a single word may be longer than that
		end = space
	}
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + omission(text[end:])
}

func omission(rest string) string {
	return fmt.Sprintf(" … and %d more characters", utf8.RuneCountInString(rest))
}

// sentence formats text, or returns "" if text is "".
func sentence(format, text string) string {
	if text == "" {
		return ""
	}
	return fmt.Sprintf(format, text)
}

// joinSentences joins the sentences that are not "".
func joinSentences(sentences ...string) string {
	return strings.Join(slices.DeleteFunc(sentences, func(s string) bool { return s == "" }), " ")
}

// capitalized returns s with a capital at its beginning.
func capitalized(s string) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// maxNamed is the number of targets that a message names.
const maxNamed = 3

// FirstFew lists the first few of all, and says how many more there are.
func FirstFew(all []string, few int) string {
	text := strings.Join(all[:min(len(all), few)], ", ")
	if more := len(all) - few; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return cmp.Or(text, "none")
}

// maxProblems is the number of problems that a message names.
const maxProblems = 3

// describeProblems names the first problems, and says how many more there are.
func describeProblems[T any](all []T) string {
	var texts []string
	for _, problem := range all[:min(len(all), maxProblems)] {
		texts = append(texts, fmt.Sprint(problem))
	}
	if more := len(all) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

// targetList names the first maxNamed of many targets.
type targetList struct {
	named   []string
	omitted int
}

func (l *targetList) add(target, text string) {
	if len(l.named) < maxNamed {
		l.named = append(l.named, fmt.Sprintf("target %q (%s)", target, text))
	} else {
		l.omitted++
	}
}

func (l *targetList) String() string {
	text := strings.Join(l.named, ", ")
	if l.omitted > 0 {
		text += fmt.Sprintf(" and %d more", l.omitted)
	}
	return text
}
