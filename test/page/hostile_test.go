package page

import (
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	eventsv1 "k8s.io/api/events/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/view"
)

// Names and messages of others are shown as texts, wherever they stand.
func TestHostileTextsAreNeverRendered(t *testing.T) {
	b := shop()
	b.events = []eventsv1.Event{eventAt(time.Minute, "Warning", hostile, hostile)}
	b.unread = []view.Unread{{Part: view.PartPolicies, Why: hostile}}
	o := b.objects()
	for i := range o.Backend.Status.Conditions {
		o.Backend.Status.Conditions[i].Message = hostile
	}
	for i := range o.Backend.Status.Targets {
		o.Backend.Status.Targets[i].Message, o.Backend.Status.Targets[i].Reason = hostile, hostile
	}
	o.Backend.Status.Override = hostile
	for i := range o.Backend.Spec.Targets {
		o.Backend.Spec.Targets[i].Hostname, o.Backend.Spec.Targets[i].Address = hostile, ""
	}
	o.Backend.Spec.Targets = append(o.Backend.Spec.Targets, v1alpha1.Target{Name: hostile, Hostname: hostile})
	w := newWorld()
	w.put(o)
	tab, url := browse(t, w)
	do(tab, t, chromedp.EmulateViewport(1280, 900), chromedp.Navigate(url+"#open=shop/orders-db&query=%3Cimg"),
		has("#cards", hostile), has("#timeline", hostile), has("#facts", hostile), has("#summary", hostile),
		has("svg text", "<img src=x"), chromedp.Click(`svg [aria-label^="203.0.113.61:"]`), has("dialog", hostile))

	if eval[bool](tab, t, "'hacked' in window") {
		t.Error("a text runs as a script")
	}
	if n := eval[int](tab, t, "document.querySelectorAll('img, body script, iframe, object').length"); n != 0 {
		t.Errorf("%d texts are elements", n)
	}
}

// What could not be read is said to be unknown, with the reason.
func TestUnreadPartsAreUnknown(t *testing.T) {
	b := shop()
	b.unread = []view.Unread{{Part: view.PartSlices, Why: "you may not list endpointslices"}}
	o := b.objects()
	o.Slices = nil
	w := newWorld()
	w.put(o)
	tab, url := browse(t, w)
	do(tab, t, chromedp.Navigate(url+"#open=shop/orders-db"), has("svg text", "unknown: not readable"),
		has("#facts", "you may not list endpointslices"))
}
