package controllers

import (
	"context"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
)

// The fields by which the cache finds objects.
const (
	indexBackend = "backend" // EndpointSlices with our labels and overrides, by ExternalBackend
	indexOwner   = "owner"   // EndpointSlices with our annotation or without a manager, by the UID of their controller
	indexService = "service" // EndpointSlices and ExternalBackends, by Service
)

func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, i := range indexes() {
		if err := indexer.IndexField(ctx, i.object, i.field, i.values); err != nil {
			return err
		}
	}
	return nil
}

// index finds objects in the cache by a field.
type index struct {
	object client.Object
	field  string
	values client.IndexerFunc
}

// indexes returns the indexes that reconciles use.
func indexes() []index {
	label := func(name string) client.IndexerFunc {
		return func(o client.Object) []string {
			if v := o.GetLabels()[name]; v != "" {
				return []string{v}
			}
			return nil
		}
	}
	backendOf := func(o client.Object) []string {
		if managedByUs(o.(*discoveryv1.EndpointSlice)) {
			return label(v1alpha1.LabelName)(o)
		}
		return nil
	}
	ownerOf := func(o client.Object) []string {
		s := o.(*discoveryv1.EndpointSlice)
		if owner := metav1.GetControllerOf(s); owner != nil && (ours(s) || s.Labels[discoveryv1.LabelManagedBy] == "") {
			return []string{string(owner.UID)}
		}
		return nil
	}
	serviceOf := func(o client.Object) []string { return []string{o.(*v1alpha1.ExternalBackend).EffectiveServiceName()} }
	overriddenOf := func(o client.Object) []string {
		return []string{o.(*v1alpha1.ExternalBackendOverride).Spec.ExternalBackendRef.Name}
	}
	return []index{
		{&discoveryv1.EndpointSlice{}, indexBackend, backendOf},
		{&discoveryv1.EndpointSlice{}, indexOwner, ownerOf},
		{&discoveryv1.EndpointSlice{}, indexService, label(discoveryv1.LabelServiceName)},
		{&v1alpha1.ExternalBackend{}, indexService, serviceOf},
		{&v1alpha1.ExternalBackendOverride{}, indexBackend, overriddenOf},
	}
}
