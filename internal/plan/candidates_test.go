package plan

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// drained is a plan of an ExternalBackend whose addresses drain for ten minutes.
func drained(published *Standing, targets ...v1alpha1.Target) Input {
	b := &v1alpha1.ExternalBackend{}
	b.Spec.Ports = []v1alpha1.Port{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}
	b.Spec.Targets, b.Spec.DrainSeconds = targets, 600
	return Input{
		Backend: b, Families: Families{IPv4: true}, Serves: func(*v1alpha1.Port) bool { return true },
		Permit: func(string, netip.Addr, []Port) Refusal { return Refusal{} }, Published: published, Max: 100, Now: testNow,
	}
}

// standing publishes endpoints and reads them back.
func standing(endpoints ...Endpoint) *Standing {
	return Published(Slices(SliceTemplate{Namespace: "default", Service: "shop", Backend: "shop", Max: 100}, endpoints, nil).Create)
}

func at(target, addr string) Endpoint {
	return Endpoint{Target: target, Addr: netip.MustParseAddr(addr), Ports: []Port{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}, Ready: true, Serving: true}
}

// TestOthersDoNotLeave: of what others publish behind the Service only what the spec names is taken over, whatever their targets were called; what is ours drains.
func TestOthersDoNotLeave(t *testing.T) {
	published := standing(at("former", "203.0.113.2"), at("primary", "203.0.113.1"))
	published.Add(standing(at("primary", "203.0.113.3"), at("standby", "203.0.113.4")).Endpoints)
	c := FindCandidates(drained(published, v1alpha1.Target{Name: "primary", Address: "203.0.113.4"}))
	var got []string
	for _, e := range c.Endpoints {
		text := e.Target + " " + e.Addr.String()
		if e.leaving() {
			text += " leaves"
		}
		got = append(got, text)
	}
	if diff := cmp.Diff([]string{"primary 203.0.113.4", "former 203.0.113.2 leaves", "primary 203.0.113.1 leaves"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
