package controllers

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/probe"
)

// Metrics are the series that reconciling sets.
type Metrics struct {
	byState *prometheus.GaugeVec
	changes *prometheus.CounterVec
}

// NewMetrics registers the series.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{
		byState: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "externalbackend_endpoints",
			Help: "Published endpoints of an ExternalBackend by state: Healthy, Unhealthy, Unknown, Unprobed or Draining.",
		}, []string{"namespace", "name", "state"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "externalbackend_endpoint_transitions_total",
			Help: "Verdicts that changed, by the new one.",
		}, []string{"to"}),
	}
	registerer.MustRegister(m.byState, m.changes)
	return m
}

// endpoints sets the series of one ExternalBackend.
func (m *Metrics) endpoints(key types.NamespacedName, counts map[v1alpha1.TargetState]int) {
	for _, state := range plan.EndpointStates {
		m.byState.WithLabelValues(key.Namespace, key.Name, string(state)).Set(float64(counts[state]))
	}
}

// forget removes the series of an ExternalBackend that is gone.
func (m *Metrics) forget(key types.NamespacedName) {
	m.byState.DeletePartialMatch(prometheus.Labels{"namespace": key.Namespace, "name": key.Name})
}

// transitions counts the verdicts that changed.
func (m *Metrics) transitions(news []transition) {
	for _, t := range news {
		if t.was.Verdict == t.is.Verdict {
			continue
		}
		switch t.is.Verdict {
		case probe.Healthy:
			m.changes.WithLabelValues(string(v1alpha1.TargetStateHealthy)).Inc()
		case probe.Unhealthy:
			m.changes.WithLabelValues(string(v1alpha1.TargetStateUnhealthy)).Inc()
		}
	}
}
