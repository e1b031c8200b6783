package plan

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxMessage is how many bytes the message of a condition has at most. Events repeat such messages,
// and the API server takes no longer ones. For a message of 32 KiB it refuses the whole status.
const maxMessage = 1024

// bounded returns text, or where that is too long for a message its beginning, cut after a word,
// and how many characters follow.
func bounded(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	end := maxMessage - len(more(text))
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
