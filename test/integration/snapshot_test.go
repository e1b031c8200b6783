package integration

import (
	"errors"
	"fmt"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/test/harness"
)

// snapshot is the content of the objects that the operator writes, without what the API server
// adds.
type snapshot struct {
	Service object[corev1.ServiceSpec]
	Slices  map[string]object[sliceContent]
}

type object[Content any] struct {
	UID                 string
	Labels, Annotations map[string]string
	Owners              []metav1.OwnerReference
	Content             Content
}

type sliceContent struct {
	Type      discoveryv1.AddressType
	Endpoints []discoveryv1.Endpoint
	Ports     []discoveryv1.EndpointPort
}

// takeSnapshot takes a snapshot of a Service, which may not exist, and of the slices behind it.
// Without identity, it contains no UIDs and no names of slices.
func takeSnapshot(h *harness.Test, service string, identity bool) snapshot {
	h.T.Helper()
	p := snapshot{Slices: map[string]object[sliceContent]{}}
	var s corev1.Service
	if err := h.Client.Get(h.T.Context(), h.Key(service), &s); client.IgnoreNotFound(err) != nil {
		h.T.Fatal(err)
	}
	p.Service = objectOf(&s, s.Spec, identity)
	for _, slice := range h.Slices(service) {
		name := slice.Name
		if !identity {
			name = fmt.Sprintf("%s %d", slice.AddressType, len(p.Slices))
		}
		p.Slices[name] = objectOf(&slice, sliceContent{slice.AddressType, slice.Endpoints, slice.Ports}, identity)
	}
	return p
}

func objectOf[Content any](o client.Object, content Content, identity bool) object[Content] {
	out := object[Content]{
		Labels:      o.GetLabels(),
		Annotations: o.GetAnnotations(),
		Owners:      o.GetOwnerReferences(),
		Content:     content,
	}
	if identity {
		out.UID = string(o.GetUID())
	}
	return out
}

// waitSnapshot waits until the objects are as in the snapshot.
func waitSnapshot(h *harness.Test, service string, want snapshot, identity bool) {
	h.T.Helper()
	h.Eventually(service+" and its slices to be as in the snapshot", func() error {
		if diff := gocmp.Diff(want, takeSnapshot(h, service, identity)); diff != "" {
			return errors.New("-want +got:\n" + diff)
		}
		return nil
	})
}
