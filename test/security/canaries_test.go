package security

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// ownPrefixes are routed to loopback in the network namespace of the manager and of this program.
// So a listener there hears every connection to their addresses. Loopback addresses need no route.
var ownPrefixes = []string{
	"0.1.2.0/24", "169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32",
	"100.80.80.80/32", "100.96.0.96/32",
	"fd00:ec2::/64", "fd20:ce::/64", "fd00:a9fe:a9fe::/64", "fd00:c1::/64", "fd00:42::/64", "fd00:100::/64",
	"::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "2001:db8:5efe::/48",
}

// podPrefixes are the Pods' ranges. A machine answers at all of their addresses.
var podPrefixes = []string{devcluster.PodCIDR4.String(), devcluster.PodCIDR6.String()}

// canaries listen at forbidden addresses on every port that a test dials, and record every visit.
type canaries struct {
	service4, service6 netip.Addr   // ClusterIPs with canaries behind them
	places             []netip.Addr // an address in each network namespace with canaries

	mu     sync.Mutex
	visits []*visit
}

// visit is a connection or packet that reached a canary.
type visit struct {
	network  string
	at, from netip.AddrPort
	ours     bool
	said     string // the content of a packet
}

func (v visit) String() string {
	return fmt.Sprintf("%s %s from %s, said %q", v.network, v.at, v.from, v.said)
}

// listenerFactory opens ports in a network namespace.
type listenerFactory interface {
	Listen(network, address string) (net.Listener, error)
	ListenPacket(network, address string) (net.PacketConn, error)
}

// ownNamespace listens in the program's own network namespace.
type ownNamespace struct{}

func (ownNamespace) Listen(network, address string) (net.Listener, error) {
	return net.Listen(network, address)
}
func (ownNamespace) ListenPacket(network, address string) (net.PacketConn, error) {
	return net.ListenPacket(network, address)
}

// canaryPorts returns the ports of the allowed servers and of nameservers.
func canaryPorts() []int { return append(slices.Clone(handlerPorts), 53, 853) }

func newCanaries(h *harness.Test) *canaries {
	h.T.Helper()
	c := &canaries{}
	for _, prefix := range ownPrefixes {
		if out, err := exec.Command("ip", "route", "add", "local", prefix, "dev", "lo").CombinedOutput(); err != nil {
			h.T.Fatalf("route %s: %v: %s", prefix, err, out)
		}
	}
	machine, err := h.AddMachine("canary")
	if err == nil {
		err = machine.AddAddresses(podPrefixes...)
	}
	if err != nil {
		h.T.Fatal(err)
	}
	for _, place := range []listenerFactory{ownNamespace{}, h.Node(), machine} {
		for _, port := range canaryPorts() {
			c.listen(h.T, place, port)
		}
	}
	c.service4, c.service6 = clusterIPs(h, machine)
	c.places = []netip.Addr{netip.IPv6Loopback(), devcluster.Node4, machine.V4}
	for _, a := range []netip.Addr{c.service4, c.service6} {
		h.Eventually("kube-proxy to lead to the canaries", func() error {
			return c.visit("tcp", netip.AddrPortFrom(a, 853))
		})
	}
	return c
}

// clusterIPs creates a Service and slices that lead to the canaries of a machine, and returns the
// ClusterIPs.
func clusterIPs(h *harness.Test, to *lab.Machine) (v4, v6 netip.Addr) {
	h.T.Helper()
	meta := metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "canary"}
	service := &corev1.Service{ObjectMeta: meta}
	service.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	var ports []discoveryv1.EndpointPort
	add := func(port int, protocol corev1.Protocol) {
		name := strings.ToLower(fmt.Sprintf("%s-%d", protocol, port))
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: name, Port: int32(port), Protocol: protocol})
		ports = append(ports, discoveryv1.EndpointPort{Name: &name, Port: new(int32(port)), Protocol: &protocol})
	}
	for _, port := range canaryPorts() {
		add(port, corev1.ProtocolTCP)
	}
	add(53, corev1.ProtocolUDP)
	err := h.Client.Create(h.T.Context(), service)
	meta.Labels = map[string]string{discoveryv1.LabelServiceName: "canary"}
	for kind, addr := range map[discoveryv1.AddressType]netip.Addr{
		discoveryv1.AddressTypeIPv4: to.V4, discoveryv1.AddressTypeIPv6: to.V6,
	} {
		meta.Name = "canary-" + strings.ToLower(string(kind))
		err = errors.Join(err, h.Client.Create(h.T.Context(), &discoveryv1.EndpointSlice{
			ObjectMeta: meta, AddressType: kind, Ports: ports,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{addr.String()}}},
		}))
	}
	if err != nil {
		h.T.Fatal(err)
	}
	v4, v6 = netip.MustParseAddr(service.Spec.ClusterIPs[0]), netip.MustParseAddr(service.Spec.ClusterIPs[1])
	return v4, v6
}

// greeting is what the test sends to a canary, and what the canary answers. All other visitors are
// strangers.
const greeting = "it is only us\n"

// listen records the visits to a port in a network namespace, until the program ends.
func (c *canaries) listen(t testing.TB, place listenerFactory, port int) {
	t.Helper()
	listener, err := place.Listen("tcp", fmt.Sprintf("[::]:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	packets, err := place.ListenPacket("udp", fmt.Sprintf("[::]:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			v := c.note(visit{network: "tcp", at: addrPort(conn.LocalAddr()), from: addrPort(conn.RemoteAddr())})
			go c.greet(conn, v)
		}
	}()
	go func() {
		buffer := make([]byte, 2048)
		for {
			n, from, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			if string(buffer[:n]) == greeting {
				_, _ = packets.WriteTo(buffer[:n], from)
				continue
			}
			c.note(visit{
				network: "udp", at: addrPort(packets.LocalAddr()), from: addrPort(from), said: string(buffer[:min(n, 64)]),
			})
		}
	}()
}

// greet finds out whether the visitor is the test itself.
func (c *canaries) greet(conn net.Conn, v *visit) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(harness.Patience))
	words := make([]byte, len(greeting))
	if _, err := io.ReadFull(conn, words); err != nil || string(words) != greeting {
		return
	}
	c.mu.Lock()
	v.ours = true
	c.mu.Unlock()
	_, _ = conn.Write(words)
}

func addrPort(a net.Addr) netip.AddrPort {
	at := netip.MustParseAddrPort(a.String())
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
}

func (c *canaries) note(v visit) *visit {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.visits = append(c.visits, &v)
	return &v
}

// strangers returns all visits but those of the test.
func (c *canaries) strangers() (list []visit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.visits {
		if !v.ours {
			list = append(list, *v)
		}
	}
	return list
}

// visit visits a canary, and returns once the canary has recorded this visit and all earlier ones.
func (c *canaries) visit(network string, at netip.AddrPort) error {
	conn, err := net.DialTimeout(network, at.String(), 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(harness.Patience))
	words := make([]byte, len(greeting))
	if _, err = conn.Write([]byte(greeting)); err == nil {
		_, err = io.ReadFull(conn, words)
	}
	return err
}

// wantNobody fails the test for each stranger. It first visits each network namespace on every
// port, so that all earlier visits are recorded.
func (c *canaries) wantNobody(t testing.TB) {
	t.Helper()
	for _, a := range c.places {
		for _, port := range canaryPorts() {
			for _, network := range []string{"tcp", "udp"} {
				if err := c.visit(network, netip.AddrPortFrom(a, uint16(port))); err != nil {
					t.Errorf("canary %s %s: %v", network, a, err)
				}
			}
		}
	}
	strangers := c.strangers()
	for _, v := range strangers[:min(len(strangers), 20)] {
		t.Errorf("a forbidden address was dialled: %s", v)
	}
	if len(strangers) > 20 {
		t.Errorf("there were %d strangers in all", len(strangers))
	}
}

// dialOnce dials the first handler's port at an address that the kernel should not reach.
func dialOnce(ctx context.Context, a netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", netip.AddrPortFrom(a, uint16(handlerPorts[0])).String())
	if err == nil {
		conn.Close()
	}
	return err
}

// addresses parses the words of a text.
func addresses(text string) (list []netip.Addr) {
	for word := range strings.FieldsSeq(text) {
		list = append(list, netip.MustParseAddr(word))
	}
	return list
}
