package plugin

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/ui"
	"github.com/external-backend/operator/internal/view"
)

// Plan plans what the page wants to do, as `pin`, `drain`, `disable` and `resume` do.
func (s *uiSource) Plan(ctx context.Context, m *ui.Move) (*ui.Change, error) {
	objects, err := s.Read(ctx, m.Namespace, m.Name)
	if err != nil {
		return nil, err
	}
	change, err := planForPage(objects, m)
	if err != nil {
		return nil, err
	}
	manifest, err := manifestOf(change)
	if err != nil {
		return nil, err
	}
	return &ui.Change{
		Headline: change.headline, Manifest: manifest, Prediction: change.Prediction, Unknown: change.Unknown,
		Apply: func(ctx context.Context) error { return change.apply(ctx, s.client, false) },
	}, nil
}

// planForPage plans one action of the page.
func planForPage(o *view.Objects, m *ui.Move) (*overrideChange, error) {
	if m.Action == "resume" {
		return planResume(o, false, m.At)
	}
	spec, err := specOfMove(m)
	if err != nil {
		return nil, err
	}
	return planMove(o, spec, m.At)
}

// manifestOf writes what is created or deleted.
func manifestOf(change *overrideChange) (string, error) {
	if change.create == nil {
		text := ""
		for i := range change.end {
			text += fmt.Sprintf("kubectl delete externalbackendoverride %s -n %s\n", change.end[i].Name, change.end[i].Namespace)
		}
		return text, nil
	}
	object := change.create.DeepCopy()
	object.APIVersion, object.Kind = v1alpha1.GroupVersion.String(), "ExternalBackendOverride"
	object.CreationTimestamp = metav1.Time{} // the API server sets it
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": object.APIVersion, "kind": object.Kind, "spec": object.Spec,
		"metadata": map[string]any{
			"name": object.Name, "namespace": object.Namespace, "ownerReferences": object.OwnerReferences,
		},
	})
	return string(text), err
}

// specOfMove returns the spec of the override that the page wants.
func specOfMove(m *ui.Move) (v1alpha1.ExternalBackendOverrideSpec, error) {
	var spec v1alpha1.ExternalBackendOverrideSpec
	spec.ExpirationTime = metav1.NewTime(m.At.Add(time.Duration(m.Seconds) * time.Second))
	spec.ExternalBackendRef.Name = m.Name
	state := map[string]v1alpha1.AdminState{
		"drain": v1alpha1.AdminStateDraining, "disable": v1alpha1.AdminStateDisabled,
	}[m.Action]
	switch {
	case m.Seconds <= 0 || time.Duration(m.Seconds)*time.Second > v1alpha1.MaxOverrideAge:
		return spec, fmt.Errorf("seconds: %d must be from 1 to 7 days", m.Seconds)
	case m.Action == "pin":
		if m.Tier < 0 || m.Tier > 127 {
			return spec, fmt.Errorf("tier: %d must be from 0 to 127", m.Tier)
		}
		spec.PinnedTier = &m.Tier
	case state == "":
		return spec, fmt.Errorf("action: %q must be pin, drain, disable or resume", m.Action)
	case m.Target == "":
		return spec, fmt.Errorf("target: %s wants one", m.Action)
	default:
		spec.Targets = []v1alpha1.TargetOverride{{Name: m.Target, AdminState: state}}
	}
	return spec, nil
}
