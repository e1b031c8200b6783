package read

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/view"
)

// follower reads one ExternalBackend and what belongs to it. What it reads for the first time it
// keeps current from then on, so that reading again asks nobody. It is a client.Reader for Objects.
type follower struct {
	source  *Source
	ctx     context.Context // of all that is kept
	key     types.NamespacedName
	changed func()

	mu      sync.Mutex
	service string // the name of its Service, once it is known
	kept    map[string]*Kept
	used    map[string]bool // what the current read has asked for
}

// read returns what is known now. It waits for what is asked for the first time.
func (f *follower) read(ctx context.Context) (*view.Objects, error) {
	if in := f.source.namespace; in != "" && in != f.key.Namespace {
		return nil, fmt.Errorf("only namespace %s is followed here", in)
	}
	f.mu.Lock()
	f.used = map[string]bool{}
	f.mu.Unlock()

	var b v1alpha1.ExternalBackend
	if err := f.Get(ctx, f.key, &b); err != nil {
		return nil, DescribeError(err, f.key)
	}
	f.mu.Lock()
	f.service = b.EffectiveServiceName()
	f.mu.Unlock()
	objects := Objects(ctx, f, &b)
	f.stop(func(key string) bool { return !f.used[key] })
	return objects, nil
}

// stop stops keeping what a function selects.
func (f *follower) stop(selects func(key string) bool) {
	f.mu.Lock()
	var ended []*Kept
	for key, kept := range f.kept {
		if selects(key) {
			delete(f.kept, key)
			ended = append(ended, kept)
		}
	}
	f.mu.Unlock()
	for _, kept := range ended {
		kept.Stop()
	}
}

// Get returns an object by its name.
func (f *follower) Get(ctx context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	var resource schema.GroupResource
	var kept *Kept
	switch into.(type) {
	case *v1alpha1.ExternalBackend:
		resource, kept = v1alpha1.GroupVersion.WithResource("externalbackends").GroupResource(), f.source.backends
	case *corev1.Service:
		resource, kept = corev1.Resource("services"), f.keepOne(key, into, &corev1.ServiceList{})
	case *corev1.Namespace:
		resource, kept = corev1.Resource("namespaces"), f.keepOne(key, into, &corev1.NamespaceList{})
	default:
		return fmt.Errorf("%T is not followed", into)
	}
	if err := kept.Wait(ctx); err != nil {
		return err
	}
	if err := kept.Err(); err != nil {
		return err
	}
	for _, o := range kept.Objects() {
		if object := o.(client.Object); client.ObjectKeyFromObject(object) == key {
			reflect.ValueOf(into).Elem().Set(reflect.ValueOf(object).Elem())
			return nil
		}
	}
	return apierrors.NewNotFound(resource, key.Name)
}

// List returns objects in the order of their names, as the API server does.
func (f *follower) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	kept := f.source.backends
	if _, shared := into.(*v1alpha1.ExternalBackendList); !shared {
		o.Limit, o.Continue = 0, ""
		empty := reflect.New(reflect.TypeOf(into).Elem()).Interface().(client.ObjectList)
		kept = f.keep(f.source.client, empty, &o)
	}
	if err := kept.Wait(ctx); err != nil {
		return err
	}
	if err := kept.Err(); err != nil {
		return err
	}

	var objects []runtime.Object
	for _, object := range kept.Objects() {
		if object := object.(client.Object); o.Namespace == "" || object.GetNamespace() == o.Namespace {
			objects = append(objects, object)
		}
	}
	slices.SortFunc(objects, func(a, b runtime.Object) int {
		return cmp.Compare(a.(client.Object).GetName(), b.(client.Object).GetName())
	})
	return meta.SetList(into, objects)
}

// keepOne keeps an object current. The right to get it is enough to know it.
func (f *follower) keepOne(key client.ObjectKey, object client.Object, list client.ObjectList) *Kept {
	return f.keep(&listsByGet{f.source.client, key, object}, list, &client.ListOptions{
		Namespace: key.Namespace, FieldSelector: fields.OneTermEqualSelector("metadata.name", key.Name),
	})
}

// keep returns what is kept for such a list, and begins to keep it the first time.
func (f *follower) keep(c client.WithWatch, list client.ObjectList, o *client.ListOptions) *Kept {
	var wanted []string // in one order: a selector has its fields in any
	if o.FieldSelector != nil {
		for _, field := range o.FieldSelector.Requirements() {
			wanted = append(wanted, field.Field+"="+field.Value)
		}
	}
	slices.Sort(wanted)
	key := fmt.Sprintf("%T %s %v %v", list, o.Namespace, o.LabelSelector, wanted)

	f.mu.Lock()
	defer f.mu.Unlock()
	f.used[key] = true
	if f.kept[key] == nil {
		f.kept[key] = Keep(f.ctx, c, list, f.note, o)
	}
	return f.kept[key]
}

// note calls changed, unless the change is about another ExternalBackend.
func (f *follower) note(before, after client.Object) {
	if before == nil && after == nil || f.concerns(before) || f.concerns(after) {
		f.changed()
	}
}

// concerns reports whether an object belongs to the ExternalBackend.
func (f *follower) concerns(object client.Object) bool {
	switch o := object.(type) {
	case nil:
		return false
	case *v1alpha1.ExternalBackendOverride:
		return o.Spec.ExternalBackendRef.Name == f.key.Name
	case *v1alpha1.ExternalBackend:
		f.mu.Lock()
		defer f.mu.Unlock()
		return o.Namespace == f.key.Namespace && (o.Name == f.key.Name || o.EffectiveServiceName() == f.service)
	}
	return true
}

// listsByGet is a client that gets the only object of a list if it may not list it.
type listsByGet struct {
	client.WithWatch
	key    client.ObjectKey
	object client.Object
}

// List lists the object.
func (c *listsByGet) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	err := c.WithWatch.List(ctx, list, options...)
	if !apierrors.IsForbidden(err) {
		return err
	}
	object := reflect.New(reflect.TypeOf(c.object).Elem()).Interface().(client.Object)
	switch err := c.Get(ctx, c.key, object); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	return meta.SetList(list, []runtime.Object{object})
}
