package controllers

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/external-backend/operator/api/v1alpha1"
)

// recordedNotes keeps the notes of events.
type recordedNotes []string

func (r *recordedNotes) Eventf(_, _ runtime.Object, _, _, _, format string, args ...any) {
	*r = append(*r, fmt.Sprintf(format, args...))
}

// The API server takes no event with a note of more than 1,024 bytes, whatever is wrong with a spec.
func TestLongEventIsBounded(t *testing.T) {
	w := newWorld(t)
	var notes recordedNotes
	w.reconciler.Recorder = &notes
	w.spec(`{service: {labels: {"` + strings.Repeat("a", 1000) + `!": x}}, ` + literalSpec[1:])
	w.settle()
	w.expect(v1alpha1.ConditionAccepted, "False InvalidSpec: spec.service.labels")
	if len(notes) != 1 || len(notes[0]) > 1024 || !strings.HasPrefix(notes[0], "spec.service.labels") {
		t.Errorf("%d notes: %.2000s", len(notes), notes)
	}
}
