package dataplane

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

// backup is what a backup tool stores.
type backup struct {
	service *corev1.Service
	slices  []discoveryv1.EndpointSlice
	backend *v1alpha1.ExternalBackend
}

// backUpAndDelete takes a backup, and deletes everything.
func (r retained) backUpAndDelete() backup {
	h := r.h
	h.T.Helper()
	saved := backup{h.Service("web"), h.Slices("web"), h.Backend("web")}
	if err := h.Client.Delete(h.T.Context(), h.Backend("web")); err != nil {
		h.T.Fatal(err)
	}
	h.Eventually("all to go", func() error {
		if err := h.Client.Get(h.T.Context(), h.Key("web"), &corev1.Service{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the Service: %v", err)
		}
		if n := len(h.Slices("web")); n > 0 {
			return fmt.Errorf("%d slices", n)
		}
		return nil
	})
	return saved
}

// restore creates an object as a backup tool does: with a new UID and without owners.
func (r retained) restore(o client.Object) {
	r.h.T.Helper()
	o.SetUID("")
	o.SetResourceVersion("")
	o.SetOwnerReferences(nil)
	o.SetManagedFields(nil)
	o.SetCreationTimestamp(metav1.Time{})
	if err := r.h.Client.Create(r.h.T.Context(), o); err != nil {
		r.h.T.Fatal(err)
	}
}

// wantTakenOver waits until the ExternalBackend is Ready. The Service and the slices must be those
// that were restored, and must have their owners again.
func (r retained) wantTakenOver(saved backup) {
	h := r.h
	h.T.Helper()
	b := h.WaitReady("web")
	service := h.Service("web")
	if service.UID != saved.service.UID || service.Spec.ClusterIP != saved.service.Spec.ClusterIP {
		h.T.Errorf("the Service is %s with %s, not %s with %s", service.UID, service.Spec.ClusterIP, saved.service.UID,
			saved.service.Spec.ClusterIP)
	}
	if got, want := owners(service), fmt.Sprintf("ExternalBackend %s controller=true", b.UID); got != want {
		h.T.Errorf("the Service belongs to %q, not %q", got, want)
	}
	now := h.Slices("web")
	if len(now) != len(saved.slices) {
		h.T.Fatalf("there are %d slices, not %d", len(now), len(saved.slices))
	}
	for i := range now {
		if now[i].UID != saved.slices[i].UID {
			h.T.Errorf("slice %s was replaced", now[i].Name)
		}
		if got, want := owners(&now[i]), fmt.Sprintf("Service %s controller=true", service.UID); got != want {
			h.T.Errorf("slice %s belongs to %q, not %q", now[i].Name, got, want)
		}
	}
}

// A backup tool restores the Service, then its slices, both with new UIDs and without owners, and
// then the ExternalBackend. Once traffic flows, no request is lost and no endpoint changes.
func TestRestoreLosesNoRequest(t *testing.T) {
	serve := func(r retained, saved backup) {
		r.h.T.Helper()
		r.restore(saved.service)
		for i := range saved.slices {
			r.restore(&saved.slices[i])
		}
		r.check()
	}
	t.Run("while the manager runs", func(t *testing.T) {
		h := harness.New(t)
		h.StartManager("--orphan-grace=0") // the ExternalBackend may come late
		r := publishRetained(h, "service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}")
		saved := r.backUpAndDelete()
		serve(r, saved)
		r.underLoad(func(waitMore func()) {
			waitMore()
			r.restore(saved.backend)
			r.wantTakenOver(saved)
			h.WaitChecked(r.pair.sa, r.pair.sb)
		})
	})
	for _, late := range []string{"manager", "ExternalBackend"} {
		t.Run("before the "+late+" comes, last of all", func(t *testing.T) {
			h := harness.New(t)
			m := h.StartManager()
			r := publishRetained(h, "service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}")
			saved := r.backUpAndDelete()
			m.Stop()
			serve(r, saved)
			r.underLoad(func(waitMore func()) {
				steps := []func(){func() { r.restore(saved.backend) }, func() { h.StartManager("--orphan-grace=0") }}
				if late == "ExternalBackend" {
					slices.Reverse(steps)
				}
				steps[0]()
				waitMore()
				steps[1]()
				r.wantTakenOver(saved)
				h.WaitChecked(r.pair.sa, r.pair.sb)
			})
		})
	}
}

// If slices and ExternalBackend are restored before the Service, the manager waits for the Service.
// It keeps its ClusterIP.
func TestServiceRestoredLastIsTakenOver(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	r := publishRetained(h, "service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}")
	saved := r.backUpAndDelete()
	for i := range saved.slices {
		r.restore(&saved.slices[i])
	}
	wantUnchanged := watchUnchanged(h, "web")
	r.restore(saved.backend)
	h.WaitCondition("web", v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonServiceNotFound)
	r.restore(saved.service)
	r.wantTakenOver(saved)
	wantUnchanged()
	r.check()
	wantAnswers(h, "http", clusterAddrs(h, "web", 80)[0], r.pair.a)
}

// Slices without an owner and an ExternalBackend are deleted once their Service is gone, and not
// before.
func TestOrphanedSlicesGoWithTheirService(t *testing.T) {
	h := harness.New(t)
	h.StartManager("--orphan-grace=3s")
	r := publishRetained(h, "service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}")
	saved := r.backUpAndDelete()
	r.restore(saved.service)
	for i := range saved.slices {
		r.restore(&saved.slices[i])
	}
	r.underLoad(func(waitMore func()) {
		made := h.Slices("web")[0].CreationTimestamp
		h.Eventually("the grace period to end", func() error {
			if age := time.Since(made.Time); age < 5*time.Second {
				return fmt.Errorf("the slice is %v old", age)
			}
			return nil
		})
	})
	if err := h.Client.Delete(t.Context(), h.Service("web")); err != nil {
		t.Fatal(err)
	}
	h.Eventually("the slices to go", func() error {
		if n := len(h.Slices("web")); n > 0 {
			return fmt.Errorf("%d are left", n)
		}
		return nil
	})
}
