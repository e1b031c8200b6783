package plan

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/external-backend/operator/api/v1alpha1"
)

// TestLongMessagesAreCutAfterAWord cuts messages to 1024 bytes, in valid UTF-8.
func TestLongMessagesAreCutAfterAWord(t *testing.T) {
	for _, c := range []struct{ what, text, want string }{
		{"nothing", "", ""},
		{"just short enough", strings.Repeat("x", 1024), strings.Repeat("x", 1024)},
		{
			"cut after a word",
			strings.Repeat("words ", 200), strings.Repeat("words ", 164) + "words … and 211 more characters",
		},
		{"one long word", strings.Repeat("x", 2000), strings.Repeat("x", 995) + " … and 1005 more characters"},
		{
			"no character is cut in two",
			"a" + strings.Repeat("é", 1000), "a" + strings.Repeat("é", 497) + " … and 503 more characters",
		},
	} {
		got := bounded(c.text, maxMessage)
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
		if len(got) > 1024 || !utf8.ValidString(got) {
			t.Errorf("%s: %d bytes, valid %t", c.what, len(got), utf8.ValidString(got))
		}
	}
}

// TestConditionsOfLongNamesAreBounded writes names of 12,000 characters. The API server still
// accepts the status that says what is wrong with them.
func TestConditionsOfLongNamesAreBounded(t *testing.T) {
	b := &v1alpha1.ExternalBackend{}
	b.Spec.Service = &v1alpha1.Service{Labels: map[string]v1alpha1.LabelValue{}}
	for _, c := range "abc" {
		b.Spec.Service.Labels[strings.Repeat(string(c), 12_000)+"!"] = "x"
	}
	s := Status(StatusInput{Backend: b, Invalid: Validate(b, nil), Now: testNow}).Status
	for _, c := range s.Conditions {
		if len(c.Message) > 1024 {
			t.Errorf("%s has a message of %d bytes", c.Type, len(c.Message))
		}
	}
	if c := s.Conditions[1]; c.Type != v1alpha1.ConditionAccepted ||
		!strings.HasPrefix(c.Message, "spec.service.labels: Invalid value:") {
		t.Errorf("%s: %.100s", c.Type, c.Message)
	}
}
