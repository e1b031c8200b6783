package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// word is a constant of the API: a type or reason of a condition, a state, or a reason of an event.
type word struct {
	name, value, text string
}

// block is a group of constants, with the comment above it.
type block struct {
	text  string
	words []word
}

// wordFiles have the constants, in the order of the page.
var wordFiles = []string{"api/v1alpha1/words.go", "api/v1alpha1/externalbackend_types.go", "controllers/*.go"}

// readBlocks returns the blocks of string constants of the files that match the patterns, tests
// excepted.
func readBlocks(root string, patterns []string) ([]block, error) {
	var out []block
	for _, pattern := range patterns {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				return nil, err
			}
			for _, declaration := range file.Decls {
				group, ok := declaration.(*ast.GenDecl)
				if ok && group.Tok == token.CONST {
					out = append(out, readBlock(group))
				}
			}
		}
	}
	return out, nil
}

func readBlock(group *ast.GenDecl) block {
	b := block{text: group.Doc.Text()}
	for _, s := range group.Specs {
		spec := s.(*ast.ValueSpec)
		if len(spec.Names) != 1 || len(spec.Values) != 1 {
			continue
		}
		literal, ok := spec.Values[0].(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			continue
		}
		value, err := strconv.Unquote(literal.Value)
		if err != nil {
			continue
		}
		text := spec.Doc.Text()
		if text == "" && !group.Lparen.IsValid() {
			text = b.text
		}
		b.words = append(b.words, word{spec.Names[0].Name, value, text})
	}
	return b
}

// wordSections are the sections of the page: all constants whose names have the prefix.
var wordSections = []struct{ title, prefix, introduction string }{
	{"States of a target", "TargetState", "`status.targets[].state` is one of these. A later version may know more."},
	{"Health of a target", "TargetHealth", "`status.targets[].health` is the worst verdict on the target's " +
		"endpoints, and absent if it has none. A later version may know more."},
	{"Reasons of a target", "TargetReason", "`status.targets[].reason` is absent if nothing is wrong. Otherwise it is " +
		"one of these, or `ResolutionFailed`, `ServingStale`, `TargetDenied` or `Pending`, which are described above. " +
		"A later version may know more."},
	{"Events", "event", "An ExternalBackend has at most 10 events a minute, and at most 7 of them are about single " +
		"endpoints. A condition that becomes False is an event, too: a Warning with the condition's reason and message, " +
		"for `Accepted`, `ResolvedRefs`, `Permitted`, `NamesResolved` and `Programmed`."},
}

const wordsIntroduction = `# Conditions, reasons, states and events

Fixed words, for scripts and alerts. Messages are for people and may change. [The guide](../guide.md#reading-status)
says how the conditions play together.

`

// wordsPage lists the words of conditions, targets and events.
func wordsPage(root string) (string, error) {
	blocks, err := readBlocks(root, wordFiles)
	if err != nil {
		return "", err
	}
	values := map[string]string{}
	for _, b := range blocks {
		for _, w := range b.words {
			values[w.name] = w.value
		}
	}

	var out strings.Builder
	fmt.Fprintf(&out, generated, "the constants of api/v1alpha1 and controllers")
	out.WriteString(wordsIntroduction)
	var failed []error
	for _, b := range blocks {
		failed = append(failed, addCondition(&out, b, values))
	}
	for _, section := range wordSections {
		fmt.Fprintf(&out, "## %s\n\n%s\n", section.title, paragraph(section.introduction))
		failed = append(failed, addWords(&out, wordsWithPrefix(blocks, section.prefix), values))
	}
	return strings.TrimRight(out.String(), "\n") + "\n", errors.Join(failed...)
}

// wordsWithPrefix returns the constants with the prefix, of all blocks.
func wordsWithPrefix(blocks []block, prefix string) []word {
	var out []word
	for _, b := range blocks {
		for _, w := range b.words {
			if strings.HasPrefix(w.name, prefix) && w.name != prefix {
				out = append(out, w)
			}
		}
	}
	return out
}

// addCondition adds the section of one condition, if the block is about one, or about a reason that
// all conditions share.
func addCondition(out *strings.Builder, b block, values map[string]string) error {
	conditions := wordsWithPrefix([]block{b}, "Condition")
	reasons := wordsWithPrefix([]block{b}, "Reason")
	switch {
	case len(conditions) == 1:
		text, err := explain(conditions[0], values)
		if err != nil {
			return err
		}
		_, more, ok := strings.Cut(strings.Join(strings.Fields(b.text), " "), ". ")
		if ok && len(reasons) > 0 {
			text += " " + inWords(more, values)
		}
		fmt.Fprintf(out, "## Condition %s\n\n%s\n", conditions[0].value, paragraph(text))
	case len(reasons) > 0:
		out.WriteString("## Reasons of every condition\n\n")
	default:
		return nil
	}
	if len(reasons) == 0 {
		return nil
	}
	return addWords(out, reasons, values)
}

// addWords adds a table of words.
func addWords(out *strings.Builder, words []word, values map[string]string) error {
	if len(words) == 0 {
		return errors.New("a section of the page has no words")
	}
	header(out, "word", "meaning")
	for _, w := range words {
		text, err := explain(w, values)
		if err != nil {
			return err
		}
		cells(out, code(w.value), text)
	}
	out.WriteByte('\n')
	return nil
}

var identifier = regexp.MustCompile(`\b(?:Condition|Reason|TargetReason|TargetState)[A-Z]\w*`)

// explain returns the comment of a constant as a text for users: without the name of the constant
// at its beginning, and with the words themselves in place of the names of other constants.
func explain(w word, values map[string]string) (string, error) {
	text := strings.Join(strings.Fields(w.text), " ")
	rest, ok := strings.CutPrefix(text, w.name)
	if !ok {
		return "", fmt.Errorf("the comment of %s must begin with its name", w.name)
	}
	rest = strings.TrimSpace(rest)
	for _, verb := range []string{"means that ", "is a ", "is ", ": "} {
		if after, ok := strings.CutPrefix(rest, strings.TrimLeft(verb, " ")); ok {
			rest = after
			break
		}
	}
	return sentence(inWords(rest, values)), nil
}

// inWords returns text with the words themselves in place of the names of constants.
func inWords(text string, values map[string]string) string {
	return identifier.ReplaceAllStringFunc(escape(text), func(name string) string {
		if value, ok := values[name]; ok {
			return code(value)
		}
		return name
	})
}
