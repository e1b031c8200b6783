package devcluster

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func openNetwork(t *testing.T) *Network {
	t.Helper()
	n, err := OpenNetwork()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// A dropped address or port gives no answer, whereas a closed port refuses connections. Undrop ends
// it.
func TestDroppedAddressIsBlackHole(t *testing.T) {
	n := openNetwork(t)
	backend, err := n.AddNamespace("backend", "203.0.113.10", "2001:db8:113::10")
	if err != nil {
		t.Fatal(err)
	}
	client, err := n.AddNamespace("client", "203.0.113.20", "2001:db8:113::20")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, backend, ":7000")
	serve(t, backend, ":7001")
	silent := func(addr string) bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := ask(ctx, client, addr)
		var timeout net.Error
		return errors.As(err, &timeout) && timeout.Timeout()
	}
	for _, ip := range []string{"203.0.113.10", "2001:db8:113::10"} {
		addr := netip.MustParseAddr(ip)
		port, other := net.JoinHostPort(ip, "7000"), net.JoinHostPort(ip, "7001")
		eventually(t, client, port, "backend")
		if err := backend.Drop(netip.AddrPortFrom(addr, 7000)); err != nil {
			t.Fatal(err)
		}
		if !silent(port) {
			t.Errorf("%s answers although dropped", port)
		}
		eventually(t, client, other, "backend")
		if err := backend.Drop(netip.AddrPortFrom(addr, 0)); err != nil {
			t.Fatal(err)
		}
		if !silent(other) {
			t.Errorf("%s answers although all of the address is dropped", other)
		}
		if err := backend.Undrop(netip.AddrPortFrom(addr, 0)); err != nil {
			t.Fatal(err)
		}
		eventually(t, client, other, "backend")
		if !silent(port) {
			t.Errorf("%s answers although still dropped", port)
		}
		if err := backend.Undrop(); err != nil {
			t.Fatal(err)
		}
		eventually(t, client, port, "backend")
		if silent(net.JoinHostPort(ip, "7002")) {
			t.Errorf("a closed port of %s does not refuse", ip)
		}
	}
}

// An address that moves to another namespace is reached there at once.
func TestAddressMovesBetweenNamespaces(t *testing.T) {
	n := openNetwork(t)
	for _, name := range []string{"first", "second"} {
		ns, err := n.AddNamespace(name, "203.0.113.10")
		if err != nil {
			t.Fatal(err)
		}
		serve(t, ns, ":80")
		conn, err := net.DialTimeout("tcp", "203.0.113.10:80", 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(conn)
		conn.Close()
		if err != nil || string(got) != name {
			t.Errorf("%q answers instead of %s (%v)", got, name, err)
		}
		if err := ns.RemoveAddresses("203.0.113.10"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.AddNamespace("first"); err == nil {
		t.Error("two namespaces of one name")
	}
	if _, err := n.AddNamespace("routed", "198.51.100.0/24"); err == nil {
		t.Error("a prefix without an address to route it by was accepted")
	}
}

// Namespaces of other programs can join and leave, and nobody keeps a neighbour entry for their
// addresses.
func TestJoinedNamespaceIsForgotten(t *testing.T) {
	n := openNetwork(t)
	client, err := n.AddNamespace("client", "203.0.113.20")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		machine, err := JoinNamespace("machine", "203.0.113.10")
		if err != nil {
			t.Fatal(err)
		}
		serve(t, machine, ":80")
		eventually(t, client, "203.0.113.10:80", "machine")
		if _, err := JoinNamespace("client"); err == nil {
			t.Error("two namespaces of one name")
		}
		if err := machine.Close(); err != nil {
			t.Fatal(err)
		}
		out, err := client.Command(t.Context(), "ip", "neigh", "show", "to", "203.0.113.10", "nud", "all").CombinedOutput()
		if err != nil || strings.Contains(string(out), "lladdr") {
			t.Errorf("the client's neighbour: %s, %v", out, err)
		}
	}
}

// When its first address is removed, a namespace keeps its other addresses and its default route.
func TestOtherAddressesSurviveRemovalOfFirst(t *testing.T) {
	n := openNetwork(t)
	ns, err := n.AddNamespace("backend", "203.0.113.10", "203.0.113.11", "2001:db8:113::10", "2001:db8:113::11")
	if err != nil {
		t.Fatal(err)
	}
	client, err := n.AddNamespace("client", "203.0.113.20", "2001:db8:113::20", "198.51.100.0/24", "2001:db8:1::/64")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, client, ":80")
	if err := ns.RemoveAddresses("203.0.113.10", "2001:db8:113::10"); err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{"198.51.100.1:80", "[2001:db8:1::1]:80"} {
		eventually(t, ns, addr, "client")
	}
	serve(t, ns, ":81")
	for _, addr := range []string{"203.0.113.11:81", "[2001:db8:113::11]:81"} {
		eventually(t, client, addr, "backend")
	}
}

// Commands, packets, listeners and functions run in a namespace.
func TestNamespaceRunsCommandsAndSockets(t *testing.T) {
	n := openNetwork(t)
	ns, err := n.AddNamespace("web", "203.0.113.10")
	if err != nil {
		t.Fatal(err)
	}
	out, err := ns.Command(t.Context(), "ip", "-4", "-brief", "addr", "show", "eth0").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "203.0.113.10/24") {
		t.Errorf("command: %s, %v", out, err)
	}

	packets, err := ns.ListenPacket("udp", "203.0.113.10:53")
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	conn, err := net.Dial("udp", packets.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	size, from, err := packets.ReadFrom(buf)
	if err != nil || string(buf[:size]) != "hello" || !strings.HasPrefix(from.String(), Outer4.String()+":") {
		t.Errorf("packet: %q from %v, %v", buf[:size], from, err)
	}

	listener, err := ns.Listen("tcp", "127.0.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.NotFoundHandler()}
	go server.Serve(listener)
	defer server.Close()
	resp, err := ns.client().Get("http://127.0.0.1/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("status %d", resp.StatusCode)
	}

	if err := ns.Do(func() error { return io.EOF }); !errors.Is(err, io.EOF) {
		t.Errorf("Do returned %v", err)
	}
}
