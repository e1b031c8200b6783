package probe

import (
	"net/netip"
	"testing"
)

// many returns n endpoints, each with an address of its own.
func many(n int, port uint16) []Endpoint {
	list := make([]Endpoint, n)
	for i := range list {
		addr := netip.AddrFrom4([4]byte{127, byte(1 + i>>16), byte(i >> 8), byte(i)})
		list[i] = Endpoint{ID: ID{"t", addr, port}, Dial: netip.AddrPortFrom(addr, port), Host: "db.example.com"}
	}
	return list
}

// BenchmarkSync measures a Sync of 10,000 endpoints that changes nothing, and one that changes
// one.
func BenchmarkSync(b *testing.B) {
	e := New(Options{})
	check := &Check{TCP: &TCPSocket{}, Period: sec, Timeout: sec, Confirm: sec}
	list := many(10000, 80)
	e.Sync(owner1, check, list)
	b.Run("unchanged", func(b *testing.B) {
		for b.Loop() {
			e.Sync(owner1, check, list)
		}
	})
	b.Run("one less, one more", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			e.Sync(owner1, check, list[i%2:len(list)-1+i%2])
		}
	})
}
