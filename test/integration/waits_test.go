package integration

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

// edit reads an object, changes it and updates it. It tries again after a conflict.
func edit[O client.Object](h *harness.Test, o O, change func(O)) {
	h.T.Helper()
	key := client.ObjectKeyFromObject(o)
	if key.Namespace == "" {
		key.Namespace = h.Namespace
	}
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := h.Client.Get(h.T.Context(), key, o); err != nil {
			return err
		}
		change(o)
		return h.Client.Update(h.T.Context(), o)
	})
	if err != nil {
		h.T.Fatalf("edit %s: %v", key, err)
	}
}

// remove deletes an object.
func remove(h *harness.Test, o client.Object, options ...client.DeleteOption) {
	h.T.Helper()
	if err := h.Client.Delete(h.T.Context(), o, options...); err != nil {
		h.T.Fatal(err)
	}
}

// waitGone waits until there is no object of this kind and name.
func waitGone(h *harness.Test, o client.Object, name string) {
	h.T.Helper()
	h.Eventually(fmt.Sprintf("%T %s to go", o, name), func() error {
		err := h.Client.Get(h.T.Context(), h.Key(name), o)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return cmp.Or(err, errors.New("it is there"))
	})
}

// waitNoSlices waits until there is no slice behind the Service.
func waitNoSlices(h *harness.Test, service string) {
	h.T.Helper()
	h.Eventually("the slices of "+service+" to go", func() error {
		if left := h.Slices(service); len(left) > 0 {
			return fmt.Errorf("%d are left", len(left))
		}
		return nil
	})
}

// waitTarget waits until status has this state and reason for a target. An empty reason means none.
func waitTarget(h *harness.Test, backend, target string, state v1alpha1.TargetState, reason string) {
	h.T.Helper()
	h.Eventually(fmt.Sprintf("target %s of %s to be %s %s", target, backend, state, reason), func() error {
		all := h.Backend(backend).Status.Targets
		i := slices.IndexFunc(all, func(s v1alpha1.TargetStatus) bool { return s.Name == target })
		if i < 0 || all[i].State != state || all[i].Reason != reason {
			return fmt.Errorf("the targets are %+v", all)
		}
		return nil
	})
}

// waitMessage waits until a condition's message contains these words.
func waitMessage(h *harness.Test, backend, condition string, words ...string) {
	h.T.Helper()
	h.Eventually(fmt.Sprintf("condition %s of %s to contain %q", condition, backend, words), func() error {
		c := meta.FindStatusCondition(h.Backend(backend).Status.Conditions, condition)
		for _, word := range words {
			if c == nil || !strings.Contains(c.Message, word) {
				return fmt.Errorf("it is %+v", c)
			}
		}
		return nil
	})
}

// wantStalled fails the test unless Stalled is True with the reason. With an empty reason it must
// be absent.
func wantStalled(h *harness.Test, backend, reason string) {
	h.T.Helper()
	c := meta.FindStatusCondition(h.Backend(backend).Status.Conditions, v1alpha1.ConditionStalled)
	switch {
	case reason == "" && c != nil:
		h.T.Errorf("%s is Stalled: %+v", backend, c)
	case reason != "" && (c == nil || c.Status != metav1.ConditionTrue || c.Reason != reason):
		h.T.Errorf("Stalled of %s is %+v, want True with reason %s", backend, c, reason)
	}
}

// waitConflict waits until the conditions and an event report ServiceConflict.
func waitConflict(h *harness.Test, backend string) {
	h.T.Helper()
	h.WaitCondition(backend, v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonServiceConflict)
	h.WaitCondition(backend, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonServiceConflict)
	wantStalled(h, backend, "") // Stalled comes after two minutes
	h.WaitEvent(backend, v1alpha1.ReasonServiceConflict)
}

// waitProgrammed waits until Programmed is True.
func waitProgrammed(h *harness.Test, backend string) *v1alpha1.ExternalBackend {
	h.T.Helper()
	return h.WaitCondition(backend, v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed)
}

// waitQuiet waits until the manager has written nothing in the test's namespace for longer than it
// delays a status.
func waitQuiet(h *harness.Test) {
	h.T.Helper()
	const quiet = 11 * time.Second
	writes := h.CountWrites()
	since, last := time.Now(), 0
	h.Within(time.Minute, "the manager to write nothing", func() error {
		if n := len(writes.Of()); n > last {
			since, last = time.Now(), n
		}
		if time.Since(since) < quiet {
			return fmt.Errorf("it has written %v", writes.Of())
		}
		return nil
	})
}

// waitOnlyOurs waits until there are slices behind the Service, and all are the operator's.
func waitOnlyOurs(h *harness.Test, service string) {
	h.T.Helper()
	h.Eventually("only our slices behind "+service, func() error { return h.OnlyOurs(service) })
}

// waitActive waits until status has this active tier. -1 means none.
func waitActive(h *harness.Test, backend string, tier int32) {
	h.T.Helper()
	h.Eventually(fmt.Sprintf("tier %d to be active", tier), func() error {
		is := int32(-1)
		if p := h.Backend(backend).Status.ActiveTier; p != nil {
			is = *p
		}
		if is != tier {
			return fmt.Errorf("it is %d", is)
		}
		return nil
	})
}
