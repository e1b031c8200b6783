package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// policyNamed returns an ExternalBackendPolicy, whose name begins with name and ends in the test's
// namespace.
func policyNamed(h *harness.Test, name string) *v1alpha1.ExternalBackendPolicy {
	h.T.Helper()
	p := &v1alpha1.ExternalBackendPolicy{}
	if err := h.Client.Get(h.T.Context(), client.ObjectKey{Name: name + "-" + h.Namespace}, p); err != nil {
		h.T.Fatal(err)
	}
	return p
}

// waitCounts waits until the status of a policy is about its spec and has these counts: namespaces,
// ExternalBackends, refused ones.
func waitCounts(h *harness.Test, name string, want ...int32) {
	h.T.Helper()
	h.Eventually(fmt.Sprintf("policy %s to count %d", name, want), func() error {
		p := policyNamed(h, name)
		s := p.Status
		if s.ObservedGeneration != p.Generation {
			return fmt.Errorf("observedGeneration is %d", s.ObservedGeneration)
		}
		is := []int32{*s.SelectedNamespaces, *s.SelectedExternalBackends, *s.RefusedExternalBackends}
		if !slices.Equal(is, want) {
			return fmt.Errorf("it counts %d", is)
		}
		return nil
	})
}

// policyWrites counts the writes of the status of the test's policies, from now on.
func policyWrites(h *harness.Test) func() []lab.Write {
	h.T.Helper()
	writes, err := h.Lab.CountWrites()
	if err != nil {
		h.T.Fatal(err)
	}
	return func() []lab.Write {
		h.T.Helper()
		all, err := writes.Since()
		if err != nil {
			h.T.Fatal(err)
		}
		return slices.DeleteFunc(all, func(w lab.Write) bool {
			return w.Resource != "externalbackendpolicies/status" || !strings.HasSuffix(w.Name, h.Namespace)
		})
	}
}

// setTeam labels a namespace.
func setTeam(h *harness.Test, team string) {
	h.T.Helper()
	h.Apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s, labels: {team: %q}}", h.Namespace, team)
}

// teamPolicy applies a policy for the namespaces of the test's team, and deletes it when the test
// ends.
func teamPolicy(h *harness.Test, name, spec string) {
	h.T.Helper()
	h.Apply("apiVersion: external-backend.io/v1alpha1\nkind: ExternalBackendPolicy\n"+
		"metadata: {name: %s-%s}\nspec: {namespaceSelector: {matchLabels: {team: %[2]s}}, %s}", name, h.Namespace, spec)
	p := &v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + h.Namespace}}
	h.T.Cleanup(func() { _ = h.Client.Delete(context.Background(), p) }) // the test may have done so
}

// targetAt is onePort with another address.
func targetAt(address string) string { return strings.ReplaceAll(onePort, "198.51.100.1", address) }

// The status of a policy counts what it selects and refuses, as namespaces, ExternalBackends and
// policies come and go. Audit counts what it would refuse.
func TestPolicyCountsWhatItSelects(t *testing.T) {
	h := parallel(t)
	other := harness.New(t)
	teamPolicy(h, "enforced", "allow: [{cidrs: [198.51.100.0/24]}]")
	teamPolicy(h, "tried", "mode: Audit, allow: [{cidrs: [192.0.2.0/24]}]")
	for _, name := range []string{"enforced", "tried"} {
		waitCounts(h, name, 0, 0, 0)
	}
	conditions := policyNamed(h, "tried").Status.Conditions
	if len(conditions) != 1 || !meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionAccepted) {
		t.Errorf("the conditions are %+v", conditions)
	}

	h.ApplyBackend("good", onePort)
	h.ApplyBackend("bad", targetAt("203.0.113.9"))
	setTeam(h, h.Namespace)
	waitCounts(h, "enforced", 1, 2, 1)
	waitCounts(h, "tried", 1, 2, 2)
	h.WaitCondition("bad", v1alpha1.ConditionPermitted, metav1.ConditionFalse, v1alpha1.ReasonTargetDenied)
	h.WaitCondition("good", v1alpha1.ConditionPermitted, metav1.ConditionTrue, v1alpha1.ReasonWouldDeny)

	other.ApplyBackend("web", targetAt("192.0.2.7"))
	setTeam(other, h.Namespace)
	waitCounts(h, "enforced", 2, 3, 2)
	waitCounts(h, "tried", 2, 3, 2)

	teamPolicy(h, "more", "allow: [{cidrs: [192.0.2.7/32]}]")
	for _, name := range []string{"enforced", "more"} { // their rules add up
		waitCounts(h, name, 2, 3, 1)
	}
	remove(h, &v1alpha1.ExternalBackend{ObjectMeta: metav1.ObjectMeta{Name: "bad", Namespace: h.Namespace}})
	waitCounts(h, "enforced", 2, 2, 0)
	setTeam(other, "nobody")
	waitCounts(h, "enforced", 1, 1, 0)
	waitCounts(h, "tried", 1, 1, 1)
	waitColumns(h)

	gone := policyNamed(h, "more")
	remove(h, gone)
	waitGone(h, &v1alpha1.ExternalBackendPolicy{}, gone.Name)
	writes := policyWrites(h)
	waitQuiet(h)
	for _, w := range writes() {
		t.Errorf("at rest the manager wrote %+v", w)
	}
}

// waitColumns compares what kubectl get shows of the policies of TestPolicyCountsWhatItSelects.
func waitColumns(h *harness.Test) {
	h.T.Helper()
	out, err := h.Kubectl(h.T.Context(), "get", "extbepol", "enforced-"+h.Namespace, "tried-"+h.Namespace)
	if err != nil {
		h.T.Fatal(err)
	}
	var rows [][]string
	for line := range strings.Lines(out) {
		cells := strings.Fields(line)
		rows = append(rows, cells[:len(cells)-1]) // without the age
	}
	want := [][]string{
		{"NAME", "MODE", "NAMESPACES", "BACKENDS", "REFUSED"},
		{"enforced-" + h.Namespace, "1", "1", "0"}, // no mode is written
		{"tried-" + h.Namespace, "Audit", "1", "1", "1"},
	}
	if diff := gocmp.Diff(want, rows); diff != "" {
		h.T.Errorf("-want +got:\n%s", diff)
	}
}

// A policy that begins to refuse what is published says whose targets these are, in an event. One
// in mode Audit does not.
func TestPolicyTellsWhatItWithdraws(t *testing.T) {
	h := parallel(t)
	for _, name := range []string{"one", "two", "web"} {
		h.ApplyBackend(name, onePort)
		h.WaitStates(name, oneEndpoint)
	}
	h.ApplyBackend("alias",
		"service: {type: ExternalName}\nports: [{name: web, port: 80}]\ntargets: [{name: a, hostname: db.example.com}]")
	h.WaitReady("alias")
	policy(h, "tried", "mode: Audit")
	waitCounts(h, "tried", 1, 4, 4)
	policy(h, "wide", "allow: [{anyTarget: {}}]")
	waitCounts(h, "wide", 1, 4, 0)
	policy(h, "wide", "allow: [{cidrs: [192.0.2.0/24]}]")
	waitCounts(h, "wide", 1, 4, 4)

	want := []string{fmt.Sprintf("PublishedTargetsDenied: Refuses targets that were published, of ExternalBackends: "+
		"%[1]s/alias, %[1]s/one, %[1]s/two and 1 more.", h.Namespace)}
	h.Eventually("an event about the policy", func() error {
		if events := policyEvents(h, "wide"); !slices.Equal(events, want) {
			return fmt.Errorf("there are %q", events)
		}
		return nil
	})
	if events := policyEvents(h, "tried"); len(events) > 0 {
		t.Errorf("the policy in mode Audit has %q", events)
	}
}

// policyEvents returns the events about a policy, each as "Reason: note".
func policyEvents(h *harness.Test, name string) []string {
	h.T.Helper()
	var list eventsv1.EventList
	if err := h.Client.List(h.T.Context(), &list, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		h.T.Fatal(err)
	}
	var texts []string
	for _, e := range list.Items {
		if e.Regarding.Kind == "ExternalBackendPolicy" && e.Regarding.Name == name+"-"+h.Namespace {
			texts = append(texts, e.Reason+": "+e.Note)
		}
	}
	return texts
}

// Whoever edits the status of a policy finds it corrected.
func TestEditedStatusOfPolicyIsCorrected(t *testing.T) {
	h := parallel(t)
	policy(h, "seen", "allow: [{anyTarget: {}}]")
	waitCounts(h, "seen", 1, 0, 0)
	for range 2 {
		p := policyNamed(h, "seen")
		p.Status.SelectedNamespaces = new(int32(77))
		if err := h.Client.Status().Update(t.Context(), p); err != nil && !apierrors.IsConflict(err) {
			t.Fatal(err)
		}
		waitCounts(h, "seen", 1, 0, 0)
	}
}
