package plugin

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/view"
)

// How many rows of each list fit on a screen.
const (
	fewTargets   = 15
	fewNames     = 8
	fewSlices    = 5
	fewEvents    = 5
	fewAddresses = 3
)

// unknown stands for what could not be read.
const unknown = "unknown"

// stateStyles are the styles of states.
var stateStyles = map[view.State]style{
	view.StateHealthy: good, view.StateDegraded: warn, view.StateDown: bad, view.StateUnknown: warn,
}

// writeBackend writes all that is shown of one ExternalBackend.
func (s *screen) writeBackend(b *view.Backend) {
	s.linef("%s  %s  %s", s.styled(bold, b.Namespace+"/"+b.Name), s.styled(stateStyles[b.State], string(b.State)),
		printable(b.Summary))
	s.fact("Service", s.serviceText(b))
	s.fact("Endpoints", endpointsText(b))
	s.fact("Check", b.Check)
	s.fact("Policy", policyText(b))
	s.fact("Slices", slicesText(b))
	if len(b.Siblings) > 0 {
		s.fact("Siblings", firstFew(b.Siblings, fewAddresses))
	}
	if b.Replica != nil {
		s.fact("Replica", replicaText(b))
	}

	s.section(s.conditionTable(b))
	s.section(s.overrideTable(b))
	s.section(s.tierTable(b))
	s.writeTargets(b)
	s.writeNames(b)
	s.writeSlices(b)
	s.writeEvents(b)
	s.writeUnread(b)
}

// fact writes a line that begins with a word.
func (s *screen) fact(word, text string) {
	s.linef("%s %s", s.styled(faint, fmt.Sprintf("%-10s", word)), printable(text))
}

func (s *screen) serviceText(b *view.Backend) string {
	text := b.Service.Name
	switch {
	case !b.Service.Known:
		return text + ", " + unknown + " whether it exists"
	case !b.Service.Exists:
		return text + " does not exist"
	}
	details := []string{string(b.Service.Type)}
	if len(b.Service.ClusterIPs) > 0 && b.Service.ClusterIPs[0] != "None" {
		details = append(details, strings.Join(b.Service.ClusterIPs, " "))
	}
	details = append(details, firstFew(b.Service.Ports, fewAddresses))
	if b.Service.Referenced {
		details = append(details, "by serviceRef")
	}
	details = slices.DeleteFunc(details, func(d string) bool { return d == "" })
	return text + " (" + strings.Join(details, ", ") + ")"
}

func endpointsText(b *view.Backend) string {
	if b.Endpoints == nil {
		return unknown + ", no status yet"
	}
	return fmt.Sprintf("%d ready of %d, %d healthy, %d unhealthy",
		b.Endpoints.Ready, b.Endpoints.Total, b.Endpoints.Healthy, b.Endpoints.Unhealthy)
}

func policyText(b *view.Backend) string {
	text := map[metav1.ConditionStatus]string{
		metav1.ConditionTrue: "nothing is refused", metav1.ConditionFalse: "something is refused",
	}[b.Policy.Permitted]
	text = cmp.Or(text, unknown+" whether anything is refused")
	if b.Policy.Reason == v1alpha1.ReasonWouldDeny {
		text += ", and a policy in mode Audit would refuse something"
	}
	if !b.Policy.Known {
		return text + "; policies: " + unknown
	}

	var names []string
	for _, p := range b.Policy.Selecting {
		name := p.Name
		if p.Mode == v1alpha1.PolicyModeAudit {
			name += " (Audit)"
		}
		if p.Accepted == metav1.ConditionFalse {
			name += " (invalid)"
		}
		names = append(names, name)
	}
	return text + "; policies: " + cmp.Or(firstFew(names, fewAddresses), "none")
}

func slicesText(b *view.Backend) string {
	if !b.Slices.Known {
		return unknown
	}
	text := fmt.Sprintf("%s hold %d endpoints, %d ready",
		counted(len(b.Slices.Own), "slice"), b.Slices.Counts.Total, b.Slices.Counts.Ready)
	if len(b.Slices.Own) == 1 {
		text = strings.Replace(text, " hold ", " holds ", 1)
	}
	if len(b.Slices.Differences) == 0 {
		return text + ", as status says"
	}
	return text + ". They differ from status. " + strings.Join(b.Slices.Differences, " ")
}

func replicaText(b *view.Backend) string {
	unread := slices.ContainsFunc(b.Unread, func(u view.Unread) bool { return u.Part == view.PartLeases })
	switch {
	case b.Replica.Name != "":
		return b.Replica.Name
	case unread:
		return unknown
	}
	return unknown + ", no replica has a live Lease in namespace " + b.Replica.Namespace
}

// counted returns a count with its noun.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// firstFew joins the first few texts, and says how many more there are.
func firstFew(texts []string, few int) string {
	if more := len(texts) - few; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(texts[:few], ", "), more)
	}
	return strings.Join(texts, ", ")
}

// conditionTable lists the conditions that tell of something wrong. Ready stands in the first line.
func (s *screen) conditionTable(b *view.Backend) *table {
	t := &table{header: []string{"CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE"}}
	for i := range b.Conditions {
		c := &b.Conditions[i]
		if view.AsItShouldBe(c) || c.Message == b.Summary {
			continue
		}
		look := bad
		if c.Status == metav1.ConditionUnknown {
			look = warn
		}
		t.add(cell{c.Type, plain}, cell{string(c.Status), look}, cell{s.ago(&c.LastTransitionTime), faint},
			cell{c.Reason, plain}, cell{c.Message, plain})
	}
	return t
}

func (s *screen) overrideTable(b *view.Backend) *table {
	t := &table{header: []string{"OVERRIDE", "APPLIED", "ENDS", "EFFECT", "WHY NOT"}}
	for i := range b.Overrides {
		o := &b.Overrides[i]
		look, why := warn, o.Message
		if o.Applied == metav1.ConditionTrue {
			look, why = bold, ""
		}
		t.add(cell{o.Name, plain}, cell{string(o.Applied), look}, cell{endText(o.Until.Time, s.now), plain},
			cell{o.Effect, plain}, cell{why, plain})
	}
	listed := slices.ContainsFunc(b.Overrides, func(o view.Override) bool { return o.Name == b.Override })
	if b.Override != "" && !listed {
		t.add(cell{b.Override, plain}, cell{"True", bold}, cell{unknown, warn}, cell{unknown, warn}, cell{})
	}
	return t
}

// endText says when something ends.
func endText(end, now time.Time) string {
	text := end.UTC().Format("2006-01-02 15:04Z")
	if left := end.Sub(now); left > 0 {
		return fmt.Sprintf("%s (in %s)", text, duration.HumanDuration(left))
	}
	return text + " (over)"
}

func (s *screen) tierTable(b *view.Backend) *table {
	t := &table{header: []string{"TIER", "TRAFFIC", "READY", "HEALTHY", "ENDPOINTS"}}
	for _, tier := range b.Tiers {
		traffic := cell{"none", faint}
		switch {
		case tier.Active:
			traffic = cell{"active", good}
		case tier.Counts == nil:
			traffic = cell{"not active", faint}
		case tier.Counts.Ready > 0:
			traffic = cell{"some", warn}
		case tier.Counts.Healthy > 0:
			traffic = cell{"standby", faint}
		}
		if tier.Pinned {
			traffic.text += ", pinned"
		}
		number := cell{strconv.Itoa(int(tier.Number)), plain}
		if tier.Counts == nil {
			t.add(number, traffic, cell{unknown, warn}, cell{unknown, warn}, cell{unknown, warn})
			continue
		}
		t.add(number, traffic, cell{strconv.Itoa(tier.Counts.Ready), plain},
			cell{strconv.Itoa(tier.Counts.Healthy), plain}, cell{strconv.Itoa(tier.Counts.Total), plain})
	}
	return t
}

// targetStyles are the styles of the states of targets.
var targetStyles = map[v1alpha1.TargetState]style{
	v1alpha1.TargetStateHealthy: good, v1alpha1.TargetStateUnhealthy: bad, v1alpha1.TargetStateUnknown: warn,
	v1alpha1.TargetStateDenied: bad, v1alpha1.TargetStateUnresolved: bad, v1alpha1.TargetStateDraining: warn,
	v1alpha1.TargetStateDisabled: faint,
}

func (s *screen) writeTargets(b *view.Backend) {
	t := &table{header: []string{"TARGET", "TIER", "STATE", "READY", "SINCE", "ADDRESSES", "REASON", "MESSAGE"}}
	shown := s.bound(len(b.Targets), fewTargets)
	for i := range b.Targets[:shown] {
		target := &b.Targets[i]
		state := cell{string(cmp.Or(target.State, unknown)), targetStyles[target.State]}
		if target.Override != "" {
			state.text += " (override)"
		}
		t.add(cell{target.Name, plain}, cell{strconv.Itoa(int(target.Tier)), plain}, state,
			cell{fmt.Sprintf("%d/%d", target.Ready, target.Total), plain}, cell{s.ago(target.Since), faint},
			cell{s.addresses(target), plain}, cell{target.Reason, plain}, cell{target.Message, plain})
	}
	s.section(t)
	s.more(len(b.Targets), shown, "targets, none of them worse")
	if n := len(b.Unattributed); n > 0 {
		s.linef("%s", s.styled(warn, counted(n, "published endpoint")+" belong to no target of the spec"))
	}
}

// addresses returns the first addresses of a target, those of its worst endpoints first.
func (s *screen) addresses(t *view.Target) string {
	addresses := t.Addresses
	if len(t.Endpoints) > 0 {
		addresses = nil
		for i := range t.Endpoints {
			if e := &t.Endpoints[i]; !slices.Contains(addresses, e.Address) {
				addresses = append(addresses, e.Address)
			}
			if len(addresses) > fewAddresses {
				break
			}
		}
	}
	if !s.all && len(addresses) > fewAddresses {
		return strings.Join(addresses[:fewAddresses], " ") + " ..."
	}
	return strings.Join(addresses, " ")
}

// qualityStyles are the styles of the quality of an answer.
var qualityStyles = map[view.Quality]style{
	view.QualityCurrent: good, view.QualityStale: warn, view.QualityFailed: bad, view.QualityPending: warn,
	view.QualityUnknown: warn, view.QualityNotAsked: faint,
}

func (s *screen) writeNames(b *view.Backend) {
	t := &table{header: []string{"NAME", "TYPE", "ANSWER", "SINCE", "ADDRESSES", "TARGET"}}
	shown := s.bound(len(b.Names), fewNames)
	for i := range b.Names[:shown] {
		n := &b.Names[i]
		few := s.bound(len(n.Addresses), fewAddresses)
		addresses := strings.Join(n.Addresses[:few], " ")
		if few < len(n.Addresses) {
			addresses += " ..."
		}
		t.add(cell{n.Name, plain}, cell{n.Type, plain}, cell{string(n.Quality), qualityStyles[n.Quality]},
			cell{s.ago(n.Since), faint}, cell{cmp.Or(addresses, "-"), plain}, cell{n.Target, plain})
	}
	s.section(t)
	s.more(len(b.Names), shown, "names")
}

// writeSlices lists the slices of others behind the same Service. Own ones are only listed where
// all is.
func (s *screen) writeSlices(b *view.Backend) {
	list := b.Slices.Others
	if s.all {
		list = slices.Concat(b.Slices.Own, b.Slices.Others)
	}
	t := &table{header: []string{"SLICE", "WRITTEN BY", "TYPE", "READY", "PORTS"}}
	shown := s.bound(len(list), fewSlices)
	for i := range list[:shown] {
		e := &list[i]
		by := cell{"ExternalBackend " + e.Backend, plain}
		if e.Backend == "" {
			by = cell{cmp.Or(e.ManagedBy, "somebody else"), warn}
		}
		t.add(cell{e.Name, plain}, by, cell{string(e.AddressType), plain},
			cell{fmt.Sprintf("%d/%d", e.Counts.Ready, e.Counts.Total), plain},
			cell{firstFew(e.Ports, fewAddresses), plain})
	}
	s.section(t)
	s.more(len(list), shown, "slices of others")
}

func (s *screen) writeEvents(b *view.Backend) {
	t := &table{header: []string{"EVENT", "LAST", "TYPE", "COUNT", "MESSAGE"}}
	shown := s.bound(len(b.Events), fewEvents)
	for i := range b.Events[:shown] {
		e := &b.Events[i]
		look := plain
		if e.Warning() {
			look = warn
		}
		t.add(cell{e.Reason, look}, cell{s.ago(&e.Last), faint}, cell{e.Type, look},
			cell{strconv.Itoa(int(e.Count)), plain}, cell{e.Message, plain})
	}
	s.section(t)
	s.more(len(b.Events), shown, "events")
}

// writeUnread says what is unknown, and which right is missing.
func (s *screen) writeUnread(b *view.Backend) {
	t := &table{header: []string{"UNKNOWN", "WHY"}}
	for _, u := range b.Unread {
		t.add(cell{string(u.Part), warn}, cell{u.Why, plain})
	}
	s.section(t)
}
