package resolve

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics holds the engine's series. Their labels name no object.
type metrics struct {
	lookups  *prometheus.CounterVec
	duration prometheus.Histogram
	stale    prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) *metrics {
	factory := promauto.With(r) // it registers nothing where r is nil
	return &metrics{
		lookups: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "externalbackend_dns_lookups_total",
			Help: "DNS lookups of one name and type, by response code, or by cause if no server answered, such as timeout " +
				"or connection refused.",
		}, []string{"rcode"}),
		duration: factory.NewHistogram(prometheus.HistogramOpts{
			Name:    "externalbackend_dns_lookup_duration_seconds",
			Help:    "Duration of a DNS lookup, all its servers and aliases together.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}),
		stale: factory.NewGauge(prometheus.GaugeOpts{
			Name: "externalbackend_dns_stale_names",
			Help: "Names whose last good answer is in use because they can't be resolved now.",
		}),
	}
}

// label returns the value of the label rcode. The set of values is bounded.
func (r result) label() string {
	switch r.kind {
	case kindGood, kindNoData:
		return "NOERROR"
	default:
		return r.cause
	}
}
