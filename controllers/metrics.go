package controllers

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/probe"
)

// Metrics are the series that reconciling sets.
type Metrics struct {
	byState *prometheus.GaugeVec
	traffic *prometheus.GaugeVec
	tier    *prometheus.GaugeVec
	ready   *prometheus.GaugeVec
	changes *prometheus.CounterVec
}

// NewMetrics registers the series.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{
		byState: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "externalbackend_endpoints",
			Help: "Published endpoints of an ExternalBackend by state: Healthy, Unhealthy, Unknown, Unprobed or Draining.",
		}, []string{"namespace", "name", "state"}),
		traffic: perObject("externalbackend_ready_endpoints", "Endpoints of an ExternalBackend that are ready."),
		tier:    perObject("externalbackend_active_tier", "Active tier of an ExternalBackend; no series where none is."),
		ready:   perObject("externalbackend_ready", "Whether the condition Ready of an ExternalBackend is True: 0 or 1."),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "externalbackend_endpoint_transitions_total",
			Help: "Verdicts that changed, by the new one.",
		}, []string{"to"}),
	}
	registerer.MustRegister(m.byState, m.traffic, m.tier, m.ready, m.changes)
	return m
}

func perObject(name, help string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"namespace", "name"})
}

// status sets the series that tell what status tells.
func (m *Metrics) status(key types.NamespacedName, s *v1alpha1.ExternalBackendStatus) {
	published := 0
	if s.Endpoints != nil {
		published = int(s.Endpoints.Ready)
	}
	m.traffic.WithLabelValues(key.Namespace, key.Name).Set(float64(published))
	if s.ActiveTier != nil {
		m.tier.WithLabelValues(key.Namespace, key.Name).Set(float64(*s.ActiveTier))
	} else {
		m.tier.DeleteLabelValues(key.Namespace, key.Name)
	}
	ready := 0.0
	if meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionReady) {
		ready = 1
	}
	m.ready.WithLabelValues(key.Namespace, key.Name).Set(ready)
}

// endpoints sets the series of one ExternalBackend.
func (m *Metrics) endpoints(key types.NamespacedName, counts map[v1alpha1.TargetState]int) {
	for _, state := range plan.EndpointStates {
		m.byState.WithLabelValues(key.Namespace, key.Name, string(state)).Set(float64(counts[state]))
	}
}

// forget removes the series of an ExternalBackend that is gone.
func (m *Metrics) forget(key types.NamespacedName) {
	for _, series := range []*prometheus.GaugeVec{m.byState, m.traffic, m.tier, m.ready} {
		series.DeletePartialMatch(prometheus.Labels{"namespace": key.Namespace, "name": key.Name})
	}
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
