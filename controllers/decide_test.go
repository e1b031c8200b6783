package controllers

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/probe"
)

// TestDecideFollowsItsTable goes through the rows of decide's comment in their order. Where it can,
// a case also matches later rows, so that the test notices a row that has moved.
func TestDecideFollowsItsTable(t *testing.T) {
	managed := func(serviceType v1alpha1.ServiceType) *v1alpha1.ExternalBackend {
		return &v1alpha1.ExternalBackend{Spec: v1alpha1.ExternalBackendSpec{Service: &v1alpha1.Service{Type: serviceType}}}
	}
	attached := func(resolution v1alpha1.DNSResolution) *v1alpha1.ExternalBackend {
		return &v1alpha1.ExternalBackend{Spec: v1alpha1.ExternalBackendSpec{
			ServiceRef: &v1alpha1.ServiceReference{Name: "shop"}, DNS: &v1alpha1.DNS{Resolution: resolution},
		}}
	}
	service := func(serviceType corev1.ServiceType) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{Type: serviceType}}
	}
	clusterIP, alias := managed(v1alpha1.ServiceTypeClusterIP), managed(v1alpha1.ServiceTypeExternalName)
	headless := managed(v1alpha1.ServiceTypeHeadless)
	refers, passes := attached(v1alpha1.DNSResolutionResolve), attached(v1alpha1.DNSResolutionPassthrough)
	present, isAlias := service(corev1.ServiceTypeClusterIP), service(corev1.ServiceTypeExternalName)

	const (
		programmed  = v1alpha1.ReasonProgrammed
		applyFailed = v1alpha1.ReasonApplyFailed
		conflicts   = v1alpha1.ReasonServiceConflict
		notFound    = v1alpha1.ReasonServiceNotFound
		known       = true
		slices      = true
		none        = false
	)
	var missing *corev1.Service
	for i, tt := range []struct {
		row        string
		backend    *v1alpha1.ExternalBackend
		specKnown  bool
		conflict   serviceConflict
		service    *corev1.Service
		hasSlices  bool
		action     action
		programmed string
	}{
		{"foreign", alias, known, unusableService, present, slices, withdrawAll, conflicts},
		{"foreign, serviceRef", refers, known, unusableService, present, slices, withdrawAll, conflicts},
		{"foreign, spec not known", clusterIP, !known, unusableService, present, slices, withdrawAll, conflicts},
		{"spec not known", clusterIP, !known, noConflict, present, slices, keepPermitted, ""},
		{"spec not known, of a predecessor", alias, !known, predecessorsService, present, slices, keepPermitted, ""},
		{"of a predecessor", alias, known, predecessorsService, present, slices, keep, applyFailed},
		{"another conflict, no slices", alias, known, otherConflict, present, none, reportEmpty, conflicts},
		{"another conflict, missing", alias, known, otherConflict, missing, slices, reportEmpty, conflicts},
		{"unsettled, missing", alias, known, unsettledService, missing, slices, keep, programmed},
		{"unsettled", clusterIP, known, unsettledService, present, slices, keep, programmed},
		{"ExternalName, not converted", alias, known, noConflict, present, slices, keepPermitted, programmed},
		{"ExternalName, in conflict", alias, known, otherConflict, present, slices, keepPermitted, conflicts},
		{"ExternalName", alias, known, noConflict, isAlias, slices, withdrawAll, programmed},
		{"ExternalName, missing", alias, known, noConflict, missing, none, withdrawAll, programmed},
		{"managed, missing", clusterIP, known, noConflict, missing, slices, reportEmpty, programmed},
		{"managed, between types", headless, known, noConflict, isAlias, slices, keep, programmed},
		{"serviceRef, missing", passes, known, noConflict, missing, none, reportEmpty, notFound},
		{"Passthrough", passes, known, noConflict, present, none, publishName, programmed},
		{"Passthrough, missing", passes, known, noConflict, missing, slices, publishName, programmed},
		{"Passthrough, in conflict", passes, known, otherConflict, present, slices, publishName, conflicts},
		{"serviceRef, missing with slices", refers, known, noConflict, missing, slices, publish, programmed},
		{"serviceRef to an alias", refers, known, otherConflict, isAlias, slices, publish, conflicts},
		{"managed, in conflict", clusterIP, known, otherConflict, present, slices, publish, conflicts},
		{"managed", clusterIP, known, noConflict, present, none, publish, programmed},
	} {
		t.Run(fmt.Sprintf("%02d %s", i, tt.row), func(t *testing.T) {
			got := decide(situation{tt.backend, tt.specKnown, tt.conflict, tt.service, tt.hasSlices})
			if want := (decision{tt.action, tt.programmed}); got != want {
				t.Errorf("decide = %+v, want %+v", got, want)
			}
		})
	}
}

// TestForeignServiceGetsNoEndpointsOfAnInvalidSpec replaces the Service by somebody else's while
// the spec is invalid, before and after a restart that forgets the last valid one. In both cases
// the slices are deleted, as they are for a valid spec.
func TestForeignServiceGetsNoEndpointsOfAnInvalidSpec(t *testing.T) {
	const invalid = `{targets: [{name: a, address: 203.0.113.1, ports: [{name: nope, targetPort: 1}]}]}`
	for _, restart := range []bool{false, true} {
		env := literalEnv(t)
		env.what = fmt.Sprintf("restart %t", restart)
		env.spec(invalid)
		env.settle()
		if restart {
			env.restart()
			env.settle()
		}
		if n := len(env.endpoints()); n != 2 {
			t.Errorf("%s: %d endpoints while the Service is ours, want both", env.what, n)
		}

		env.ok(env.live.Delete(t.Context(), env.service()))
		theirs := selectorlessService()
		theirs.UID, theirs.Spec.Selector = "uid-of-theirs", map[string]string{"app": "shop"}
		env.ok(env.live.Create(t.Context(), theirs))
		env.settle()
		env.expectCondition(v1alpha1.ConditionAccepted, "False InvalidSpec")
		env.expectCondition(v1alpha1.ConditionProgrammed, "False ServiceConflict")
		if n := len(env.endpoints()); n != 0 {
			t.Errorf("%s: %d endpoints behind somebody else's Service\n%s", env.what, n, env.state())
		}
		if e := env.backend().Status.Endpoints; e.Total != 0 {
			t.Errorf("%s: status says that %d endpoints are published", env.what, e.Total)
		}
	}
}

// TestInvalidSpecCannotMoveToAnotherService makes the spec invalid and names somebody else's
// Service in it at the same time. The slices stay behind the former Service as they are, before a
// restart and after it.
func TestInvalidSpecCannotMoveToAnotherService(t *testing.T) {
	const invalid = `{serviceRef: {name: theirs}, targets: [{name: a, address: 203.0.113.1, ports: [{name: nope, targetPort: 1}]}]}`
	theirs := selectorlessService()
	theirs.Name, theirs.UID, theirs.Spec.Selector = "theirs", "uid-of-theirs", map[string]string{"app": "theirs"}
	env := newTestEnv(t, theirs)
	setVerdict(probe.Healthy, 1, 3)(env)
	env.spec(literalSpec)
	env.settle()
	before := env.slices()

	env.spec(invalid)
	for _, restart := range []bool{false, true} {
		if restart {
			env.restart()
		}
		env.settle()
		env.expectCondition(v1alpha1.ConditionAccepted, "False InvalidSpec")
		env.expectSameEndpoints(fmt.Sprintf("restart %t", restart), before)
		for name, s := range env.slices() {
			if was := before[name]; was == nil || s.ResourceVersion != was.ResourceVersion {
				t.Errorf("restart %t: slice %s was written:\n%+v", restart, name, s)
			}
		}
	}
}
