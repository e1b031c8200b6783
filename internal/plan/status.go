package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// StatusInput is all that status tells.
type StatusInput struct {
	Backend *v1alpha1.ExternalBackend
	// Before is the status written last; what is not known now stays as it says.
	Before v1alpha1.ExternalBackendStatus
	// Invalid says what is wrong with the spec, RefNotFound which Secret or ConfigMap is missing; "" where nothing is.
	Invalid, RefNotFound string
	// Nameserver says which of spec.dns.nameservers policy refuses, or with NameserverAudited would refuse; "" where none is.
	Nameserver, NameserverAudited string
	// Programmed is v1alpha1.ReasonProgrammed or why it is not so, in ProgrammedMessage for people.
	Programmed, ProgrammedMessage string
	// Withdrawn names the targets that policy refuses of those that stood when the spec could not be acted on, Left is what still stands; "" where none is refused.
	Withdrawn string
	Left      []Endpoint
	// Candidates and Publication are nil where none could be planned.
	Candidates  *Candidates
	Publication *Publication
	Now         time.Time
}

// maxNamed is how many targets a message names.
const maxNamed = 3

// Status is what users read. Its messages hold no time, no latency, no body and no refused address.
func Status(in StatusInput) v1alpha1.ExternalBackendStatus {
	s := v1alpha1.ExternalBackendStatus{
		ObservedGeneration: in.Backend.Generation,
		ServiceName:        ServiceName(in.Backend),
		ServiceType:        ServiceType(in.Backend),
		Endpoints:          in.Before.Endpoints,
		ActiveTier:         in.Before.ActiveTier,
		Targets:            in.Before.Targets,
		OmittedTargets:     in.Before.OmittedTargets,
		Conditions:         slices.Clone(in.Before.Conditions),
	}
	w := statusWriter{StatusInput: in, out: &s}
	if in.Candidates != nil {
		w.count()
		w.targets()
		w.permitted()
		w.resolved()
		w.healthy()
	}
	if in.Withdrawn != "" {
		w.withdrawn()
	}
	w.accepted()
	w.programmed()
	for _, t := range []string{v1alpha1.ConditionPermitted, v1alpha1.ConditionNamesResolved, v1alpha1.ConditionHealthy} {
		if meta.FindStatusCondition(s.Conditions, t) == nil {
			w.set(t, metav1.ConditionUnknown, v1alpha1.ReasonPending, "Not known yet.")
		}
	}
	w.ready()
	slices.SortFunc(s.Conditions, func(a, b metav1.Condition) int {
		return cmp.Compare(slices.Index(conditionOrder, a.Type), slices.Index(conditionOrder, b.Type))
	})
	return s
}

// conditionOrder is the order in which users read conditions: the sum first, then the way from spec to traffic.
var conditionOrder = []string{
	v1alpha1.ConditionReady, v1alpha1.ConditionAccepted, v1alpha1.ConditionPermitted, v1alpha1.ConditionNamesResolved, v1alpha1.ConditionProgrammed,
	v1alpha1.ConditionHealthy, v1alpha1.ConditionStalled,
}

type statusWriter struct {
	StatusInput
	out    *v1alpha1.ExternalBackendStatus
	probed probeCount
}

// probeCount counts the probed endpoints by verdict.
type probeCount struct{ total, healthy, unhealthy int }

func (w *statusWriter) set(kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&w.out.Conditions, metav1.Condition{
		Type:               kind,
		Status:             status,
		Reason:             reason,
		Message:            bounded(message),
		ObservedGeneration: w.Backend.Generation,
		LastTransitionTime: metav1.NewTime(w.Now),
	})
}

// count sums the endpoints up. Those that are not probed count as healthy.
func (w *statusWriter) count() {
	var c v1alpha1.EndpointCounts
	for i := range w.Publication.Endpoints {
		c.Total++
		if w.Publication.Endpoints[i].Ready {
			c.Ready++
		}
		verdict := Healthy
		if i < len(w.Candidates.origins) && w.Candidates.origins[i].probed() {
			verdict = w.Publication.States[i].Verdict
			w.probed.total++
			w.probed.healthy += count(verdict == Healthy)
			w.probed.unhealthy += count(verdict == Unhealthy)
		}
		c.Healthy += int32(count(verdict == Healthy))
		c.Unhealthy += int32(count(verdict == Unhealthy))
	}
	c.ReadyOfTotal = fmt.Sprintf("%d/%d", c.Ready, c.Total)
	w.out.Endpoints = &c
	w.out.ActiveTier = w.Publication.Tier.Active
	if w.Publication.Tier.Unjudged && w.Before.ActiveTier == nil && w.Before.ObservedGeneration == w.Backend.Generation {
		w.out.ActiveTier = nil // after a restart what was said holds until there is a verdict, or an answer
	}
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// withdrawn tells what has been taken back of a spec that can't be acted on.
func (w *statusWriter) withdrawn() {
	c := v1alpha1.EndpointCounts{Total: int32(len(w.Left))}
	for i := range w.Left {
		c.Ready += int32(count(w.Left[i].Ready))
		c.Healthy += int32(count(w.Left[i].Serving))
		c.Unhealthy += int32(count(!w.Left[i].Serving))
	}
	c.ReadyOfTotal = fmt.Sprintf("%d/%d", c.Ready, c.Total)
	w.out.Endpoints = &c
	w.set(v1alpha1.ConditionPermitted, metav1.ConditionFalse, v1alpha1.ReasonTargetDenied, sentence("Refused by policy: %s.", w.Withdrawn))
}

// badness orders the states of targets, worst first.
var badness = []v1alpha1.ObservedState{
	v1alpha1.ObservedStateUnhealthy, v1alpha1.ObservedStateUnresolved, v1alpha1.ObservedStateDenied, v1alpha1.ObservedStateUnknown,
	v1alpha1.ObservedStateDraining, v1alpha1.ObservedStateDisabled, v1alpha1.ObservedStateUnprobed, v1alpha1.ObservedStateHealthy,
}

// targets lists the worst targets, and of each its addresses.
func (w *statusWriter) targets() {
	all := make([]v1alpha1.TargetStatus, len(w.Backend.Spec.Targets))
	worst := make([]ProbeState, len(all))
	endpoints := make([]int, len(all))
	for i := range w.Candidates.origins {
		target := w.Candidates.origins[i].target
		if target < 0 {
			continue
		}
		state := w.Publication.States[i]
		if endpoints[target] == 0 || worse(state.Verdict, worst[target].Verdict) {
			worst[target] = state
		}
		endpoints[target]++
	}
	for i := range all {
		all[i].Name = w.Backend.Spec.Targets[i].Name
		all[i].State, all[i].Reason = w.target(i, endpoints[i], worst[i])
	}
	slices.SortStableFunc(all, func(a, b v1alpha1.TargetStatus) int {
		return cmp.Or(
			cmp.Compare(slices.Index(badness, a.State), slices.Index(badness, b.State)),
			compareBool(a.Reason == "", b.Reason == ""),
			cmp.Compare(a.Name, b.Name),
		)
	})
	kept := min(len(all), v1alpha1.MaxStatusTargets)
	w.out.Targets, w.out.OmittedTargets = all[:kept:kept], int32(len(all)-kept)
	w.addresses()
}

// addresses gives the listed targets their first addresses, in order.
func (w *statusWriter) addresses() {
	listed := make(map[string]*v1alpha1.TargetStatus, len(w.out.Targets))
	for i := range w.out.Targets {
		listed[w.out.Targets[i].Name] = &w.out.Targets[i]
	}
	of := make([]*v1alpha1.TargetStatus, len(w.Backend.Spec.Targets))
	for i := range of {
		of[i] = listed[w.Backend.Spec.Targets[i].Name]
	}
	for i := range w.Candidates.origins {
		target := w.Candidates.origins[i].target
		if target < 0 {
			continue
		}
		if t := of[target]; t != nil && len(t.Addresses) < v1alpha1.MaxStatusAddresses {
			t.Addresses = append(t.Addresses, w.Candidates.Endpoints[i].Addr.String())
		}
	}
	for i := range w.out.Targets {
		t := &w.out.Targets[i]
		slices.Sort(t.Addresses)
		t.Addresses = slices.Compact(t.Addresses)
	}
}

// worse: Unhealthy is worse than Unknown, and that than Healthy.
func worse(a, b Verdict) bool {
	rank := [...]int{Unknown: 1, Healthy: 0, Unhealthy: 2}
	return rank[a] > rank[b]
}

// target tells the state of target i, and the word for what is wrong with it.
func (w *statusWriter) target(i, endpoints int, worst ProbeState) (v1alpha1.ObservedState, string) {
	t, notes := &w.Backend.Spec.Targets[i], &w.Candidates.Notes[i]
	reason := cmp.Or(noteReason(notes), w.stillUnresolved(t.Name, notes))
	switch {
	case t.AdminState == v1alpha1.AdminStateDisabled:
		return v1alpha1.ObservedStateDisabled, ""
	case endpoints == 0 && notes.Denied != "":
		return v1alpha1.ObservedStateDenied, reason
	case endpoints == 0 && targetName(t) != "" && len(notes.Answer.Addrs) == 0 && Resolves(w.Backend):
		return v1alpha1.ObservedStateUnresolved, cmp.Or(reason, v1alpha1.ReasonPending)
	case t.AdminState == v1alpha1.AdminStateDraining:
		return v1alpha1.ObservedStateDraining, cmp.Or(worst.Reason, reason)
	case w.Backend.Spec.HealthCheck == nil || !Resolves(w.Backend):
		return v1alpha1.ObservedStateUnprobed, reason
	case endpoints > 0 && worst.Verdict == Healthy:
		return v1alpha1.ObservedStateHealthy, reason
	case worst.Verdict == Unhealthy:
		return v1alpha1.ObservedStateUnhealthy, cmp.Or(worst.Reason, reason, w.reasonBefore(t.Name))
	}
	return v1alpha1.ObservedStateUnknown, cmp.Or(reason, worst.Reason)
}

// reasonBefore is what status said of an unhealthy target last: a verdict that was read back from a slice after a restart has no reason of its own.
func (w *statusWriter) reasonBefore(target string) string {
	for i := range w.Before.Targets {
		if t := &w.Before.Targets[i]; t.Name == target && t.State == v1alpha1.ObservedStateUnhealthy {
			return t.Reason
		}
	}
	return ""
}

// stillUnresolved is the word for what was wrong with a name before a restart: it holds, as the condition Resolved does, until there is an answer.
func (w *statusWriter) stillUnresolved(target string, n *TargetNotes) string {
	if n.Answer.Status != AnswerPending || w.Before.ObservedGeneration != w.Backend.Generation {
		return ""
	}
	for i := range w.Before.Targets {
		if t := &w.Before.Targets[i]; t.Name == target && slices.Contains(resolutionReasons, t.Reason) {
			return t.Reason
		}
	}
	return ""
}

// resolutionReasons are the words for what is wrong with a name.
var resolutionReasons = []string{v1alpha1.ReasonServingStale, v1alpha1.ReasonResolutionFailed, v1alpha1.TargetReasonNameNotFound}

// noteReason is the word for the first thing that keeps addresses of a target from being published.
func noteReason(n *TargetNotes) string {
	switch {
	case n.Denied != "":
		return v1alpha1.ReasonTargetDenied
	case n.Answer.Reason != "":
		return n.Answer.Reason
	case n.Duplicates > 0:
		return v1alpha1.TargetReasonDuplicateAddress
	case n.OtherFamily > 0:
		return v1alpha1.TargetReasonFamilyNotServed
	case n.Truncated > 0 || n.Answer.Omitted > 0:
		return v1alpha1.TargetReasonTruncated
	}
	return ""
}

func (w *statusWriter) accepted() {
	stalled := func(reason, message string) {
		w.set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, reason, message)
	}
	switch {
	case w.Invalid != "":
		stalled(v1alpha1.ReasonInvalidSpec, w.Invalid)
	case w.RefNotFound != "":
		stalled(v1alpha1.ReasonRefNotFound, w.RefNotFound)
	default:
		w.set(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "The spec can be acted on.")
	}
}

func (w *statusWriter) permitted() {
	denied := w.list(func(n *TargetNotes) string { return n.Denied })
	audited := w.list(func(n *TargetNotes) string { return n.Audited })
	refused := joinSentences(sentence("Refused by policy: %s.", denied), sentence("Refused nameserver: %s.", w.Nameserver))
	would := joinSentences(sentence("A policy in mode Audit would refuse: %s.", audited), sentence("A policy in mode Audit would refuse the nameserver: %s.", w.NameserverAudited))
	switch {
	case refused != "":
		w.set(v1alpha1.ConditionPermitted, metav1.ConditionFalse, v1alpha1.ReasonTargetDenied, refused)
	case would != "":
		w.set(v1alpha1.ConditionPermitted, metav1.ConditionTrue, v1alpha1.ReasonWouldDeny, would)
	default:
		w.set(v1alpha1.ConditionPermitted, metav1.ConditionTrue, v1alpha1.ReasonPermitted, "No target is refused.")
	}
}

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

func (w *statusWriter) resolved() {
	by := func(status AnswerStatus) string {
		return w.list(func(n *TargetNotes) string {
			if n.Answer.Status != status {
				return ""
			}
			return cmp.Or(n.Answer.Cause, "no answer yet")
		})
	}
	if failed := by(AnswerFailed); failed != "" {
		w.set(v1alpha1.ConditionNamesResolved, metav1.ConditionFalse, v1alpha1.ReasonResolutionFailed, "Not resolved: "+failed+".")
	} else if stale := by(AnswerStale); stale != "" {
		w.set(v1alpha1.ConditionNamesResolved, metav1.ConditionFalse, v1alpha1.ReasonServingStale, "The last good answer serves: "+stale+".")
	} else if pending := by(AnswerPending); pending != "" {
		if before := meta.FindStatusCondition(w.out.Conditions, v1alpha1.ConditionNamesResolved); before != nil && before.ObservedGeneration == w.Backend.Generation {
			return // after a restart what was said holds until there is an answer
		}
		w.set(v1alpha1.ConditionNamesResolved, metav1.ConditionUnknown, v1alpha1.ReasonPending, "Being resolved: "+pending+".")
	} else {
		w.set(v1alpha1.ConditionNamesResolved, metav1.ConditionTrue, v1alpha1.ReasonNamesResolved, "Every name has a current answer.")
	}
}

func (w *statusWriter) healthy() {
	p := w.probed
	summary := fmt.Sprintf("%d of %d probed endpoints are healthy.", p.healthy, p.total)
	if observes(w.Backend) {
		summary += " The check only observes: it changes no endpoint."
	}
	switch {
	case p.total == 0:
		w.set(v1alpha1.ConditionHealthy, metav1.ConditionTrue, v1alpha1.ReasonHealthy, "Nothing is probed.")
	case p.healthy == p.total:
		w.set(v1alpha1.ConditionHealthy, metav1.ConditionTrue, v1alpha1.ReasonHealthy, summary)
	case p.unhealthy == p.total:
		w.set(v1alpha1.ConditionHealthy, metav1.ConditionFalse, v1alpha1.ReasonAllUnhealthy, summary)
	case p.unhealthy > 0:
		w.set(v1alpha1.ConditionHealthy, metav1.ConditionFalse, v1alpha1.ReasonSomeUnhealthy, summary)
	default:
		w.set(v1alpha1.ConditionHealthy, metav1.ConditionUnknown, v1alpha1.ReasonPending, summary)
	}
}

func (w *statusWriter) programmed() {
	switch w.Programmed {
	case "": // not known: the spec was not acted on
		if meta.FindStatusCondition(w.out.Conditions, v1alpha1.ConditionProgrammed) == nil {
			w.set(v1alpha1.ConditionProgrammed, metav1.ConditionUnknown, v1alpha1.ReasonPending, "Nothing has been written yet.")
		}
	case v1alpha1.ReasonProgrammed:
		w.set(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed,
			joinSentences("Service and EndpointSlices are as planned.", w.ProgrammedMessage))
	default:
		w.set(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, w.Programmed, w.ProgrammedMessage)
	}
}

// stallReasons are those that nothing but a change by the user ends (kstatus).
var stallReasons = []string{v1alpha1.ReasonInvalidSpec, v1alpha1.ReasonRefNotFound, v1alpha1.ReasonServiceConflict, v1alpha1.ReasonPortMismatch}

// ready sums the other conditions up, and sets or removes Stalled.
func (w *statusWriter) ready() {
	var cause *metav1.Condition
	for _, t := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionProgrammed} {
		if c := meta.FindStatusCondition(w.out.Conditions, t); cause == nil && c.Status != metav1.ConditionTrue {
			cause = c
		}
	}
	switch {
	case cause != nil:
		w.set(v1alpha1.ConditionReady, cause.Status, cause.Reason, cause.Message)
	case w.out.ServiceType == v1alpha1.ServiceTypeExternalName && w.Candidates != nil && w.Candidates.Notes[0].Denied != "":
		w.set(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNoReadyEndpoints, "Policy refuses the target: the Service leads nowhere.")
	case w.out.ServiceType == v1alpha1.ServiceTypeExternalName && w.Backend.Spec.Targets[0].AdminState == v1alpha1.AdminStateDisabled:
		w.set(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNoReadyEndpoints, "The target is Disabled: the Service leads nowhere.")
	case w.out.ServiceType == v1alpha1.ServiceTypeExternalName:
		w.set(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, "The Service is an alias of the target.")
	case w.out.Endpoints == nil || w.out.Endpoints.Ready == 0:
		w.set(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNoReadyEndpoints, w.traffic())
	default:
		w.set(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, w.traffic())
	}
	if cause != nil && slices.Contains(stallReasons, cause.Reason) {
		w.set(v1alpha1.ConditionStalled, metav1.ConditionTrue, cause.Reason, cause.Message)
	} else {
		meta.RemoveStatusCondition(&w.out.Conditions, v1alpha1.ConditionStalled)
	}
}

// traffic says in a sentence what traffic finds.
func (w *statusWriter) traffic() string {
	e := w.out.Endpoints
	if e == nil || e.Total == 0 {
		return "No endpoint is published."
	}
	text := fmt.Sprintf("%d of %d endpoints are ready.", e.Ready, e.Total)
	switch active := w.out.ActiveTier; {
	case w.Publication != nil && w.Publication.FailOpen:
		text += " No tier has enough healthy endpoints, and panicThreshold is set: every endpoint of an Active target is ready, whatever its health."
	case w.pinnedToNothing():
		text += fmt.Sprintf(" spec.failover.pinnedTier is %d, and no endpoint is in that tier.", *active)
	case active != nil && *active != 0:
		text += fmt.Sprintf(" Tier %d is active.", *active)
	case active == nil && e.Ready > 0 && w.Publication != nil && w.Publication.Tier.None:
		text += " No tier has enough healthy endpoints: the healthy ones of every tier are ready."
	}
	return text
}

// pinnedToNothing: the tier that spec.failover.pinnedTier makes the active one has no endpoint, so that none is ready.
func (w *statusWriter) pinnedToNothing() bool {
	f := w.Backend.Spec.Failover
	if f == nil || f.PinnedTier == nil || w.Candidates == nil || w.out.ActiveTier == nil {
		return false
	}
	return !slices.ContainsFunc(w.Candidates.origins, func(o origin) bool { return o.tier == *f.PinnedTier })
}

// EndpointStates are the states that published endpoints are counted by.
var EndpointStates = []v1alpha1.ObservedState{
	v1alpha1.ObservedStateHealthy, v1alpha1.ObservedStateUnhealthy, v1alpha1.ObservedStateUnknown, v1alpha1.ObservedStateUnprobed, v1alpha1.ObservedStateDraining,
}

// CountStates counts the published endpoints by EndpointStates; every endpoint is in one of them.
func CountStates(c *Candidates, p *Publication) map[v1alpha1.ObservedState]int {
	counts := make(map[v1alpha1.ObservedState]int, len(EndpointStates))
	for i := range p.Endpoints {
		state := v1alpha1.ObservedStateUnprobed
		switch {
		case p.Endpoints[i].Terminating:
			state = v1alpha1.ObservedStateDraining
		case i >= len(c.origins) || !c.origins[i].probed():
		case p.States[i].Verdict == Healthy:
			state = v1alpha1.ObservedStateHealthy
		case p.States[i].Verdict == Unhealthy:
			state = v1alpha1.ObservedStateUnhealthy
		default:
			state = v1alpha1.ObservedStateUnknown
		}
		counts[state]++
	}
	return counts
}
