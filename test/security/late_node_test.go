package security

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

// When a new Node claims a range in which an ExternalBackend has a target, that target is reported,
// and is still published and probed. A target that is added later in the range is refused.
func TestDiscoveredRangeRefusesOnlyNewTargets(t *testing.T) {
	h := harness.New(t)
	env := sharedEnvironment(h)
	m := h.StartManager()
	old, late := allowedAddr(47<<8+1, netip.IPv4Unspecified()), allowedAddr(47<<8+2, netip.IPv4Unspecified())
	b := newBackend("claimed", handlerNamed["http"])
	b.Spec.HealthCheck.PeriodSeconds, b.Spec.HealthCheck.TimeoutSeconds = 1, 1
	b.Spec.Targets = []v1alpha1.Target{{Name: "old", Address: old.String()}}
	h.ApplyObject(b)
	h.WaitReady("claimed")

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.Namespace}}
	node.Spec.PodCIDR = netip.PrefixFrom(old, 24).Masked().String()
	node.Spec.PodCIDRs = []string{node.Spec.PodCIDR}
	if err := h.Client.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Client.Delete(context.Background(), node); err != nil {
			t.Error(err)
		}
	})
	waitDenied := func(target string) {
		t.Helper()
		h.Eventually("status to name "+target, func() error {
			b := h.WaitCondition("claimed", v1alpha1.ConditionPermitted, metav1.ConditionFalse, v1alpha1.ReasonTargetDenied)
			for _, c := range b.Status.Conditions {
				if c.Type == v1alpha1.ConditionPermitted &&
					!(strings.Contains(c.Message, `"`+target+`"`) && strings.Contains(c.Message, "known by discovery alone")) {
					return errors.New(c.Message)
				}
			}
			return nil
		})
	}
	waitDenied("old")
	b.Spec.Targets = append(b.Spec.Targets, v1alpha1.Target{Name: "late", Address: late.String()})
	h.ApplyObject(b)
	waitDenied("late")
	until := env.allowed.visits(old) + 4
	h.Eventually("further probes of the old target", func() error {
		if n := env.allowed.visits(old); n < until {
			return fmt.Errorf("%d of %d came", n, until)
		}
		return nil
	})
	if at := endpointsAt(h, "claimed"); len(at) != 1 || at[old] != harness.Healthy {
		t.Errorf("the published endpoints are %v", at)
	}
	if n := env.allowed.visits(late); n > 0 {
		t.Errorf("the refused target was visited %d times", n)
	}
	m.Stop()
}
