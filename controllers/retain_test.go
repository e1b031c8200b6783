package controllers

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/probe"
)

// TestDeletionPolicyDecidesOwners: a change of the policy writes only metadata, and no endpoint
// moves.
func TestDeletionPolicyDecidesOwners(t *testing.T) {
	const retain, remove = "{deletionPolicy: Retain}", "{deletionPolicy: Delete}"
	for _, tt := range []struct {
		way                            string
		serviceDelete, sliceDelete     string
		serviceRetained, sliceRetained string
		serviceWrites, writesToASlice  int // by a change of the policy
	}{
		{created, "ExternalBackend", "Service", "", "Service", 1, 0},
		{adopting, "", "ExternalBackend", "", "Service", 0, 1},
		{attaching, "", "ExternalBackend", "", "Service, not as its controller", 0, 1},
	} {
		var objects []client.Object
		if tt.way != created {
			objects = append(objects, selectorlessService())
		}
		env := newTestEnv(t, objects...)
		setVerdict(probe.Healthy, 1, 9)(env)
		env.spec(specWith(tt.way))
		// First there are seven endpoints, three to a slice. Then two slices are less than half full,
		// and a plan that moved endpoints would merge them.
		const rest = `{name: d, address: 203.0.113.4}, {name: e, address: 203.0.113.5},
			{name: f, address: 203.0.113.6}, {name: g, address: 203.0.113.7}]}`
		env.spec(`{targets: [{name: a, address: 203.0.113.1}, {name: b, address: 203.0.113.2},
			{name: c, address: 203.0.113.3}, ` + rest)
		env.settle()
		env.spec(`{targets: [{name: a, address: 203.0.113.1}, ` + rest)
		env.settle()
		before := env.slices()
		if len(before) != 3 {
			t.Fatalf("%s: there are %d slices", tt.way, len(before))
		}
		for a := range env.endpoints() {
			env.stable = append(env.stable, a)
		}
		want := func(when, service, slice string, writes int) {
			t.Helper()
			env.what = fmt.Sprintf("%s, %s", tt.way, when)
			was := env.writes
			env.settle()
			if got := ownersOf(env.service()); got != service {
				t.Errorf("%s: the Service belongs to %q, not %q", env.what, got, service)
			}
			for name, s := range env.slices() {
				if got := ownersOf(s); got != slice {
					t.Errorf("%s: slice %s belongs to %q, not %q", env.what, name, got, slice)
				}
			}
			env.expectSameEndpoints(env.what, before)
			if got := env.writes - was; got != writes {
				t.Errorf("%s: %d writes, not %d", env.what, got, writes)
			}
		}
		const status = 1
		change := tt.serviceWrites + tt.writesToASlice*len(before) + status
		want("at first", tt.serviceDelete, tt.sliceDelete, 0)
		env.spec(retain)
		want("Retain", tt.serviceRetained, tt.sliceRetained, change)
		env.restart()
		want("Retain, after a restart", tt.serviceRetained, tt.sliceRetained, 0)
		env.spec(remove)
		want("Delete", tt.serviceDelete, tt.sliceDelete, change)
	}
}

// TestRetainHoldsForAnInvalidSpec: whoever uninstalls the operator has to be able to rely on
// observedGeneration.
func TestRetainHoldsForAnInvalidSpec(t *testing.T) {
	const invalid = `{deletionPolicy: Retain,
		targets: [{name: a, address: 203.0.113.1, ports: [{name: nope, targetPort: 1}]}]}`
	for way, wants := range map[string][2]string{
		created:   {"", "Service"},
		attaching: {"", "Service, not as its controller"},
	} {
		env := newTestEnv(t)
		if way == attaching {
			env = newTestEnv(t, selectorlessService())
		}
		setVerdict(probe.Healthy, 1, 3)(env)
		env.spec(specWith(way))
		env.settle()
		before := env.slices()
		env.spec(invalid)
		env.settle()
		env.expectCondition(v1alpha1.ConditionAccepted, "False InvalidSpec")
		if got := ownersOf(env.service()); got != wants[0] {
			t.Errorf("%s: the Service belongs to %q", way, got)
		}
		for name, s := range env.slices() {
			if got := ownersOf(s); got != wants[1] {
				t.Errorf("%s: slice %s belongs to %q", way, name, got)
			}
		}
		env.expectSameEndpoints(way, before)
	}

	env := literalEnv(t)
	env.spec("{deletionPolicy: Archive}") // as a newer version may know it
	env.settle()
	env.expectCondition(v1alpha1.ConditionAccepted, "False InvalidSpec: spec.deletionPolicy")
	if got := ownersOf(env.service()); got != "ExternalBackend" {
		t.Errorf("for an unknown policy the Service belongs to %q", got)
	}
}

// TestRetainAppliesDespiteARefusedService: the owner is set in a write of its own, which succeeds
// although the API server refuses the other.
func TestRetainAppliesDespiteARefusedService(t *testing.T) {
	env := literalEnv(t)
	env.refuse = func(o client.Object) error {
		if s, ok := o.(*corev1.Service); ok && s.Spec.Ports[0].Port != 80 {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, shop.Name, nil)
		}
		return nil
	}
	env.spec("{deletionPolicy: Retain, ports: [{name: http, port: 81, targetPort: 8080, protocol: TCP}]}")
	env.settle()
	env.expectCondition(v1alpha1.ConditionProgrammed, "False ApplyFailed")
	if got := ownersOf(env.service()); got != "" {
		t.Errorf("the Service still belongs to %q", got)
	}
}
