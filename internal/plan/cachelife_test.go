package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// life is an ExternalBackend, everything that its plans depend on, and what the API server holds of
// it.
type life struct {
	t      *testing.T
	random *rand.Rand
	seed   uint64

	backend  *v1alpha1.ExternalBackend
	families Families
	headless bool
	lacking  string // a port that the Service lacks
	answers  map[string]Answer
	denied   map[netip.Addr]Refusal
	rules    int // the generation of denied
	verdicts map[ProbeID]Verdict
	template endpointslice.Template
	limit    int
	// siblings, older and handover are endpoints of others.
	siblings, older, handover []Endpoint
	now                       time.Time

	stored  cluster
	version int
	earlier []*discoveryv1.EndpointSlice // what was stored at the plan before

	cache         Cache
	tier          *TierState
	probes        []Probe
	named         []NamedAddr
	plans, reuses int64
	reused        bool // whether the last plan used the one before
}

// newLife returns a life that seed determines.
func newLife(t *testing.T, seed uint64) *life {
	r := rand.New(rand.NewPCG(seed, 11))
	l := &life{
		t: t, random: r, seed: seed,
		backend: &v1alpha1.ExternalBackend{
			ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: "default", UID: "uid"},
		},
		families: Families{IPv4: true, IPv6: r.IntN(2) == 0},
		answers:  map[string]Answer{}, denied: map[netip.Addr]Refusal{}, verdicts: map[ProbeID]Verdict{},
		template: endpointslice.Template{
			Namespace: "default", Service: "shop", Backend: "shop",
			Max: []int{1, 3, 4, 10}[r.IntN(4)], Labels: map[string]string{"team": "a"}, ZoneHints: r.IntN(2) == 0,
			Owner: &metav1.OwnerReference{
				APIVersion: "v1", Kind: "Service", Name: "shop", UID: "u-1",
				Controller: new(true), BlockOwnerDeletion: new(true),
			},
		},
		limit: []int{6, 1000}[r.IntN(2)], now: testNow, stored: cluster{},
	}
	spec := &l.backend.Spec
	spec.Ports = []v1alpha1.Port{
		{Name: "http", Port: 80, TargetPort: 8080, Protocol: corev1.ProtocolTCP},
		{Name: "more", Port: 90, Protocol: corev1.ProtocolTCP},
	}[:1+r.IntN(2)]
	spec.DrainSeconds = new([]int32{0, 30}[r.IntN(2)])
	spec.Failover = &v1alpha1.Failover{
		WhenNoTierQualifies: []v1alpha1.NoTierPolicy{
			v1alpha1.NoTierHealthyEndpoints, v1alpha1.NoTierAllEndpoints,
		}[r.IntN(2)],
	}
	if r.IntN(8) > 0 {
		spec.HealthCheck = &v1alpha1.HealthCheck{TCPSocket: &v1alpha1.TCPSocket{}}
		if r.IntN(6) == 0 {
			spec.HealthCheck.Mode = v1alpha1.HealthCheckModeObserve
		}
		if r.IntN(2) == 0 {
			spec.HealthCheck.InitialState = v1alpha1.InitialStateReady
		}
	}
	for range 1 + r.IntN(12) {
		l.addTarget()
	}
	return l
}

// address returns one of a few addresses, so that targets share some.
func (l *life) address() netip.Addr {
	if l.random.IntN(4) == 0 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", 1+l.random.IntN(10)))
	}
	return netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + l.random.IntN(30))})
}

// addTarget adds a target, unless its name is taken.
func (l *life) addTarget() {
	t := v1alpha1.Target{
		Name:     fmt.Sprintf("t%d", l.random.IntN(1000)),
		Zone:     []string{"", "a", "b"}[l.random.IntN(3)],
		NodeName: []string{"", "n"}[l.random.IntN(2)],
		Tier:     new(int32(l.random.IntN(2))),
	}
	if slices.ContainsFunc(l.backend.Spec.Targets, func(o v1alpha1.Target) bool { return o.Name == t.Name }) {
		return
	}
	switch l.random.IntN(4) {
	case 0:
		t.Hostname = t.Name + ".example.com"
	case 1:
		t.SRVName = "_http._tcp." + t.Name + ".example.com"
	default:
		t.Address = l.address().String()
	}
	if l.random.IntN(6) == 0 && t.SRVName == "" {
		t.Ports = []v1alpha1.TargetPort{{Name: "http", TargetPort: int32(8080 + l.random.IntN(2))}}
	}
	l.backend.Spec.Targets = append(l.backend.Spec.Targets, t)
	l.backend.Generation++
	l.answer(&t)
}

// answer gives a target's name a new answer.
func (l *life) answer(t *v1alpha1.Target) {
	if t.Address != "" {
		return
	}
	l.answers = maps.Clone(l.answers)
	a := Answer{
		Status: []AnswerStatus{AnswerPending, AnswerCurrent, AnswerCurrent, AnswerCurrent, AnswerStale}[l.random.IntN(5)],
	}
	for range l.random.IntN(5) {
		addr := Addr{IP: l.address()}
		if t.SRVName != "" {
			addr.Port, addr.Rank = uint16(8080+l.random.IntN(2)), uint8(l.random.IntN(2))
		}
		if !slices.Contains(a.Addrs, addr) {
			a.Addrs = append(a.Addrs, addr)
		}
	}
	l.answers[t.Name] = a
}

// anyTarget returns a random target; nil if there is none.
func (l *life) anyTarget() *v1alpha1.Target {
	if n := len(l.backend.Spec.Targets); n > 0 {
		return &l.backend.Spec.Targets[l.random.IntN(n)]
	}
	return nil
}

// live goes through steps, each a few changes and a plan.
func (l *life) live(steps int) {
	for step := range steps {
		for range 1 + l.random.IntN(2) {
			l.happen()
		}
		l.plan()
		if l.t.Failed() {
			l.t.Fatalf("step %d", step)
		}
		l.now = l.now.Add(time.Duration(l.random.IntN(5000)) * time.Millisecond)
	}
}

// happen makes a change between two plans, mostly of verdicts.
func (l *life) happen() {
	switch n := l.random.IntN(100); {
	case n < 84:
		for range 1 + l.random.IntN(3) {
			if len(l.probes) > 0 {
				l.verdicts[l.probes[l.random.IntN(len(l.probes))].ID] = Verdict(l.random.IntN(3))
			}
		}
	case n < 91:
		l.edit()
	case n < 96:
		l.meddle()
	default:
		l.changeSurroundings()
	}
}

// edit changes the spec, or the answers for its names.
func (l *life) edit() {
	t := l.anyTarget()
	switch n := l.random.IntN(8); {
	case n == 0 || t == nil:
		l.addTarget()
	case n == 1:
		i := l.random.IntN(len(l.backend.Spec.Targets))
		l.backend = l.backend.DeepCopy()
		l.backend.Spec.Targets = slices.Delete(l.backend.Spec.Targets, i, i+1)
		l.backend.Generation++
	case n == 2:
		t.AdminState = []v1alpha1.AdminState{
			v1alpha1.AdminStateActive, v1alpha1.AdminStateDraining, v1alpha1.AdminStateDisabled,
		}[l.random.IntN(3)]
		l.backend.Generation++
	case n == 3:
		t.Zone, t.Tier = "c", new(1-t.EffectiveTier())
		l.backend.Generation++
	case n == 4:
		l.reword(t)
	default:
		l.answer(t)
	}
}

// reword changes an answer, but none of its addresses.
func (l *life) reword(t *v1alpha1.Target) {
	a, ok := l.answers[t.Name]
	if !ok {
		return
	}
	switch l.random.IntN(5) {
	case 0:
		a.Status = AnswerStale
	case 1:
		a.Reason += "r"
	case 2:
		a.Cause += "c"
	case 3:
		a.Omitted++
	case 4:
		a.Refusal.WouldDeny = !a.Refusal.WouldDeny
	}
	l.answers = maps.Clone(l.answers)
	l.answers[t.Name] = a
}

// meddle changes what is stored, as other people and their webhooks may.
func (l *life) meddle() {
	for _, name := range slices.Sorted(maps.Keys(l.stored)) {
		s := l.stored[name].DeepCopy()
		switch n := l.random.IntN(11); {
		case n == 0 || s.DeletionTimestamp != nil:
			delete(l.stored, name)
			continue
		case n == 8: // a finalizer keeps it
			s.DeletionTimestamp = &metav1.Time{Time: l.now}
		case n == 1:
			s.Labels["team"] = "z"
		case n == 2:
			s.Annotations = nil
		case n == 3:
			s.OwnerReferences = nil
		case n < 8:
			l.meddleWithEndpoints(s)
		case n == 9: // one more, without endpoints
			s.Name, s.UID, s.Endpoints = name+"-0", "", nil
		default: // another copy of the same object
			l.stored[name] = s
			continue
		}
		l.store(s)
		if l.random.IntN(3) > 0 {
			return
		}
	}
}

// meddleWithEndpoints changes the endpoints of a slice.
func (l *life) meddleWithEndpoints(s *discoveryv1.EndpointSlice) {
	if len(s.Endpoints) == 0 {
		return
	}
	switch e := &s.Endpoints[l.random.IntN(len(s.Endpoints))]; l.random.IntN(12) {
	case 0:
		e.Conditions = discoveryv1.EndpointConditions{Ready: new(l.random.IntN(2) == 0)}
	case 1:
		e.Zone = new("elsewhere")
	case 2:
		e.Addresses = []string{"198.51.100.77"}
	case 3:
		s.Endpoints = append(s.Endpoints, *e)
	case 4:
		s.Endpoints = s.Endpoints[1:]
	case 5:
		s.Endpoints = nil
	case 6:
		s.AddressType = discoveryv1.AddressTypeFQDN
	case 7:
		e.Conditions.Serving = new(e.Conditions.Serving != nil && !*e.Conditions.Serving)
	case 8:
		e.Conditions.Serving = nil
	case 9:
		if s.AddressType == discoveryv1.AddressTypeIPv4 {
			e.Addresses = []string{"::ffff:" + e.Addresses[0]}
		}
	case 10:
		slices.Reverse(s.Endpoints)
		l.attribute(s)
	case 11:
		s.Ports = []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8081)), Protocol: new(corev1.ProtocolTCP)}}
	}
}

// attribute makes the annotation fit the order of the endpoints, with one run for each of them.
func (l *life) attribute(s *discoveryv1.EndpointSlice) {
	var runs []string
	known := endpointslice.Published(l.stored.list()).Endpoints()
	for _, e := range s.Endpoints {
		for i := range known {
			if known[i].Addr.String() == e.Addresses[0] {
				run, _ := strings.CutPrefix(inSlices(known[i])[0].Annotations[annotationEndpoints], "v1:")
				runs = append(runs, run)
				break
			}
		}
	}
	if s.Annotations != nil {
		s.Annotations[annotationEndpoints] = "v1:" + strings.Join(runs, ",")
	}
}

// changeSurroundings changes what the ExternalBackend shares with others: the Service, policy,
// flags.
func (l *life) changeSurroundings() {
	toggle := func(list *[]Endpoint) {
		if *list != nil {
			*list = nil
			return
		}
		for range 1 + l.random.IntN(2) {
			addr := l.address()
			if n := len(l.probes); n > 0 {
				addr = l.probes[l.random.IntN(n)].ID.Addr
			}
			*list = append(*list, Endpoint{
				Target:     "other",
				Addr:       addr,
				Ports:      []Port{{Name: "http", Port: 8080, Protocol: corev1.ProtocolTCP}},
				Conditions: Conditions{Ready: true, Serving: true, Healthy: true},
			})
		}
	}
	switch l.random.IntN(14) {
	case 0:
		toggle(&l.siblings)
	case 1:
		toggle(&l.older)
	case 2:
		toggle(&l.handover)
	case 3:
		l.denied = map[netip.Addr]Refusal{
			l.address(): {Denied: true, Kind: "not allowed"},
			l.address(): {Denied: true, KeepPublished: true, Kind: "this cluster's"},
		}
		l.rules++
	case 4:
		l.families.IPv6 = !l.families.IPv6
	case 5:
		l.headless = !l.headless
	case 9:
		l.template.Headless = !l.template.Headless
	case 10:
		l.template.ZoneHints = !l.template.ZoneHints
	case 11:
		l.template.NodeHints = !l.template.NodeHints
	case 12:
		l.limit = []int{6, 10, 1000}[l.random.IntN(3)]
	case 13:
		l.template.Max = 1 + l.random.IntN(12)
	case 6:
		if l.lacking = "more"; l.random.IntN(2) == 0 {
			l.lacking = ""
		}
	case 7:
		l.template.Labels = map[string]string{"team": []string{"a", "b"}[l.random.IntN(2)]}
	case 8:
		l.template.Owner = l.template.Owner.DeepCopy()
		l.template.Owner.UID = types.UID([]string{"u-1", "u-2"}[l.random.IntN(2)])
	}
}
