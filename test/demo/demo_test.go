package main

import (
	"testing"
	"time"

	"github.com/external-backend/operator/test/harness/lab"
)

// cut shortens the visible text of a line and keeps its colours.
func TestCutKeepsColours(t *testing.T) {
	for _, tc := range []struct {
		line, want string
		width      int
	}{
		{"ready", "ready", 5},
		{"ready", "rea", 3},
		{green + "ready" + plain + " now", green + "re" + plain, 2}, // colours are kept, so that they end
		{"", "", 2},
	} {
		if got := cut(tc.line, tc.width); got != tc.want {
			t.Errorf("cut(%q, %d) = %q, not %q", tc.line, tc.width, got, tc.want)
		}
	}
}

// The summary of an outage has all that is known about it.
func TestOutageIsSummedUp(t *testing.T) {
	at := time.Unix(1000, 0)
	before := lab.Tally{Sent: 100, Failed: 1}
	after := lab.Tally{
		Sent:        300,
		Failed:      4,
		Answers:     map[string]int{"web-1": 296},
		LastFailure: at.Add(700 * time.Millisecond),
	}
	for _, tc := range []struct {
		outage outage
		want   string
	}{
		{outage{backend: "web-2", fault: "killed", at: at, before: before},
			"web-2 killed: the demo ended before it was out of rotation"},
		{outage{backend: "web-2", fault: "killed", at: at, before: before, out: time.Second},
			"web-2 killed: out of rotation after 1.0 s"},
		{
			outage{backend: "web-2", fault: "killed", at: at, before: before, after: after, out: time.Second,
				back: 2 * time.Second},
			"web-2 killed: out of rotation after 1.0 s, back 2.0 s after its return; 3 of 200 requests failed, the last one sent after 0.7 s",
		},
	} {
		if got := tc.outage.String(); got != tc.want {
			t.Errorf("got  %s\nwant %s", got, tc.want)
		}
	}
}

// DEMO_FOR must be a duration that is long enough. UI=1 is in place of it.
func TestLengthIsChecked(t *testing.T) {
	for _, tc := range []struct {
		length, ui string
		want       time.Duration // 0 for an error
	}{
		{"", "", usualLength}, {"1m", "", time.Minute}, {"20s", "0", leastLength}, {"", "1", untilCtrlC},
		{"19s", "", 0}, {"-1m", "", 0}, {"long", "", 0}, {"45", "", 0}, {"1m", "1", 0}, {"", "yes", 0},
	} {
		got, err := lengthOf(tc.length, tc.ui)
		if got != tc.want || (err != nil) != (tc.want == 0) {
			t.Errorf("DEMO_FOR=%s UI=%s: %v, %v", tc.length, tc.ui, got, err)
		}
	}
}
