package controllers

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/probe"
)

// Metrics are the series that reconciles set.
type Metrics struct {
	endpointsByState *prometheus.GaugeVec
	readyEndpoints   *prometheus.GaugeVec
	activeTier       *prometheus.GaugeVec
	ready            *prometheus.GaugeVec
	verdictChanges   *prometheus.CounterVec
}

// RegisterShare registers whether this replica works, whether it has given its share away, and
// for how many ExternalBackends it works.
func RegisterShare(registerer prometheus.Registerer, works, setAside func() bool, owned func() int) {
	factory := promauto.With(registerer)
	factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "externalbackend_replica_working",
		Help: "1 if this replica works: for its share, or for everything as the leader or alone. 0 while it waits.",
	}, func() float64 { return gauge(works()) })
	factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "externalbackend_replica_set_aside",
		Help: "1 while this replica has given its share away, because most others reach most of what is silent for it.",
	}, func() float64 { return gauge(setAside()) })
	factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "externalbackend_owned",
		Help: "ExternalBackends that this replica works for.",
	}, func() float64 { return float64(owned()) })
}

// gauge returns 1 for true.
func gauge(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// NewMetrics returns Metrics whose series are registered.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	factory := promauto.With(registerer)
	perObject := func(name, help string) *prometheus.GaugeVec {
		return factory.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"namespace", "name"})
	}
	return &Metrics{
		endpointsByState: factory.NewGaugeVec(prometheus.GaugeOpts{
			Name: "externalbackend_endpoints",
			Help: "Published endpoints of an ExternalBackend by state: Healthy, Unhealthy, Unknown, Unprobed or Draining.",
		}, []string{"namespace", "name", "state"}),
		readyEndpoints: perObject("externalbackend_ready_endpoints",
			"Published endpoints of an ExternalBackend that get traffic."),
		activeTier: perObject("externalbackend_active_tier",
			"Active tier of an ExternalBackend. There is no series while no tier is active."),
		ready: perObject("externalbackend_ready",
			"1 if the condition Ready of an ExternalBackend is True, else 0."),
		verdictChanges: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "externalbackend_endpoint_transitions_total",
			Help: "Verdicts that changed, by the new verdict: Healthy or Unhealthy.",
		}, []string{"to"}),
	}
}

// status sets the series that status determines.
func (m *Metrics) status(key types.NamespacedName, s *v1alpha1.ExternalBackendStatus) {
	readyEndpoints, ready := 0.0, 0.0
	if s.Endpoints != nil {
		readyEndpoints = float64(s.Endpoints.Ready)
	}
	if meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionReady) {
		ready = 1
	}
	m.readyEndpoints.WithLabelValues(key.Namespace, key.Name).Set(readyEndpoints)
	m.ready.WithLabelValues(key.Namespace, key.Name).Set(ready)

	if s.ActiveTier != nil {
		m.activeTier.WithLabelValues(key.Namespace, key.Name).Set(float64(*s.ActiveTier))
	} else {
		m.activeTier.DeleteLabelValues(key.Namespace, key.Name)
	}
}

// endpoints sets how many endpoints are in each state.
func (m *Metrics) endpoints(key types.NamespacedName, counts map[v1alpha1.TargetState]int) {
	for _, state := range plan.EndpointStates {
		m.endpointsByState.WithLabelValues(key.Namespace, key.Name, string(state)).Set(float64(counts[state]))
	}
}

// forget removes the series of an ExternalBackend that is gone.
func (m *Metrics) forget(key types.NamespacedName) {
	for _, series := range []*prometheus.GaugeVec{m.endpointsByState, m.readyEndpoints, m.activeTier, m.ready} {
		series.DeletePartialMatch(prometheus.Labels{"namespace": key.Namespace, "name": key.Name})
	}
}

// transitions counts the verdicts that changed.
func (m *Metrics) transitions(transitions []transition) {
	for _, t := range transitions {
		if t.was.Verdict == t.is.Verdict {
			continue
		}
		switch t.is.Verdict {
		case probe.Healthy:
			m.verdictChanges.WithLabelValues(string(v1alpha1.TargetStateHealthy)).Inc()
		case probe.Unhealthy:
			m.verdictChanges.WithLabelValues(string(v1alpha1.TargetStateUnhealthy)).Inc()
		}
	}
}
