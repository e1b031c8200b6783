package policy

import "k8s.io/apimachinery/pkg/labels"

// A Namespace is what Count goes by for one namespace.
type Namespace struct {
	Labels map[string]string
	// ExternalBackends is how many it has. Refused is how many of these name something that policy
	// refuses, and WouldRefuse how many name something that policies in mode Audit would refuse.
	ExternalBackends, Refused, WouldRefuse int
	// Unjudged is how many no reconcile has judged since the process started. Refused and WouldRefuse
	// count them by what was known before.
	Unjudged int
	// Withdrawn names the ExternalBackends of which policy has just taken away endpoints that were
	// published.
	Withdrawn []string
}

// Counts are what one policy selects, and what the policies of its mode, together, refuse of that.
type Counts struct {
	Namespaces, ExternalBackends int
	// Refused is how many of the ExternalBackends name something that these policies refuse, or if
	// the mode is Audit, would refuse.
	Refused int
	// Unjudged is that of the namespaces. While it is not 0, Refused is preliminary.
	Unjudged int
	// Withdrawn is that of the namespaces. It is empty if the mode is Audit.
	Withdrawn []string
}

// Count counts for each policy of the Input, in its order. It takes time for each policy and
// namespace, and none for ExternalBackends and their targets.
func (s *Set) Count(namespaces []Namespace) []Counts {
	out := make([]Counts, len(s.policies))
	for i := range s.policies {
		p, c := &s.policies[i], &out[i]
		for j := range namespaces {
			if n := &namespaces[j]; p.selector.Matches(labels.Set(n.Labels)) {
				c.add(n, p.audit)
			}
		}
	}
	return out
}

func (c *Counts) add(n *Namespace, audit bool) {
	c.Namespaces++
	c.ExternalBackends += n.ExternalBackends
	c.Unjudged += n.Unjudged
	if audit {
		c.Refused += n.WouldRefuse
		return
	}
	c.Refused += n.Refused
	c.Withdrawn = append(c.Withdrawn, n.Withdrawn...)
}
