package integration

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

func observed(state string) v1alpha1.TargetState { return v1alpha1.TargetState(state) }

// Every field of status, and every column of kubectl get, has its value.
func TestStatusIsComplete(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 2)
	set.servers[1].Stop() // it refuses connections
	h.ApplyBackend("web", spec(set.targets(), "", ""))
	h.WaitReady("web")
	condition := func(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason, ObservedGeneration: 1}
	}
	want := v1alpha1.ExternalBackendStatus{
		ObservedGeneration: 1, ServiceName: "web", ServiceType: "ClusterIP",
		Endpoints:  &v1alpha1.EndpointCounts{Total: 2, Ready: 1, Healthy: 1, Unhealthy: 1, ReadyOfTotal: "1/2"},
		ActiveTier: new(int32(0)),
		Targets: []v1alpha1.TargetStatus{
			{
				Name: "b", State: "Unhealthy", Health: "Unhealthy", Endpoints: v1alpha1.TargetEndpointCounts{Total: 1},
				Addresses: []string{set.V4.String()}, Reason: "ConnectionRefused",
				Message: fmt.Sprintf("connection refused, at %s", set.at(1)),
			},
			{
				Name: "a", State: "Healthy", Health: "Healthy", Endpoints: v1alpha1.TargetEndpointCounts{Total: 1, Ready: 1},
				Addresses: []string{set.V4.String()},
			},
		},
		Conditions: []metav1.Condition{condition("Ready", metav1.ConditionTrue, "Ready"),
			condition("Accepted", metav1.ConditionTrue, "Accepted"),
			condition("ResolvedRefs", metav1.ConditionTrue, "ResolvedRefs"),
			condition("Permitted", metav1.ConditionTrue, "Permitted"),
			condition("NamesResolved", metav1.ConditionTrue, "NamesResolved"),
			condition("Programmed", metav1.ConditionTrue, "Programmed"),
			condition("Healthy", metav1.ConditionFalse, "SomeUnhealthy")},
	}
	h.Eventually("the status", func() error {
		diff := gocmp.Diff(want, h.Backend("web").Status,
			cmpopts.IgnoreFields(metav1.Condition{}, "LastTransitionTime", "Message"),
			cmpopts.IgnoreFields(v1alpha1.TargetStatus{}, "LastTransitionTime"))
		if diff != "" {
			return errors.New("-want +got:\n" + diff)
		}
		return nil
	})
	wantColumns(h, "web", map[string]string{
		"Name":    "web",
		"Service": "web",
		"Ready":   "1/2",
		"Healthy": "False",
		"Status":  "Ready",
		"Type":    "ClusterIP",
		"Tier":    "0",
	})

	h.ApplyBackend("empty", "ports: [{name: web, port: 80}]")
	h.WaitCondition("empty", "Ready", metav1.ConditionFalse, "NoReadyEndpoints")
	h.WaitCondition("empty", "Healthy", metav1.ConditionTrue, "NotProbed")
	waitProgrammed(h, "empty")
	wantColumns(h, "empty", map[string]string{
		"Name":    "empty",
		"Service": "empty",
		"Ready":   "0/0",
		"Healthy": "True",
		"Status":  "NoReadyEndpoints",
		"Type":    "ClusterIP",
	})
}

// tableOf returns the table that kubectl get prints for one ExternalBackend.
func tableOf(h *harness.Test, backend string) metav1.Table {
	h.T.Helper()
	client, err := rest.HTTPClientFor(h.Config)
	if err != nil {
		h.T.Fatal(err)
	}
	url := fmt.Sprintf("%s/apis/external-backend.io/v1alpha1/namespaces/%s/externalbackends/%s", h.Config.Host,
		h.Namespace, backend)
	req, err := http.NewRequestWithContext(h.T.Context(), http.MethodGet, url, nil)
	if err != nil {
		h.T.Fatal(err)
	}
	req.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	var table metav1.Table
	fetchJSON(h, client, req, &table)
	if len(table.Rows) != 1 {
		h.T.Fatalf("the table has %d rows", len(table.Rows))
	}
	return table
}

// wantColumns fails the test unless the columns that kubectl get prints have these values.
func wantColumns(h *harness.Test, backend string, want map[string]string) {
	h.T.Helper()
	table := tableOf(h, backend)
	var narrow, wide []string
	for i, column := range table.ColumnDefinitions {
		if column.Priority == 0 {
			narrow = append(narrow, strings.ToUpper(column.Name))
		} else {
			wide = append(wide, strings.ToUpper(column.Name))
		}
		if column.Name == "Age" {
			continue
		}
		cell := ""
		if table.Rows[0].Cells[i] != nil {
			cell = fmt.Sprint(table.Rows[0].Cells[i])
		}
		if cell != want[column.Name] {
			h.T.Errorf("column %s is %q, want %q", column.Name, cell, want[column.Name])
		}
	}
	if !slices.Equal(narrow, []string{"NAME", "SERVICE", "READY", "HEALTHY", "STATUS", "AGE"}) ||
		!slices.Equal(wide, []string{"TYPE", "TIER"}) {
		h.T.Errorf("the columns are %v and wide %v", narrow, wide)
	}
}

// Status lists at most 64 targets, the worst first, and counts the others.
func TestWorstTargetsAreListedFirst(t *testing.T) {
	h := parallel(t)
	var targets strings.Builder
	for i := range 70 {
		fmt.Fprintf(&targets, "- {name: t%02d, address: 198.51.100.%d}\n", i, i+1)
	}
	targets.WriteString("- {name: zz, address: 198.51.100.1}\n") // a duplicate is worse than a healthy target
	h.ApplyBackend("web", "ports: [{name: web, port: 80}]\ntargets:\n%s", targets.String())
	h.WaitReady("web")
	h.Eventually("the targets", func() error {
		s := h.Backend("web").Status
		if len(s.Targets) != 64 || s.OmittedTargets != 7 || s.Targets[0].Name != "zz" ||
			s.Targets[0].Reason != "DuplicateAddress" || len(s.Targets[0].Addresses) > 0 {
			return fmt.Errorf("there are %d, %d are omitted, the first is %+v", len(s.Targets), s.OmittedTargets,
				s.Targets[:min(1, len(s.Targets))])
		}
		return nil
	})
}

// If no endpoint is healthy, status says so, and recovers with the endpoints.
func TestStatusReportsAllUnhealthy(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 2)
	set.servers[0].SetSick(true)
	set.servers[1].Stop()
	h.ApplyBackend("web", spec(set.targets(), "", ""))
	h.WaitStates("web", harness.All(harness.Unhealthy, set.at(0), set.at(1)))
	h.WaitCondition("web", "Healthy", metav1.ConditionFalse, "AllUnhealthy")
	h.WaitCondition("web", "Ready", metav1.ConditionFalse, "AllUnhealthy")
	waitProgrammed(h, "web")
	wantStalled(h, "web", "")
	waitTarget(h, "web", "a", "Unhealthy", "UnexpectedStatus")
	waitTarget(h, "web", "b", "Unhealthy", "ConnectionRefused")
	h.WaitEvent("web", "EndpointUnhealthy")
	set.servers[0].SetSick(false)
	h.WaitReady("web")
	h.WaitEvent("web", "EndpointHealthy")
}
