package probe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the engine's series. They carry no object labels.
type metrics struct {
	total    [kinds][3]prometheus.Counter // by kind and result
	duration [kinds]prometheus.Observer
	lateness prometheus.Histogram
	inFlight prometheus.Gauge
	blind    prometheus.Gauge
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	factory := promauto.With(registerer) // it registers nothing where registerer is nil
	total := factory.NewCounterVec(prometheus.CounterOpts{
		Name: "externalbackend_probe_total",
		Help: "Probes that ended, by type (tcpSocket, httpGet, grpc) and by result (success, failure, unknown). " +
			"Unknown ones could not be run, or ended too late: they say something about the manager. " +
			"Probes that the manager gave up, because a spec changed or another namespace needed its share, are not counted.",
	}, []string{"type", "result"})
	duration := factory.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "externalbackend_probe_duration_seconds",
		Help:    "Time from the start of a probe to its success or failure.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	}, []string{"type"})
	m := &metrics{
		lateness: factory.NewHistogram(prometheus.HistogramOpts{
			Name:    "externalbackend_probe_lateness_seconds",
			Help:    "Time from when a probe was due to its start.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}),
		inFlight: factory.NewGauge(prometheus.GaugeOpts{
			Name: "externalbackend_probes_in_flight",
			Help: "Probes that have begun and not ended, at most --max-concurrent-probes.",
		}),
		blind: factory.NewGauge(prometheus.GaugeOpts{
			Name: "externalbackend_prober_blind",
			Help: "1 while the manager hears from almost no endpoint and considers its own network broken, else 0.",
		}),
	}
	for k := range kinds {
		m.duration[k] = duration.WithLabelValues(k.String())
		for r, name := range [...]string{unknown: "unknown", success: "success", failure: "failure"} {
			m.total[k][r] = total.WithLabelValues(k.String(), name)
		}
	}
	return m
}

// begun counts a probe that begins late after it was due. Each whole period of that is a probe
// that was not run.
func (m *metrics) begun(k kind, late, period time.Duration) {
	m.lateness.Observe(late.Seconds())
	if missed := late / period; missed > 0 {
		m.total[k][unknown].Add(float64(missed))
	}
}

// ended counts a probe that has ended after took.
func (m *metrics) ended(k kind, r result, took time.Duration) {
	m.total[k][r].Inc()
	if r != unknown {
		m.duration[k].Observe(took.Seconds())
	}
}
