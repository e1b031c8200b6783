package ui

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"time"

	"github.com/external-backend/operator/internal/view"
)

const (
	// maxMoveBytes bounds a Move.
	maxMoveBytes = 4 << 10
	// confirmWithin is how long a change that was shown can be confirmed.
	confirmWithin = 10 * time.Minute
)

// Move is what a person wants to do with the traffic of an ExternalBackend.
type Move struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Action    string `json:"action"` // pin, drain, disable or resume
	Tier      int32  `json:"tier"`   // of pin
	Target    string `json:"target"` // of drain and disable
	Seconds   int64  `json:"seconds"`
	// Digest is that of the change that the person has seen; "" to see it first. At is then its time.
	Digest string    `json:"digest"`
	At     time.Time `json:"at"`
}

// Change is what a Move does.
type Change struct {
	Headline string `json:"headline"`
	// Manifest is what is created or deleted.
	Manifest string `json:"manifest"`
	// Prediction is nil if it is not known what traffic will do. Unknown is then why.
	Prediction *view.Prediction `json:"prediction,omitempty"`
	Unknown    string           `json:"unknown,omitempty"`
	// Apply makes the change.
	Apply func(context.Context) error `json:"-"`
}

// moveAnswer is the answer to a Move. Done is false for a change that is only shown.
type moveAnswer struct {
	*Change
	Digest string    `json:"digest"`
	At     time.Time `json:"at"`
	Done   bool      `json:"done"`
}

// serveMove shows what a Move changes, and makes the change once it is confirmed as it was shown.
func (s *Server) serveMove(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Content-Type") != "application/json" { // no form can send that
		http.Error(w, "Content-Type must be application/json", http.StatusUnsupportedMediaType)
		return
	}
	var m Move
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxMoveBytes))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	now := s.now()
	if m.Digest == "" {
		m.At = now.Truncate(time.Second)
	}
	if now.Sub(m.At).Abs() > confirmWithin {
		http.Error(w, "what was shown is too old: look at the change again", http.StatusConflict)
		return
	}

	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	change, err := s.source.Plan(ctx, &m)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	answer := moveAnswer{Change: change, Digest: digestOf(change), At: m.At}
	switch {
	case m.Digest == "":
	case m.Digest != answer.Digest:
		http.Error(w, "the change is not the one that was shown any more: look at it again", http.StatusConflict)
		return
	default:
		if err := change.Apply(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		answer.Done = true
	}
	writeJSON(w, answer)
}

// digestOf returns a digest of all that people are shown of a change.
func digestOf(change *Change) string {
	text, _ := json.Marshal(change) // these types can be written
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
