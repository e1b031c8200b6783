package policy

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// An ExternalBackend counts in every policy that selects its namespace, and as refused in those of
// the mode that refuses something.
func TestCountsAreThoseOfSelectedNamespaces(t *testing.T) {
	namespaces := []Namespace{
		{Labels: map[string]string{"team": "shop"}, ExternalBackends: 5, Refused: 2, WouldRefuse: 1, Unjudged: 1,
			Withdrawn: []string{"shop/a"}},
		{Labels: map[string]string{"team": "ops"}, ExternalBackends: 3, Refused: 1, WouldRefuse: 3,
			Withdrawn: []string{"ops/b", "ops/c"}},
		{Labels: map[string]string{"team": "empty"}},
		{ExternalBackends: 10},
	}
	noMode, newer, unreadable := enforce(), enforce(), enforce()
	noMode.Spec.Mode, newer.Spec.Mode = "", "Warn"
	unreadable.Spec.NamespaceSelector.MatchExpressions = []metav1.LabelSelectorRequirement{
		{Key: "team", Operator: "Matches"}, {Key: "team", Operator: metav1.LabelSelectorOpIn, Values: []string{"ops"}},
	}
	ofShop := Counts{Namespaces: 1, ExternalBackends: 5, Refused: 2, Unjudged: 1, Withdrawn: []string{"shop/a"}}
	ofAll := Counts{Namespaces: 4, ExternalBackends: 18, Refused: 3, Unjudged: 1,
		Withdrawn: []string{"shop/a", "ops/b", "ops/c"}}

	for _, c := range []struct {
		what string
		p    v1alpha1.ExternalBackendPolicy
		want Counts
	}{
		{"one namespace", forTeam("shop", enforce()), ofShop},
		{"one namespace, Audit", forTeam("shop", audit()),
			Counts{Namespaces: 1, ExternalBackends: 5, Refused: 1, Unjudged: 1}},
		{"a namespace without any", forTeam("empty", enforce()), Counts{Namespaces: 1}},
		{"no namespace", forTeam("nobody", enforce()), Counts{}},
		{"every namespace", enforce(), ofAll},
		{"every namespace, Audit", audit(), Counts{Namespaces: 4, ExternalBackends: 18, Refused: 4, Unjudged: 1}},
		{"no mode is Enforce", noMode, ofAll},
		{"an unknown mode is Enforce", newer, ofAll},
		{"what can be read of a selector selects", unreadable,
			Counts{Namespaces: 1, ExternalBackends: 3, Refused: 1, Withdrawn: []string{"ops/b", "ops/c"}}},
	} {
		t.Run(c.what, func(t *testing.T) {
			set, _ := Compile(policies(c.p))
			if diff := cmp.Diff([]Counts{c.want}, set.Count(namespaces)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	set, _ := Compile(policies(forTeam("nobody", enforce()), enforce(), forTeam("shop", enforce())))
	if diff := cmp.Diff([]Counts{{}, ofAll, ofShop}, set.Count(namespaces)); diff != "" {
		t.Errorf("several policies (-want +got):\n%s", diff)
	}
}

// BenchmarkCount counts a hundred policies in ten thousand namespaces.
func BenchmarkCount(b *testing.B) {
	var in Input
	for i := range 100 {
		in.Policies = append(in.Policies, forTeam(fmt.Sprintf("team-%d", i), enforce(cidrs("203.0.113.0/24"))))
	}
	namespaces := make([]Namespace, 10_000)
	for i := range namespaces {
		namespaces[i] = Namespace{ExternalBackends: 3, Labels: map[string]string{
			"team": fmt.Sprintf("team-%d", i%200), "kubernetes.io/metadata.name": fmt.Sprintf("namespace-%d", i),
		}}
	}
	set, _ := Compile(in)
	for b.Loop() {
		set.Count(namespaces)
	}
}
