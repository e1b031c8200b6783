package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/external-backend/operator/internal/view"
)

const (
	// updatePeriod is how often a page is updated at most.
	updatePeriod = 500 * time.Millisecond
	// refreshPeriod is how often a page is told at least that it is live. What could not be read is
	// read again then.
	refreshPeriod = 10 * time.Second
)

// stream keeps one page current. It remembers what the page knows, as hashes, and sends what
// differs.
type stream struct {
	*Server
	w               http.ResponseWriter
	namespace, name string // of the opened ExternalBackend; "" if none is
	read            func(context.Context) (*view.Objects, error)
	outdated        atomic.Bool   // the opened ExternalBackend has changed
	changed         chan struct{} // something has changed

	begun     bool
	notice    string
	rows      map[string]uint64
	head      uint64
	readError string
	endpoints map[string]uint64
	seed      maphash.Seed
}

// rowsUpdate is the event "rows". The keys in Gone are namespace/name.
type rowsUpdate struct {
	Reset  bool       `json:"reset,omitempty"`
	Notice string     `json:"notice"`
	Put    []view.Row `json:"put,omitempty"`
	Gone   []string   `json:"gone,omitempty"`
}

// backendUpdate is the event "backend". Head is the ExternalBackend without its endpoints; nil if
// it is as before.
type backendUpdate struct {
	Key   string          `json:"key"`
	Error string          `json:"error,omitempty"`
	Head  json.RawMessage `json:"head,omitempty"`
	Put   []endpoint      `json:"put,omitempty"`
	Gone  []string        `json:"gone,omitempty"`
}

// endpoint is an endpoint with the key that the page knows it by. Reason, message and time are
// those of its target, and are not repeated.
type endpoint struct {
	Key    string `json:"key"`
	Target string `json:"target"`
	view.Endpoint
}

// serveEvents keeps a page current until it is closed.
func (s *Server) serveEvents(w http.ResponseWriter, r *http.Request) {
	namespace, name, _ := strings.Cut(r.URL.Query().Get("open"), "/")
	stream := &stream{
		Server: s, w: w, namespace: namespace, name: name, changed: make(chan struct{}, 1),
		rows: map[string]uint64{}, endpoints: map[string]uint64{}, seed: maphash.MakeSeed(),
	}
	if !s.register(stream) {
		http.Error(w, fmt.Sprintf("%d pages are open, which is the limit: close one", maxStreams),
			http.StatusServiceUnavailable)
		return
	}
	defer s.unregister(stream)

	w.Header().Set("Content-Type", "text/event-stream")
	if name != "" {
		var stop func()
		stream.outdated.Store(true)
		stream.read, stop = s.source.Follow(r.Context(), namespace, name, func() {
			stream.outdated.Store(true)
			stream.wake()
		})
		defer stop()
	}
	stream.run(r.Context())
}

func (s *Server) register(stream *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) >= maxStreams {
		return false
	}
	s.streams[stream] = true
	return true
}

func (s *Server) unregister(stream *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, stream)
}

func (s *stream) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// run sends updates until the page is gone.
func (s *stream) run(ctx context.Context) {
	refresh := time.NewTicker(refreshPeriod)
	defer refresh.Stop()
	pause := time.NewTimer(updatePeriod)
	defer pause.Stop()
	for {
		if err := s.update(ctx); err != nil {
			return
		}
		pause.Reset(updatePeriod)
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		case <-refresh.C:
		}
	}
}

// update sends what the page does not know yet. A comment shows the page that it is still live.
func (s *stream) update(ctx context.Context) error {
	var out bytes.Buffer
	rows := s.rowsUpdate()
	if rows.Reset || rows.Notice != s.notice || len(rows.Put)+len(rows.Gone) > 0 {
		writeEvent(&out, "rows", rows)
	}
	s.begun, s.notice = true, rows.Notice
	if s.name != "" && (s.outdated.Swap(false) || s.readError != "") {
		backend := s.backendUpdate(ctx)
		if backend.Error != s.readError || backend.Head != nil || len(backend.Put)+len(backend.Gone) > 0 {
			writeEvent(&out, "backend", backend)
		}
		s.readError = backend.Error
	}
	if out.Len() == 0 {
		out.WriteString(": live\n\n")
	}

	control := http.NewResponseController(s.w)
	if err := control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	if _, err := s.w.Write(out.Bytes()); err != nil {
		return err
	}
	return control.Flush()
}

func writeEvent(out *bytes.Buffer, name string, value any) {
	fmt.Fprintf(out, "event: %s\ndata: ", name)
	_ = json.NewEncoder(out).Encode(value) // ends the line; a buffer has no errors
	out.WriteByte('\n')
}

func (s *stream) rowsUpdate() rowsUpdate {
	rows, notice := s.source.Rows()
	out := rowsUpdate{Reset: !s.begun, Notice: notice}
	current := make(map[string]bool, len(rows))
	for i := range rows {
		key := rows[i].Namespace + "/" + rows[i].Name
		current[key] = true
		if s.differs(s.rows, key, &rows[i]) {
			out.Put = append(out.Put, rows[i])
		}
	}
	out.Gone = forget(s.rows, current)
	return out
}

func (s *stream) backendUpdate(ctx context.Context) backendUpdate {
	out := backendUpdate{Key: s.namespace + "/" + s.name}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	objects, err := s.read(ctx)
	if err != nil {
		out.Error = err.Error()
		return out
	}

	b := view.Build(objects)
	current := map[string]bool{}
	add := func(target string, list []view.Endpoint) {
		for i := range list {
			e := endpoint{Target: target, Endpoint: list[i]}
			e.Reason, e.Message, e.Since = "", "", nil
			e.Key = target + " " + e.Address + " " + strings.Join(e.Ports, ",")
			current[e.Key] = true
			if s.differs(s.endpoints, e.Key, &e) {
				out.Put = append(out.Put, e)
			}
		}
	}
	for i := range b.Targets {
		add(b.Targets[i].Name, b.Targets[i].Endpoints)
		b.Targets[i].Endpoints = nil
	}
	add("", b.Unattributed)
	b.Unattributed = nil
	out.Gone = forget(s.endpoints, current)
	if head, _ := json.Marshal(&b); s.headDiffers(head) {
		out.Head = head
	}
	return out
}

// differs reports whether the page does not know a value like this, and remembers that it does now.
func (s *stream) differs(known map[string]uint64, key string, value any) bool {
	text, _ := json.Marshal(value) // these types can be written
	hash := maphash.Bytes(s.seed, text)
	if before, ok := known[key]; ok && before == hash {
		return false
	}
	known[key] = hash
	return true
}

func (s *stream) headDiffers(head []byte) bool {
	hash := maphash.Bytes(s.seed, head)
	if s.head == hash {
		return false
	}
	s.head = hash
	return true
}

// forget removes the keys that are not current any more, and returns them.
func forget(known map[string]uint64, current map[string]bool) []string {
	var gone []string
	for key := range known {
		if !current[key] {
			delete(known, key)
			gone = append(gone, key)
		}
	}
	slices.Sort(gone)
	return gone
}
