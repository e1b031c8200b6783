package policy

import (
	"iter"
	"regexp"
	"strings"
)

// A names index knows which rules cover a name as written in spec.
type names struct {
	always set            // the rules without hostnames: they cover every name, and literals
	exact  map[string]set // by name: all rules that cover it
	suffix map[string]set // "example.com" for "*.example.com": all rules that cover what lies below it
}

// hostname is what the schema admits in a rule's hostnames.
var hostname = regexp.MustCompile(`^(\*|` + label + `)(\.` + label + `)+$`)

const label = `[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?`

const maxHostname = 253

// newNames indexes the rules by hostname; always are the rules without hostnames.
func newNames(rules map[string][]int, always set, p *pool) names {
	n := names{always: always, exact: map[string]set{}, suffix: map[string]set{}}
	own := func(h string) set {
		s := p.empty()
		for _, id := range rules[h] {
			s.add(id)
		}
		return s
	}
	// Rules that cover a wildcard also cover the names below it: add them once, here.
	inherit := func(h, below string) set {
		s := own(h).union(always)
		for parent := range parents(below) {
			if rules["*."+parent] != nil {
				s = s.union(own("*." + parent))
			}
		}
		return p.keep(s)
	}
	for h := range rules {
		if below, ok := strings.CutPrefix(h, "*."); ok {
			n.suffix[below] = inherit(h, below)
		} else {
			n.exact[h] = inherit(h, h)
		}
	}
	return n
}

// parents yields the rest of name behind each of its dots, the longest first.
func parents(name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for {
			_, rest, ok := strings.Cut(name, ".")
			if !ok || !yield(rest) {
				return
			}
			name = rest
		}
	}
}

// at returns the rules that cover name; "" stands for a target without a name.
func (n names) at(name string) set {
	if name == "" {
		return n.always
	}
	name = canonical(name)
	if s, ok := n.exact[name]; ok {
		return s
	}
	for parent := range parents(name) {
		if s, ok := n.suffix[parent]; ok {
			return s
		}
	}
	return n.always
}

func canonical(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".") }

// under reports whether name is domain or below it.
func under(name, domain string) bool {
	name = canonical(name)
	return name == domain || strings.HasSuffix(name, "."+domain)
}
