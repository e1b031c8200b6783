// Package ui is the page of the kubectl plugin: an HTTP server on the loopback interface, and the
// HTML, CSS and JavaScript that it serves. It shows what package view builds, and decides nothing.
package ui

import (
	"context"
	"crypto/rand"
	"embed"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/external-backend/operator/internal/explain"
	"github.com/external-backend/operator/internal/view"
)

const (
	// maxStreams bounds the pages that are live at a time.
	maxStreams = 8
	// maxHeaderBytes bounds the headers of a request.
	maxHeaderBytes = 16 << 10
	// requestTimeout bounds the work on one request. Streams have no end, but each write to them has
	// writeTimeout.
	requestTimeout = 30 * time.Second
	writeTimeout   = 10 * time.Second
	// shutdownTimeout is how long open requests may take once the server ends.
	shutdownTimeout = 2 * time.Second
)

// Source is where the page gets what it shows.
type Source interface {
	// Rows returns all ExternalBackends in any order, and why they may be out of date; "" if they
	// are not. It is called often.
	Rows() (rows []view.Row, notice string)
	// Read reads an ExternalBackend and what belongs to it.
	Read(ctx context.Context, namespace, name string) (*view.Objects, error)
	// Follow keeps an ExternalBackend and what belongs to it current, until stop is called. It calls
	// changed when some of it has changed; read then returns what is known.
	Follow(ctx context.Context, namespace, name string, changed func()) (
		read func(context.Context) (*view.Objects, error), stop func())
	// Plan says what a Move changes, and changes nothing yet.
	Plan(ctx context.Context, m *Move) (*Change, error)
}

// Server serves the page.
type Server struct {
	source Source
	title  string
	now    func() time.Time
	token  string

	host string // the only Host that requests may name

	mu      sync.Mutex
	streams map[*stream]bool
}

//go:embed page
var embedded embed.FS

// New returns a server. title says for people what cluster the page is about.
func New(source Source, title string, now func() time.Time) *Server {
	return &Server{source: source, title: title, now: now, token: rand.Text(), streams: map[*stream]bool{}}
}

// URL returns the address of the page, with its token. It is known once Serve is called.
func (s *Server) URL(listener net.Listener) string {
	return "http://" + listener.Addr().String() + "/" + s.token + "/"
}

// Changed tells the server that Rows has changed.
func (s *Server) Changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for stream := range s.streams {
		stream.wake()
	}
}

// Serve serves the page until ctx ends. All that it has started has ended when it returns.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	s.host = listener.Addr().String()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: requestTimeout, ReadTimeout: requestTimeout,
		IdleTimeout: time.Minute, MaxHeaderBytes: maxHeaderBytes,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	var ending sync.WaitGroup
	ending.Go(func() {
		<-ctx.Done()
		timeout, stop := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer stop()
		if server.Shutdown(timeout) != nil {
			_ = server.Close() // what is open is cut off
		}
	})

	err := server.Serve(listener)
	cancel()
	ending.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// handler returns all paths of the server, behind its guards.
func (s *Server) handler() http.Handler {
	page, err := fs.Sub(embedded, "page")
	if err != nil {
		panic(err) // the directory is part of the binary
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(page))
	mux.HandleFunc("GET /about", s.serveAbout)
	mux.HandleFunc("GET /events", s.serveEvents)
	mux.HandleFunc("GET /explain", s.serveExplain)
	mux.HandleFunc("POST /move", s.serveMove)
	return s.guard(mux)
}

// serveAbout says what the page is about.
func (s *Server) serveAbout(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, map[string]any{"title": s.title})
}

// serveExplain explains one endpoint.
func (s *Server) serveExplain(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	query := r.URL.Query()
	objects, err := s.source.Read(ctx, query.Get("namespace"), query.Get("name"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	chain, err := explain.Explain(explain.InputOf(objects, s.now()), query.Get("what"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	writeJSON(w, chain)
}

// writeJSON answers with a value. A page that is gone does not need it.
func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}
