package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	ac "github.com/external-backend/operator/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
)

// The API server serves both kinds with their names, short names and scopes.
func TestKindsAreServed(t *testing.T) {
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	list, err := d.ServerResourcesForGroupVersion(v1alpha1.GroupVersion.String())
	if err != nil {
		t.Fatal(err)
	}
	type kind struct {
		Kind       string
		ShortNames []string
		Namespaced bool
	}
	got := map[string]kind{}
	for _, r := range list.APIResources {
		got[r.Name] = kind{r.Kind, r.ShortNames, r.Namespaced}
	}
	want := map[string]kind{
		"externalbackends":                {"ExternalBackend", []string{"extbe"}, true},
		"externalbackends/status":         {"ExternalBackend", nil, true},
		"externalbackendpolicies":         {"ExternalBackendPolicy", []string{"extbepol"}, false},
		"externalbackendpolicies/status":  {"ExternalBackendPolicy", nil, false},
		"externalbackendoverrides":        {"ExternalBackendOverride", []string{"extbeo"}, true},
		"externalbackendoverrides/status": {"ExternalBackendOverride", nil, true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// backend creates an ExternalBackend, and deletes it when the test ends.
func backend(t *testing.T, name string) *v1alpha1.ExternalBackend {
	t.Helper()
	b := &v1alpha1.ExternalBackend{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: v1alpha1.ExternalBackendSpec{
			Ports:   []v1alpha1.Port{{Port: 80}},
			Targets: []v1alpha1.Target{{Name: "a", Address: "203.0.113.1"}},
		},
	}
	if err := api.Create(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Delete(context.WithoutCancel(t.Context()), b); err != nil {
			t.Error(err)
		}
	})
	return b
}

// fullStatus returns a status with all fields and the maximum number of targets.
func fullStatus() v1alpha1.ExternalBackendStatus {
	s := v1alpha1.ExternalBackendStatus{
		ObservedGeneration: 3,
		ServiceName:        "columns",
		ServiceType:        v1alpha1.ServiceTypeHeadless,
		Endpoints:          &v1alpha1.EndpointCounts{Total: 4, Ready: 3, Healthy: 3, Unhealthy: 1, ReadyOfTotal: "3/4"},
		ActiveTier:         new(int32(0)),
		OmittedTargets:     960,
	}
	for i := range v1alpha1.MaxStatusTargets {
		s.Targets = append(s.Targets, v1alpha1.TargetStatus{
			Name: fmt.Sprint("t", i), State: v1alpha1.TargetStateUnhealthy, Health: v1alpha1.TargetHealthUnhealthy, Tier: 127,
			Endpoints: v1alpha1.TargetEndpointCounts{Total: 2, Ready: 1},
			Reason:    v1alpha1.TargetReasonConnectionRefused, Message: strings.Repeat("é", v1alpha1.MaxTargetMessage),
			LastTransitionTime: new(metav1.Now().Rfc3339Copy()),
			Addresses:          slices.Repeat([]string{"203.0.113.11"}, v1alpha1.MaxStatusAddresses),
		})
	}
	for _, c := range []struct {
		name, reason string
		status       metav1.ConditionStatus
	}{
		{v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, metav1.ConditionTrue},
		{v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonInvalidRef, metav1.ConditionFalse},
		{v1alpha1.ConditionPermitted, v1alpha1.ReasonWouldDeny, metav1.ConditionTrue},
		{v1alpha1.ConditionNamesResolved, v1alpha1.ReasonServingStale, metav1.ConditionFalse},
		{v1alpha1.ConditionProgrammed, v1alpha1.ReasonServiceConflict, metav1.ConditionFalse},
		{v1alpha1.ConditionHealthy, v1alpha1.ReasonPending, metav1.ConditionUnknown},
		{v1alpha1.ConditionReady, v1alpha1.ReasonServiceConflict, metav1.ConditionFalse},
		{v1alpha1.ConditionStalled, v1alpha1.ReasonServiceConflict, metav1.ConditionTrue},
	} {
		s.Conditions = append(s.Conditions, metav1.Condition{
			Type: c.name, Status: c.status, Reason: c.reason, ObservedGeneration: 3,
			LastTransitionTime: metav1.Now().Rfc3339Copy(),
		})
	}
	return s
}

// Status is written by its own subresource, keeps all fields, and does not change the generation.
func TestStatusIsWrittenSeparately(t *testing.T) {
	b := backend(t, "status")
	b.Status = fullStatus()
	if err := api.Update(t.Context(), b.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	got := &v1alpha1.ExternalBackend{}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(b), got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(v1alpha1.ExternalBackendStatus{ObservedGeneration: -1}, got.Status); diff != "" {
		t.Errorf("written with the spec:\n%s", diff)
	}
	b.ResourceVersion = got.ResourceVersion
	want := *b.Status.DeepCopy()
	if err := api.Status().Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, b.Status); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if b.Generation != 1 {
		t.Errorf("after a write of status, the generation is %d", b.Generation)
	}

	over := b.DeepCopy()
	over.Status.Targets = append(over.Status.Targets,
		v1alpha1.TargetStatus{Name: "one-more", State: v1alpha1.TargetStateUnknown})
	check(t, api.Status().Update(t.Context(), over), []string{"status.targets: Too many"})
	over = b.DeepCopy()
	over.Status.Targets[0].Addresses = append(over.Status.Targets[0].Addresses, "203.0.113.12")
	check(t, api.Status().Update(t.Context(), over), []string{"status.targets[0].addresses: Too many"})
}

// The columns of kubectl get show the status.
func TestColumnsShowStatus(t *testing.T) {
	b := backend(t, "columns")
	b.Status = fullStatus()
	if err := api.Status().Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	rows := map[int32][]string{}
	for _, c := range table(t, "/apis/external-backend.io/v1alpha1/namespaces/default/externalbackends/columns") {
		rows[c.priority] = append(rows[c.priority], c.name+"="+c.cell)
	}
	for i, row := range rows[0] {
		if strings.HasPrefix(row, "AGE=") {
			rows[0][i] = "AGE"
		}
	}
	want := map[int32][]string{
		0: {"NAME=columns", "SERVICE=columns", "READY=3/4", "HEALTHY=Unknown", "STATUS=ServiceConflict", "AGE"},
		1: {"TYPE=Headless", "TIER=0"},
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// The columns of a policy show its mode and what it counts, 0 included. Before the first status
// nothing is counted, and kstatus finds the policy in progress.
func TestColumnsOfPolicyShowCounts(t *testing.T) {
	p := &v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: "columns"}}
	p.Spec.Mode = v1alpha1.PolicyModeAudit
	p.Status.SelectedNamespaces = new(int32(5)) // status is written by its own subresource only
	if err := api.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Delete(context.WithoutCancel(t.Context()), p); err != nil {
			t.Error(err)
		}
	})
	if diff := cmp.Diff(v1alpha1.ExternalBackendPolicyStatus{ObservedGeneration: -1}, p.Status); diff != "" {
		t.Errorf("of a new policy (-want +got):\n%s", diff)
	}

	expect := func(want ...string) {
		t.Helper()
		var cells []string
		for _, c := range table(t, "/apis/external-backend.io/v1alpha1/externalbackendpolicies/columns") {
			cells = append(cells, c.name+"="+c.cell)
		}
		if diff := cmp.Diff(want, cells[:len(cells)-1]); diff != "" || !strings.HasPrefix(cells[len(cells)-1], "AGE=") {
			t.Errorf("%v, -want +got:\n%s", cells, diff)
		}
	}
	expect("NAME=columns", "MODE=Audit", "NAMESPACES=<nil>", "BACKENDS=<nil>", "REFUSED=<nil>")

	before := p.DeepCopy()
	p.Status = plan.PolicyStatus(plan.PolicyStatusInput{
		Policy: p, Namespaces: 3, ExternalBackends: 12, Problems: []string{"spec.mode"}, Now: metav1.Now().Rfc3339Copy().Time,
	})
	want := *p.Status.DeepCopy()
	if err := api.Status().Patch(t.Context(), p, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, p.Status); diff != "" || p.Generation != before.Generation {
		t.Errorf("generation %d, status -want +got:\n%s", p.Generation, diff)
	}
	expect("NAME=columns", "MODE=Audit", "NAMESPACES=3", "BACKENDS=12", "REFUSED=0")
}

type column struct {
	name, cell string
	priority   int32 // 0: always shown, 1: with -o wide
}

// table requests one object as kubectl get does.
func table(t *testing.T, path string) (columns []column) {
	t.Helper()
	cfg := rest.CopyConfig(config)
	cfg.GroupVersion = &metav1.SchemeGroupVersion
	cfg.APIPath = "/apis"
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme.Scheme).WithoutConversion()
	c, err := rest.RESTClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var tbl metav1.Table
	err = c.Verb(http.MethodGet).
		AbsPath(path).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").
		Do(t.Context()).
		Into(&tbl)
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range tbl.ColumnDefinitions {
		columns = append(columns, column{strings.ToUpper(d.Name), fmt.Sprint(tbl.Rows[0].Cells[i]), d.Priority})
	}
	return columns
}

// Two appliers own a target each, because the list merges by name.
func TestAppliersOwnTargetsByName(t *testing.T) {
	apply := func(owner, target, address string) {
		t.Helper()
		config := ac.ExternalBackend("applied", "default").WithSpec(ac.ExternalBackendSpec().
			WithService(ac.Service().WithType(v1alpha1.ServiceTypeClusterIP).WithIPFamilies(corev1.IPv4Protocol)).
			WithPorts(ac.Port().WithPort(80)).
			WithTargets(ac.Target().WithName(target).WithAddress(address)))
		if err := api.Apply(t.Context(), config, client.FieldOwner(owner)); err != nil {
			t.Fatal(err)
		}
	}
	apply("one", "a", "203.0.113.1")
	apply("two", "b", "203.0.113.2")
	apply("one", "a", "203.0.113.3")
	b := &v1alpha1.ExternalBackend{}
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "applied"}, b); err != nil {
		t.Fatal(err)
	}
	want := []v1alpha1.Target{
		{Name: "a", Address: "203.0.113.3"},
		{Name: "b", Address: "203.0.113.2"},
	}
	if diff := cmp.Diff(want, b.Spec.Targets); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if err := api.Delete(t.Context(), b); err != nil {
		t.Error(err)
	}
}
