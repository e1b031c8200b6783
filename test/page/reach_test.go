package page

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// unnamed lists what a screen reader could not name, or what a keyboard could not reach.
const unnamed = `(() => {
  const label = (e) => (e.getAttribute("aria-label") || e.labels?.[0]?.textContent || e.textContent || "").trim()
    || (e.getAttribute("aria-labelledby") && document.getElementById(e.getAttribute("aria-labelledby"))?.textContent);
  const wrong = [];
  for (const e of document.querySelectorAll("a, button, input, select, dialog[open], nav, [role]:not([role=status])")) {
    if (e.closest("[hidden]")) continue;
    if (e.getAttribute("role") === "alert") continue;
    if (!label(e)) wrong.push("no name: " + e.outerHTML.slice(0, 120));
    if (e.getAttribute("role") === "button" && e.tabIndex !== 0) wrong.push("no focus: " + e.outerHTML.slice(0, 120));
  }
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push("id twice: " + id);
  for (const e of document.querySelectorAll("[aria-labelledby]")) {
    const id = e.getAttribute("aria-labelledby");
    if (document.getElementById(id) || e.closest("[hidden]") || e.tagName === "DIALOG") continue;
    wrong.push("nothing has the id " + id);
  }
  if (document.documentElement.lang !== "en" || document.querySelectorAll("h1").length !== 1) wrong.push("lang or h1");
  return wrong;
})()`

// Every control has a name, and the keyboard alone opens an ExternalBackend and explains an
// endpoint.
func TestKeyboardAndScreenReaderReachAll(t *testing.T) {
	w := newWorld()
	w.put(shop().objects())
	w.put(healthy("shop", "catalog"))
	tab, url := browse(t, w)
	do(tab, t, chromedp.EmulateViewport(1280, 900), chromedp.Navigate(url), has("#cards", "catalog"),
		chromedp.KeyEvent("/"), until("document.activeElement.id === 'search'"), chromedp.KeyEvent("orders"),
		until("document.querySelectorAll('#cards a').length === 1"))
	tabTo(tab, t, `document.activeElement.dataset.key === "shop/orders-db"`)
	do(tab, t, chromedp.KeyEvent(kb.Enter), has("svg", "203.0.113.61"), until("document.activeElement.id === 'main'"))
	tabTo(tab, t, `document.activeElement.getAttribute("aria-label")?.startsWith("203.0.113.61: Unhealthy, gets no traffic")`)
	do(tab, t, chromedp.KeyEvent(kb.Enter), has("dialog", "This is the cause"))
	if wrong := eval[[]string](tab, t, unnamed); len(wrong) > 0 {
		t.Error(wrong)
	}

	do(tab, t, chromedp.KeyEvent(kb.Escape), until("!document.querySelector('dialog').open"))
	if wrong := eval[[]string](tab, t, unnamed); len(wrong) > 0 {
		t.Error(wrong)
	}
	do(tab, t, chromedp.EmulateViewport(390, 844))
	if eval[bool](tab, t, "document.documentElement.scrollWidth > innerWidth") {
		t.Error("a phone has to scroll the page sideways")
	}
	do(tab, t, has("svg text", "SLICES")) // the stack
	if eval[bool](tab, t, "document.getElementById('picture').scrollWidth > document.getElementById('picture').clientWidth") {
		t.Error("a phone has to scroll the picture sideways")
	}
	do(tab, t, chromedp.EmulateViewport(1280, 900), has("svg text", "ADDRESS"))
}
