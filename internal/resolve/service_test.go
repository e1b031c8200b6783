package resolve

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"
)

func service(n string, f Families) Wanted {
	return Wanted{Question: Question{Name: n, SRV: true, Families: f}}
}

func addr(ip string, port uint16, rank uint8) Addr {
	return Addr{IP: netip.MustParseAddr(ip), Port: port, Rank: rank}
}

// host returns an SRV record of priority 0.
func host(name string, port uint16) datum { return datum{host: name, port: port} }

func currentService(addrs ...Addr) Answer { return Answer{Status: Current, Addrs: addrs} }

func staleService(cause string, addrs ...Addr) Answer {
	return Answer{Status: Stale, Reason: ReasonServingStale, Cause: cause, Addrs: addrs}
}

const pool = "_db._tcp.example.com"

// An SRV answer becomes the addresses of its hosts, ranked by priority, each address and port once.
func TestServiceListsItsHostsByPriority(t *testing.T) {
	inBubble(t, func(h *harness) {
		q := service(pool, IPv4|IPv6)
		h.dns.set(pool+" SRV", services(time.Minute,
			datum{host: "a.example.com", port: 5432, priority: 10},
			datum{host: "b.example.com", port: 5433, priority: 30},
			datum{host: "b.example.com", port: 5434, priority: 20},
			datum{host: "b.example.com", port: 5434, priority: 40}, // the same unit further back
			datum{host: "c.example.com", port: 5432, priority: 30}, // the same address and port as a's
			datum{host: "d.example.com", port: 0, priority: 10},
		))
		h.dns.set("a.example.com A", records(time.Minute, "192.0.2.1"))
		h.dns.set("a.example.com AAAA", records(time.Minute, "2001:db8::1"))
		h.dns.set("b.example.com A", records(time.Minute, "192.0.2.2"))
		h.dns.set("c.example.com A", records(time.Minute, "192.0.2.1"))
		h.dns.set("d.example.com A", records(time.Minute, "192.0.2.4"))
		h.Sync(owner1, defaultConfig(), []Wanted{q})
		h.start()
		want := Answer{Status: Current, Omitted: 1, Addrs: []Addr{
			addr("192.0.2.1", 5432, 0), addr("2001:db8::1", 5432, 0), addr("192.0.2.2", 5434, 1), addr("192.0.2.2", 5433, 2),
		}}
		h.want(owner1, q, want)
		h.notifications(owner1)
		h.pass(10 * time.Minute)
		h.want(owner1, q, want)
		if n := h.notifications(owner1); n != 0 {
			t.Errorf("%d notifications at rest", n)
		}
	})
}

// A host whose priority changes gets its new rank at once, whatever the removal delay.
func TestChangedPriorityMovesTheHost(t *testing.T) {
	inBubble(t, func(h *harness) {
		q := service(pool, IPv4)
		cfg := defaultConfig()
		cfg.RemovalDelay = time.Hour
		a, b := datum{host: "a.example.com", port: 1, priority: 1}, datum{host: "b.example.com", port: 1, priority: 2}
		h.dns.set(pool+" SRV", services(10*time.Second, a, b))
		h.dns.set("a.example.com A", records(10*time.Second, "192.0.2.1"))
		h.dns.set("b.example.com A", records(10*time.Second, "192.0.2.2"))
		h.Sync(owner1, cfg, []Wanted{q})
		h.start()
		a.priority = 3
		h.dns.set(pool+" SRV", services(10*time.Second, a, b))
		h.pass(10 * time.Second)
		h.want(owner1, q, currentService(addr("192.0.2.2", 1, 0), addr("192.0.2.1", 1, 1)))
	})
}

// When an answer replaces all hosts, the former ones serve until the new ones have addresses.
func TestReplacedHostsServeUntilNewOnesResolve(t *testing.T) {
	setup := func(h *harness, b reply) Wanted {
		q := service(pool, IPv4)
		cfg := defaultConfig()
		cfg.Stale = time.Hour
		h.dns.set(pool+" SRV", services(10*time.Second, host("a.example.com", 1)))
		h.dns.set("a.example.com A", records(10*time.Second, "192.0.2.1"))
		h.dns.set("b.example.com A", b)
		h.Sync(owner1, cfg, []Wanted{q})
		h.start()
		h.dns.set(pool+" SRV", services(10*time.Second, host("b.example.com", 1)))
		h.notifications(owner1)
		h.pass(10 * time.Second)
		return q
	}
	t.Run("resolved", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			q := setup(h, records(10*time.Second, "192.0.2.2"))
			h.want(owner1, q, currentService(addr("192.0.2.2", 1, 0)))
			if n := h.notifications(owner1); n != 1 {
				t.Errorf("%d notifications for one change", n)
			}
		})
	})
	t.Run("failing", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			q := setup(h, rcode(servFail, 0))
			kept := staleService("SERVFAIL", addr("192.0.2.1", 1, 0))
			h.want(owner1, q, kept)
			h.pass(time.Hour - 5*time.Second)
			h.want(owner1, q, kept)
			h.pass(5 * time.Second)
			h.want(owner1, q, failed(ReasonResolutionFailed, "SERVFAIL"))
			h.dns.set("b.example.com A", records(10*time.Second, "192.0.2.2"))
			h.pass(maxBackoff + 4*time.Second)
			h.want(owner1, q, currentService(addr("192.0.2.2", 1, 0)))
		})
	})
	t.Run("silent", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			q := setup(h, silence)
			h.want(owner1, q, currentService(addr("192.0.2.1", 1, 0)))
			h.pass(lookupTimeout)
			h.want(owner1, q, staleService("timeout", addr("192.0.2.1", 1, 0)))
		})
	})
}

// A host that fails keeps no host that left while others serve.
func TestFailingHostKeepsNoOtherHost(t *testing.T) {
	inBubble(t, func(h *harness) {
		q := service(pool, IPv4)
		bad := host("bad.example.com", 1)
		h.dns.set(pool+" SRV", services(10*time.Second, host("a.example.com", 1), host("b.example.com", 1), bad))
		h.dns.set("a.example.com A", records(10*time.Second, "192.0.2.1"))
		h.dns.set("b.example.com A", records(10*time.Second, "192.0.2.2"))
		h.dns.set("bad.example.com A", rcode(servFail, 0))
		h.Sync(owner1, defaultConfig(), []Wanted{q})
		h.start()
		h.dns.set(pool+" SRV", services(10*time.Second, host("b.example.com", 1), bad))
		h.pass(10 * time.Second)
		h.want(owner1, q, staleService("SERVFAIL", addr("192.0.2.2", 1, 0)))
	})
}

// A host or port that good answers lack stays for the removal delay.
func TestHostsStayForTheRemovalDelay(t *testing.T) {
	inBubble(t, func(h *harness) {
		q := service(pool, IPv4)
		cfg := defaultConfig()
		cfg.RemovalDelay = time.Minute
		h.dns.set(pool+" SRV", services(10*time.Second, host("a.example.com", 1), host("b.example.com", 1)))
		h.dns.set("a.example.com A", records(10*time.Second, "192.0.2.1"))
		h.dns.set("b.example.com A", records(10*time.Second, "192.0.2.2"))
		h.Sync(owner1, cfg, []Wanted{q})
		h.start()
		h.dns.set(pool+" SRV", services(10*time.Second, host("b.example.com", 2)))
		h.pass(10 * time.Second)
		h.want(owner1, q, currentService(addr("192.0.2.1", 1, 0), addr("192.0.2.2", 1, 0), addr("192.0.2.2", 2, 0)))
		h.pass(time.Minute)
		h.want(owner1, q, currentService(addr("192.0.2.2", 2, 0)))
		if len(h.owners[owner1].questions[q.Question].hosts) != 1 {
			t.Error("a host that left is still asked for")
		}
	})
}

// While the service name fails, its hosts serve and are asked for.
func TestFailingServiceServesItsHosts(t *testing.T) {
	for _, c := range []struct {
		desc  string
		reply reply
		after time.Duration
		want  Answer
	}{
		{"SERVFAIL", rcode(servFail, 0), 30 * time.Minute, staleService("SERVFAIL", addr("192.0.2.1", 1, 0))},
		{"SERVFAIL for long", rcode(servFail, 0), 2 * time.Hour, failed(ReasonResolutionFailed, "SERVFAIL")},
		{"empty", rcode(noError, 10*time.Second), 30 * time.Minute, staleService("empty answer", addr("192.0.2.1", 1, 0))},
		{"NXDOMAIN", rcode(nxDomain, 10*time.Second), 20 * time.Second, staleService("NXDOMAIN", addr("192.0.2.1", 1, 0))},
		{"NXDOMAIN lasting", rcode(nxDomain, 10*time.Second), 41 * time.Second, failed(ReasonNameNotFound, "NXDOMAIN")},
	} {
		t.Run(c.desc, func(t *testing.T) {
			inBubble(t, func(h *harness) {
				q := service(pool, IPv4)
				cfg := defaultConfig()
				cfg.Stale = time.Hour
				h.dns.set(pool+" SRV", services(10*time.Second, host("a.example.com", 1)))
				h.dns.set("a.example.com A", records(10*time.Second, "192.0.2.1"))
				h.Sync(owner1, cfg, []Wanted{q})
				h.start()
				h.dns.set(pool+" SRV", c.reply)
				h.pass(c.after)
				h.want(owner1, q, c.want)
				before := h.dns.count("a.example.com A")
				h.pass(time.Minute)
				if asks := h.dns.count("a.example.com A") > before; asks != (c.want.Status == Stale) {
					t.Errorf("hosts are asked for: %v", asks)
				}
			})
		})
	}
}

// A target of "." means the same for the service as NXDOMAIN.
func TestUnavailableServiceIsADenial(t *testing.T) {
	m := message(t, pool+".", typeSRV, 0, pool+". 10 SRV 0 0 0 .")
	a, err := decode(packed(t, m), testID, pool, typeSRV)
	gone := func(context.Context, netip.AddrPort) (answer, error) { return a, err }
	inBubble(t, func(h *harness) {
		q := service(pool, IPv4)
		h.dns.set(pool+" SRV", services(10*time.Second, host("a.example.com", 1)))
		h.dns.set("a.example.com A", records(10*time.Second, "192.0.2.1"))
		h.Sync(owner1, defaultConfig(), []Wanted{q})
		h.start()
		h.dns.set(pool+" SRV", gone)
		h.pass(20 * time.Second)
		h.want(owner1, q, staleService("NXDOMAIN", addr("192.0.2.1", 1, 0)))
		h.pass(20 * time.Second)
		h.want(owner1, q, failed(ReasonNameNotFound, "NXDOMAIN"))
	})
}

// The seed of a service serves until all its hosts are known.
func TestServiceSeedServesUntilHostsAreKnown(t *testing.T) {
	seeds := []Addr{addr("192.0.2.1", 1, 0), addr("192.0.2.2", 1, 1), addr("2001:db8::1", 1, 0)}
	setup := func(h *harness, delay time.Duration) Wanted {
		q := service(pool, IPv4)
		q.Seed = seeds
		cfg := defaultConfig()
		cfg.Stale, cfg.RemovalDelay = time.Hour, delay
		h.dns.set(pool+" SRV", services(10*time.Second, host("a.example.com", 1), host("b.example.com", 1)))
		h.dns.set("a.example.com A", records(10*time.Second, "192.0.2.3"))
		h.dns.set("b.example.com A", rcode(servFail, 0))
		h.Sync(owner1, cfg, []Wanted{q})
		h.want(owner1, q, Answer{Status: Pending, Addrs: seeds[:2]})
		return q
	}
	t.Run("hosts partly known", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			q := setup(h, 0)
			h.start()
			h.want(owner1, q, staleService("SERVFAIL", seeds[0], addr("192.0.2.3", 1, 0), seeds[1]))
			h.pass(time.Hour)
			h.want(owner1, q, staleService("SERVFAIL", addr("192.0.2.3", 1, 0)))
		})
	})
	t.Run("hosts known", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			q := setup(h, 0)
			h.dns.set("b.example.com A", records(10*time.Second, "192.0.2.2"))
			h.start()
			h.want(owner1, q, currentService(addr("192.0.2.2", 1, 0), addr("192.0.2.3", 1, 0)))
		})
	})
	t.Run("with a removal delay", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			q := setup(h, time.Minute)
			h.dns.set("b.example.com A", records(10*time.Second, "192.0.2.2"))
			h.start()
			h.pass(59 * time.Second)
			h.want(owner1, q, currentService(seeds[0], addr("192.0.2.2", 1, 0), addr("192.0.2.3", 1, 0)))
			h.pass(time.Second)
			h.want(owner1, q, currentService(addr("192.0.2.2", 1, 0), addr("192.0.2.3", 1, 0)))
		})
	})
	t.Run("service not answered", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			q := setup(h, 0)
			h.dns.set(pool+" SRV", rcode(refused, 0))
			h.start()
			h.pass(59 * time.Minute)
			h.want(owner1, q, staleService("REFUSED", seeds[:2]...))
			h.pass(time.Minute)
			h.want(owner1, q, failed(ReasonResolutionFailed, "REFUSED"))
		})
	})
}

// Of too many hosts, the known ones stay, and the others are not asked for.
func TestServiceHostsAreBounded(t *testing.T) {
	inBubble(t, func(h *harness) {
		h.options.MaxAddresses = 2
		q := service(pool, IPv4)
		data := []datum{{host: "c.example.com", port: 1}, {host: "d.example.com", port: 1}}
		for i, letter := range []string{"a", "b", "c", "d"} {
			h.dns.set(letter+".example.com A", records(10*time.Second, fmt.Sprint("192.0.2.", i)))
		}
		h.dns.set(pool+" SRV", services(10*time.Second, data...))
		h.Sync(owner1, defaultConfig(), []Wanted{q})
		h.start()
		h.dns.set(pool+" SRV", services(10*time.Second, append(data, host("a.example.com", 1), host("b.example.com", 1))...))
		h.pass(10 * time.Second)
		want := currentService(addr("192.0.2.2", 1, 0), addr("192.0.2.3", 1, 0))
		want.Omitted = 2
		h.want(owner1, q, want)
		if n := h.dns.count("a.example.com A"); n != 0 {
			t.Errorf("asked %d times for a host over the bound", n)
		}
	})
}

// All priorities behind the 127th share the last rank.
func TestRanksEndAt127(t *testing.T) {
	var entries []entry
	for p := range uint16(300) {
		entries = append(entries, entry{datum: datum{host: "h", port: p, priority: 3 * p}})
	}
	ranks := rankPriorities(entries)
	for p, want := range map[uint16]uint8{0: 0, 3: 1, 3 * 127: 127, 3 * 299: 127} {
		if ranks[p] != want {
			t.Errorf("priority %d has rank %d, not %d", p, ranks[p], want)
		}
	}
}
