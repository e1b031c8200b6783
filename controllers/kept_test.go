package controllers

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/probe"
)

// TestKeptSlicesAreTakenOver: an ExternalBackend that adopts a kept Service, or attaches to it,
// takes over the slices of the one that is gone. No address is ever missing, and afterwards our
// verdicts and our spec apply.
func TestKeptSlicesAreTakenOver(t *testing.T) {
	for _, way := range []string{adopting, attaching} {
		for _, controlled := range []bool{true, false} { // not so by Retain with serviceRef
			t.Run(fmt.Sprintf("%s/%t", way, controlled), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testKeptSlicesAreTakenOver(t, way, controlled) })
			})
		}
	}
}

func testKeptSlicesAreTakenOver(t *testing.T, way string, controlled bool) {
	service, slice := leftBy("former", shop.Name)
	slice.OwnerReferences[0].Controller = new(controlled)
	env := newTestEnv(t, service, slice)
	env.what, env.stable = way, []netip.Addr{netip.MustParseAddr("203.0.113.1")}
	setVerdict(probe.Healthy, 1, 3)(env)
	env.spec(specWith(way))
	env.settle()
	env.expectCondition(v1alpha1.ConditionReady, "True")
	if env.slices()[slice.Name] == nil {
		t.Error("the kept slice is gone at once, although its ExternalBackend may be about to come back")
	}

	time.Sleep(env.reconcileNamed(shop.Name).RequeueAfter)
	env.settle()
	if env.slices()[slice.Name] != nil {
		t.Error("the kept slice still exists")
	}

	setVerdict(probe.Unhealthy, 1, 2)(env)
	env.settle()
	for addr, e := range env.endpoints() {
		if want := addr == netip.MustParseAddr("203.0.113.2"); e.Ready != want {
			t.Errorf("%s is ready: %t", addr, e.Ready)
		}
	}
	if n := len(env.endpoints()); n != 2 {
		t.Errorf("%d endpoints, not the 2 of spec\n%s", n, env.state())
	}
}

// TestTakingOverWaitsForAReadyEndpoint: kept endpoints stay until one of ours is ready.
func TestTakingOverWaitsForAReadyEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, slice := leftBy("former", shop.Name)
		slice.Endpoints = slice.Endpoints[1:] // none that is shared
		env := newTestEnv(t, service, slice)
		env.spec(specWith(attaching))
		env.settle()
		time.Sleep(retainedGrace)
		env.settle()
		if env.slices()[slice.Name] == nil {
			t.Error("the kept slice is gone although none of our endpoints is ready")
		}

		setVerdict(probe.Healthy, 1, 3)(env)
		env.settle()
		if env.slices()[slice.Name] != nil {
			t.Error("the kept slice still exists although our endpoints are ready")
		}
	})
}

// TestReturningSiblingKeepsItsSlices: two ExternalBackends on one Service were deleted with Retain.
// The one that comes back first does not touch the endpoints of the other.
func TestReturningSiblingKeepsItsSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, slice := leftBy("former", shop.Name)
		env := newTestEnv(t, service, slice)
		setVerdict(probe.Healthy, 1, 9)(env)
		env.spec(specWith(attaching))
		env.settle()
		time.Sleep(retainedGrace / 2)
		former := attachedBackend("former", shop.Name)
		former.CreationTimestamp = metav1.Now()
		env.ok(env.live.Create(t.Context(), former))
		env.settle()
		time.Sleep(retainedGrace)
		env.settle()
		if env.slices()[slice.Name] == nil {
			t.Error("the slice of the one that has come back was taken over")
		}
	})
}

// TestSlicesWithoutOwnerAreLeftAlone: slices without an owner wait for their ExternalBackend.
// Another one on the Service neither deletes them nor publishes their addresses a second time, and
// follows its own verdicts.
func TestSlicesWithoutOwnerAreLeftAlone(t *testing.T) {
	for _, way := range []string{adopting, attaching} {
		service, slice := leftBy("former", shop.Name)
		slice.OwnerReferences = nil
		env := newTestEnv(t, service, slice)
		setVerdict(probe.Healthy, 1, 3)(env)
		env.spec(specWith(way))
		env.settle()
		env.reconcileNamed("former")
		setVerdict(probe.Unhealthy, 2, 3)(env)
		env.settle()
		left := env.slices()[slice.Name]
		if left == nil || !equality.Semantic.DeepEqual(left.Endpoints, slice.Endpoints) {
			t.Errorf("%s: the slice that waits is %v", way, left)
		}
		var own []endpointslice.Endpoint
		for name, s := range env.slices() {
			if name != slice.Name {
				own = append(own, endpointslice.Published([]*discoveryv1.EndpointSlice{s}).Endpoints()...)
			}
		}
		if len(own) != 1 || own[0].Addr != netip.MustParseAddr("203.0.113.2") || own[0].Ready {
			t.Errorf("%s: of our own are published %v", way, own)
		}
		if s := env.backend().Status.Targets; !slices.ContainsFunc(s, func(s v1alpha1.TargetStatus) bool {
			return s.Name == "a" && s.Reason == v1alpha1.TargetReasonDuplicateAddress
		}) {
			t.Errorf("%s: the target whose address waits is not reported: %v", way, s)
		}
	}
}
