package security

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness"
)

// forbidden returns addresses of every forbidden kind. The schema refuses a literal one of the
// first list, and leaves one of the second to the controller. Nobody can dial those of the third
// list: TCP has no multicast, and link-local IPv6 needs a zone.
func forbidden(c *canaries) (refused, passed, beyond []netip.Addr) {
	refused = addresses(`127.0.0.1 127.8.8.8 127.255.255.254 0.0.0.0 169.254.169.254 169.254.170.2 169.254.20.10
		:: ::1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 ::ffff:10.244.0.9`)
	beyond = addresses(`224.0.0.1 239.255.255.250 255.255.255.255 fe80::1 fe80::a9fe:a9fe ff02::1 ff0e::fb`)
	passed = addresses(`0.1.2.3
		100.100.100.200 168.63.129.16 192.0.0.192 100.80.80.80 100.96.0.96
		fd00:ec2::254 fd00:ec2::23 fd20:ce::254 fd00:a9fe:a9fe::1 fd00:c1::a9fe:a9fe fd00:42::42 fd00:100::100:200
		10.244.0.9 fd00:10:244::9 203.0.113.2 2001:db8:113::2
		::7f00:1 ::a9fe:a9fe ::af4:9 ::ffff:0:7f00:1 ::ffff:0:a9fe:a9fe
		64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b::6464:64c8 64:ff9b::af4:9 64:ff9b::cb00:7102 64:ff9b::e000:1
		64:ff9b:1::a9fe:a9fe 64:ff9b:1:a9fe:a9:fe00:: 64:ff9b:1:7f:0:1:: 64:ff9b:1:12::af4:9
		2002:7f00:1::1 2002:a9fe:a9fe:: 2002:af4:9::1 2002:cb00:7102::7 2002:6464:64c8::1
		2001:0:7f00:1:: 2001:0:cb00:7101:0:f227:80ff:fffe 2001:0:cb00:7101:0:f227:5601:5601 2001:0:cb00:7101:0:f227:f50b:fff6
		2001:db8:5efe:1:0:5efe:7f00:1 2001:db8:5efe:1:200:5efe:a9fe:a9fe 2001:db8:5efe:1:0:5efe:af4:9`)
	return refused, append(passed, c.service4, c.service6), beyond
}

// attack is one way to one forbidden address, probed with one handler.
type attack struct {
	way     string
	bad     netip.Addr
	handler handler
	number  int
}

func (a attack) String() string { return fmt.Sprintf("%s %s by %s", a.way, a.bad, a.handler.name) }

// backend returns the name of the ExternalBackend that has the attack as a target.
func (a attack) backend() string { return a.way + "-" + a.handler.name }

func (a attack) target() string { return fmt.Sprint("t", a.number) }

// allowed returns the allowed address that accompanies the forbidden one.
func (a attack) allowed() netip.Addr { return allowedAddr(a.number, a.bad) }

// host returns the name that resolves to the forbidden address.
func (a attack) host() string { return fmt.Sprintf("%s.%s.hostile.example", a.target(), a.way) }

// ways lists how an address may get into a spec, each with the hostile answers of its attacks. A
// literal and a redirect need none.
var ways = map[string]func(l *hostileDNS, a attack){
	"literal":  nil,
	"redirect": nil,
	"sole":     func(l *hostileDNS, a attack) { l.setAnswer(a.host(), addressAnswer(a.bad)) },
	"mixed":    func(l *hostileDNS, a attack) { l.setAnswer(a.host(), addressAnswer(a.bad, a.allowed())) },
	// Each answer differs from the one before.
	"rebind": func(l *hostileDNS, a attack) {
		l.setAnswer(a.host(), func(r *dnsReply, n int) {
			switch n % 4 {
			case 0:
				r.add(r.name, a.allowed())
			case 1:
				r.add(r.name, a.bad)
			case 2:
				r.add(r.name, a.allowed(), a.bad)
			default:
				failLookup(r, n)
			}
		})
	},
	// The last name looks like one of the cluster, or of the machine.
	"cname": func(l *hostileDNS, a attack) {
		end := a.target() + []string{".default.svc.cluster.local", ".localhost", ".metadata.google.internal"}[a.number%3]
		l.setAnswer(end, addressAnswer(a.bad))
		l.setAnswer(a.host(), func(r *dnsReply, _ int) {
			if r.alias(end); a.number%2 == 0 { // otherwise the resolver must ask for the last name
				r.add(end, a.bad)
			}
		})
	},
	"srv": func(l *hostileDNS, a attack) {
		end := "host." + a.host()
		l.setAnswer(end, addressAnswer(a.bad))
		l.setAnswer("_probe._tcp."+a.host(), func(r *dnsReply, _ int) { r.service(end, uint16(a.handler.port), a.bad) })
	},
	// The host of the record is spelled like an address.
	"srv-literal": func(l *hostileDNS, a attack) {
		l.setAnswer("_probe._tcp."+a.host(), func(r *dnsReply, _ int) {
			r.service(a.bad.String(), uint16(a.handler.port), a.bad)
		})
	},
}

// spec returns the attack as a target.
func (a attack) spec() v1alpha1.Target {
	t := v1alpha1.Target{Name: a.target()}
	switch a.way {
	case "literal":
		t.Address = a.bad.String()
	case "redirect":
		t.Address = a.allowed().String()
		t.Ports = []v1alpha1.TargetPort{{Name: "probe", TargetPort: int32(redirectPort + a.number)}}
	case "srv", "srv-literal":
		t.SRVName = "_probe._tcp." + a.host()
	default:
		t.Hostname = a.host()
	}
	return t
}

// generate combines every way with every address, or with every second one. The handlers alternate,
// so that each is combined with each way and each kind of address.
func generate(c *canaries) (attacks []attack) {
	refused, passed, beyond := forbidden(c)
	all := slices.Concat(refused, passed, beyond)
	for w, way := range []struct {
		name  string
		every int
		to    []netip.Addr
		by    []handler
	}{
		{"literal", 1, passed, handlers},
		{"sole", 1, all, handlers},
		{"mixed", 1, all, handlers},
		{"rebind", 1, all, handlers},
		{"cname", 2, all, handlers},
		{"srv", 2, all[1:], handlers},
		{"srv-literal", 2, addresses("127.0.0.1 169.254.169.254 10.96.0.1 10.244.0.9 100.100.100.200 203.0.113.2"), handlers},
		// Plain TCP has no redirects.
		{"redirect", 2, all, []handler{
			handlerNamed["http"], handlerNamed["https"], handlerNamed["grpc"], handlerNamed["grpc-tls"],
		}},
	} {
		for i := 0; i < len(way.to); i += way.every {
			attacks = append(
				attacks,
				attack{way: way.name, bad: way.to[i], handler: way.by[(i/way.every+w)%len(way.by)], number: len(attacks) + 1},
			)
		}
	}
	return attacks
}

// control is the name of a harmless target in each backend.
const control = "control"

// backends returns the ExternalBackends that have the attacks as targets, by name.
func backends(env environment, attacks []attack) map[string]*v1alpha1.ExternalBackend {
	all := map[string]*v1alpha1.ExternalBackend{}
	for _, a := range attacks {
		b := all[a.backend()]
		if b == nil {
			b = newBackend(a.backend(), a.handler)
			allowed := allowedAddr(20000+len(all), netip.IPv4Unspecified())
			b.Spec.Targets = []v1alpha1.Target{{Name: control, Address: allowed.String()}}
			b.Spec.DNS = &v1alpha1.DNS{}
			if a.way == "rebind" {
				b.Spec.DNS.MinTTLSeconds = 1
			}
			switch len(all) % 3 { // 2: the manager uses its own resolv.conf
			case 0:
				b.Spec.DNS.Nameservers = []string{env.dns.V4.String()}
			case 1:
				b.Spec.DNS.Nameservers = []string{fmt.Sprintf("[%s]:53", env.dns.V6)}
				b.Spec.DNS.Transport = v1alpha1.DNSTransportTCP
				b.Spec.DrainSeconds = new(int32(2))
			}
			all[a.backend()] = b
		}
		b.Spec.Targets = append(b.Spec.Targets, a.spec())
		if answer := ways[a.way]; answer != nil {
			answer(env.dns, a)
		}
	}
	return all
}

// newBackend returns a dual-stack ExternalBackend that is probed by a handler.
func newBackend(name string, by handler) *v1alpha1.ExternalBackend {
	b := &v1alpha1.ExternalBackend{ObjectMeta: metav1.ObjectMeta{Name: name}}
	b.Spec.Service = &v1alpha1.Service{IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack)}
	b.Spec.Ports = []v1alpha1.Port{{Name: "probe", Port: int32(by.port)}}
	if by.check != nil {
		b.Spec.HealthCheck = pace.DeepCopy()
		by.check(b.Spec.HealthCheck)
	}
	return b
}

// No forbidden address is ever dialled, published or reported. The test tries every way to every
// forbidden address, before and after a crash of the manager, and while policies are added,
// narrowed and deleted.
func TestNoForbiddenAddressIsDialledOrPublished(t *testing.T) {
	h := harness.New(t)
	env := sharedEnvironment(h)
	refused, passed, beyond := forbidden(env.canaries)
	wantCanariesReachable(h, env.canaries, slices.Concat(refused, passed), beyond)
	attacks := generate(env.canaries)
	wantLiteralsRefused(h, refused, beyond)
	nameservers := nameserverAttacks(h, env, slices.Concat(passed, addresses("169.254.20.10 fe80::1")))
	if n := len(attacks) + len(nameservers) + len(refused) + len(beyond); n < 300 {
		t.Errorf("there are %d cases, fewer than 300", n)
	} else {
		t.Logf("%d cases", n)
	}
	all := slices.Concat(refused, passed, beyond)
	isForbidden := func(a netip.Addr) bool {
		return slices.ContainsFunc(all, func(bad netip.Addr) bool { return bad.Unmap() == a.Unmap() })
	}
	recorder := startRecorder(h,
		rules{address: isAllowed, name: hasSuffix(".good.example", "nowhere.invalid"), secret: isForbidden}, h.Namespace)
	for _, a := range attacks {
		if a.way == "redirect" {
			secure := a.handler.name == "https" || a.handler.name == "grpc-tls"
			to := fmt.Sprintf("http://%s/", netip.AddrPortFrom(a.bad, 7001))
			env.allowed.redirectFrom(t, redirectPort+a.number, secure, to)
		}
	}
	backends := backends(env, attacks)
	for _, b := range backends {
		h.ApplyObject(b)
	}
	publishedNames(h)

	// The manager must not use a proxy.
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		t.Setenv(name, "http://127.0.0.1:7001")
	}
	t.Setenv("NO_PROXY", devcluster.Outer4.String())
	m := h.StartManager("--resolv-conf=" + env.dns.resolvConf)
	waitAsked(h, env, attacks)
	changePolicies(h, env, attacks)
	m.Kill()
	m = h.StartManager("--resolv-conf="+env.dns.resolvConf,
		"--cluster-cidrs=10.96.0.0/16,fd00:10:96::/112,10.244.0.0/24,fd00:10:244::/64,203.0.113.2/32,2001:db8:113::2/128")
	waitAsked(h, env, attacks)
	for _, b := range backends {
		h.Eventually(b.Name+" to be probed and judged", func() error { return checkOutcome(h, recorder, b.Name, attacks) })
	}
	for _, n := range nameservers {
		h.WaitCondition(n.backend, v1alpha1.ConditionPermitted, metav1.ConditionFalse, v1alpha1.ReasonTargetDenied)
		// If all nameservers are refused, none is asked, not even those of resolv.conf.
		if asked := env.dns.questions(n.name, dnsmessage.TypeA) > 0; asked != n.oneIsAllowed {
			t.Errorf("%s: the allowed nameserver was asked: %t, want %t", n.backend, asked, n.oneIsAllowed)
		}
	}
	for i := range 4 {
		status := map[bool]metav1.ConditionStatus{true: metav1.ConditionTrue, false: metav1.ConditionFalse}[i == 3]
		h.WaitCondition(fmt.Sprint("alias-", i), v1alpha1.ConditionPermitted, status, "")
		h.WaitCondition(fmt.Sprint("passed-", i), v1alpha1.ConditionPermitted, status, "")
	}
	m.Stop()
	recorder.finish()
	env.canaries.wantNobody(t)
	wantNotInEvents(h, isForbidden)
}

// wantCanariesReachable makes sure that each canary can be reached, so that no visit means that
// nobody tried. The other addresses must not be reachable.
func wantCanariesReachable(h *harness.Test, c *canaries, reachable, beyond []netip.Addr) {
	h.T.Helper()
	for _, a := range reachable {
		if err := c.visit("tcp", netip.AddrPortFrom(a, 7001)); err != nil {
			h.T.Errorf("no canary at %s: %v", a, err)
		}
	}
	for _, a := range beyond {
		if dialOnce(h.T.Context(), a) == nil {
			h.T.Errorf("%s can be dialled, so it needs a canary", a)
		}
	}
}

// wantLiteralsRefused makes sure that the schema refuses these addresses, and names the field.
func wantLiteralsRefused(h *harness.Test, refused, beyond []netip.Addr) {
	h.T.Helper()
	for _, bad := range slices.Concat(refused, beyond) {
		b := newBackend("literal", handlers[0])
		b.Namespace = h.Namespace
		b.Spec.Targets = []v1alpha1.Target{{Name: "good", Address: "198.18.0.1"}, {Name: "bad", Address: bad.String()}}
		err := h.Client.Create(h.T.Context(), b, client.DryRunAll)
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.targets[1].address") {
			h.T.Errorf("literal %s: %v", bad, err)
		}
	}
}

// nameserverAttack is an ExternalBackend with a nameserver at a forbidden address.
type nameserverAttack struct {
	backend, name string
	oneIsAllowed  bool // an allowed nameserver is listed as well
}

func nameserverAttacks(h *harness.Test, env environment, bad []netip.Addr) (list []nameserverAttack) {
	h.T.Helper()
	transports := []v1alpha1.DNSTransport{v1alpha1.DNSTransportUDP, v1alpha1.DNSTransportTCP, v1alpha1.DNSTransportTLS}
	for i, ns := range bad {
		b := newBackend(fmt.Sprint("nameserver-", i), handlers[0])
		n := nameserverAttack{backend: b.Name, name: b.Name + ".good.example", oneIsAllowed: i%4 == 0}
		b.Spec.DNS = &v1alpha1.DNS{MinTTLSeconds: 1, Transport: transports[i%3], Nameservers: []string{ns.String()}}
		if n.oneIsAllowed {
			b.Spec.DNS.Nameservers = append(b.Spec.DNS.Nameservers, env.dns.V4.String())
			b.Spec.DNS.Transport = v1alpha1.DNSTransportUDP
		}
		env.dns.setAnswer(n.name, addressAnswer(allowedAddr(30000+i, netip.IPv4Unspecified())))
		b.Spec.Targets = []v1alpha1.Target{{Name: "t", Hostname: n.name}}
		h.ApplyObject(b)
		list = append(list, n)
	}
	return list
}

// publishedNames applies ExternalBackends that publish names of the cluster, whose addresses nobody
// checks.
func publishedNames(h *harness.Test) {
	h.T.Helper()
	for i, name := range []string{
		"kubernetes.default.svc.cluster.local", "cluster.local", "a.cluster.local", "db.good.example",
	} {
		alias := newBackend(fmt.Sprint("alias-", i), handlers[0])
		alias.Spec.Service = &v1alpha1.Service{Type: v1alpha1.ServiceTypeExternalName}
		alias.Spec.Targets = []v1alpha1.Target{{Name: "t", Hostname: name}}
		h.ApplyObject(alias)
		passed := newBackend(fmt.Sprint("passed-", i), handlers[0])
		passed.Spec.Service = &v1alpha1.Service{Type: v1alpha1.ServiceTypeHeadless}
		passed.Spec.DNS = &v1alpha1.DNS{Resolution: v1alpha1.DNSResolutionPassthrough}
		passed.Spec.Targets = alias.Spec.Targets
		h.ApplyObject(passed)
	}
}

// waitAsked waits until each name has been asked for. A name whose answers change must have been
// asked for so often that each of its answers was given again.
func waitAsked(h *harness.Test, env environment, attacks []attack) {
	h.T.Helper()
	asked := func(a attack) int {
		switch {
		case a.way == "srv" || a.way == "srv-literal":
			return env.dns.questions("_probe._tcp."+a.host(), dnsmessage.TypeSRV)
		case a.bad.Is4():
			return env.dns.questions(a.host(), dnsmessage.TypeA)
		default:
			return env.dns.questions(a.host(), dnsmessage.TypeAAAA)
		}
	}
	until := map[int]int{}
	for _, a := range attacks {
		switch {
		case a.way == "rebind":
			until[a.number] = asked(a) + 4
		case ways[a.way] != nil:
			until[a.number] = 1
		}
	}
	for _, a := range attacks {
		h.Within(2*harness.Patience, a.String()+" to be asked for", func() error {
			if n := asked(a); n < until[a.number] {
				return fmt.Errorf("it was asked for %d times, not %d", n, until[a.number])
			}
			return nil
		})
	}
}

// changePolicies applies a policy that allows everything by hostname, then a narrower one, then one
// that allows nothing, and deletes it.
func changePolicies(h *harness.Test, env environment, attacks []attack) {
	h.T.Helper()
	allowed := []string{allowed4.String(), allowed6.String()}
	p := &v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: h.Namespace}}
	p.Spec.NamespaceSelector = metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: h.Namespace}}
	for i, rules := range [][]v1alpha1.PolicyRule{
		{{Hostnames: []string{"*.hostile.example"}}, {CIDRs: allowed}},
		{{Hostnames: []string{"*.hostile.example"}, CIDRs: allowed}},
		{},
	} {
		p.Spec.Allow, p.Spec.AllowNameservers = rules, nil
		if i == 0 {
			p.Spec.AllowNameservers = []string{env.dns.V4.String(), env.dns.V6.String()}
		}
		h.ApplyObject(p)
		h.WaitCondition("literal-http", v1alpha1.ConditionPermitted, metav1.ConditionFalse, v1alpha1.ReasonTargetDenied)
		if len(rules) == 0 {
			h.Eventually("all to be withdrawn", func() error {
				if n := len(h.Endpoints("literal-http")); n > 0 {
					return fmt.Errorf("%d endpoints are left", n)
				}
				return nil
			})
		}
	}
	if err := h.Client.Delete(context.Background(), p); err != nil {
		h.T.Fatal(err)
	}
	waitAsked(h, env, attacks)
}

// checkOutcome returns an error unless the allowed targets of a backend serve, so that probes were
// made, and the others report why they do not.
func checkOutcome(h *harness.Test, recorder *recorder, name string, attacks []attack) error {
	b, at := h.Backend(name), endpointsAt(h, name)
	denied := false
	for _, a := range attacks {
		if a.backend() != name {
			continue
		}
		is := targetOf(b, a.target())
		switch a.way {
		case "mixed":
			denied = true
			if at[a.allowed()] != harness.Healthy {
				return fmt.Errorf("%s: the allowed address is %q in %v", a, at[a.allowed()], at)
			}
		case "rebind":
			if !recorder.wasPublished(a.allowed().String()) {
				return fmt.Errorf("%s: the allowed address was never published", a)
			}
		case "redirect":
			want := harness.Healthy
			if strings.HasPrefix(a.handler.name, "grpc") {
				want = harness.Unhealthy
			}
			if at[a.allowed()] != want {
				return fmt.Errorf("%s: the server is %q, not %q", a, at[a.allowed()], want)
			}
		case "srv-literal":
			if is.State != v1alpha1.TargetStateDenied && is.State != v1alpha1.TargetStateUnresolved {
				return fmt.Errorf("%s: the target is %+v", a, is)
			}
		default:
			denied = true
			if is.State != v1alpha1.TargetStateDenied || is.Reason != v1alpha1.ReasonTargetDenied || len(is.Addresses) > 0 {
				return fmt.Errorf("%s: the target is %+v", a, is)
			}
		}
	}
	permitted := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionPermitted)
	if denied &&
		(permitted == nil || permitted.Status != metav1.ConditionFalse || permitted.Reason != v1alpha1.ReasonTargetDenied) {
		return fmt.Errorf("Permitted is %s", describe(permitted))
	}
	if is := targetOf(b, control).State; is != v1alpha1.TargetStateHealthy && is != v1alpha1.TargetStateUnprobed {
		return fmt.Errorf("the control target is %s", is)
	}
	return nil
}

// wantNotInEvents fails the test if an event contains a secret address.
func wantNotInEvents(h *harness.Test, secret func(netip.Addr) bool) {
	h.T.Helper()
	var list eventsv1.EventList
	if err := h.Client.List(h.T.Context(), &list, client.InNamespace(h.Namespace)); err != nil {
		h.T.Fatal(err)
	}
	if len(list.Items) == 0 {
		h.T.Error("there are no events")
	}
	for _, e := range list.Items {
		text, _ := json.Marshal(e)
		if a, found := findAddress(string(text), secret); found {
			h.T.Errorf("an event contains %s: %s", a, e.Note)
		}
	}
}
