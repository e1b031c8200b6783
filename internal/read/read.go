// Package read reads ExternalBackends, and all that belongs to them, from the API server: once, or
// continuously by watches. What the user may not read is named, and does not stop the rest.
package read

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/view"
)

const (
	// pageSize is how many objects are read at a time.
	pageSize = 500
	// maxEvents bounds the events that are read about one ExternalBackend.
	maxEvents = 1000
)

// Backend reads an ExternalBackend, and all that belongs to it. An error means that there is no
// such ExternalBackend, or that it could not be read. What else could not be read is in Unread.
func Backend(ctx context.Context, c client.Reader, namespace, name string) (*view.Objects, error) {
	var b v1alpha1.ExternalBackend
	if err := c.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &b); err != nil {
		return nil, err
	}
	return Objects(ctx, c, &b), nil
}

// Objects reads all that belongs to an ExternalBackend, each part on its own.
func Objects(ctx context.Context, c client.Reader, b *v1alpha1.ExternalBackend) *view.Objects {
	r := objectReader{Reader: c, ctx: ctx, Objects: view.Objects{Backend: b}}
	parts := []func(){
		r.readService, r.readSlices, r.readOverrides, r.readSiblings, r.readPolicies, r.readNamespace, r.readEvents,
	}
	var wait sync.WaitGroup
	for _, read := range parts {
		wait.Go(read)
	}
	wait.Wait()

	slices.SortFunc(r.Unread, func(a, b view.Unread) int { return cmp.Compare(a.Part, b.Part) })
	return &r.Objects
}

// objectReader reads the parts of Objects, each in a goroutine of its own.
type objectReader struct {
	client.Reader
	view.Objects

	ctx context.Context
	mu  sync.Mutex // guards Unread
}

func (r *objectReader) readService() {
	var s corev1.Service
	key := types.NamespacedName{Namespace: r.Backend.Namespace, Name: r.Backend.EffectiveServiceName()}
	err := r.Get(r.ctx, key, &s)
	switch {
	case err == nil:
		r.Service = &s
	case !apierrors.IsNotFound(err):
		r.missed(view.PartService, r.right("get", "services"), err)
	}
}

// readSlices reads the slices of the Service, and those with the label of the ExternalBackend,
// which may be slices of an earlier Service.
func (r *objectReader) readSlices() {
	known := map[string]bool{}
	for _, label := range []client.MatchingLabels{
		{discoveryv1.LabelServiceName: r.Backend.EffectiveServiceName()},
		{v1alpha1.LabelName: r.Backend.Name},
	} {
		err := Pages(r.ctx, r, func() *discoveryv1.EndpointSliceList { return &discoveryv1.EndpointSliceList{} },
			func(page *discoveryv1.EndpointSliceList) bool {
				for i := range page.Items {
					if s := &page.Items[i]; !known[s.Name] {
						known[s.Name] = true
						r.Slices = append(r.Slices, s)
					}
				}
				return true
			}, client.InNamespace(r.Backend.Namespace), label)
		if err != nil {
			r.Slices = nil
			r.missed(view.PartSlices, r.right("list", "endpointslices.discovery.k8s.io"), err)
			return
		}
	}
}

func (r *objectReader) readOverrides() {
	err := Pages(r.ctx, r,
		func() *v1alpha1.ExternalBackendOverrideList { return &v1alpha1.ExternalBackendOverrideList{} },
		func(page *v1alpha1.ExternalBackendOverrideList) bool {
			for i := range page.Items {
				if page.Items[i].Spec.ExternalBackendRef.Name == r.Backend.Name {
					r.Overrides = append(r.Overrides, page.Items[i])
				}
			}
			return true
		}, client.InNamespace(r.Backend.Namespace))
	if err != nil {
		r.Overrides = nil
		r.missed(view.PartOverrides, r.right("list", "externalbackendoverrides.external-backend.io"), err)
	}
}

func (r *objectReader) readSiblings() {
	err := Pages(r.ctx, r,
		func() *v1alpha1.ExternalBackendList { return &v1alpha1.ExternalBackendList{} },
		func(page *v1alpha1.ExternalBackendList) bool {
			for i := range page.Items {
				b := &page.Items[i]
				if b.Name != r.Backend.Name && b.EffectiveServiceName() == r.Backend.EffectiveServiceName() {
					r.Siblings = append(r.Siblings, *b)
				}
			}
			return true
		}, client.InNamespace(r.Backend.Namespace))
	if err != nil {
		r.Siblings = nil
		r.missed(view.PartSiblings, r.right("list", "externalbackends.external-backend.io"), err)
	}
}

func (r *objectReader) readPolicies() {
	var list v1alpha1.ExternalBackendPolicyList
	if err := r.List(r.ctx, &list); err != nil {
		r.missed(view.PartPolicies, "list externalbackendpolicies.external-backend.io", err)
		return
	}
	r.Policies = list.Items
}

func (r *objectReader) readNamespace() {
	var n corev1.Namespace
	if err := r.Get(r.ctx, types.NamespacedName{Name: r.Backend.Namespace}, &n); err != nil {
		r.missed(view.PartNamespace, "get namespace "+r.Backend.Namespace, err)
		return
	}
	r.Namespace = &n
}

// readEvents reads the events about the ExternalBackend. Those about an earlier one of the same
// name are left out.
func (r *objectReader) readEvents() {
	err := Pages(r.ctx, r,
		func() *eventsv1.EventList { return &eventsv1.EventList{} },
		func(page *eventsv1.EventList) bool {
			for i := range page.Items {
				if page.Items[i].Regarding.UID == r.Backend.UID {
					r.Events = append(r.Events, page.Items[i])
				}
			}
			return len(r.Events) < maxEvents
		}, client.InNamespace(r.Backend.Namespace),
		client.MatchingFields{"regarding.kind": "ExternalBackend", "regarding.name": r.Backend.Name})
	if err != nil {
		r.Events = nil
		r.missed(view.PartEvents, r.right("list", "events.events.k8s.io"), err)
	}
}

// right names a right in the namespace of the ExternalBackend.
func (r *objectReader) right(verb, resource string) string {
	return fmt.Sprintf("%s %s in namespace %s", verb, resource, r.Backend.Namespace)
}

// missed notes that a part could not be read. right is the one that reading it needs.
func (r *objectReader) missed(part view.Part, right string, err error) {
	unread := view.Unread{Part: part, Why: err.Error()}
	if apierrors.IsForbidden(err) {
		unread.Right, unread.Why = right, "you may not "+right
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Unread = append(r.Unread, unread)
}

// Pages lists objects page by page, until use returns false or there are no more.
func Pages[L client.ObjectList](
	ctx context.Context, c client.Reader, newList func() L, use func(L) bool, options ...client.ListOption,
) error {
	for token := ""; ; {
		page := newList()
		options := append(slices.Clip(options), client.Limit(pageSize), client.Continue(token))
		if err := c.List(ctx, page, options...); err != nil {
			return err
		}
		token = page.GetContinue()
		if !use(page) || token == "" {
			return nil
		}
	}
}

// DescribeError says of an ExternalBackend why it could not be read.
func DescribeError(err error, key types.NamespacedName) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no ExternalBackend %q in namespace %q", key.Name, key.Namespace)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("you may not get externalbackends.external-backend.io in namespace %s", key.Namespace)
	}
	return err
}
