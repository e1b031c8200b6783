package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// TestPlannedPortsAreSortedAndComplete plans random specs, with slices that somebody else has
// edited and a Service with other ports. All endpoints that are handed to package endpointslice
// have their ports in order and with a protocol, as [endpointslice.Endpoint] requires.
func TestPlannedPortsAreSortedAndComplete(t *testing.T) {
	const seeds = 500
	planned, leaving, old := 0, 0, 0
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 0))
		in := inputWithDrain(standing(), randomTargets(r)...)
		in.Backend.Spec.Ports = randomPorts(r)
		in.Answers = map[string]Answer{"srv": {Status: AnswerCurrent, Addrs: []Addr{
			{IP: addr(".7"), Port: 7000}, {IP: addr(".8"), Port: 8000},
		}}}
		before := buildCandidates(in)
		expectPortsInOrder(t, before.Endpoints)

		in.Published = endpointslice.Published(editPorts(r, inSlices(before.Endpoints...)))
		in.Backend.Spec.Targets = randomTargets(r)
		after := buildCandidates(in)
		expectPortsInOrder(t, after.Endpoints)
		planned += len(after.Endpoints)
		for i := range after.Endpoints {
			if after.Endpoints[i].Leaving() {
				leaving++
			}
		}

		live := &corev1.Service{}
		for _, p := range randomPorts(r) {
			live.Spec.Ports = append(live.Spec.Ports, corev1.ServicePort{Name: p.Name, Port: p.Port, Protocol: p.Protocol})
		}
		withOld := after.WithOldPorts(
			OldPortsInput{Backend: in.Backend, Live: live, Published: in.Published, Permit: in.Permit}, after.Endpoints)
		expectPortsInOrder(t, withOld)
		old += len(withOld) - len(after.Endpoints)

		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if planned < seeds || leaving < seeds/10 || old < seeds/10 {
		t.Errorf("%d endpoints, %d leaving, %d with old ports: too few", planned, leaving, old)
	}
}

func expectPortsInOrder(t *testing.T, endpoints []Endpoint) {
	t.Helper()
	for i := range endpoints {
		ports := endpoints[i].Ports
		lacksProtocol := slices.ContainsFunc(ports, func(p Port) bool { return p.Protocol == "" })
		if lacksProtocol || !slices.IsSortedFunc(ports, endpointslice.ComparePorts) {
			t.Errorf("ports of %s: %+v", endpoints[i].Addr, ports)
		}
	}
}

// randomTargets returns up to two literal targets, some with ports of their own, and the target
// srv.
func randomTargets(r *rand.Rand) []v1alpha1.Target {
	targets := []v1alpha1.Target{{Name: "srv", SRVName: "_http._tcp.example.com"}}
	for i := range r.IntN(3) {
		t := v1alpha1.Target{Name: fmt.Sprint("t", i), Address: addr(fmt.Sprint(".", 1+r.IntN(4))).String()}
		if r.IntN(2) == 0 {
			t.Ports = []v1alpha1.TargetPort{{Name: "b", TargetPort: 9000}, {Name: "a", TargetPort: 9001}}
		}
		targets = append(targets, t)
	}
	return targets
}

// randomPorts returns one to four ports in any order, some without a protocol.
func randomPorts(r *rand.Rand) []v1alpha1.Port {
	var ports []v1alpha1.Port
	for i, name := range []string{"d", "b", "a", "c"} {
		protocol := []corev1.Protocol{"", corev1.ProtocolTCP, corev1.ProtocolUDP}[r.IntN(3)]
		ports = append(ports, v1alpha1.Port{Name: name, Port: int32(80 + i), Protocol: protocol})
	}
	r.Shuffle(len(ports), func(i, j int) { ports[i], ports[j] = ports[j], ports[i] })
	return ports[:1+r.IntN(len(ports))]
}

// editPorts shuffles the ports of slices, and takes some protocols that the API server would fill
// in again.
func editPorts(r *rand.Rand, list []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	for _, s := range list {
		r.Shuffle(len(s.Ports), func(i, j int) { s.Ports[i], s.Ports[j] = s.Ports[j], s.Ports[i] })
		for i := range s.Ports {
			if *s.Ports[i].Protocol == corev1.ProtocolTCP && r.IntN(2) == 0 {
				s.Ports[i].Protocol = nil
			}
		}
	}
	return list
}
