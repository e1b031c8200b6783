package controllers

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/internal/probe"
)

func idAt(target, addr string) probe.ID {
	return probe.ID{Target: target, Addr: netip.MustParseAddr(addr), Port: 8080}
}

// A witness probes the endpoints that the spec and policy give it, with the check of the spec. It
// dials nothing that a question alone names.
func TestWitnessProbesWhatSpecAndPolicyAllow(t *testing.T) {
	for name, test := range map[string]struct {
		spec string
		ids  []probe.ID
		want []string // what is dialled
	}{
		"literal":          {literalSpec, []probe.ID{idAt("a", "203.0.113.1")}, []string{"203.0.113.1:8080"}},
		"another address":  {literalSpec, []probe.ID{idAt("a", "203.0.113.9")}, nil},
		"another target":   {literalSpec, []probe.ID{idAt("b", "203.0.113.1")}, nil},
		"unknown target":   {literalSpec, []probe.ID{idAt("z", "203.0.113.1")}, nil},
		"of a name":        {poolSpec, []probe.ID{idAt("pool", "203.0.113.7")}, []string{"203.0.113.7:8080"}},
		"loopback":         {poolSpec, []probe.ID{idAt("pool", "127.0.0.1")}, nil},
		"metadata service": {poolSpec, []probe.ID{idAt("pool", "169.254.169.254")}, nil},
		"one of two": {
			literalSpec, []probe.ID{idAt("b", "203.0.113.2"), idAt("a", "203.0.113.9")}, []string{"203.0.113.2:8080"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			env := newTestEnv(t)
			env.spec(test.spec)
			env.settle()
			s := newSubjects(env.reconciler)
			check, endpoints, err := s.find(t.Context(), shop, env.backend().Generation, test.ids)
			if err != nil || check.TCP == nil {
				t.Fatalf("the check is %+v, error %v", check, err)
			}
			var dialled []string
			for _, e := range endpoints {
				dialled = append(dialled, e.Dial.String())
				if err := s.permit(shop, e.Dial); err != nil {
					t.Errorf("%s is refused: %v", e.Dial, err)
				}
			}
			if strings.Join(dialled, " ") != strings.Join(test.want, " ") {
				t.Errorf("dialled are %v, want %v", dialled, test.want)
			}
			for _, id := range test.ids {
				addr := netip.AddrPortFrom(id.Addr, 8080)
				if err := s.permit(shop, addr); (err == nil) != strings.Contains(strings.Join(test.want, " "), addr.String()) {
					t.Errorf("%s is permitted: %v", addr, err)
				}
			}
		})
	}
}

// A witness refuses what it does not know: another generation, an ExternalBackend that is gone,
// one without a check, and one whose credentials it can't read.
func TestWitnessRefusesWhatItCannotCheck(t *testing.T) {
	const withSecret = `{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}],
		healthCheck: {tcpSocket: {}, tls: {caCertificateRefs: [{kind: ConfigMap, name: missing}]}},
		targets: [{name: a, address: 203.0.113.1}]}`
	for name, test := range map[string]struct {
		spec  string
		key   types.NamespacedName
		later int64
	}{
		"another generation":  {literalSpec, shop, 1},
		"unknown":             {literalSpec, types.NamespacedName{Namespace: "elsewhere", Name: "x"}, 0},
		"missing credentials": {withSecret, shop, 0},
		"without a check": {`{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}],
			targets: [{name: a, address: 203.0.113.1}]}`, shop, 0},
	} {
		t.Run(name, func(t *testing.T) {
			env := newTestEnv(t)
			env.spec(test.spec)
			env.settle()
			s := newSubjects(env.reconciler)
			_, endpoints, err := s.find(
				t.Context(), test.key, env.backend().Generation+test.later, []probe.ID{idAt("a", "203.0.113.1")})
			if err == nil {
				t.Errorf("it probes %v", endpoints)
			}
			if s.permit(test.key, netip.MustParseAddrPort("203.0.113.1:8080")) == nil {
				t.Error("an address may be dialled that nobody may ask about")
			}
		})
	}
}

// A replica gives its share away after a minute in which it was wrong about most of it, and takes
// one again after a minute in which it was right.
func TestAgreementTakesAMinute(t *testing.T) {
	var a agreement
	now := time.Now()
	for i, step := range []struct {
		wrong         bool
		after         time.Duration
		aside, change bool
	}{
		{wrong: true},
		{wrong: true, after: 59 * time.Second},
		{wrong: false, after: time.Second},
		{wrong: true, after: time.Second},
		{wrong: true, after: time.Minute, aside: true, change: true},
		{wrong: false, after: time.Second, aside: true},
		{wrong: true, after: 30 * time.Second, aside: true},
		{wrong: false, after: time.Second, aside: true},
		{wrong: false, after: time.Minute, change: true},
		{wrong: false, after: time.Hour},
	} {
		now = now.Add(step.after)
		if changed := a.look(step.wrong, now); changed != step.change || a.aside != step.aside {
			t.Errorf("step %d: set aside %t, changed %t; want %t, %t", i, a.aside, changed, step.aside, step.change)
		}
	}
}
