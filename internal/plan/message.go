package plan

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/external-backend/operator/api/v1alpha1"
)

// maxMessage is how many bytes the message of a condition has at most. Events repeat such messages,
// and the API server takes no longer ones. For a message of 32 KiB it refuses the whole status.
const maxMessage = 1024

// bounded returns text, or where that has more than limit bytes its beginning, cut after a word,
// and how many characters follow.
func bounded(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	end := limit - len(more(text))
	if space := strings.LastIndexByte(text[:end], ' '); space > end/2 { // a single word may be longer than that
		end = space
	}
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + more(text[end:])
}

func more(rest string) string {
	return fmt.Sprintf(" … and %d more characters", utf8.RuneCountInString(rest))
}

// maxNamed is how many targets a message names.
const maxNamed = 3

func sentence(format, what string) string {
	if what == "" {
		return ""
	}
	return fmt.Sprintf(format, what)
}

func joinSentences(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), " ")
}

// list names the first targets of which what says something, and tells what.
func (w *statusWriter) list(what func(*TargetNotes) string) string {
	var l targetList
	for i := range w.Candidates.Notes {
		if w.Backend.Spec.Targets[i].AdminState == v1alpha1.AdminStateDisabled {
			continue
		}
		if text := what(&w.Candidates.Notes[i]); text != "" {
			l.add(w.Backend.Spec.Targets[i].Name, text)
		}
	}
	return l.String()
}

// targetList names the first maxNamed targets of many.
type targetList struct {
	named []string
	more  int
}

func (l *targetList) add(target, text string) {
	if len(l.named) < maxNamed {
		l.named = append(l.named, fmt.Sprintf("target %q (%s)", target, text))
	} else {
		l.more++
	}
}

func (l *targetList) String() string {
	text := strings.Join(l.named, ", ")
	if l.more > 0 {
		text += fmt.Sprintf(" and %d more", l.more)
	}
	return text
}
