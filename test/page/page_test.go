// Package page tries the page of `kubectl external-backend ui` in a headless Chromium. Its data is
// planned by the packages of the manager, and needs no cluster.
package page

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/ui"
	"github.com/external-backend/operator/internal/view"
)

// pageTimeout bounds a whole test, which takes seconds.
const pageTimeout = 2 * time.Minute

// browse serves a world, and returns a browser and the URL of the page. The test fails if the page
// reports an error, such as one of the Content-Security-Policy.
func browse(t *testing.T, w *world) (context.Context, string) {
	t.Helper()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("chromium is missing: install Debian's package, or run `hack/debian-packages.sh chromium` as root")
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := ui.New(w, "a cluster of tests", time.Now)
	w.changed = server.Changed
	ctx, cancel := context.WithTimeout(context.Background(), pageTimeout)
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox,
		chromedp.Flag("disable-dev-shm-usage", true))
	allocator, stop := chromedp.NewExecAllocator(ctx, options...)
	tab, closeTab := chromedp.NewContext(allocator, chromedp.WithListener(func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			t.Errorf("the page fails: %s %+v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception)
		case *log.EventEntryAdded:
			if e.Entry.Level == log.EntryLevelError {
				t.Errorf("the browser reports: %s %s", e.Entry.Text, e.Entry.URL)
			}
		}
	}))
	t.Cleanup(func() {
		closeTab()
		stop()
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})

	return tab, server.URL(listener)
}

// do runs steps, and fails the test if one fails.
func do(tab context.Context, t *testing.T, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(tab, steps...); err != nil {
		t.Fatal(err)
	}
}

// eval returns the value of an expression in the page.
func eval[T any](tab context.Context, t *testing.T, expression string) T {
	t.Helper()
	value, err := chromedp.Run(tab, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// until waits until an expression is true in the page.
func until(expression string) chromedp.Action[chromedp.Void] {
	return chromedp.Poll[chromedp.Void](expression)
}

// has is true when an element contains a text.
func has(selector, text string) chromedp.Action[chromedp.Void] {
	return until(fmt.Sprintf("[...document.querySelectorAll(%q)].some((e) => e.textContent.includes(%q))", selector, text))
}

// shop is an ExternalBackend with names, tiers and a sick endpoint.
func shop() *backend {
	return &backend{
		namespace: "shop", name: "orders-db",
		targets: []v1alpha1.Target{
			{Name: "primary", Hostname: "db-a.example.com"},
			{Name: "replica", Hostname: "db-b.example.com"},
			{Name: "edge", Address: "192.0.2.40"},
			{Name: "standby", Address: "198.51.100.7", Tier: new(int32(1))},
			{Name: "archive", Address: "198.51.100.8", Tier: new(int32(1))},
		},
		answers: map[string][]plan.Addr{"primary": addresses("203.0.113.10", 3), "replica": addresses("203.0.113.60", 2)},
		sick:    map[string]string{"203.0.113.61": v1alpha1.TargetReasonConnectionRefused},
		events: []eventsv1.Event{
			eventAt(47*time.Minute, "Warning", "EndpointUnhealthy",
				"Endpoint 203.0.113.61 of target replica is unhealthy: ConnectionRefused."),
			eventAt(3*time.Hour, "Normal", "FailedBack", "Traffic has returned to tier 0."),
		},
	}
}

func eventAt(before time.Duration, kind, reason, note string) eventsv1.Event {
	return eventsv1.Event{
		EventTime: metav1.NewMicroTime(time.Now().Add(-before)), Type: kind, Reason: reason, Note: note,
	}
}

// addresses returns addresses in a row.
func addresses(first string, count int) []plan.Addr {
	out := make([]plan.Addr, count)
	out[0].IP = netip.MustParseAddr(first)
	for i := 1; i < count; i++ {
		out[i].IP = out[i-1].IP.Next()
	}
	return out
}

// healthy is a small ExternalBackend without anything wrong.
func healthy(namespace, name string) *view.Objects {
	b := &backend{
		namespace: namespace, name: name,
		targets: []v1alpha1.Target{{Name: "a", Address: "192.0.2.1"}, {Name: "b", Address: "192.0.2.2"}},
	}
	return b.objects()
}

// down is an ExternalBackend without a healthy endpoint.
func down(namespace, name string) *view.Objects {
	b := &backend{
		namespace: namespace, name: name, targets: []v1alpha1.Target{{Name: "only", Address: "192.0.2.9"}},
		sick: map[string]string{"192.0.2.9": v1alpha1.TargetReasonConnectionRefused},
	}
	return b.objects()
}

// screenshot writes what a browser of that size shows into the directory of PAGE_SCREENSHOTS.
func screenshot(tab context.Context, t *testing.T, name string, width, height int64, dark bool) {
	t.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	do(tab, t, chromedp.EmulateViewport(width, height))
	_, err := chromedp.Call(tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	if err != nil {
		t.Fatal(err)
	}
	image, err := chromedp.Run(tab, chromedp.CaptureScreenshot())
	if err != nil {
		t.Fatal(err)
	}
	if len(image) == 0 {
		t.Errorf("%s is empty", name)
	}
	if directory := os.Getenv("PAGE_SCREENSHOTS"); directory != "" {
		if err := os.WriteFile(filepath.Join(directory, name+".png"), image, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// The page lists ExternalBackends worst first, opens one by its link, explains an endpoint, and
// follows what changes.
func TestPageShowsAndFollowsTraffic(t *testing.T) {
	w := newWorld()
	w.put(shop().objects())
	w.put(healthy("shop", "catalog"))
	w.put(healthy("mail", "relay"))
	w.put(down("billing", "ledger"))
	tab, url := browse(t, w)
	do(tab, t, chromedp.EmulateViewport(1280, 900), chromedp.Navigate(url), has("#cards", "catalog"))
	order := eval[[]string](tab, t, "[...document.querySelectorAll('#cards a')].map((e) => e.dataset.key)")
	if got := strings.Join(order, " "); got != "billing/ledger shop/orders-db mail/relay shop/catalog" {
		t.Fatal(got)
	}

	do(tab, t, chromedp.Click(`[data-key="shop/orders-db"]`), has("svg", "198.51.100.7"))
	screenshot(tab, t, "readme", 1280, 630, false)
	for _, dark := range []bool{false, true} {
		screenshot(tab, t, fmt.Sprintf("wide-dark-%v", dark), 1280, 900, dark)
		screenshot(tab, t, fmt.Sprintf("phone-dark-%v", dark), 390, 844, dark)
	}
	do(tab, t, chromedp.EmulateViewport(1280, 900),
		chromedp.Click(`svg [aria-label^="203.0.113.61:"]`), has("dialog .cause", "This is the cause"))
	screenshot(tab, t, "explain", 1280, 900, false)
	if hash := eval[string](tab, t, "location.hash"); !strings.Contains(hash, "explain=203.0.113.61") {
		t.Error(hash)
	}
	do(tab, t, chromedp.KeyEvent("\x1b"), until("!document.querySelector('dialog').open"))

	better := shop()
	better.sick = nil
	w.put(better.objects())
	do(tab, t, has("#timeline", "Degraded → Healthy"),
		until(`document.querySelector('svg [aria-label^="203.0.113.61: Healthy, gets traffic"]')`))
}

// hostile is a text that would run a script if it were rendered as HTML.
const hostile = `<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>"'>`

// A drain is made only after its change was shown, and Escape leaves everything as it is.
func TestMoveIsShownAndConfirmed(t *testing.T) {
	w := newWorld()
	w.put(shop().objects())
	tab, url := browse(t, w)
	do(tab, t, chromedp.EmulateViewport(1280, 900), chromedp.Navigate(url+"#open=shop/orders-db"), has("#moves", "Drain"))
	open := func() {
		t.Helper()
		do(tab, t, chromedp.Click(`[data-key="move drain"]`), has("dialog", "Show what changes"),
			chromedp.Click("dialog .primary"), has("dialog", "Ready endpoints: 5, then 4"), has("dialog pre", hostile))
	}
	open()
	screenshot(tab, t, "move", 1280, 900, false)
	do(tab, t, chromedp.KeyEvent("\x1b"), until("!document.querySelector('dialog').open"))
	if moves := w.made(); len(moves) != 0 {
		t.Fatal(moves)
	}

	open()
	do(tab, t, chromedp.Click("dialog .primary"), until("!document.querySelector('dialog').open"))
	moves := w.made()
	if len(moves) != 1 || moves[0].Action != "drain" || moves[0].Target != "replica" || moves[0].Seconds != 7200 {
		t.Fatal(moves)
	}
	if eval[bool](tab, t, "'hacked' in window") {
		t.Error("a text runs as a script")
	}
}

// tabTo presses Tab until an expression is true.
func tabTo(tab context.Context, t *testing.T, expression string) {
	t.Helper()
	for range 60 {
		if eval[bool](tab, t, "Boolean("+expression+")") {
			return
		}
		do(tab, t, chromedp.KeyEvent(kb.Tab))
	}
	t.Fatal("60 tabs do not lead to", expression)
}
