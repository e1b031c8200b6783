package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/test/harness/lab"
)

const (
	// look is the interval of requests to the cluster and of updates of the screen, count that of
	// rates.
	look  = 100 * time.Millisecond
	count = time.Second
	// maxLines bounds the lines of the story and of the events.
	maxLines = 200
	// inRotation is the state of an endpoint that gets requests. No endpoint drains here.
	inRotation = "ready, serving"
)

// view shows what happens: it looks at the cluster, and draws a screen. If standard output is not a
// terminal, it writes a line for each change. Only the goroutine of watch writes, and then close.
type view struct {
	backends []*backend
	load     *lab.Load
	begin    time.Time
	length   time.Duration
	page     string   // the URL of the live page
	live     bool     // there is a screen
	outages  []outage // only play uses it

	mu       sync.Mutex
	machines map[string]string // backend -> "serves" or its fault
	states   map[string]string // address -> its endpoint's conditions
	changed  chan struct{}     // closed when states change
	counts   int
	counted  lab.Tally      // at the last count
	rates    map[string]int // machine -> answers a second; "" -> failures
	table    []string       // the output of kubectl get
	ageless  []string       // the same without the age
	events   []string
	seen     map[string]bool // events, by name and count
	story    []string
	lines    []string // not written yet, without a screen
}

func newView(backends []*backend, load *lab.Load, length time.Duration, page string) *view {
	v := &view{
		backends: backends, load: load, begin: time.Now(), length: length, page: page, live: isTerminal(os.Stdout),
		machines: map[string]string{}, states: map[string]string{}, changed: make(chan struct{}), rates: map[string]int{},
		seen: map[string]bool{},
	}
	for _, b := range backends {
		v.machines[b.Name()] = "serves"
	}
	if v.live {
		fmt.Print(enterScreen)
	}
	return v
}

// close draws a last time, and leaves the screen.
func (v *view) close() {
	v.draw()
	if v.live {
		fmt.Print(leaveScreen)
	}
}

// watch looks at the cluster until ctx ends. The channel is closed once it has stopped.
func (v *view) watch(ctx context.Context, l *lab.Lab) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		looks, counts := time.NewTicker(look), time.NewTicker(count)
		defer looks.Stop()
		defer counts.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-counts.C:
				v.count()
			case <-looks.C:
				if err := v.look(ctx, l); err != nil && ctx.Err() == nil {
					v.tell("the API server does not answer: %v", err)
				}
				v.draw()
			}
		}
	}()
	return done
}

// tell adds a line to the story.
func (v *view) tell(text string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	text = fmt.Sprintf(text, args...)
	v.story = bounded(append(v.story, clock(time.Since(v.begin))+"  "+text))
	v.lineLocked("story", text)
}

// lineLocked adds a line to write, if there is no screen.
func (v *view) lineLocked(about, text string) {
	if !v.live {
		v.lines = append(v.lines, fmt.Sprintf("%s  %-8s  %s", clock(time.Since(v.begin)), about, text))
	}
}

func (v *view) setMachine(b *backend, is string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.machines[b.Name()] = is
}

// awaitReady waits until the backend's endpoint is ready, or until it is not, and returns the time.
// The time is zero if ctx ended before.
func (v *view) awaitReady(ctx context.Context, b *backend, ready bool) (time.Time, error) {
	deadline := time.After(patience)
	for {
		v.mu.Lock()
		state, changed := v.states[b.V4.String()], v.changed
		v.mu.Unlock()
		if (state == inRotation) == ready {
			return time.Now(), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return time.Time{}, nil
		case <-deadline:
			return time.Time{}, fmt.Errorf("after %v the endpoint of %s is %q", patience, b.Name(), state)
		}
	}
}

// look asks the API server for endpoints, columns and events.
func (v *view) look(ctx context.Context, l *lab.Lab) error {
	var slices discoveryv1.EndpointSliceList
	if err := l.Client.List(ctx, &slices, client.InNamespace(namespace),
		client.MatchingLabels{discoveryv1.LabelServiceName: name}); err != nil {
		return err
	}
	table, err := columns(ctx, l.Config)
	if err != nil {
		return err
	}
	var events eventsv1.EventList
	if err := l.Client.List(ctx, &events, client.InNamespace(namespace)); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.setStatesLocked(slices.Items)
	v.setTableLocked(table)
	v.addEventsLocked(events.Items)
	return nil
}

func (v *view) setStatesLocked(items []discoveryv1.EndpointSlice) {
	news := false
	for _, slice := range items {
		for _, e := range slice.Endpoints {
			addr, state := e.Addresses[0], stateOf(e.Conditions)
			if v.states[addr] != state {
				v.states[addr], news = state, true
				v.lineLocked("endpoint", fmt.Sprintf("%s (%s) is %s", v.nameOf(addr), addr, state))
			}
		}
	}
	if news {
		close(v.changed)
		v.changed = make(chan struct{})
	}
}

func (v *view) nameOf(addr string) string {
	for _, b := range v.backends {
		if b.V4.String() == addr {
			return b.Name()
		}
	}
	return "?"
}

// stateOf returns the conditions that are true.
func stateOf(c discoveryv1.EndpointConditions) string {
	var words []string
	for word, is := range map[string]*bool{"ready": c.Ready, "serving": c.Serving, "terminating": c.Terminating} {
		if is != nil && *is {
			words = append(words, word)
		}
	}
	slices.Sort(words)
	return cmp.Or(strings.Join(words, ", "), "not ready")
}

// setTableLocked sets the output of kubectl get. Without a screen, it is written if more than the
// age has changed.
func (v *view) setTableLocked(table [][]string) {
	before := v.ageless
	v.table, v.ageless = align(table), align(withoutAge(table))
	if !slices.Equal(before, v.ageless) {
		for _, line := range v.table {
			v.lineLocked("kubectl", line)
		}
	}
}

// addEventsLocked adds new events in the order of time.
func (v *view) addEventsLocked(items []eventsv1.Event) {
	slices.SortFunc(items, func(a, b eventsv1.Event) int { return a.EventTime.Compare(b.EventTime.Time) })
	seen := map[string]bool{}
	for _, e := range items {
		key := e.Name
		if e.Series != nil {
			key += fmt.Sprint(e.Series.Count)
		}
		if seen[key] = true; e.Regarding.Name != name || v.seen[key] {
			continue
		}
		text := e.Reason + ": " + e.Note
		v.events = bounded(append(v.events, clock(e.EventTime.Sub(v.begin))+"  "+text))
		v.lineLocked("event", text)
	}
	v.seen = seen // those that are gone are forgotten
}

// count calculates the rates of the last second.
func (v *view) count() {
	tally := v.load.Tally()
	v.mu.Lock()
	defer v.mu.Unlock()
	var texts []string
	for _, b := range v.backends {
		v.rates[b.Name()] = tally.Answers[b.Name()] - v.counted.Answers[b.Name()]
		texts = append(texts, fmt.Sprintf("%s %d", b.Name(), v.rates[b.Name()]))
	}
	v.rates[""] = tally.Failed - v.counted.Failed
	v.counted = tally
	if v.counts++; v.counts%3 == 0 {
		v.lineLocked("requests", fmt.Sprintf("in the last second: %s, failed %d", strings.Join(texts, ", "), v.rates[""]))
	}
}

// columns returns the table that kubectl prints, with the header first.
func columns(ctx context.Context, config *rest.Config) ([][]string, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	url := config.Host + "/apis/external-backend.io/v1alpha1/namespaces/" + namespace + "/externalbackends"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var table metav1.Table
	if err := json.NewDecoder(resp.Body).Decode(&table); err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s: %w", url, resp.Status, err)
	}
	lines := make([][]string, 1+len(table.Rows))
	for i, column := range table.ColumnDefinitions {
		if column.Priority > 0 {
			continue // kubectl shows it with -o wide
		}
		lines[0] = append(lines[0], strings.ToUpper(column.Name))
		for j, row := range table.Rows {
			lines[1+j] = append(lines[1+j], fmt.Sprint(row.Cells[i]))
		}
	}
	return lines, nil
}

func bounded(lines []string) []string { return lines[max(0, len(lines)-maxLines):] }

// clock returns the time since the beginning as text.
func clock(d time.Duration) string {
	return fmt.Sprintf("%02d:%04.1f", int(d.Minutes()), (d % time.Minute).Seconds())
}
