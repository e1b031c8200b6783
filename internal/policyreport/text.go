package policyreport

import (
	"fmt"
	"io"
	"strings"

	"github.com/external-backend/operator/internal/plan"
)

const (
	// maxListed bounds what a sentence lists.
	maxListed = 5
	// maxShown bounds the changes with one effect, and the namespaces with one answer, that a text
	// shows.
	maxShown = 50
)

func firstFew(all []string) string { return plan.FirstFew(all, maxListed) }

// headings are what the changes with one effect mean.
var headings = []struct {
	effect Effect
	text   string
}{
	{Withdrawn, "Withdrawn: published now, and no longer with this policy"},
	{Refused, "Refused: allowed now though not published, and no longer with this policy"},
	{Allowed, "Newly allowed"},
	{Unknown, "Unknown"},
	{WouldRefuse, "Newly reported by policies in mode Audit"},
	{WouldAllow, "No longer reported by policies in mode Audit"},
}

// WriteChanges writes changes for people, grouped by their effects. It reports whether something
// that is published would be withdrawn.
func WriteChanges(out io.Writer, changes []Change) (withdraws bool) {
	if len(changes) == 0 {
		fmt.Fprintln(out, "Nothing changes.")
		return false
	}
	byEffect := map[Effect][]*Change{}
	for i := range changes {
		byEffect[changes[i].Effect] = append(byEffect[changes[i].Effect], &changes[i])
	}
	for _, h := range headings {
		of := byEffect[h.effect]
		if len(of) == 0 {
			continue
		}
		fmt.Fprintf(out, "%s (%d):\n", h.text, len(of))
		for _, c := range of[:min(len(of), maxShown)] {
			fmt.Fprintln(out, "  "+c.line())
		}
		if more := len(of) - maxShown; more > 0 {
			fmt.Fprintf(out, "  and %d more (-o json shows all)\n", more)
		}
	}
	return len(byEffect[Withdrawn]) > 0
}

// line says for people what changes.
func (c *Change) line() string {
	parts := []string{c.Namespace + "/" + c.ExternalBackend}
	if c.Target != "" {
		parts = append(parts, "target "+c.Target)
	}
	if c.Subject != "" {
		parts = append(parts, c.Subject)
	}
	if len(c.Ports) > 0 {
		parts = append(parts, firstFew(c.Ports))
	}
	text := strings.Join(parts, ", ")
	if c.Why != "" {
		text += ": " + c.Why
	}
	switch rules, hasNone := firstFew(c.Rules), len(c.Rules) == 0; {
	case c.Effect == WouldRefuse, c.Effect == WouldAllow:
	case hasNone && (c.Effect == Unknown || strings.HasPrefix(c.Subject, "spec.dns")):
	case hasNone && c.Effect == Allowed:
		text += "; no policy in mode Enforce will select the namespace"
	case hasNone:
		text += "; no policy in mode Enforce selects the namespace now"
	case c.Effect == Withdrawn, c.Effect == Refused:
		text += "; allowed now by " + rules
	default:
		text += "; by " + rules
	}
	return text
}

// answerHeadings are what the answers mean.
var answerHeadings = []struct {
	answer Answer
	text   string
}{
	{Yes, "may publish it"},
	{Conditional, "may publish it under a condition"},
	{No, "may not publish it"},
}

// WriteAccess writes for people who may publish an address or a name. Namespaces with the same
// answer for the same reasons share a paragraph.
func WriteAccess(out io.Writer, a *Access) {
	subject := a.Subject
	if len(a.Ports) > 0 {
		subject += " on " + firstFew(a.Ports)
	}
	fmt.Fprintln(out, subject)
	for _, h := range answerHeadings {
		groups := groupAccess(a.Namespaces, h.answer)
		for i, g := range groups[:min(len(groups), maxShown)] {
			g.write(out, h.text)
			if i+1 == maxShown && len(groups) > maxShown {
				fmt.Fprintf(out, "  and %d more groups (-o json shows all)\n", len(groups)-maxShown)
			}
		}
	}
}

// accessGroup are namespaces with one answer for the same reasons.
type accessGroup struct {
	names []string
	like  *NamespaceAccess
}

func groupAccess(all []NamespaceAccess, answer Answer) []*accessGroup {
	var out []*accessGroup
	byReason := map[string]*accessGroup{}
	for i := range all {
		n := &all[i]
		if n.Answer != answer {
			continue
		}
		key := fmt.Sprint(n.Why, n.Rules, n.Refusing, n.WouldRefuse)
		if byReason[key] == nil {
			byReason[key] = &accessGroup{like: n}
			out = append(out, byReason[key])
		}
		byReason[key].names = append(byReason[key].names, n.Namespace)
	}
	return out
}

func (g *accessGroup) write(out io.Writer, heading string) {
	kind := "namespaces "
	if len(g.names) == 1 {
		kind = "namespace "
	}
	fmt.Fprintf(out, "  %s%s %s\n", kind, firstFew(g.names), heading)
	if g.like.Why != "" {
		fmt.Fprintf(out, "    because: %s\n", g.like.Why)
	}
	for _, r := range g.like.Rules[:min(len(g.like.Rules), maxListed)] {
		text := r.Rule
		if r.Condition != "" {
			text += " " + r.Condition
		}
		fmt.Fprintf(out, "    allowed by %s\n", text)
	}
	if more := len(g.like.Rules) - maxListed; more > 0 {
		fmt.Fprintf(out, "    and %d more rules (-o json shows all)\n", more)
	}
	if len(g.like.Refusing) > 0 {
		fmt.Fprintf(out, "    no rule for it in %s\n", firstFew(g.like.Refusing))
	}
	if g.like.Answer != No && len(g.like.Rules) == 0 {
		fmt.Fprintln(out, "    no policy in mode Enforce selects it")
	}
	if g.like.WouldRefuse {
		fmt.Fprintln(out, "    policies in mode Audit would refuse it")
	}
}
