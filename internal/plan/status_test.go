package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

var statusStart = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// statusOf returns the status of a backend whose targets have one endpoint each, with these
// verdicts. more may change the input.
func statusOf(verdicts []ProbeState, more func(*StatusInput)) StatusReport {
	b := &v1alpha1.ExternalBackend{ObjectMeta: metav1.ObjectMeta{Name: "shop", Generation: 1}}
	b.Spec.HealthCheck = &v1alpha1.HealthCheck{TCPSocket: &v1alpha1.TCPSocket{}}
	b.Spec.Ports = []v1alpha1.Port{{Port: 80}}
	candidates := Candidates{Notes: make([]TargetNotes, len(verdicts))}
	publication := Publication{State: func(probe int) ProbeState { return verdicts[probe] }}
	for i, v := range verdicts {
		address := netip.AddrFrom4([4]byte{192, 0, byte(2 + i/250), byte(1 + i%250)}).String()
		b.Spec.Targets = append(b.Spec.Targets, v1alpha1.Target{Name: fmt.Sprintf("t%03d", i), Address: address})
		e := Endpoint{
			Target:     b.Spec.Targets[i].Name,
			Addr:       netip.MustParseAddr(address),
			Conditions: Conditions{Ready: v.Verdict == Healthy, Serving: v.Verdict == Healthy, Healthy: v.Verdict == Healthy},
		}
		candidates.Endpoints = append(candidates.Endpoints, e)
		publication.Conditions = append(publication.Conditions, e.Conditions)
		publication.Verdicts = append(publication.Verdicts, v.Verdict)
		candidates.origins = append(candidates.origins, origin{target: int32(i), probePort: 80})
	}
	in := StatusInput{
		Backend: b, References: &References{}, Programmed: v1alpha1.ReasonProgrammed,
		Candidates: &candidates, Publication: &publication, Now: statusStart,
	}
	if more != nil {
		more(&in)
	}
	return Status(in)
}

// TestStalledAfterTwoMinutes sets reasons that another object may solve. They count as in progress
// for two minutes.
func TestStalledAfterTwoMinutes(t *testing.T) {
	const wait = 2 * time.Minute
	for _, reason := range []string{
		v1alpha1.ReasonServiceConflict, v1alpha1.ReasonServiceNotFound, v1alpha1.ReasonPortMismatch,
		v1alpha1.ReasonRefNotFound, v1alpha1.ReasonRefNotPermitted, v1alpha1.ReasonInvalidRef,
	} {
		t.Run(reason, func(t *testing.T) {
			first := statusWithReason(reason, statusStart, v1alpha1.ExternalBackendStatus{})
			if !first.Next.Equal(statusStart.Add(wait)) {
				t.Fatalf("the next look is at %v", first.Next)
			}
			expectStalled(t, first, "")

			early := statusWithReason(reason, statusStart.Add(wait-time.Second), first.Status)
			if !early.Next.Equal(first.Next) {
				t.Errorf("the next look moves from %v to %v", first.Next, early.Next)
			}
			expectStalled(t, early, "")

			late := statusWithReason(reason, statusStart.Add(wait), early.Status)
			if !late.Next.IsZero() {
				t.Errorf("Stalled, and another look at %v", late.Next)
			}
			expectStalled(t, late, reason)

			solved := statusOf([]ProbeState{{Verdict: Healthy}}, func(in *StatusInput) { in.Previous = late.Status })
			expectStalled(t, solved, "")
		})
	}
}

// TestInvalidSpecStallsAtOnce has a spec that only its author can correct.
func TestInvalidSpecStallsAtOnce(t *testing.T) {
	r := statusWithReason(v1alpha1.ReasonInvalidSpec, statusStart, v1alpha1.ExternalBackendStatus{})
	if !r.Next.IsZero() {
		t.Errorf("Stalled, and another look at %v", r.Next)
	}
	expectStalled(t, r, v1alpha1.ReasonInvalidSpec)
}

// TestFailedWritesNeverStall has writes that fail, which the manager repeats.
func TestFailedWritesNeverStall(t *testing.T) {
	first := statusWithReason(v1alpha1.ReasonApplyFailed, statusStart, v1alpha1.ExternalBackendStatus{})
	late := statusWithReason(v1alpha1.ReasonApplyFailed, statusStart.Add(time.Hour), first.Status)
	for _, r := range []StatusReport{first, late} {
		if !r.Next.IsZero() {
			t.Errorf("another look at %v", r.Next)
		}
		expectStalled(t, r, "")
	}
}

// statusWithReason returns the status at now of a backend with one problem.
func statusWithReason(reason string, now time.Time, previous v1alpha1.ExternalBackendStatus) StatusReport {
	return statusOf([]ProbeState{{Verdict: Healthy}}, func(in *StatusInput) {
		in.Now, in.Previous = now, previous
		switch reason {
		case v1alpha1.ReasonInvalidSpec:
			in.Invalid = "spec.x: Invalid value"
		case v1alpha1.ReasonRefNotFound, v1alpha1.ReasonRefNotPermitted, v1alpha1.ReasonInvalidRef:
			in.References = &References{Reason: reason, Message: "some message"}
		default:
			in.Programmed, in.ProgrammedMessage = reason, "some message"
		}
	})
}

func expectStalled(t *testing.T, r StatusReport, want string) {
	t.Helper()
	got := ""
	if c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionStalled); c != nil {
		got = c.Reason
	}
	if got != want {
		t.Errorf("Stalled is %q, want %q", got, want)
	}
}

// TestReadyNamesSharedReason makes all targets lack ready endpoints. If they do for one reason,
// Ready has that reason.
func TestReadyNamesSharedReason(t *testing.T) {
	notFound := Answer{Status: AnswerFailed, Reason: v1alpha1.TargetReasonNameNotFound, Cause: "NXDOMAIN"}
	pending := Answer{Status: AnswerPending}
	dead := []ProbeState{{Verdict: Unhealthy, Reason: "Timeout"}, {Verdict: Unhealthy, Reason: "ConnectionRefused"}}
	unpublished := func(note TargetNotes, named bool) func(*StatusInput) {
		return func(in *StatusInput) {
			in.Candidates.Endpoints, in.Candidates.origins = nil, nil
			in.Publication.Conditions, in.Publication.Verdicts = nil, nil
			for i := range in.Candidates.Notes {
				in.Candidates.Notes[i] = note
				if named {
					in.Backend.Spec.Targets[i].Address, in.Backend.Spec.Targets[i].Hostname = "", "db.example.com"
				}
			}
		}
	}
	for _, tc := range []struct {
		name     string
		verdicts []ProbeState
		more     func(*StatusInput)
		want     string
	}{
		{"all unhealthy", dead, nil, v1alpha1.ReasonAllUnhealthy},
		{"one unhealthy, one unjudged", []ProbeState{dead[0], {}}, nil, v1alpha1.ReasonNoReadyEndpoints},
		{"no target", nil, nil, v1alpha1.ReasonNoReadyEndpoints},
		{"all denied", dead, unpublished(TargetNotes{Denied: "address not allowed"}, false), v1alpha1.ReasonTargetDenied},
		{"no family", dead, unpublished(TargetNotes{OtherFamily: 1}, false), v1alpha1.TargetReasonFamilyNotServed},
		{"no name", dead, unpublished(TargetNotes{Answer: notFound}, true), v1alpha1.ReasonResolutionFailed},
		{"no answer yet", dead, unpublished(TargetNotes{Answer: pending}, true), v1alpha1.ReasonNoReadyEndpoints},
		{"all draining", dead, func(in *StatusInput) {
			for i := range in.Backend.Spec.Targets {
				in.Backend.Spec.Targets[i].AdminState = v1alpha1.AdminStateDraining
			}
		}, v1alpha1.ReasonDraining},
		{"one unhealthy, one disabled", dead, func(in *StatusInput) {
			in.Backend.Spec.Targets[1].AdminState = v1alpha1.AdminStateDisabled
		}, v1alpha1.ReasonAllUnhealthy},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := meta.FindStatusCondition(statusOf(tc.verdicts, tc.more).Status.Conditions, v1alpha1.ConditionReady)
			if c.Status != metav1.ConditionFalse || c.Reason != tc.want {
				t.Errorf("Ready is %s, %s: %s", c.Status, c.Reason, c.Message)
			}
		})
	}
}

// TestTransitionTimesSurviveRestart checks since when each target has been in its state, also after
// a restart, and for targets that status omits.
func TestTransitionTimesSurviveRestart(t *testing.T) {
	verdicts := slices.Repeat([]ProbeState{{Verdict: Healthy}}, 70)
	first := statusOf(verdicts, nil)
	if n := len(first.Status.Targets); n != v1alpha1.MaxStatusTargets || first.Status.OmittedTargets != 6 {
		t.Fatalf("%d targets, %d omitted", n, first.Status.OmittedTargets)
	}
	since := func(r StatusReport, name string) string {
		i := slices.IndexFunc(r.Status.Targets, func(t v1alpha1.TargetStatus) bool { return t.Name == name })
		switch {
		case i < 0:
			return "not listed"
		case r.Status.Targets[i].LastTransitionTime == nil:
			return "unknown"
		}
		return r.Status.Targets[i].LastTransitionTime.Sub(statusStart).String()
	}

	verdicts[69].Verdict, verdicts[0].Verdict = Unhealthy, Unhealthy
	later := func(minutes time.Duration, before StatusReport, restarted bool) StatusReport {
		return statusOf(verdicts, func(in *StatusInput) {
			in.Now, in.Previous = statusStart.Add(minutes*time.Minute), before.Status
			if !restarted {
				in.TargetMemory = before.TargetMemory
			}
		})
	}
	second := later(1, first, false)
	third := later(2, second, false)
	for name, want := range map[string]string{"t000": "1m0s", "t069": "1m0s", "t001": "0s"} {
		if got := since(third, name); got != want {
			t.Errorf("%s since %s, not %s", name, got, want)
		}
	}
	restarted := later(3, third, true)
	for name, want := range map[string]string{"t000": "1m0s", "t069": "1m0s", "t001": "0s"} {
		if got := since(restarted, name); got != want {
			t.Errorf("after a restart: %s since %s, not %s", name, got, want)
		}
	}
	// t068 was omitted before the restart: nobody knows since when it has been unhealthy.
	verdicts[68].Verdict = Unhealthy
	if got := since(later(4, third, true), "t068"); got != "unknown" {
		t.Errorf("t068 since %s", got)
	}
}

// TestTargetMessageIsBounded gives a probe a long detail. The schema still accepts the message.
func TestTargetMessageIsBounded(t *testing.T) {
	r := statusOf([]ProbeState{{Verdict: Unhealthy, Reason: "UnexpectedStatus", Detail: strings.Repeat("ß", 300)}}, nil)
	if n := len(r.Status.Targets[0].Message); n > v1alpha1.MaxTargetMessage || n < v1alpha1.MaxTargetMessage-2 {
		t.Errorf("the message has %d bytes", n)
	}
}

// TestStatusShowsTypeOfReferencedService: with serviceRef, status has the type of the live Service.
func TestStatusShowsTypeOfReferencedService(t *testing.T) {
	const own, ref = "{ports: [{port: 80}], service: {type: NodePort}}", "{ports: [{port: 80}], serviceRef: {name: s}}"
	service := func(kind corev1.ServiceType, ip string) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{Type: kind, ClusterIP: ip}}
	}
	for _, c := range []struct {
		spec string
		live *corev1.Service
		want v1alpha1.ServiceType
	}{
		{own, nil, v1alpha1.ServiceTypeNodePort},
		{own, service(corev1.ServiceTypeClusterIP, "10.96.0.1"), v1alpha1.ServiceTypeNodePort},
		{ref, nil, ""},
		{ref, service("", "10.96.0.1"), v1alpha1.ServiceTypeClusterIP},
		{ref, service(corev1.ServiceTypeClusterIP, corev1.ClusterIPNone), v1alpha1.ServiceTypeHeadless},
		{ref, service(corev1.ServiceTypeLoadBalancer, "10.96.0.1"), v1alpha1.ServiceTypeLoadBalancer},
	} {
		got := Status(StatusInput{Backend: decode(t, c.spec), Service: c.live, Now: testNow}).Status.ServiceType
		if got != c.want {
			t.Errorf("%s, %v: %q, want %q", c.spec, c.live, got, c.want)
		}
	}
}

// TestReasonsWithoutDetailHavePhrases covers the reasons for which the prober gives no detail.
// Users read a phrase and not the bare word.
func TestReasonsWithoutDetailHavePhrases(t *testing.T) {
	for reason, want := range map[string]string{
		v1alpha1.TargetReasonConnectionRefused:  "connection refused",
		v1alpha1.TargetReasonConnectionReset:    "connection reset",
		v1alpha1.TargetReasonTimeout:            "no answer in time",
		v1alpha1.TargetReasonUnreachable:        "network or host unreachable",
		v1alpha1.TargetReasonUnexpectedResponse: "unexpected answer",
	} {
		if got := (&ProbeState{Verdict: Unhealthy, Reason: reason}).Cause(); got != want {
			t.Errorf("%s: %q, want %q", reason, got, want)
		}
	}
}
