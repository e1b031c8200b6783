package read

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/external-backend/operator/api/v1alpha1"
)

// kindsOfOne is how many lists one ExternalBackend is read from: itself and its siblings, Service,
// two of slices, overrides, policies, Namespace and events.
const kindsOfOne = 8

// world is an API server.
type world struct {
	client.WithWatch
	asked     atomic.Int64  // lists and gets
	watched   chan struct{} // has a value for each watch that has begun
	forbidden map[string]bool
}

// fieldsOf returns the fields of an object that selectors use.
func fieldsOf(o client.Object) map[string]string {
	fields := map[string]string{"metadata.name": o.GetName()}
	if e, ok := o.(*eventsv1.Event); ok {
		fields["regarding.kind"], fields["regarding.name"] = e.Regarding.Kind, e.Regarding.Name
	}
	return fields
}

// newWorld returns an API server with objects, on which kinds of lists, such as "*v1.ServiceList",
// are forbidden.
func newWorld(t *testing.T, objects []client.Object, forbidden ...string) *world {
	t.Helper()
	scheme := clientgoscheme.Scheme
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...)
	for _, kind := range []client.Object{&corev1.Service{}, &corev1.Namespace{}, &eventsv1.Event{}} {
		for field := range fieldsOf(kind) {
			builder.WithIndex(kind, field, func(o client.Object) []string { return []string{fieldsOf(o)[field]} })
		}
	}
	w := &world{watched: make(chan struct{}, 100), forbidden: map[string]bool{}}
	for _, kind := range forbidden {
		w.forbidden[kind] = true
	}
	w.WithWatch = interceptor.NewClient(builder.Build(), interceptor.Funcs{
		Get: func(
			ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption,
		) error {
			w.asked.Add(1)
			return c.Get(ctx, key, o, options...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			w.asked.Add(1)
			if kind := fmt.Sprintf("%T", list); w.forbidden[kind] {
				return apierrors.NewForbidden(schema.GroupResource{Resource: kind}, "", errors.New("no"))
			}
			return c.List(ctx, list, options...)
		},
		Watch: w.watch,
	})
	return w
}

// watch watches what selectors select, which the fake client leaves out.
func (w *world) watch(
	ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption,
) (watch.Interface, error) {
	var o client.ListOptions
	o.ApplyOptions(options)
	watching, err := c.Watch(ctx, list, options...)
	if err != nil {
		return nil, err
	}
	w.watched <- struct{}{}
	return watch.Filter(watching, func(e watch.Event) (watch.Event, bool) {
		object := e.Object.(client.Object)
		if o.LabelSelector != nil && !o.LabelSelector.Matches(labels.Set(object.GetLabels())) {
			return e, false
		}
		if o.FieldSelector != nil {
			for _, wanted := range o.FieldSelector.Requirements() {
				if fieldsOf(object)[wanted.Field] != wanted.Value {
					return e, false
				}
			}
		}
		return e, true
	}), nil
}

// annotate changes an object.
func (w *world) annotate(t *testing.T, o client.Object, text string) {
	t.Helper()
	base := o.DeepCopyObject().(client.Object)
	o.SetAnnotations(map[string]string{"text": text})
	if err := w.Patch(t.Context(), o, client.MergeFrom(base)); err != nil {
		t.Fatal(err)
	}
}

// objectsAbout returns an ExternalBackend and one of everything that belongs to it.
func objectsAbout(name string) []client.Object {
	in := func(suffix string, labels map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "shop", Name: name + suffix, Labels: labels}
	}
	b := &v1alpha1.ExternalBackend{ObjectMeta: in("", nil)}
	b.UID = types.UID("uid-of-" + name)
	override := &v1alpha1.ExternalBackendOverride{ObjectMeta: in("-night", nil)}
	override.Spec.ExternalBackendRef.Name = name
	event := &eventsv1.Event{ObjectMeta: in("-event", nil)}
	event.Regarding = corev1.ObjectReference{Kind: "ExternalBackend", Name: name, UID: b.UID}
	return []client.Object{
		b, &corev1.Service{ObjectMeta: in("", nil)}, override, event,
		&discoveryv1.EndpointSlice{ObjectMeta: in("-a", map[string]string{discoveryv1.LabelServiceName: name})},
		&discoveryv1.EndpointSlice{ObjectMeta: in("-b", map[string]string{v1alpha1.LabelName: name})},
	}
}
