package ui

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/view"
)

// fakeSource has rows, and reads ExternalBackends that have just a spec.
type fakeSource struct {
	mu      sync.Mutex
	rows    []view.Row
	world   string // changes what a Move does
	applied int

	reads   int    // of what is followed
	changed func() // tells that it has changed
	change  string // changes what it shows
}

func (f *fakeSource) Rows() ([]view.Row, string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rows, ""
}

func (f *fakeSource) set(rows ...view.Row) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rows = rows
}

func (f *fakeSource) Read(_ context.Context, namespace, name string) (*view.Objects, error) {
	if name != "db" {
		return nil, errors.New("there is no such ExternalBackend")
	}
	b := &v1alpha1.ExternalBackend{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	b.Spec.Targets = []v1alpha1.Target{{Name: "a", Address: "192.0.2.1"}}
	return &view.Objects{Backend: b, Unread: []view.Unread{{Part: view.PartSlices, Why: "you may not list them"}}}, nil
}

func (f *fakeSource) Follow(_ context.Context, namespace, name string, changed func()) (
	read func(context.Context) (*view.Objects, error), stop func(),
) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed = changed
	return func(ctx context.Context) (*view.Objects, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.reads++
		o, err := f.Read(ctx, namespace, name)
		if err == nil {
			o.Backend.Status.Override = f.change
		}
		return o, err
	}, func() {}
}

// Plan plans to count. The headline is what is shown.
func (f *fakeSource) Plan(_ context.Context, m *Move) (*Change, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &Change{Headline: m.Action + f.world, Apply: func(context.Context) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.applied++
		return nil
	}}, nil
}

// start serves until the test ends, and returns the URL of the page.
func start(t *testing.T, source Source) (*Server, string) {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(source, "a test", time.Now)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, s.URL(listener)
}

// ask sends a request, and returns the answer. change may change the request.
func ask(t *testing.T, method, url string, change func(*http.Request)) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(request)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = answer.Body.Close() })
	return answer
}

// Only requests of the page itself, with its token, get an answer.
func TestForeignRequestsAreRefused(t *testing.T) {
	_, url := start(t, &fakeSource{})
	host := strings.Split(url, "/")[2]
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	for name, c := range map[string]struct {
		url    string
		change func(*http.Request)
		want   int
	}{
		"the page":              {url, nil, http.StatusOK},
		"its own origin":        {url + "about", header("Origin", "http://"+host), http.StatusOK},
		"its own fetch":         {url + "about", header("Sec-Fetch-Site", "same-origin"), http.StatusOK},
		"a file that is not":    {url + "none.js", nil, http.StatusNotFound},
		"no token":              {"http://" + host + "/", nil, http.StatusForbidden},
		"no token, a path":      {"http://" + host + "/about", nil, http.StatusForbidden},
		"a wrong token":         {"http://" + host + "/AAAAAAAAAAAAAAAAAAAAAAAAAA/about", nil, http.StatusForbidden},
		"a path around a token": {"http://" + host + "/x/../about", nil, http.StatusForbidden},
		"a rebound name":        {url, func(r *http.Request) { r.Host = "evil.example" }, http.StatusMisdirectedRequest},
		"another port":          {url, func(r *http.Request) { r.Host = "127.0.0.1:1" }, http.StatusMisdirectedRequest},
		"a foreign origin":      {url + "about", header("Origin", "https://evil.example"), http.StatusForbidden},
		"a hidden origin":       {url + "about", header("Origin", "null"), http.StatusForbidden},
		"a cross-site fetch":    {url + "about", header("Sec-Fetch-Site", "cross-site"), http.StatusForbidden},
		"another local port":    {url + "events", header("Sec-Fetch-Site", "same-site"), http.StatusForbidden},
	} {
		if got := ask(t, http.MethodGet, c.url, c.change).StatusCode; got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// Every answer, refusals too, forbids scripts inside of the document and from elsewhere.
func TestEveryAnswerHasContentPolicy(t *testing.T) {
	_, url := start(t, &fakeSource{})
	for _, path := range []string{url, url + "app.js", url + "about", url + "../"} {
		header := ask(t, http.MethodGet, path, nil).Header
		policy := header.Get("Content-Security-Policy")
		parts := []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "types-for"}
		for _, part := range parts {
			if !strings.Contains(policy, part) {
				t.Errorf("%s: %q lacks %q", path, policy, part)
			}
		}
		if strings.Contains(policy, "unsafe") {
			t.Errorf("%s: %q", path, policy)
		}
		if header.Get("Referrer-Policy") != "no-referrer" || header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", path, header)
		}
	}
}

// The files of the page have no inline script or style, and never make HTML from strings.
func TestPageNeverMakesHTMLFromStrings(t *testing.T) {
	_, url := start(t, &fakeSource{})
	fromStrings := []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("}
	files := map[string][]string{"": {"<style", "style=", "onclick=", "http://", "https://"}}
	scripts, err := fs.Glob(embedded, "page/*.js")
	if err != nil || len(scripts) < 5 {
		t.Fatal(scripts, err)
	}
	for _, script := range scripts {
		files[strings.TrimPrefix(script, "page/")] = fromStrings
	}
	for file, forbidden := range files {
		answer := ask(t, http.MethodGet, url+file, nil)
		body, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusOK || len(body) == 0 {
			t.Fatalf("%s: %v, %v", file, answer.Status, err)
		}
		for _, text := range forbidden {
			if strings.Contains(string(body), text) {
				t.Errorf("%s has %q", file, text)
			}
		}
	}
}

// listener reads the events of a stream.
type listener struct{ *bufio.Scanner }

func listen(t *testing.T, url string) listener {
	answer := ask(t, http.MethodGet, url, nil)
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatal(answer.Status)
	}
	return listener{bufio.NewScanner(answer.Body)}
}

// next returns the next event of a kind.
func (l listener) next(t *testing.T, kind string, into any) {
	t.Helper()
	for l.Scan() {
		if l.Text() != "event: "+kind {
			continue
		}
		l.Scan()
		if err := json.Unmarshal([]byte(strings.TrimPrefix(l.Text(), "data: ")), into); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("the stream has ended:", l.Err())
}

// A page is told all rows once, and later only those that change.
func TestStreamSendsOnlyChanges(t *testing.T) {
	source := &fakeSource{}
	a, b := view.Row{Namespace: "shop", Name: "a"}, view.Row{Namespace: "shop", Name: "b"}
	source.set(a, b)
	s, url := start(t, source)
	stream := listen(t, url+"events?open=shop/db")

	var first rowsUpdate
	stream.next(t, "rows", &first)
	if !first.Reset || len(first.Put) != 2 || len(first.Gone) != 0 {
		t.Fatalf("%+v", first)
	}
	var opened backendUpdate
	stream.next(t, "backend", &opened)
	if opened.Key != "shop/db" || !strings.Contains(string(opened.Head), "you may not list them") {
		t.Fatalf("%+v", opened)
	}

	a.State = view.StateDown
	source.set(a)
	s.Changed()
	var second rowsUpdate
	stream.next(t, "rows", &second)
	if second.Reset || len(second.Put) != 1 || second.Put[0].State != view.StateDown ||
		len(second.Gone) != 1 || second.Gone[0] != "shop/b" {
		t.Fatalf("%+v", second)
	}
}

// The opened ExternalBackend is read when it has changed, and not when another one has.
func TestOpenedBackendIsReadOnlyOnItsOwnChange(t *testing.T) {
	source := &fakeSource{}
	a := view.Row{Namespace: "shop", Name: "a"}
	source.set(a)
	s, url := start(t, source)
	stream := listen(t, url+"events?open=shop/db")
	var opened backendUpdate
	stream.next(t, "backend", &opened)

	for _, a.State = range []view.State{view.StateDown, view.StateHealthy} {
		source.set(a)
		s.Changed()
		var rows rowsUpdate
		stream.next(t, "rows", &rows)
	}
	source.mu.Lock()
	reads, changed := source.reads, source.changed
	source.change = "night-shift"
	source.mu.Unlock()
	if reads != 1 {
		t.Errorf("it is read %d times, and has not changed", reads)
	}

	changed()
	stream.next(t, "backend", &opened)
	if !strings.Contains(string(opened.Head), "night-shift") {
		t.Errorf("%s", opened.Head)
	}
}

// One page more than the limit is refused, and gets a place once another is closed.
func TestStreamsAreBounded(t *testing.T) {
	_, url := start(t, &fakeSource{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range maxStreams {
		request, _ := http.NewRequestWithContext(ctx, http.MethodGet, url+"events", nil)
		answer, err := http.DefaultClient.Do(request)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatal(answer, err)
		}
		defer answer.Body.Close()
	}
	if got := ask(t, http.MethodGet, url+"events", nil).StatusCode; got != http.StatusServiceUnavailable {
		t.Fatalf("one more page gets %d", got)
	}

	cancel()
	for ask(t, http.MethodGet, url+"events", nil).StatusCode != http.StatusOK {
		t.Log("the server has not noticed yet that pages are closed")
	}
}

// The chain of an endpoint is the one of `explain`, and an error is said as it is.
func TestExplainAnswersChainOrError(t *testing.T) {
	_, url := start(t, &fakeSource{})
	var chain struct{ Target, Address string }
	answer := ask(t, http.MethodGet, url+"explain?namespace=shop&name=db&what=a", nil)
	err := json.NewDecoder(answer.Body).Decode(&chain)
	if err != nil || chain.Target != "a" || chain.Address != "192.0.2.1" {
		t.Fatal(chain, err)
	}
	for path, want := range map[string]int{
		"explain?namespace=shop&name=db&what=none": http.StatusNotFound,
		"explain?namespace=shop&name=none&what=a":  http.StatusBadGateway,
	} {
		if got := ask(t, http.MethodGet, url+path, nil).StatusCode; got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
}

// A change is made only after it was shown, only as it was shown, and only for the page itself.
func TestMoveIsMadeOnlyAsShown(t *testing.T) {
	source := &fakeSource{}
	_, url := start(t, source)
	post := func(m Move, change func(*http.Request)) (moveAnswer, int) {
		body, _ := json.Marshal(m)
		answer := ask(t, http.MethodPost, url+"move", func(r *http.Request) {
			r.Header.Set("Content-Type", "application/json")
			r.Body = io.NopCloser(bytes.NewReader(body))
			if change != nil {
				change(r)
			}
		})
		var out moveAnswer
		_ = json.NewDecoder(answer.Body).Decode(&out) // errors are texts
		return out, answer.StatusCode
	}
	expect := func(claim string, code, want, applied int) {
		t.Helper()
		source.mu.Lock()
		defer source.mu.Unlock()
		if code != want || source.applied != applied {
			t.Errorf("%s: %d and %d applied, want %d and %d", claim, code, source.applied, want, applied)
		}
	}

	m := Move{Action: "drain"}
	shown, code := post(m, nil)
	expect("shown", code, http.StatusOK, 0)
	m.Digest, m.At = shown.Digest, shown.At
	foreign := func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }
	form := func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }
	_, code = post(m, foreign)
	expect("another origin", code, http.StatusForbidden, 0)
	_, code = post(m, form)
	expect("a form", code, http.StatusUnsupportedMediaType, 0)

	old := m
	old.At = old.At.Add(-time.Hour)
	_, code = post(old, nil)
	expect("an old one", code, http.StatusConflict, 0)
	source.mu.Lock()
	source.world = ", and the world has changed"
	source.mu.Unlock()
	_, code = post(m, nil)
	expect("another one", code, http.StatusConflict, 0)
	source.mu.Lock()
	source.world = ""
	source.mu.Unlock()
	done, code := post(m, nil)
	expect("confirmed", code, http.StatusOK, 1)
	if !done.Done || shown.Done {
		t.Error(done, shown)
	}
}
