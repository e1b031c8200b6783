package policy

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

func TestSmoke(t *testing.T) {
	p := v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	p.Spec.Allow = []v1alpha1.PolicyRule{{CIDRs: []string{"203.0.113.0/24"}, Ports: []v1alpha1.PolicyPort{{Port: 5432}}}}
	s, problems := Compile(Input{Policies: []v1alpha1.ExternalBackendPolicy{p}})
	if problems != nil {
		t.Fatal(problems)
	}
	v := s.For(nil)
	if d := v.Target("", netip.MustParseAddr("203.0.113.1"), Port{corev1.ProtocolTCP, 5432}); !d.Allowed {
		t.Fatal(d)
	}
	if d := v.Target("", netip.MustParseAddr("203.0.113.1"), Port{corev1.ProtocolTCP, 5433}); d.Kind != PortNotAllowed {
		t.Fatal(d)
	}
}
