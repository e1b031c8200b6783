package security

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

// A tenant can't refer to objects of other namespaces. The manager asks for nothing outside of the
// tenant's namespace, and reports nothing of what it reads.
func TestReferencesStayInTheirNamespace(t *testing.T) {
	victim, tenant, unbound := harness.New(t), harness.New(t), harness.New(t)
	env := sharedEnvironment(tenant)
	data := map[string][]byte{
		"ca.crt":                certificatePEM(env.allowed.certificate),
		corev1.TLSCertKey:       []byte(marker),
		corev1.TLSPrivateKeyKey: []byte(marker),
	}
	for _, h := range []*harness.Test{victim, tenant} {
		h.AllowReferences()
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: h.Namespace,
				Name:      "of-" + map[bool]string{true: "victim", false: "tenant"}[h == victim],
			},
		}
		secret.Data = data
		if err := h.Client.Create(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	https := func(h *harness.Test, name, authority, certificate string) {
		b := newBackend(name, handlerNamed["https"])
		b.Spec.Targets = []v1alpha1.Target{{Name: "t", Address: allowedAddr(40000, netip.IPv4Unspecified()).String()}}
		b.Spec.HealthCheck.TLS = &v1alpha1.TLS{
			ServerName:        "allowed.example",
			CACertificateRefs: []v1alpha1.CACertificateReference{{Kind: v1alpha1.CACertificateKindSecret, Name: authority}},
		}
		if certificate != "" {
			b.Spec.HealthCheck.TLS.ClientCertificateRef = &v1alpha1.SecretReference{Name: certificate}
		}
		h.ApplyObject(b)
	}
	https(tenant, "own", "of-tenant", "")
	https(tenant, "no-certificate", "of-tenant", "of-tenant")
	https(tenant, "elsewhere", "of-victim", "")
	https(unbound, "unbound", "of-tenant", "")
	for _, name := range []string{
		victim.Namespace + "/of-victim",
		"../" + victim.Namespace + "/of-victim",
		"of-victim?namespace=" + victim.Namespace,
	} {
		b := newBackend("escapes", handlerNamed["https"])
		b.Namespace = tenant.Namespace
		b.Spec.HealthCheck.TLS = &v1alpha1.TLS{CACertificateRefs: []v1alpha1.CACertificateReference{{Name: name}}}
		if err := tenant.Client.Create(t.Context(), b); !apierrors.IsInvalid(err) {
			t.Errorf("reference to %q: %v", name, err)
		}
	}
	m := tenant.StartManager("--zap-log-level=9")
	tenant.WaitReady("own")
	tenant.WaitCondition("no-certificate", v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse,
		v1alpha1.ReasonInvalidRef)
	tenant.WaitCondition("elsewhere", v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, v1alpha1.ReasonRefNotFound)
	unbound.WaitCondition("unbound", v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, v1alpha1.ReasonRefNotPermitted)
	metrics, _ := json.Marshal(m.Metrics())
	m.Stop()

	audit, err := os.ReadFile(tenant.AuditLog)
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	for line := range strings.Lines(string(audit)) {
		if strings.Contains(line, `"`+user+`"`) && strings.Contains(line, `"resource":"secrets"`) {
			asked++
			if strings.Contains(line, `"namespace":"`+victim.Namespace+`"`) {
				t.Errorf("the manager has asked for another namespace's Secret: %s", line)
			}
		}
	}
	if asked == 0 {
		t.Error("no Secret was asked for")
	}
	wantNotLeaked(tenant, m.Log, string(metrics), marker, "PRIVATE KEY", "BEGIN CERTIFICATE")
}

// A tenant can't use Services that another controller, a selector or --protected-services protects,
// and slices with forged labels have no effect.
func TestTenantCannotTakeServicesOfOthers(t *testing.T) {
	victim, tenant := harness.New(t), harness.New(t)
	env := sharedEnvironment(tenant)
	selected := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: tenant.Namespace, Name: "selected"}}
	selected.Spec.Ports = []corev1.ServicePort{{Name: "probe", Port: 7000}}
	selected.Spec.Selector = map[string]string{"app": "theirs"}
	protected := selected.DeepCopy()
	protected.Name, protected.Spec.Selector = "protected", nil
	for _, s := range []*corev1.Service{selected, protected} {
		if err := tenant.Client.Create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	good := allowedAddr(41000, netip.IPv4Unspecified()).String()
	claim := func(h *harness.Test, name string, change func(*v1alpha1.ExternalBackendSpec)) {
		b := newBackend(name, handlerNamed["none"])
		b.Spec.Targets = []v1alpha1.Target{{Name: "t", Address: good}}
		change(&b.Spec)
		h.ApplyObject(b)
	}
	claim(victim, "web", func(*v1alpha1.ExternalBackendSpec) {})
	claim(tenant, "squats", func(s *v1alpha1.ExternalBackendSpec) { s.Service = &v1alpha1.Service{Name: "selected"} })
	claim(tenant, "adopts", func(s *v1alpha1.ExternalBackendSpec) {
		s.Service = &v1alpha1.Service{Name: "selected", AdoptionPolicy: v1alpha1.AdoptionPolicyIfSelectorless}
	})
	claim(tenant, "attaches", func(s *v1alpha1.ExternalBackendSpec) {
		s.Service, s.ServiceRef = nil, &v1alpha1.ServiceReference{Name: "selected"}
	})
	claim(tenant, "guarded", func(s *v1alpha1.ExternalBackendSpec) {
		s.Service, s.ServiceRef = nil, &v1alpha1.ServiceReference{Name: "protected"}
	})
	claim(tenant, "forged", func(*v1alpha1.ExternalBackendSpec) {})

	m := tenant.StartManager("--protected-services="+tenant.Namespace+"/protected", "--cluster-cidrs=10.244.0.0/24")
	victim.WaitReady("web")
	tenant.WaitReady("forged")
	before := victim.Slices("web")
	// These slices have the operator's labels. One is behind the tenant's own Service, with an address
	// of the cluster, the other behind a name that another tenant uses.
	for name, service := range map[string]string{"forged-1": "forged", "forged-2": "web"} {
		err := tenant.Client.Create(t.Context(), &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: tenant.Namespace, Name: name, Labels: map[string]string{
				discoveryv1.LabelServiceName: service,
				discoveryv1.LabelManagedBy:   v1alpha1.ManagedBy,
				v1alpha1.LabelName:           service,
			}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: new("probe"), Port: new(int32(7000))}},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.9"}}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	tenant.Eventually("the forged address to be withdrawn", func() error {
		if at := endpointsAt(tenant, "forged"); len(at) != 1 || at[netip.MustParseAddr(good)] != harness.Healthy {
			return fmt.Errorf("published are %v", at)
		}
		return nil
	})
	for _, name := range []string{"squats", "adopts", "attaches", "guarded"} {
		tenant.WaitCondition(name, v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonServiceConflict)
	}
	m.Stop()
	for _, s := range []*corev1.Service{selected, protected} {
		if now := tenant.Service(s.Name); now.ResourceVersion != s.ResourceVersion {
			t.Errorf("Service %s was touched", s.Name)
		}
	}
	for _, s := range append(tenant.Slices("selected"), tenant.Slices("protected")...) {
		if s.Labels[discoveryv1.LabelManagedBy] == v1alpha1.ManagedBy {
			t.Errorf("slice %s is behind a Service that the tenant must not use", s.Name)
		}
	}
	after := victim.Slices("web")
	if len(after) != len(before) || after[0].ResourceVersion != before[0].ResourceVersion {
		t.Errorf("the slices of another namespace have changed: %v, then %v", before, after)
	}
	env.canaries.wantNobody(t)
}

// No field of a spec can end a line of a request early, or set a header of the connection.
func TestHeadersCannotSmuggleRequests(t *testing.T) {
	h := harness.New(t)
	for _, tc := range []struct {
		field  string
		change func(*v1alpha1.HTTPGet)
	}{
		{"httpHeaders[0].value", func(g *v1alpha1.HTTPGet) {
			g.HTTPHeaders = []v1alpha1.HTTPHeader{{Name: "X-Probe", Value: "1\r\nX-Smuggled: 1"}}
		}},
		{"httpHeaders[0].value", func(g *v1alpha1.HTTPGet) {
			g.HTTPHeaders = []v1alpha1.HTTPHeader{{Name: "X-Probe", Value: "1\nX-Smuggled: 1"}}
		}},
		{"httpHeaders[0].name", func(g *v1alpha1.HTTPGet) {
			g.HTTPHeaders = []v1alpha1.HTTPHeader{{Name: "X: 1\r\nX-Smuggled", Value: "1"}}
		}},
		{"path", func(g *v1alpha1.HTTPGet) { g.Path = "/ HTTP/1.1\r\nX-Smuggled: 1" }},
		{"httpHeaders[0].value", func(g *v1alpha1.HTTPGet) {
			g.HTTPHeaders = []v1alpha1.HTTPHeader{{Name: "Host", Value: "a\r\nX-Smuggled: 1"}}
		}},
	} {
		b := newBackend("smuggles", handlerNamed["http"])
		b.Namespace = h.Namespace
		tc.change(b.Spec.HealthCheck.HTTPGet)
		if err := h.Client.Create(t.Context(), b, client.DryRunAll); !apierrors.IsInvalid(err) ||
			!strings.Contains(err.Error(), tc.field) {
			t.Errorf("%s: %v", tc.field, err)
		}
	}
	names := []string{"Connection", "Content-Length", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "TE",
		"Trailer", "transfer-encoding", "Upgrade"}
	for i, name := range names {
		b := newBackend(fmt.Sprint("hop-", i), handlerNamed["http"])
		b.Spec.HealthCheck.HTTPGet.HTTPHeaders = []v1alpha1.HTTPHeader{{Name: name, Value: "1"}}
		h.ApplyObject(b)
	}
	m := h.StartManager()
	for i := range names {
		h.WaitCondition(fmt.Sprint("hop-", i), v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalidSpec)
	}
	m.Stop()
}

// crowdSize is the number of ExternalBackends of TestManyTargetsDelayNoOthers. On a quiet machine,
// run it with -crowd 300.
var crowdSize = flag.Int("crowd", 20, "how many ExternalBackends of 1,024 targets TestManyTargetsDelayNoOthers creates")

// A tenant with many targets does not delay the changes of others, neither while the targets are
// created nor afterwards, and costs bounded memory.
func TestManyTargetsDelayNoOthers(t *testing.T) {
	crowd, other := harness.New(t), harness.New(t)
	const (
		each       = 1024
		maxHeap    = 256 << 20
		perBackend = 4 << 20
	)
	bystander := newBystander(other, 6)
	m := crowd.StartManager()
	other.WaitStates("bystander", bystander.states)
	before := m.Metrics()
	created := make(chan error, 1)
	go func() {
		for i := range *crowdSize {
			b := newBackend(fmt.Sprint("crowd-", i), handlerNamed["none"])
			b.Namespace = crowd.Namespace
			for j := range each {
				b.Spec.Targets = append(b.Spec.Targets,
					v1alpha1.Target{Name: fmt.Sprint("t", j), Address: allowedAddr(j+1, netip.IPv4Unspecified()).String()})
			}
			if err := crowd.Client.Create(t.Context(), b); err != nil {
				created <- err
				return
			}
		}
		created <- nil
	}()
	for i := range 3 {
		bystander.flip(i, harness.Unhealthy)
	}
	if err := <-created; err != nil {
		t.Fatal(err)
	}
	for i := range *crowdSize {
		crowd.WaitReady(fmt.Sprint("crowd-", i))
	}
	for i := range bystander.servers[3:] {
		bystander.flip(3+i, harness.Unhealthy)
	}
	after := m.Metrics()
	const heap, rss = "go_memstats_heap_inuse_bytes", "process_resident_memory_bytes"
	t.Logf(
		"with %d ExternalBackends of %d targets the heap has grown from %.0f to %.0f MiB, the process from %.0f to %.0f MiB",
		*crowdSize,
		each,
		before[heap]/(1<<20),
		after[heap]/(1<<20),
		before[rss]/(1<<20),
		after[rss]/(1<<20),
	)
	if after[heap] > float64(maxHeap+*crowdSize*perBackend) {
		t.Errorf("the heap has grown to %.0f MiB", after[heap]/(1<<20))
	}
	m.Stop()
}
