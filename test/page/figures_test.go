package page

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
)

const (
	manyBackends  = 1000
	manyEndpoints = 10000
	// mostElements bounds what is in the document, however much there is to show.
	mostElements = 3500
)

// With 1,000 ExternalBackends, one of them with 10,000 endpoints, only a part is in the document,
// and a change of one endpoint is seen. The log has the figures.
func TestLargePageDrawsOnlyPart(t *testing.T) {
	w := newWorld()
	for i := 1; i < manyBackends; i++ {
		w.put(healthy("shop", fmt.Sprintf("small-%04d", i)))
	}
	large := &backend{
		namespace: "shop", name: "large", targets: []v1alpha1.Target{{Name: "pool", Hostname: "pool.example.com"}},
		answers: map[string][]plan.Addr{"pool": addresses("10.0.0.1", manyEndpoints)},
		sick:    map[string]string{"10.0.0.7": v1alpha1.TargetReasonTimeout},
	}
	w.put(large.objects())
	tab, url := browse(t, w)
	do(tab, t, chromedp.EmulateViewport(1280, 900), chromedp.Navigate(url), has("#count", "1000 ExternalBackends"))
	paint := eval[float64](tab, t, "performance.now()")
	do(tab, t, chromedp.Evaluate[chromedp.Void]("window.began = performance.now(); location.hash = 'open=shop/large'"),
		has("#endpoint-count", "10000"), has("svg", "more"))
	opened := eval[float64](tab, t, "performance.now() - began")

	large.sick["10.0.0.99"] = v1alpha1.TargetReasonTimeout
	changed := large.objects()
	do(tab, t, chromedp.Evaluate[chromedp.Void]("window.began = performance.now()"))
	w.put(changed)
	do(tab, t, until(`document.querySelector('svg [aria-label^="10.0.0.99: Unhealthy"]')`))
	updated := eval[float64](tab, t, "performance.now() - began")
	heap := eval[float64](tab, t, "performance.memory.usedJSHeapSize / 1e6")
	elements := eval[int](tab, t, "document.querySelectorAll('*').length")
	t.Logf("first cards after %.0f ms, 10,000 endpoints opened in %.0f ms, one change drawn in %.0f ms, "+
		"heap %.0f MB, %d elements", paint, opened, updated, heap, elements)
	if elements > mostElements {
		t.Errorf("%d elements are more than %d", elements, mostElements)
	}

	do(tab, t, chromedp.Evaluate[chromedp.Void]("document.querySelector('nav').scrollTo(0, 1e6)"),
		until("document.querySelectorAll('#cards a').length > 60"))
}
