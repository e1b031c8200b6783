package plugin

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/view"
)

// TestPredictionIsWhatTheOperatorPublishes: for each override, the ready endpoints that are
// predicted without it are those that the operator publishes with it.
func TestPredictionIsWhatTheOperatorPublishes(t *testing.T) {
	for name, w := range map[string]world{
		"healthy":  {spec: threeTargets, verdicts: allHealthy()},
		"one left": {spec: threeTargets, verdicts: verdictsOf("Healthy", "Timeout", "Healthy")},
		"failover": {spec: threeTargets, verdicts: verdictsOf("Timeout", "Timeout", "Healthy")},
		"down":     {spec: threeTargets, verdicts: verdictsOf("Timeout", "Timeout", "Timeout")},
		"fail open": {spec: threeTargets + "\nfailover: {whenNoTierQualifies: AllEndpoints}",
			verdicts: verdictsOf("Timeout", "Timeout", "Timeout")},
		"denied": {spec: threeTargets, verdicts: allHealthy(), denied: map[string]string{"192.0.2.2": "not allowed"}},
		"names":  screens(t)["names"],
	} {
		target := "blue"
		if name == "names" {
			target = "api"
		}
		for _, spec := range []string{
			"pinnedTier: 1", "pinnedTier: 0",
			"targets: [{name: " + target + ", adminState: Draining}]",
			"targets: [{name: " + target + ", adminState: Disabled}]",
		} {
			override := overrideOf(t, "night-shift", spec)
			before := w.objects(t)
			if err := view.CheckOverride(before, &override, testNow); err != nil {
				t.Errorf("%s, %s: %v", name, spec, err)
			}
			predicted, err := view.Predict(before, []v1alpha1.ExternalBackendOverride{override}, testNow)
			if err != nil {
				t.Fatal(err)
			}

			later := w
			later.overrides = []v1alpha1.ExternalBackendOverride{override}
			status := later.objects(t).Backend.Status
			if predicted.ReadyAfter != int(status.Endpoints.Ready) ||
				tierText(predicted.TierAfter) != tierText(status.ActiveTier) {
				t.Errorf("%s, %s: predicted %d ready, tier %s; published %d, tier %s", name, spec,
					predicted.ReadyAfter, tierText(predicted.TierAfter), status.Endpoints.Ready, tierText(status.ActiveTier))
			}
		}
	}
}

// TestPredictionOfResumeReturnsToTheBetterTier: without the pin, tier 0 is active again after the
// failback delay.
func TestPredictionOfResumeReturnsToTheBetterTier(t *testing.T) {
	w := world{spec: threeTargets, verdicts: allHealthy(),
		overrides: []v1alpha1.ExternalBackendOverride{overrideOf(t, "night-shift", "pinnedTier: 1")}}
	o := w.objects(t)
	p, err := view.Predict(o, nil, testNow)
	if err != nil {
		t.Fatal(err)
	}
	if tierText(p.TierBefore) != "1" || tierText(p.TierAfter) != "0" || p.Within.Duration != time.Minute ||
		p.ReadyBefore != 1 || p.ReadyAfter != 2 || len(p.Targets) != 3 {
		t.Errorf("%+v", p)
	}
}

// TestOverrideThatWouldWaitIsRefused: while an override is applied, a younger one would not be. The
// refusal names the older one.
func TestOverrideThatWouldWaitIsRefused(t *testing.T) {
	w := world{spec: threeTargets, verdicts: allHealthy(),
		overrides: []v1alpha1.ExternalBackendOverride{overrideOf(t, "night-shift", "pinnedTier: 1")}}
	o := w.objects(t)
	for spec, want := range map[string]string{
		"pinnedTier: 0": `Superseded: ExternalBackendOverride "night-shift" is older`,
	} {
		override := newOverride(o.Backend, overrideOf(t, "", spec).Spec, testNow)
		if err := view.CheckOverride(o, override, testNow); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", spec, err)
		}
	}
	o.Overrides = nil
	for spec, want := range map[string]string{
		"pinnedTier: 5": v1alpha1.ReasonTierNotFound,
		"targets: [{name: red, adminState: Draining}]": v1alpha1.ReasonTargetNotFound,
	} {
		override := newOverride(o.Backend, overrideOf(t, "", spec).Spec, testNow)
		if err := view.CheckOverride(o, override, testNow); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

// TestOverridePreviews compares what is shown before a change with golden files.
func TestOverridePreviews(t *testing.T) {
	w := world{spec: threeTargets, verdicts: allHealthy()}
	for name, spec := range map[string]string{
		"pin": "pinnedTier: 1", "drain": "targets: [{name: blue, adminState: Draining}]",
		"disable-all": "targets: [{name: blue, adminState: Disabled}, {name: green, adminState: Disabled}, " +
			"{name: spare, adminState: Disabled}]",
	} {
		o := w.objects(t)
		var result overrideResult
		result.predict(o, []v1alpha1.ExternalBackendOverride{overrideOf(t, "night-shift", spec)}, testNow)
		s := &screen{now: testNow}
		s.writePrediction(&result)
		golden(t, "preview-"+name, s.String())
	}

	blind := w.objects(t)
	blind.Slices, blind.Unread = nil, []view.Unread{{Part: view.PartSlices, Why: "you may not list x"}}
	var result overrideResult
	result.predict(blind, nil, testNow)
	s := &screen{now: testNow}
	s.writePrediction(&result)
	golden(t, "preview-blind", s.String())
}

// TestEndIsBounded: an override has one end, which is ahead and at most 7 days away.
func TestEndIsBounded(t *testing.T) {
	now := testNow.In(time.FixedZone("there", 2*60*60)) // 05:00 there
	for _, test := range []struct {
		period, until string
		want          time.Duration
		wrong         string
	}{
		{period: "2h", want: 2 * time.Hour},
		{period: "7d", want: 7 * 24 * time.Hour},
		{period: "169h", wrong: "7d at most"},
		{period: "8d", wrong: "7d at most"},
		{period: "-1h", wrong: "must be a duration"},
		{period: "0s", wrong: "must be a duration"},
		{period: "soon", wrong: "must be a duration"},
		{wrong: "either --for or --until"},
		{period: "2h", until: "08:00", wrong: "either --for or --until"},
		{until: "08:00", want: 3 * time.Hour},
		{until: "04:59", want: 24*time.Hour - time.Minute},
		{until: "2026-11-23T10:00:00Z", want: 7 * time.Hour},
		{until: "2026-11-23T02:00:00Z", wrong: "is over"},
		{until: "2026-12-01T10:00:00Z", wrong: "more than 7 days"},
		{until: "tomorrow", wrong: "must be a time such as"},
	} {
		o := overrideOptions{until: test.until}
		var err error
		if test.period != "" {
			err = (*period)(&o.period).Set(test.period)
		}
		var end time.Time
		if err == nil {
			end, err = endOf(&o, now)
		}
		if test.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), test.wrong) {
				t.Errorf("--for %q --until %q: %v", test.period, test.until, err)
			}
		} else if err != nil || end.Sub(now) != test.want {
			t.Errorf("--for %q --until %q: %v, %v", test.period, test.until, end.Sub(now), err)
		}
	}
}

// TestWaitEndsWithTheOperatorsAnswer: the wait succeeds once the override is applied, and fails
// with the operator's words if it is refused, or if its time is over.
func TestWaitEndsWithTheOperatorsAnswer(t *testing.T) {
	for name, test := range map[string]struct {
		applied *metav1.Condition
		wrong   string
	}{
		"applied": {applied: &metav1.Condition{Status: metav1.ConditionTrue}},
		"refused": {applied: &metav1.Condition{Status: metav1.ConditionFalse, Reason: "TierNotFound", Message: "No tier."},
			wrong: "TierNotFound: No tier."},
		"waiting": {applied: &metav1.Condition{Status: metav1.ConditionUnknown, Message: "The spec is invalid."},
			wrong: "is not in force yet. The spec is invalid."},
		"silent": {wrong: "Is it running?"},
	} {
		o := overrideOf(t, "night-shift", "pinnedTier: 1")
		if test.applied != nil {
			test.applied.Type = v1alpha1.ConditionApplied
			o.Status.Conditions = []metav1.Condition{*test.applied}
		}
		c := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(&o).Build()
		ctx, cancel := context.WithTimeout(t.Context(), 2*pollPeriod)
		err := waitUntilApplied(ctx, c, &o)
		cancel()
		if test.wrong == "" && err != nil || test.wrong != "" && (err == nil || !strings.Contains(err.Error(), test.wrong)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNothingIsChangedWithoutAYes: whoever can't be asked has to say --yes, and an answer other
// than yes changes nothing.
func TestNothingIsChangedWithoutAYes(t *testing.T) {
	w := world{spec: threeTargets, verdicts: allHealthy()}
	o := w.objects(t)
	c := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(o.Backend).Build()
	for answer, want := range map[string]string{"n\n": "nothing is changed", "": "nothing is changed", "y\n": ""} {
		streams, in, out, _ := genericiooptions.NewTestIOStreams()
		in.WriteString(answer)
		p := newPlugin(streams, "test")
		err := p.confirm("pinnedTier 1", &overrideResult{Unknown: "no slices"}, overrideOptions{})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", answer, err)
		}
		if !strings.Contains(out.String(), "It is unknown what changes: no slices.") {
			t.Error(out.String())
		}
	}

	p := newPlugin(genericiooptions.IOStreams{In: &bytes.Buffer{}}, "test")
	if _, _, err := p.readForOverride(t.Context(), "db", &overrideOptions{}); err == nil ||
		!strings.Contains(err.Error(), "--yes is wanted") {
		t.Error(err)
	}
	var list v1alpha1.ExternalBackendOverrideList
	if err := c.List(t.Context(), &list, client.InNamespace("shop")); err != nil || len(list.Items) != 0 {
		t.Error(err, list.Items)
	}
}
