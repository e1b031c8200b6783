package view

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// Row is one ExternalBackend in a list of many. Everything in it comes from the ExternalBackend.
type Row struct {
	Namespace  string      `json:"namespace"`
	Name       string      `json:"name"`
	State      State       `json:"state"`
	Ready      string      `json:"ready"` // ready of total endpoints
	ActiveTier *int32      `json:"activeTier,omitempty"`
	Override   string      `json:"override,omitempty"`
	Service    string      `json:"service"`
	Created    metav1.Time `json:"created"`
	// Why says why State is not Healthy.
	Why string `json:"why,omitempty"`
}

// BuildRow makes the row of an ExternalBackend.
func BuildRow(b *v1alpha1.ExternalBackend) Row {
	r := Row{
		Namespace: b.Namespace, Name: b.Name, Ready: "-", ActiveTier: b.Status.ActiveTier, Override: b.Status.Override,
		Service: b.EffectiveServiceName(), Created: b.CreationTimestamp,
	}
	if b.Status.Endpoints != nil {
		r.Ready = b.Status.Endpoints.ReadyOfTotal
	}
	r.State, r.Why = StateOf(b)
	if r.State == StateHealthy {
		r.Why = ""
	}
	return r
}

// Equal reports whether both rows show the same.
func (r *Row) Equal(other *Row) bool {
	a, b := *r, *other
	sameTier := valueOr(a.ActiveTier) == valueOr(b.ActiveTier) && (a.ActiveTier == nil) == (b.ActiveTier == nil)
	sameTime := a.Created.Equal(&b.Created)
	a.ActiveTier, b.ActiveTier, a.Created, b.Created = nil, nil, metav1.Time{}, metav1.Time{}
	return sameTier && sameTime && a == b
}

// StatesWorstFirst are all states, the worst first.
var StatesWorstFirst = []State{StateDown, StateDegraded, StateUnknown, StateHealthy}

// SortRows sorts the worst rows first.
func SortRows(rows []Row) {
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(
			cmp.Compare(slices.Index(StatesWorstFirst, a.State), slices.Index(StatesWorstFirst, b.State)),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
		)
	})
}
