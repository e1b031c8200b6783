package render

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
)

var testNow = time.Date(2026, 11, 23, 3, 0, 0, 0, time.UTC)

// inputOf returns the input for a spec, in a cluster whose first family is IPv4.
func inputOf(t *testing.T, spec string) Input {
	t.Helper()
	b := &v1alpha1.ExternalBackend{ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "shop"}}
	if err := yaml.UnmarshalStrict([]byte(spec), &b.Spec); err != nil {
		t.Fatal(err)
	}
	return Input{
		Backend: b, Families: []corev1.IPFamily{corev1.IPv4Protocol},
		MaxPerSlice: DefaultMaxPerSlice, MaxPerBackend: DefaultMaxPerBackend, Now: testNow,
	}
}

// addresses returns what the slices of a result publish, in order.
func addresses(r *Result) string {
	var out []string
	for _, e := range endpointslice.Published(r.Slices).Endpoints() {
		out = append(out, e.Addr.String())
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestFamiliesAreAssumedAsTheAPIServerChooses: a Service that does not exist yet gets the families
// that its spec names, or else those of the cluster; a remark says so if they were assumed.
func TestFamiliesAreAssumedAsTheAPIServerChooses(t *testing.T) {
	const targets = `
ports: [{port: 80}]
targets: [{name: a, address: 192.0.2.1}, {name: b, address: "2001:db8::1"}]`
	for _, c := range []struct{ service, want, remark string }{
		{"", "192.0.2.1", "IP families IPv4 "},
		{"service: {ipFamilies: [IPv6]}", "2001:db8::1", ""},
		{"service: {ipFamilyPolicy: PreferDualStack}", "192.0.2.1 2001:db8::1", "IP families IPv4, IPv6 "},
		{"service: {ipFamilyPolicy: RequireDualStack, ipFamilies: [IPv6]}", "192.0.2.1 2001:db8::1", "IPv6, IPv4 "},
	} {
		r, err := Render(inputOf(t, c.service+targets))
		if err != nil {
			t.Fatal(err)
		}
		if got := addresses(r); got != c.want {
			t.Errorf("%q publishes %s, want %s", c.service, got, c.want)
		}
		remarks := strings.Join(r.Remarks, " ")
		if (c.remark == "") != (remarks == "") || !strings.Contains(remarks, c.remark) {
			t.Errorf("%q: the remarks are %q, want %q in them", c.service, remarks, c.remark)
		}
	}
}

// TestRefusedTargetsStayOut: without policies, what status says that policy refuses is not
// published, be it an address or a name.
func TestRefusedTargetsStayOut(t *testing.T) {
	in := inputOf(t, `
ports: [{port: 80}]
targets: [{name: a, address: 192.0.2.1}, {name: b, address: 192.0.2.2}, {name: c, hostname: c.example.com}]`)
	in.Answers = nil
	in.Backend.Status.Targets = []v1alpha1.TargetStatus{
		{Name: "b", State: v1alpha1.TargetStateDenied}, {Name: "c", State: v1alpha1.TargetStateDenied},
	}
	r, err := Render(in)
	if err != nil {
		t.Fatal(err)
	}
	if got := addresses(r); got != "192.0.2.1" {
		t.Errorf("it publishes %s", got)
	}

	alias := inputOf(t, "service: {type: ExternalName}\nports: [{port: 80}]\ntargets: [{name: c, hostname: c.example.com}]")
	alias.Backend.Status = in.Backend.Status
	if r, err = Render(alias); err != nil || r.Service.Spec.ExternalName != plan.UnresolvableName {
		t.Errorf("the alias leads to %s, error %v", r.Service.Spec.ExternalName, err)
	}
}

// TestWhatIsNotWrittenIsAnError says why the manager would write nothing.
func TestWhatIsNotWrittenIsAnError(t *testing.T) {
	const managed, attached = "ports: [{port: 80}]", "serviceRef: {name: db}\nports: [{port: 80}]"
	service := func(change func(*corev1.ServiceSpec)) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "shop"}}
		change(&s.Spec)
		return s
	}
	selecting := func(s *corev1.ServiceSpec) { s.Selector = map[string]string{"app": "db"} }
	for _, c := range []struct {
		spec, want string
		service    *corev1.Service
	}{
		{managed, "is not this ExternalBackend's", service(selecting)},
		{attached, "has a selector", service(selecting)},
		{attached, "ExternalName", service(func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeExternalName })},
		{managed + "\nfailover: {pinnedTier: 3}", "spec is invalid", nil},
	} {
		in := inputOf(t, c.spec)
		in.Service = c.service
		if _, err := Render(in); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", c.spec, err, c.want)
		}
	}
}

// TestOverridesApply renders the spec as an override makes it, and says so.
func TestOverridesApply(t *testing.T) {
	in := inputOf(t, "ports: [{port: 80}]\ntargets: [{name: a, address: 192.0.2.1}, {name: b, address: 192.0.2.2}]")
	o := v1alpha1.ExternalBackendOverride{ObjectMeta: metav1.ObjectMeta{
		Name: "night-shift", CreationTimestamp: metav1.NewTime(testNow)}}
	o.Spec.Targets = []v1alpha1.TargetOverride{{Name: "a", AdminState: v1alpha1.AdminStateDisabled}}
	o.Spec.ExpirationTime = metav1.NewTime(testNow.Add(time.Hour))
	in.Overrides = []v1alpha1.ExternalBackendOverride{o}
	r, err := Render(in)
	if err != nil {
		t.Fatal(err)
	}
	if addresses(r) != "192.0.2.2" || !strings.Contains(r.Remarks[0], `"night-shift" is applied`) {
		t.Errorf("it publishes %s, and remarks %q", addresses(r), r.Remarks)
	}
}

// TestDiffShowsWhatChanges compares what stands with what is planned: nothing, an endpoint that is
// new, and objects that come and go.
func TestDiffShowsWhatChanges(t *testing.T) {
	documents := func(spec string) []Document {
		r, err := Render(inputOf(t, spec))
		if err != nil {
			t.Fatal(err)
		}
		out, err := Documents(r.Service, r.Slices)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	one := documents("ports: [{port: 80}]\ntargets: [{name: a, address: 192.0.2.1}]")
	two := documents("ports: [{port: 80}]\ntargets: [{name: a, address: 192.0.2.1}, {name: b, address: 192.0.2.2}]")
	for _, c := range []struct {
		live, planned []Document
		want, not     []string
	}{
		{one, one, nil, []string{"-", "+"}},
		{one, two, []string{"--- live/endpointslice/db-v4-", "+  - 192.0.2.2\n"}, []string{"service/db"}},
		{nil, one, []string{"+++ planned/service/db\n", "+kind: EndpointSlice\n"}, []string{"\n-kind"}},
		{one, nil, []string{"-kind: Service\n", "-kind: EndpointSlice\n"}, []string{"\n+kind"}},
	} {
		text, err := Diff(c.live, c.planned)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in\n%s", want, text)
			}
		}
		for _, not := range c.not {
			if strings.Contains(text, not) {
				t.Errorf("%q is in\n%s", not, text)
			}
		}
	}
}
