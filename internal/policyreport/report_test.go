package policyreport

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/policy"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares a text with a golden file.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("%s:\n%s\nwant:\n%s", path, text, want)
	}
}

// policyOf reads a policy from the YAML of its spec.
func policyOf(t *testing.T, name, spec string) v1alpha1.ExternalBackendPolicy {
	t.Helper()
	p := v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	return p
}

func compile(policies ...v1alpha1.ExternalBackendPolicy) *policy.Set {
	set, _ := policy.Compile(policy.Input{Policies: policies})
	return set
}

// backendOf returns the ExternalBackend db, which publishes addresses on port 5432.
func backendOf(t *testing.T, spec string, published ...string) Backend {
	t.Helper()
	b := Backend{
		Object: &v1alpha1.ExternalBackend{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}},
		Service: &corev1.Service{Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.10", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Name: "postgres", Port: 5432}},
		}},
		NamespaceLabels: map[string]string{"team": "shop"},
	}
	if err := yaml.UnmarshalStrict([]byte(spec), &b.Object.Spec); err != nil {
		t.Fatal(err)
	}
	if len(published) == 0 {
		return b
	}
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "db-1"}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: new("postgres"), Port: new(int32(5432)), Protocol: new(corev1.ProtocolTCP)}},
	}
	for _, address := range published {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	b.Slices = []*discoveryv1.EndpointSlice{s}
	return b
}

const twoTargets = `{ports: [{name: postgres, port: 5432}], targets: [
	{name: a, address: 203.0.113.10}, {name: b, address: 203.0.113.11}, {name: c, hostname: db.example.com}]}`

const wide = `{namespaceSelector: {matchLabels: {team: shop}}, allow: [
	{cidrs: [203.0.113.0/24], ports: [{port: 5432}]}]}`

// TestChangesAreToldByEffectAndRule: each change has the rule that allows it, and says why it will
// be refused.
func TestChangesAreToldByEffectAndRule(t *testing.T) {
	for name, test := range map[string]struct {
		backend       Backend
		before, after []v1alpha1.ExternalBackendPolicy
	}{
		"narrower": {
			backendOf(t, twoTargets, "203.0.113.10"),
			[]v1alpha1.ExternalBackendPolicy{policyOf(t, "databases", wide)},
			[]v1alpha1.ExternalBackendPolicy{
				policyOf(t, "databases", strings.Replace(wide, "203.0.113.0/24", "198.51.100.0/24", 1)),
			},
		},
		"port": {
			backendOf(t, twoTargets, "203.0.113.10"),
			[]v1alpha1.ExternalBackendPolicy{policyOf(t, "databases", wide)},
			[]v1alpha1.ExternalBackendPolicy{policyOf(t, "databases", strings.Replace(wide, "5432", "3306", 1))},
		},
		"first": {
			backendOf(t, twoTargets, "203.0.113.10", "203.0.113.11"), nil,
			[]v1alpha1.ExternalBackendPolicy{policyOf(t, "nothing", "{namespaceSelector: {}}")},
		},
		"wider": {
			backendOf(t, twoTargets),
			[]v1alpha1.ExternalBackendPolicy{policyOf(t, "nothing", "{namespaceSelector: {}}")},
			[]v1alpha1.ExternalBackendPolicy{
				policyOf(t, "nothing", "{namespaceSelector: {}}"), policyOf(t, "databases", wide),
				policyOf(t, "names", `{namespaceSelector: {}, allow: [{hostnames: ["*.example.com"]}]}`),
			},
		},
		"audit": {
			backendOf(t, twoTargets, "203.0.113.10"), nil,
			[]v1alpha1.ExternalBackendPolicy{
				policyOf(t, "trial", "{mode: Audit, "+strings.Replace(wide[1:], "203.0.113.0/24", "203.0.113.11/32", 1)),
			},
		},
		"elsewhere": {
			backendOf(t, twoTargets, "203.0.113.10"), nil,
			[]v1alpha1.ExternalBackendPolicy{policyOf(t, "others", "{namespaceSelector: {matchLabels: {team: other}}}")},
		},
		"alias": {
			backendOf(t, `{ports: [{name: postgres, port: 5432}], service: {type: ExternalName},
				targets: [{name: a, hostname: db.example.com}]}`),
			nil, []v1alpha1.ExternalBackendPolicy{policyOf(t, "databases", wide)},
		},
		"nameserver": {
			backendOf(t, `{ports: [{name: postgres, port: 5432}], dns: {nameservers: [192.0.2.53]},
				targets: [{name: a, address: 203.0.113.10}]}`, "203.0.113.10"),
			nil, []v1alpha1.ExternalBackendPolicy{policyOf(t, "databases", wide)},
		},
		"invalid": {
			backendOf(t, `{ports: [{name: postgres, port: 5432}], healthCheck: {tcpSocket: {port: absent}},
				targets: [{name: a, address: 203.0.113.10}]}`, "203.0.113.10"),
			nil, []v1alpha1.ExternalBackendPolicy{policyOf(t, "nothing", "{namespaceSelector: {}}")},
		},
	} {
		var out strings.Builder
		changes := Changes(compile(test.before...), compile(test.after...), test.backend, time.Unix(0, 0))
		withdraws := WriteChanges(&out, changes)
		golden(t, "changes-"+name, out.String())
		if want := strings.Contains(out.String(), "Withdrawn: "); withdraws != want {
			t.Errorf("%s: withdraws %t, the text says %t", name, withdraws, want)
		}
	}
}

// TestWhoCanNamesRulesAndConditions: each namespace has an answer, with the rules that allow the
// address or the name, and the policies that do not.
func TestWhoCanNamesRulesAndConditions(t *testing.T) {
	policies := []v1alpha1.ExternalBackendPolicy{
		policyOf(t, "databases", wide),
		policyOf(t, "names", `{namespaceSelector: {matchLabels: {team: web}}, allow: [
			{hostnames: ["*.example.com"]}, {cidrs: [203.0.113.0/24], hostnames: [db.example.com]}]}`),
		policyOf(t, "nothing", `{namespaceSelector: {matchLabels: {team: closed}}}`),
		policyOf(t, "trial", `{mode: Audit, namespaceSelector: {}}`),
		policyOf(t, "metadata", `{namespaceSelector: {matchLabels: {team: cloud}}, allow: [{cidrs: [168.63.129.16/32]}]}`),
	}
	var namespaces []Namespace
	for _, team := range []string{"shop", "web", "closed", "cloud", "free"} {
		namespaces = append(namespaces, Namespace{"ns-" + team, map[string]string{"team": team}})
	}
	for name, q := range map[string]Question{
		"address":  {Address: netip.MustParseAddr("203.0.113.10")},
		"port":     {Address: netip.MustParseAddr("203.0.113.10"), Ports: []policy.Port{{Protocol: "TCP", Port: 80}}},
		"name":     {Name: "db.example.com"},
		"loopback": {Address: netip.MustParseAddr("127.0.0.1")},
		"guarded":  {Address: netip.MustParseAddr("168.63.129.16")},
	} {
		access := WhoCan(compile(policies...), policies, namespaces, q)
		var out strings.Builder
		WriteAccess(&out, &access)
		golden(t, "access-"+name, out.String())
	}
}

// TestLongListsAreCut: a text shows a bounded number of changes, and says how many it omits.
func TestLongListsAreCut(t *testing.T) {
	changes := make([]Change, maxShown+7)
	for i := range changes {
		changes[i] = Change{Namespace: "shop", ExternalBackend: "db", Effect: Withdrawn}
	}
	var out strings.Builder
	WriteChanges(&out, changes)
	if lines := strings.Count(out.String(), "\n"); lines != maxShown+2 || !strings.Contains(out.String(), "and 7 more") {
		t.Errorf("%d lines:\n%s", lines, out.String())
	}
}
