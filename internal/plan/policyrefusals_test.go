package plan

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/external-backend/operator/api/v1alpha1"
)

// TestRefusalsOfBothModesAreReported: what Audit would refuse counts beside what is refused,
// although the condition Permitted then says only what is refused.
func TestRefusalsOfBothModesAreReported(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*StatusInput)
		want   PolicyRefusals
	}{
		{"nothing", nil, PolicyRefusals{}},
		{"refused", func(in *StatusInput) { in.Candidates.Notes[0].Denied = "no rule" }, PolicyRefusals{Refused: true}},
		{"would be refused", func(in *StatusInput) {
			in.Candidates.Notes[1].Audited = "no rule"
		}, PolicyRefusals{WouldRefuse: true}},
		{"both", func(in *StatusInput) {
			in.Candidates.Notes[0].Denied, in.Candidates.Notes[1].Audited = "no rule", "no rule"
		}, PolicyRefusals{Refused: true, WouldRefuse: true}},
		{"a nameserver", func(in *StatusInput) {
			in.Nameserver, in.NameserverAudited = "spec.dns.nameservers[0]", "spec.dns.nameservers[1]"
		}, PolicyRefusals{Refused: true, WouldRefuse: true}},
		{"no longer", func(in *StatusInput) {
			in.Refusals = PolicyRefusals{Refused: true, WouldRefuse: true}
		}, PolicyRefusals{}},
		{"not judged", func(in *StatusInput) {
			in.Candidates, in.Publication, in.Refusals = nil, nil, PolicyRefusals{WouldRefuse: true}
			in.Previous.Conditions = statusOf([]ProbeState{{}}, func(in *StatusInput) { in.Nameserver = "x" }).Status.Conditions
		}, PolicyRefusals{Refused: true, WouldRefuse: true}},
		{"not judged after a restart", func(in *StatusInput) {
			in.Candidates, in.Publication = nil, nil
			in.Previous.Conditions = statusOf([]ProbeState{{}}, func(in *StatusInput) {
				in.NameserverAudited = "x"
			}).Status.Conditions
		}, PolicyRefusals{WouldRefuse: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			report := statusOf(make([]ProbeState, 2), tt.change)
			if report.Refusals != tt.want {
				t.Errorf("%+v, not %+v", report.Refusals, tt.want)
			}
			shown := PolicyRefusals{Refused: tt.want.Refused, WouldRefuse: tt.want.WouldRefuse && !tt.want.Refused}
			if got := RefusalsOf(&report.Status); got != shown {
				t.Errorf("the status shows %+v, not %+v", got, shown)
			}
		})
	}
}

// TestRefusalOfResolvedAddressSurvivesRestart: while a name whose addresses were refused has no
// answer yet, the status stays as it is.
func TestRefusalOfResolvedAddressSurvivesRestart(t *testing.T) {
	named := func(answer AnswerStatus, denied string) func(*StatusInput) {
		return func(in *StatusInput) {
			in.Backend.Spec.Targets[0] = v1alpha1.Target{Name: "t000", Hostname: "db.example.com"}
			*in.Candidates = NoEndpoints(in.Backend, TargetNotes{Answer: Answer{Status: answer}, Denied: denied})
			in.Publication.Conditions, in.Publication.Verdicts = nil, nil
		}
	}
	before := statusOf(make([]ProbeState, 1), named(AnswerCurrent, "no rule"))
	after := func(answer AnswerStatus, generation int64) StatusReport {
		return statusOf(make([]ProbeState, 1), func(in *StatusInput) {
			named(answer, "")(in)
			in.Previous, in.Backend.Generation = before.Status, generation
			notes := in.Candidates.Notes[0]
			Status(*in)
			if in.Candidates.Notes[0].Denied != notes.Denied {
				t.Error("the notes of the candidates have changed")
			}
		})
	}

	if r := after(AnswerPending, 1); !r.Refusals.Refused || r.Status.Targets[0].State != v1alpha1.TargetStateDenied {
		t.Errorf("while it has no answer: %+v, %+v", r.Refusals, r.Status.Targets)
	}
	if r := after(AnswerCurrent, 1); r.Refusals.Refused {
		t.Error("it is still refused when it has an answer that is allowed")
	}
	if r := after(AnswerPending, 2); r.Refusals.Refused {
		t.Error("it is still refused in another spec")
	}
	if !meta.IsStatusConditionFalse(before.Status.Conditions, v1alpha1.ConditionPermitted) {
		t.Error("it was not refused before")
	}
}

// TestPublishedTargetsAreRefused: only an endpoint that is published and that policy takes away
// counts.
func TestPublishedTargetsAreRefused(t *testing.T) {
	b := inputWithDrain(nil, poolTarget, srvTarget).Backend
	pool, srv, stranger := at("pool", "203.0.113.1"), at("srv", "203.0.113.3"), at("", "203.0.113.9")
	refused := func(target int) []TargetNotes {
		notes := make([]TargetNotes, 2)
		if target >= 0 {
			notes[target].Denied = "no rule"
		}
		return notes
	}
	for _, tt := range []struct {
		name       string
		published  []Endpoint
		candidates *Candidates
		filtered   *Filtered
		want       bool
	}{
		{"taken away", []Endpoint{pool, srv}, &Candidates{Notes: refused(0), Endpoints: []Endpoint{srv}}, nil, true},
		{"kept", []Endpoint{pool, srv}, &Candidates{Notes: refused(0), Endpoints: []Endpoint{pool, srv}}, nil, false},
		{"not published", []Endpoint{srv}, &Candidates{Notes: refused(0), Endpoints: []Endpoint{srv}}, nil, false},
		{"another leaves", []Endpoint{srv}, &Candidates{Notes: refused(0)}, nil, false},
		{"nothing refused", []Endpoint{pool}, &Candidates{Notes: refused(-1)}, nil, false},
		{"handed over", []Endpoint{stranger}, &Candidates{Notes: refused(0)}, nil, false},
		{"without a spec", []Endpoint{pool, srv}, nil, &Filtered{Kept: []Endpoint{srv}, Refused: []Endpoint{pool}}, true},
		{"without a spec, earlier", []Endpoint{srv}, nil, &Filtered{Kept: []Endpoint{srv}, Refused: []Endpoint{pool}}, false},
		{"without a plan", []Endpoint{pool}, nil, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			published := func() []Endpoint { return tt.published }
			if got := RefusesPublished(b, published, tt.candidates, tt.filtered); got != tt.want {
				t.Errorf("%t, not %t", got, tt.want)
			}
		})
	}
}
