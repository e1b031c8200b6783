package explain

import (
	"time"

	"github.com/external-backend/operator/internal/view"
)

// InputOf returns what was read as input of Explain.
func InputOf(o *view.Objects, now time.Time) Input {
	in := Input{
		Backend: o.Backend, Service: o.Service, Slices: o.Slices, Overrides: o.Overrides, Policies: o.Policies, Now: now,
	}
	for part, why := range map[view.Part]*string{
		view.PartService: &in.ServiceUnread, view.PartSlices: &in.SlicesUnread, view.PartOverrides: &in.OverridesUnread,
		view.PartPolicies: &in.PoliciesUnread,
	} {
		if unread := o.WhyUnread(part); unread != nil {
			*why = unread.Why
		}
	}
	if o.Namespace != nil {
		in.NamespaceLabels = o.Namespace.Labels
	} else if unread := o.WhyUnread(view.PartNamespace); unread != nil && in.PoliciesUnread == "" {
		in.PoliciesUnread = unread.Why
	}
	return in
}
