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

const pool = "_db._tcp.example.com"

func TestService(t *testing.T) {
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

func TestServicePriorityMoves(t *testing.T) {
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
		h.want(owner1, q, Answer{Status: Current, Addrs: []Addr{addr("192.0.2.2", 1, 0), addr("192.0.2.1", 1, 1)}})
	})
}

// Hosts that replace all others must not leave a hole until they are resolved, and must not keep
// what left once they are.
func TestServiceReplaced(t *testing.T) {
	setup := func(h *harness, b reply) Wanted {
		q := service(pool, IPv4)
		cfg := defaultConfig()
		cfg.Stale = time.Hour
		h.dns.set(pool+" SRV", services(10*time.Second, datum{host: "a.example.com", port: 1}))
		h.dns.set("a.example.com A", records(10*time.Second, "192.0.2.1"))
		h.dns.set("b.example.com A", b)
		h.Sync(owner1, cfg, []Wanted{q})
		h.start()
		h.dns.set(pool+" SRV", services(10*time.Second, datum{host: "b.example.com", port: 1}))
		h.notifications(owner1)
		h.pass(10 * time.Second)
		return q
	}
	t.Run("resolved", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			q := setup(h, records(10*time.Second, "192.0.2.2"))
			h.want(owner1, q, Answer{Status: Current, Addrs: []Addr{addr("192.0.2.2", 1, 0)}})
			if n := h.notifications(owner1); n != 1 {
				t.Errorf("%d notifications for one change", n)
			}
		})
	})
	t.Run("failing", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			q := setup(h, rcode(servFail, 0))
			kept := Answer{Status: Stale, Reason: ReasonServingStale, Cause: "SERVFAIL", Addrs: []Addr{addr("192.0.2.1", 1, 0)}}
			h.want(owner1, q, kept)
			h.pass(time.Hour - 5*time.Second)
			h.want(owner1, q, kept)
			h.pass(5 * time.Second)
			h.want(owner1, q, failed(ReasonResolutionFailed, "SERVFAIL"))
			h.dns.set("b.example.com A", records(10*time.Second, "192.0.2.2"))
			h.pass(maxBackoff + 4*time.Second)
			h.want(owner1, q, Answer{Status: Current, Addrs: []Addr{addr("192.0.2.2", 1, 0)}})
		})
	})
	t.Run("silent", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			q := setup(h, silence)
			h.want(owner1, q, Answer{Status: Current, Addrs: []Addr{addr("192.0.2.1", 1, 0)}})
			h.pass(lookupTimeout)
			h.want(
				owner1,
				q,
				Answer{Status: Stale, Reason: ReasonServingStale, Cause: "timeout", Addrs: []Addr{addr("192.0.2.1", 1, 0)}},
			)
		})
	})
}

// One host that fails keeps nothing that left, while others serve.
func TestServiceWithAFailingHost(t *testing.T) {
	inBubble(t, func(h *harness) {
		q := service(pool, IPv4)
		bad := datum{host: "bad.example.com", port: 1}
		h.dns.set(
			pool+" SRV",
			services(10*time.Second, datum{host: "a.example.com", port: 1}, datum{host: "b.example.com", port: 1}, bad),
		)
		h.dns.set("a.example.com A", records(10*time.Second, "192.0.2.1"))
		h.dns.set("b.example.com A", records(10*time.Second, "192.0.2.2"))
		h.dns.set("bad.example.com A", rcode(servFail, 0))
		h.Sync(owner1, defaultConfig(), []Wanted{q})
		h.start()
		h.dns.set(pool+" SRV", services(10*time.Second, datum{host: "b.example.com", port: 1}, bad))
		h.pass(10 * time.Second)
		h.want(
			owner1,
			q,
			Answer{Status: Stale, Reason: ReasonServingStale, Cause: "SERVFAIL", Addrs: []Addr{addr("192.0.2.2", 1, 0)}},
		)
	})
}

func TestServiceRemovalDelay(t *testing.T) {
	inBubble(t, func(h *harness) {
		q := service(pool, IPv4)
		cfg := defaultConfig()
		cfg.RemovalDelay = time.Minute
		h.dns.set(
			pool+" SRV",
			services(10*time.Second, datum{host: "a.example.com", port: 1}, datum{host: "b.example.com", port: 1}),
		)
		h.dns.set("a.example.com A", records(10*time.Second, "192.0.2.1"))
		h.dns.set("b.example.com A", records(10*time.Second, "192.0.2.2"))
		h.Sync(owner1, cfg, []Wanted{q})
		h.start()
		h.dns.set(pool+" SRV", services(10*time.Second, datum{host: "b.example.com", port: 2}))
		h.pass(10 * time.Second)
		h.want(
			owner1,
			q,
			Answer{Status: Current, Addrs: []Addr{addr("192.0.2.1", 1, 0), addr("192.0.2.2", 1, 0), addr("192.0.2.2", 2, 0)}},
		)
		h.pass(time.Minute)
		h.want(owner1, q, Answer{Status: Current, Addrs: []Addr{addr("192.0.2.2", 2, 0)}})
		if len(h.owners[owner1].questions[q.Question].hosts) != 1 {
			t.Error("a host that left is still asked for")
		}
	})
}

func TestServiceFailures(t *testing.T) {
	for _, c := range []struct {
		desc  string
		reply reply
		after time.Duration
		want  Answer
	}{
		{"SERVFAIL", rcode(servFail, 0), 30 * time.Minute, Answer{Status: Stale, Reason: ReasonServingStale, Cause: "SERVFAIL", Addrs: []Addr{addr("192.0.2.1", 1, 0)}}},
		{"SERVFAIL for long", rcode(servFail, 0), 2 * time.Hour, failed(ReasonResolutionFailed, "SERVFAIL")},
		{"empty", rcode(noError, 10*time.Second), 30 * time.Minute, Answer{Status: Stale, Reason: ReasonServingStale, Cause: "empty answer", Addrs: []Addr{addr("192.0.2.1", 1, 0)}}},
		{"NXDOMAIN", rcode(nxDomain, 10*time.Second), 20 * time.Second, Answer{Status: Stale, Reason: ReasonServingStale, Cause: "NXDOMAIN", Addrs: []Addr{addr("192.0.2.1", 1, 0)}}},
		{"NXDOMAIN lasting", rcode(nxDomain, 10*time.Second), 41 * time.Second, failed(ReasonNameNotFound, "NXDOMAIN")},
	} {
		t.Run(c.desc, func(t *testing.T) {
			inBubble(t, func(h *harness) {
				q := service(pool, IPv4)
				cfg := defaultConfig()
				cfg.Stale = time.Hour
				h.dns.set(pool+" SRV", services(10*time.Second, datum{host: "a.example.com", port: 1}))
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

// TestServiceThatIsNotAvailable has a target of ".", which says the same of the service as
// NXDOMAIN.
func TestServiceThatIsNotAvailable(t *testing.T) {
	m := message(t, pool+".", typeSRV, 0, pool+". 10 SRV 0 0 0 .")
	a, err := decode(packed(t, m), testID, pool, typeSRV)
	gone := func(context.Context, netip.AddrPort) (answer, error) { return a, err }
	inBubble(t, func(h *harness) {
		q := service(pool, IPv4)
		h.dns.set(pool+" SRV", services(10*time.Second, datum{host: "a.example.com", port: 1}))
		h.dns.set("a.example.com A", records(10*time.Second, "192.0.2.1"))
		h.Sync(owner1, defaultConfig(), []Wanted{q})
		h.start()
		h.dns.set(pool+" SRV", gone)
		h.pass(20 * time.Second)
		h.want(
			owner1,
			q,
			Answer{Status: Stale, Reason: ReasonServingStale, Cause: "NXDOMAIN", Addrs: []Addr{addr("192.0.2.1", 1, 0)}},
		)
		h.pass(20 * time.Second)
		h.want(owner1, q, failed(ReasonNameNotFound, "NXDOMAIN"))
	})
}

func TestServiceSeed(t *testing.T) {
	seeds := []Addr{addr("192.0.2.1", 1, 0), addr("192.0.2.2", 1, 1), addr("2001:db8::1", 1, 0)}
	setup := func(h *harness, delay time.Duration) Wanted {
		q := service(pool, IPv4)
		q.Seed = seeds
		cfg := defaultConfig()
		cfg.Stale, cfg.RemovalDelay = time.Hour, delay
		h.dns.set(
			pool+" SRV",
			services(10*time.Second, datum{host: "a.example.com", port: 1}, datum{host: "b.example.com", port: 1}),
		)
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
			h.want(owner1, q, Answer{
				Status: Stale,
				Reason: ReasonServingStale,
				Cause:  "SERVFAIL",
				Addrs:  []Addr{seeds[0], addr("192.0.2.3", 1, 0), seeds[1]},
			})
			h.pass(time.Hour)
			h.want(
				owner1,
				q,
				Answer{Status: Stale, Reason: ReasonServingStale, Cause: "SERVFAIL", Addrs: []Addr{addr("192.0.2.3", 1, 0)}},
			)
		})
	})
	t.Run("hosts known", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			q := setup(h, 0)
			h.dns.set("b.example.com A", records(10*time.Second, "192.0.2.2"))
			h.start()
			h.want(owner1, q, Answer{Status: Current, Addrs: []Addr{addr("192.0.2.2", 1, 0), addr("192.0.2.3", 1, 0)}})
		})
	})
	t.Run("with a removal delay", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			q := setup(h, time.Minute)
			h.dns.set("b.example.com A", records(10*time.Second, "192.0.2.2"))
			h.start()
			h.pass(59 * time.Second)
			h.want(owner1, q, Answer{Status: Current, Addrs: []Addr{seeds[0], addr("192.0.2.2", 1, 0), addr("192.0.2.3", 1, 0)}})
			h.pass(time.Second)
			h.want(owner1, q, Answer{Status: Current, Addrs: []Addr{addr("192.0.2.2", 1, 0), addr("192.0.2.3", 1, 0)}})
		})
	})
	t.Run("service not answered", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			q := setup(h, 0)
			h.dns.set(pool+" SRV", rcode(refused, 0))
			h.start()
			h.pass(59 * time.Minute)
			h.want(owner1, q, Answer{Status: Stale, Reason: ReasonServingStale, Cause: "REFUSED", Addrs: seeds[:2]})
			h.pass(time.Minute)
			h.want(owner1, q, failed(ReasonResolutionFailed, "REFUSED"))
		})
	})
}

func TestServiceHostsAreBounded(t *testing.T) {
	inBubble(t, func(h *harness) {
		h.options.MaxAddresses = 2
		q := service(pool, IPv4)
		data := []datum{{host: "c.example.com", port: 1}, {host: "d.example.com", port: 1}}
		for i, host := range []string{"a", "b", "c", "d"} {
			h.dns.set(host+".example.com A", records(10*time.Second, fmt.Sprint("192.0.2.", i)))
		}
		h.dns.set(pool+" SRV", services(10*time.Second, data...))
		h.Sync(owner1, defaultConfig(), []Wanted{q})
		h.start()
		h.dns.set(
			pool+" SRV",
			services(
				10*time.Second,
				append(data, datum{host: "a.example.com", port: 1}, datum{host: "b.example.com", port: 1})...),
		)
		h.pass(10 * time.Second)
		h.want(
			owner1,
			q,
			Answer{Status: Current, Omitted: 2, Addrs: []Addr{addr("192.0.2.2", 1, 0), addr("192.0.2.3", 1, 0)}},
		)
		if n := h.dns.count("a.example.com A"); n != 0 {
			t.Errorf("asked %d times for a host over the bound", n)
		}
	})
}

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
