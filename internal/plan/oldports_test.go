package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// TestOldPortsStayPublished plans endpoints while the Service cannot get the ports of the spec.
// They are published for the ports that the Service still has.
func TestOldPortsStayPublished(t *testing.T) {
	ports := func(texts ...string) (out []v1alpha1.Port) { // each is "name port targetPort"
		for _, text := range texts {
			p := v1alpha1.Port{Protocol: corev1.ProtocolTCP}
			if _, err := fmt.Sscanf(text, "%s %d %d", &p.Name, &p.Port, &p.TargetPort); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			out = append(out, p)
		}
		return out
	}
	published := func(target, addr string, ports ...Port) Endpoint {
		conditions := Conditions{Serving: true, Healthy: true}
		return Endpoint{Target: target, Addr: netip.MustParseAddr(addr), Ports: ports, Conditions: conditions}
	}
	port := func(name string, number int32) Port {
		return Port{Name: name, Port: number, Protocol: corev1.ProtocolTCP}
	}
	const a, b, c = "203.0.113.1", "203.0.113.2", "203.0.113.3"
	for _, tt := range []struct {
		name       string
		live, spec []v1alpha1.Port
		before     []Endpoint
		denied     int32
		want       []string
	}{
		{
			"the Service has the ports of spec",
			ports("http 80 8080"), ports("http 80 9090"), []Endpoint{published("x", a, port("http", 8080))}, 0,
			[]string{a + " http:9090", b + " http:9090", c + " http:7000"},
		},
		{
			"a port is added",
			ports("http 80 8080"), ports("http 80 8080", "admin 81 81"), nil, 0,
			[]string{a + " admin:81 http:8080", b + " admin:81 http:8080", c + " admin:81 http:7000"},
		},
		{
			"a port is renamed and leads elsewhere",
			ports("http 80 8080"), ports("web 80 9090"), []Endpoint{published("x", a, port("http", 8080))}, 0,
			[]string{a + " web:9090", a + " http:9090", b + " web:9090", b + " http:9090", c + " web:7000", c + " http:7000"},
		},
		{
			"a port is renamed and another stays",
			ports("http 80 8080", "db 5432 5432"), ports("web 80 8080", "db 5432 5432"), nil, 0,
			[]string{
				a + " db:5432 web:8080", a + " db:5432 http:8080", b + " db:5432 web:8080", b + " db:5432 http:8080",
				c + " db:5432 web:7000", c + " db:5432 http:7000",
			},
		},
		{
			"a port is removed, and goes on leading where it led: for the endpoint, the target, or the first published",
			ports("db 5432 5432", "old 90 90"), ports("db 5432 5432"),
			[]Endpoint{
				published("x", "203.0.113.9", port("old", 90)), published("x", "203.0.113.7", port("old", 90)),
				published("x", a, port("old", 91)), published("y", "203.0.113.8", port("old", 92)),
			}, 0,
			[]string{a + " db:5432 old:91", b + " db:5432 old:92", c + " db:7000 old:90"},
		},
		{
			"it is unknown where a port led",
			ports("db 5432 5432", "old 90 90"), ports("db 5432 5432"), nil, 0,
			[]string{a + " db:5432", b + " db:5432", c + " db:7000"},
		},
		{
			"policy refuses where a port led",
			ports("db 5432 5432", "old 90 90"), ports("db 5432 5432"),
			[]Endpoint{published("x", a, port("old", 90)), published("y", b, port("old", 91))}, 90,
			[]string{a + " db:5432", b + " db:5432 old:91", c + " db:7000"},
		},
		{
			"one port is replaced by another",
			ports("http 80 8080"), ports("web 81 8081"), []Endpoint{published("x", a, port("http", 8080))}, 0,
			[]string{a + " web:8081", a + " http:8080", b + " web:8081", b + " http:8080", c + " web:7000", c + " http:8080"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := inputWithDrain(
				standing(tt.before...),
				v1alpha1.Target{Name: "x", Address: a},
				v1alpha1.Target{Name: "y", Address: b},
				v1alpha1.Target{Name: "z", SRVName: "_http._tcp.example.com"},
			)
			in.Answers = map[string]Answer{"z": {Status: AnswerCurrent, Addrs: []Addr{{IP: netip.MustParseAddr(c), Port: 7000}}}}
			in.Backend.Spec.DrainSeconds, in.Backend.Spec.Ports = nil, tt.spec
			in.Permit = func(_ string, _ netip.Addr, ports []Port) Refusal {
				return Refusal{Denied: slices.ContainsFunc(ports, func(p Port) bool { return p.Port == tt.denied })}
			}
			live := &corev1.Service{}
			for _, p := range tt.live {
				live.Spec.Ports = append(live.Spec.Ports, corev1.ServicePort{Name: p.Name, Port: p.Port})
			}
			candidates := buildCandidates(in)
			unchanged := slices.Clone(candidates.Endpoints)
			got := candidates.WithOldPorts(
				OldPortsInput{Backend: in.Backend, Live: live, Published: in.Published, Permit: in.Permit},
				candidates.Endpoints,
			)
			if diff := cmp.Diff(tt.want, addressesAndPorts(got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			sameAddr := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
			if diff := cmp.Diff(unchanged, candidates.Endpoints, sameAddr); diff != "" {
				t.Errorf("WithOldPorts changed the candidates:\n%s", diff)
			}
		})
	}
}

// addressesAndPorts returns each endpoint as its address and its ports by name.
func addressesAndPorts(endpoints []Endpoint) (texts []string) {
	for _, e := range endpoints {
		text := e.Addr.String()
		for _, p := range e.Ports {
			text += fmt.Sprintf(" %s:%d", p.Name, p.Port)
		}
		texts = append(texts, text)
	}
	return texts
}
