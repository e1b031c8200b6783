package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// TargetMemory tells, by name, since when the targets have been in their state.
type TargetMemory map[string]TargetSince

// TargetSince is the state of one target, and since when; zero where nobody knows.
type TargetSince struct {
	State v1alpha1.TargetState
	Time  metav1.Time
}

// stateSeverity orders the states of targets, worst first.
var stateSeverity = []v1alpha1.TargetState{
	v1alpha1.TargetStateUnhealthy, v1alpha1.TargetStateUnresolved, v1alpha1.TargetStateDenied, v1alpha1.TargetStateUnknown,
	v1alpha1.TargetStateDraining, v1alpha1.TargetStateDisabled, v1alpha1.TargetStateUnprobed, v1alpha1.TargetStateHealthy,
}

// targetEndpoints sums up the endpoints of one target.
type targetEndpoints struct {
	total, ready, probed, unhealthy int
	// worst is the worst verdict of a probed one, at the endpoint that has it.
	worst ProbeState
	at    netip.AddrPort
}

func (t *targetEndpoints) add(e *Endpoint, o *origin, state ProbeState) {
	t.total++
	t.ready += count(e.Ready)
	if !o.probed() {
		return
	}
	t.unhealthy += count(state.Verdict == Unhealthy)
	if t.probed == 0 || worse(state.Verdict, t.worst.Verdict) {
		t.worst, t.at = state, netip.AddrPortFrom(e.Addr, o.probePort)
	}
	t.probed++
}

func (t *targetEndpoints) health() v1alpha1.TargetHealth {
	switch {
	case t.total == 0:
		return ""
	case t.probed == 0:
		return v1alpha1.TargetHealthUnprobed
	case t.worst.Verdict == Unhealthy:
		return v1alpha1.TargetHealthUnhealthy
	case t.worst.Verdict == Healthy:
		return v1alpha1.TargetHealthHealthy
	}
	return v1alpha1.TargetHealthUnknown
}

// targets lists the worst targets, and remembers the others.
func (w *statusWriter) targets() {
	all := make([]v1alpha1.TargetStatus, len(w.Backend.Spec.Targets))
	sums := make([]targetEndpoints, len(all))
	for i := range w.Candidates.origins {
		if o := &w.Candidates.origins[i]; o.target >= 0 {
			sums[o.target].add(&w.Publication.Endpoints[i], o, w.Publication.States[i])
		}
	}
	if Passthrough(w.Backend) { // its only target's name is the endpoint
		for i := range w.Publication.Endpoints {
			sums[0].add(&w.Publication.Endpoints[i], &origin{}, ProbeState{})
		}
	}
	for i := range all {
		w.target(i, &sums[i], &all[i])
	}
	w.cause = w.sharedCause(all, sums)
	w.transitions(all)
	w.listWorst(all)
	w.addresses()
}

// listWorst lists the worst of all targets.
func (w *statusWriter) listWorst(all []v1alpha1.TargetStatus) {
	slices.SortStableFunc(all, func(a, b v1alpha1.TargetStatus) int {
		return cmp.Or(
			cmp.Compare(slices.Index(stateSeverity, a.State), slices.Index(stateSeverity, b.State)),
			compareBool(a.Reason == "", b.Reason == ""),
			cmp.Compare(a.Name, b.Name),
		)
	})
	kept := min(len(all), v1alpha1.MaxStatusTargets)
	w.out.Targets, w.out.OmittedTargets = all[:kept:kept], int32(len(all)-kept)
	for i := range w.out.Targets {
		if since := w.known[all[i].Name].Time; !since.IsZero() {
			all[i].LastTransitionTime = &since
		}
	}
}

// transitions tells since when each target has been in its state. What was known of it before is in
// Known, after a restart in the status written last.
func (w *statusWriter) transitions(all []v1alpha1.TargetStatus) {
	before := w.TargetMemory
	if before == nil {
		before = make(TargetMemory, len(w.Previous.Targets))
		for i := range w.Previous.Targets {
			if t := &w.Previous.Targets[i]; t.LastTransitionTime != nil {
				before[t.Name] = TargetSince{State: t.State, Time: *t.LastTransitionTime}
			}
		}
	}
	// After a restart nothing is known of the targets that status omitted.
	unsure := w.TargetMemory == nil && w.Previous.OmittedTargets > 0
	now := metav1.NewTime(w.Now).Rfc3339Copy()
	w.known = make(TargetMemory, len(all))
	for i := range all {
		since := TargetSince{State: all[i].State, Time: now}
		switch was, ok := before[all[i].Name]; {
		case ok && was.State == all[i].State:
			since.Time = was.Time
		case !ok && unsure:
			since.Time = metav1.Time{}
		}
		w.known[all[i].Name] = since
	}
}

// addresses gives the listed targets their first addresses, in order.
func (w *statusWriter) addresses() {
	listed := make(map[string]*v1alpha1.TargetStatus, len(w.out.Targets))
	for i := range w.out.Targets {
		listed[w.out.Targets[i].Name] = &w.out.Targets[i]
	}
	of := make([][]netip.Addr, len(w.Backend.Spec.Targets))
	for i := range w.Candidates.origins {
		if target := w.Candidates.origins[i].target; target >= 0 && listed[w.Backend.Spec.Targets[target].Name] != nil {
			of[target] = append(of[target], w.Candidates.Endpoints[i].Addr)
		}
	}
	for i, addrs := range of {
		if len(addrs) == 0 {
			continue
		}
		slices.SortFunc(addrs, netip.Addr.Compare)
		addrs = slices.Compact(addrs)
		t := listed[w.Backend.Spec.Targets[i].Name]
		for _, a := range addrs[:min(len(addrs), v1alpha1.MaxStatusAddresses)] {
			t.Addresses = append(t.Addresses, a.String())
		}
	}
}

// worse: Unhealthy is worse than Unknown, and that than Healthy.
func worse(a, b Verdict) bool {
	rank := [...]int{Unknown: 1, Healthy: 0, Unhealthy: 2}
	return rank[a] > rank[b]
}

// target fills the status of target i in, but for its addresses and since when.
func (w *statusWriter) target(i int, sum *targetEndpoints, out *v1alpha1.TargetStatus) {
	t, notes := &w.Backend.Spec.Targets[i], &w.Candidates.Notes[i]
	out.Name, out.Tier, out.Health = t.Name, tierOf(t, 0), sum.health()
	out.Endpoints = v1alpha1.TargetEndpointCounts{Total: int32(sum.total), Ready: int32(sum.ready)}
	out.State = w.targetState(t, notes, sum)
	if out.State == v1alpha1.TargetStateDisabled {
		return
	}
	if out.Health == v1alpha1.TargetHealthUnhealthy {
		w.unhealthyReason(sum, out)
	}
	if out.Reason == "" {
		out.Reason, out.Message = w.noteReason(t, notes)
	}
	if out.Reason == "" && out.State == v1alpha1.TargetStateUnresolved {
		out.Reason, out.Message = v1alpha1.ReasonPending, "no answer yet"
	}
	out.Message = bounded(out.Message, v1alpha1.MaxTargetMessage)
}

func (w *statusWriter) targetState(t *v1alpha1.Target, notes *TargetNotes, sum *targetEndpoints) v1alpha1.TargetState {
	switch {
	case t.AdminState == v1alpha1.AdminStateDisabled:
		return v1alpha1.TargetStateDisabled
	case sum.total == 0 && notes.Denied != "":
		return v1alpha1.TargetStateDenied
	case sum.total == 0 && targetName(t) != "" && len(notes.Answer.Addrs) == 0 && Resolves(w.Backend):
		return v1alpha1.TargetStateUnresolved
	case t.AdminState == v1alpha1.AdminStateDraining:
		return v1alpha1.TargetStateDraining
	case w.Backend.Spec.HealthCheck == nil || !Resolves(w.Backend):
		return v1alpha1.TargetStateUnprobed
	case sum.probed > 0 && sum.worst.Verdict == Healthy:
		return v1alpha1.TargetStateHealthy
	case sum.worst.Verdict == Unhealthy:
		return v1alpha1.TargetStateUnhealthy
	}
	return v1alpha1.TargetStateUnknown
}

// unhealthyReason says what the probes of an unhealthy target saw. A verdict that was read back
// after a restart has no reason of its own: what status said last holds.
func (w *statusWriter) unhealthyReason(sum *targetEndpoints, out *v1alpha1.TargetStatus) {
	if sum.worst.Reason == "" {
		for i := range w.Previous.Targets {
			if t := &w.Previous.Targets[i]; t.Name == out.Name && t.Health == v1alpha1.TargetHealthUnhealthy {
				out.Reason, out.Message = t.Reason, t.Message
			}
		}
		return
	}
	out.Reason = sum.worst.Reason
	out.Message = fmt.Sprintf("%s, at %s", sum.worst.Cause(), sum.at)
	if more := sum.unhealthy - 1; more > 0 {
		out.Message += fmt.Sprintf(", and %d more", more)
	}
}

// familyNotServed says which family the Service lacks, and which field would have to name it.
func (w *statusWriter) familyNotServed(t *v1alpha1.Target) string {
	family := "the address's IP family"
	if a, err := netip.ParseAddr(t.Address); err == nil && a.Is4() {
		family = "IPv4"
	} else if err == nil {
		family = "IPv6"
	}
	if w.Backend.Spec.ServiceRef != nil {
		return fmt.Sprintf("Service %q does not serve %s (its spec.ipFamilies)", ServiceName(w.Backend), family)
	}
	return fmt.Sprintf("the Service does not serve %s (spec.service.ipFamilies, ipFamilyPolicy)", family)
}

// Cause says in a phrase what the last failure was.
func (s *ProbeState) Cause() string { return cmp.Or(s.Detail, reasonWords[s.Reason], s.Reason) }

// reasonWords say a probe's reason where the probe has no details.
var reasonWords = map[string]string{
	v1alpha1.TargetReasonConnectionRefused: "connection refused",
	v1alpha1.TargetReasonConnectionReset:   "connection reset",
	v1alpha1.TargetReasonTimeout:           "no answer in time",
	v1alpha1.TargetReasonUnreachable:       "network or host unreachable",

	v1alpha1.TargetReasonTLSUnknownAuthority: "the certificate is from an authority that is not trusted (healthCheck.tls.caCertificateRefs)",
	v1alpha1.TargetReasonTLSNameMismatch:     "the certificate does not have the expected name (healthCheck.tls.serverName)",

	v1alpha1.TargetReasonTLSCertificateExpired: "the certificate has expired, or is not valid yet",
	v1alpha1.TargetReasonTLSVerificationFailed: "the certificate can't be verified",
	v1alpha1.TargetReasonTLSHandshakeFailed:    "the TLS handshake failed",

	v1alpha1.TargetReasonTLSClientCertificateRequired: "the server wants a client certificate (healthCheck.tls.clientCertificateRef)",
}

// sharedCause is Ready's reason where every target that is not Disabled has no ready endpoint for
// the same cause.
func (w *statusWriter) sharedCause(all []v1alpha1.TargetStatus, sums []targetEndpoints) string {
	cause := ""
	for i := range all {
		if all[i].State == v1alpha1.TargetStateDisabled {
			continue
		}
		is := targetCause(&all[i], &sums[i])
		if is == "" || cause != "" && cause != is {
			return ""
		}
		cause = is
	}
	return cause
}

// targetCause is why nothing of a target is ready, in a word of Ready's.
func targetCause(t *v1alpha1.TargetStatus, sum *targetEndpoints) string {
	switch {
	case t.State == v1alpha1.TargetStateDenied:
		return v1alpha1.ReasonTargetDenied
	case t.State == v1alpha1.TargetStateUnresolved && t.Reason != v1alpha1.ReasonPending:
		return v1alpha1.ReasonResolutionFailed
	case t.State == v1alpha1.TargetStateDraining:
		return v1alpha1.ReasonDraining
	case sum.total == 0 && t.Reason == v1alpha1.TargetReasonFamilyNotServed:
		return v1alpha1.TargetReasonFamilyNotServed
	case sum.total > 0 && sum.unhealthy == sum.total:
		return v1alpha1.ReasonAllUnhealthy
	}
	return ""
}

// worstTargets names the first targets that have no ready endpoint, and why.
func (w *statusWriter) worstTargets() string {
	if w.Candidates == nil {
		return ""
	}
	list := targetList{more: int(w.out.OmittedTargets)}
	for i := range w.out.Targets {
		t := &w.out.Targets[i]
		if t.Endpoints.Ready == 0 {
			list.add(t.Name, notReadyBecause(t))
		}
	}
	return capitalized(sentence("%s.", list.String()))
}

// notReadyBecause says in a phrase why a target has no ready endpoint.
func notReadyBecause(t *v1alpha1.TargetStatus) string {
	switch {
	case t.Message != "" || t.Reason != "":
		return cmp.Or(t.Message, t.Reason)
	case t.State == v1alpha1.TargetStateUnknown:
		return "no verdict yet"
	case t.State == v1alpha1.TargetStateHealthy || t.State == v1alpha1.TargetStateUnprobed:
		return fmt.Sprintf("%s, in tier %d", t.State, t.Tier)
	}
	return string(t.State)
}

// capitalized is a sentence with a capital at its beginning.
func capitalized(s string) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// stillUnresolved is the word for what was wrong with a name before a restart: it holds, as the
// condition NamesResolved does, until there is an answer.
func (w *statusWriter) stillUnresolved(target string, n *TargetNotes) (reason, message string) {
	if n.Answer.Status != AnswerPending || w.Previous.ObservedGeneration != w.Backend.Generation {
		return "", ""
	}
	for i := range w.Previous.Targets {
		if t := &w.Previous.Targets[i]; t.Name == target && slices.Contains(resolutionReasons, t.Reason) {
			return t.Reason, t.Message
		}
	}
	return "", ""
}

// resolutionReasons are the words for what is wrong with a name.
var resolutionReasons = []string{v1alpha1.ReasonServingStale, v1alpha1.ReasonResolutionFailed, v1alpha1.TargetReasonNameNotFound}

// noteReason is the word for the first thing that keeps addresses of a target from being published,
// and what it says to people.
func (w *statusWriter) noteReason(t *v1alpha1.Target, n *TargetNotes) (reason, message string) {
	switch {
	case n.Denied != "":
		return v1alpha1.ReasonTargetDenied, n.Denied
	case n.Answer.Reason != "":
		return n.Answer.Reason, n.Answer.Cause
	case n.Duplicates > 0:
		return v1alpha1.TargetReasonDuplicateAddress, n.Winner + " publishes the same address and port"
	case n.OtherFamily > 0:
		return v1alpha1.TargetReasonFamilyNotServed, w.familyNotServed(t)
	case n.Truncated > 0 || n.Answer.Omitted > 0:
		return v1alpha1.TargetReasonTruncated, fmt.Sprintf("%d addresses are too many", n.Truncated+n.Answer.Omitted)
	}
	return w.stillUnresolved(t.Name, n)
}
