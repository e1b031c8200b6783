package resolve

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/netip"
	"testing"
	"time"
)

func broken(context.Context, netip.AddrPort) (answer, error) { return answer{}, errMalformed }

// Whatever keeps an answer from coming, the last good one serves until it has been stale for Stale.
func TestFailureServesTheLastGoodAnswer(t *testing.T) {
	for cause, reply := range map[string]reply{
		"SERVFAIL":         rcode(servFail, 0),
		"REFUSED":          rcode(refused, 0),
		"NOTAUTH":          rcode(9, 0),
		"timeout":          silence,
		"malformed answer": broken,
		"empty answer":     rcode(noError, 10*time.Second),
	} {
		t.Run(cause, func(t *testing.T) {
			inBubble(t, func(h *harness) {
				db := name("db.example.com", IPv4|IPv6)
				cfg := defaultConfig()
				cfg.Stale = time.Hour
				h.dns.set("db.example.com A", records(100*time.Second, "192.0.2.1"))
				h.dns.set("db.example.com AAAA", records(100*time.Second, "2001:db8::1"))
				h.Sync(owner1, cfg, []Wanted{db})
				h.start()
				h.dns.set("db.example.com A", reply)
				h.dns.set("db.example.com AAAA", reply)
				h.notifications(owner1)

				h.pass(99 * time.Second) // refreshing failed, but the TTL is not over
				h.want(owner1, db, current("192.0.2.1", "2001:db8::1"))
				h.pass(2 * time.Second)
				h.want(owner1, db, stale(cause, "192.0.2.1", "2001:db8::1"))
				if n := h.notifications(owner1); n != 1 {
					t.Errorf("%d notifications on the way to stale", n)
				}
				h.pass(time.Hour - 2*time.Second)
				h.want(owner1, db, stale(cause, "192.0.2.1", "2001:db8::1"))
				h.pass(time.Second)
				h.want(owner1, db, failed(ReasonResolutionFailed, cause))
				if n := h.notifications(owner1); n != 1 {
					t.Errorf("%d notifications on the way to failed", n)
				}

				h.dns.set("db.example.com A", records(100*time.Second, "192.0.2.9"))
				h.dns.set("db.example.com AAAA", rcode(noError, time.Minute))
				h.pass(maxBackoff + lookupTimeout + 4*time.Second)
				h.want(owner1, db, current("192.0.2.9"))
			})
		})
	}
}

// A name that never had a good answer fails with its first result.
func TestNameThatNeverResolvedFails(t *testing.T) {
	inBubble(t, func(h *harness) {
		db, gone := name("db.example.com", IPv4), name("gone.example.com", IPv4|IPv6)
		h.dns.set("db.example.com A", rcode(servFail, 0))
		h.dns.set("gone.example.com A", rcode(nxDomain, time.Hour))
		h.dns.set("gone.example.com AAAA", rcode(nxDomain, time.Hour))
		h.Sync(owner1, defaultConfig(), []Wanted{db, gone})
		h.start()
		h.want(owner1, db, failed(ReasonResolutionFailed, "SERVFAIL"))
		h.want(owner1, gone, failed(ReasonNameNotFound, "NXDOMAIN"))
	})
}

// NXDOMAIN takes addresses away after the belief delay, and not where it passes or fails before.
func TestNXDomainIsBelievedWhenItLasts(t *testing.T) {
	setup := func(h *harness) Wanted {
		db := name("db.example.com", IPv4|IPv6)
		h.dns.set("db.example.com A", records(10*time.Second, "192.0.2.1"))
		h.dns.set("db.example.com AAAA", rcode(noError, 10*time.Second))
		h.Sync(owner1, defaultConfig(), []Wanted{db})
		h.start()
		h.dns.set("db.example.com A", rcode(nxDomain, 5*time.Second))
		h.dns.set("db.example.com AAAA", rcode(nxDomain, 5*time.Second))
		h.pass(10 * time.Second)
		h.want(owner1, db, stale("NXDOMAIN", "192.0.2.1"))
		return db
	}
	t.Run("lasting", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			db := setup(h)
			h.notifications(owner1)
			h.pass(28 * time.Second) // first seen 8.1 to 9 s after the start
			h.want(owner1, db, stale("NXDOMAIN", "192.0.2.1"))
			h.pass(2 * time.Second)
			h.want(owner1, db, failed(ReasonNameNotFound, "NXDOMAIN"))
			if n := h.notifications(owner1); n != 1 {
				t.Errorf("%d notifications", n)
			}
			// A denial that was believed stays believed, whatever fails afterwards.
			h.dns.set("db.example.com A", rcode(servFail, 0))
			h.dns.set("db.example.com AAAA", rcode(servFail, 0))
			h.pass(time.Minute)
			h.want(owner1, db, failed(ReasonResolutionFailed, "SERVFAIL"))
		})
	})
	t.Run("passing", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			db := setup(h)
			h.dns.set("db.example.com A", records(10*time.Second, "192.0.2.1"))
			h.dns.set("db.example.com AAAA", rcode(noError, 10*time.Second))
			for range 100 {
				h.pass(time.Second)
				if got := h.Snapshot(owner1)[db.Question].Addrs; len(got) != 1 {
					t.Fatalf("addresses %v", got)
				}
			}
			h.want(owner1, db, current("192.0.2.1"))
		})
	})
	t.Run("failing within", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			db := setup(h)
			h.dns.set("db.example.com A", rcode(servFail, 0))
			h.dns.set("db.example.com AAAA", rcode(servFail, 0))
			h.pass(5 * time.Minute)
			h.want(owner1, db, stale("SERVFAIL", "192.0.2.1"))
		})
	})
}

// A denial with a long TTL is asked for again before it takes anything away.
func TestDenialIsSeenTwiceBeforeItCounts(t *testing.T) {
	denials := map[string]reply{"NXDOMAIN": rcode(nxDomain, time.Hour), "one family empty": rcode(noError, time.Hour)}
	for desc, denial := range denials {
		for _, minTTL := range []time.Duration{0, 5 * time.Second, 29 * time.Second, time.Minute} {
			t.Run(fmt.Sprintf("%s, TTLs of %v at least", desc, minTTL), func(t *testing.T) {
				inBubble(t, func(h *harness) {
					db := name("db.example.com", IPv4|IPv6)
					cfg := defaultConfig()
					cfg.MinTTL = minTTL
					h.dns.set("db.example.com A", records(10*time.Second, "192.0.2.1"))
					h.dns.set("db.example.com AAAA", records(10*time.Second, "2001:db8::1"))
					h.Sync(owner1, cfg, []Wanted{db})
					h.start()
					h.dns.set("db.example.com A", denial)
					for before := h.dns.count("db.example.com A"); h.dns.count("db.example.com A") == before; {
						h.pass(100 * time.Millisecond)
					}
					h.dns.set("db.example.com A", records(10*time.Second, "192.0.2.1"))
					for range 600 {
						h.pass(100 * time.Millisecond)
						if got := h.Snapshot(owner1)[db.Question].Addrs; len(got) != 2 {
							t.Fatalf("addresses %v", got)
						}
					}
					h.want(owner1, db, current("192.0.2.1", "2001:db8::1"))
				})
			})
		}
	}
	t.Run("after a restart", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			db := seeded(name("db.example.com", IPv4|IPv6), "192.0.2.1", "2001:db8::1")
			four := seeded(name("four.example.com", IPv4|IPv6), "192.0.2.4")
			h.dns.set("db.example.com A", rcode(noError, time.Hour))
			h.dns.set("db.example.com AAAA", records(time.Hour, "2001:db8::1"))
			h.dns.set("four.example.com A", records(time.Hour, "192.0.2.4"))
			h.dns.set("four.example.com AAAA", rcode(noError, time.Hour))
			h.Sync(owner1, defaultConfig(), []Wanted{db, four})
			h.start()
			h.dns.set("db.example.com A", records(time.Hour, "192.0.2.1"))
			h.pass(time.Minute)
			h.want(owner1, db, current("192.0.2.1", "2001:db8::1"))
			if n := h.dns.count("four.example.com AAAA"); n != 1 {
				t.Errorf("asked %d times for a family that never had addresses", n)
			}
		})
	})
}

// A family without addresses leaves after the belief delay if the other family has some, and does
// not come back.
func TestEmptyFamilyLeavesBesideAGoodOne(t *testing.T) {
	inBubble(t, func(h *harness) {
		both, six := name("db.example.com", IPv4|IPv6), name("db.example.com", IPv6)
		h.dns.set("db.example.com A", records(10*time.Second, "192.0.2.1"))
		h.dns.set("db.example.com AAAA", records(10*time.Second, "2001:db8::1"))
		h.Sync(owner1, defaultConfig(), []Wanted{both})
		h.Sync(owner2, defaultConfig(), []Wanted{six})
		h.start()
		h.dns.set("db.example.com AAAA", rcode(noError, 10*time.Second))
		h.pass(11 * time.Second)
		h.want(owner1, both, current("192.0.2.1", "2001:db8::1"))
		h.want(owner2, six, stale("empty answer", "2001:db8::1"))
		h.pass(28 * time.Second)
		h.want(owner1, both, current("192.0.2.1"))
		h.want(owner2, six, stale("empty answer", "2001:db8::1")) // a family that is not asked for does not count

		// An address that has left does not come back when both families fail.
		h.dns.set("db.example.com A", rcode(servFail, 0))
		h.dns.set("db.example.com AAAA", rcode(servFail, 0))
		h.pass(time.Minute)
		h.want(owner1, both, stale("SERVFAIL", "192.0.2.1"))
		h.want(owner2, six, stale("SERVFAIL", "2001:db8::1"))
	})
}

// A family that fails serves its last good answer beside a good family.
func TestFailingFamilyServesStale(t *testing.T) {
	inBubble(t, func(h *harness) {
		db := name("db.example.com", IPv4|IPv6)
		cfg := defaultConfig()
		cfg.Stale = time.Minute
		h.dns.set("db.example.com A", records(10*time.Second, "192.0.2.1"))
		h.dns.set("db.example.com AAAA", records(10*time.Second, "2001:db8::1"))
		h.Sync(owner1, cfg, []Wanted{db})
		h.start()
		h.dns.set("db.example.com AAAA", rcode(servFail, 0))
		h.pass(11 * time.Second)
		h.want(owner1, db, stale("SERVFAIL", "192.0.2.1", "2001:db8::1"))
		h.pass(time.Minute)
		h.want(owner1, db, stale("SERVFAIL", "192.0.2.1"))
	})
}

// An IPv4-only name whose server fails for AAAA is current until the TTL of the last denial ends.
func TestDenialStaysGoodForItsTTL(t *testing.T) {
	inBubble(t, func(h *harness) {
		db := name("db.example.com", IPv4|IPv6)
		h.dns.set("db.example.com A", records(100*time.Second, "192.0.2.1"))
		h.dns.set("db.example.com AAAA", rcode(noError, 100*time.Second))
		h.Sync(owner1, defaultConfig(), []Wanted{db})
		h.start()
		h.dns.set("db.example.com AAAA", rcode(servFail, 0))
		h.pass(99 * time.Second)
		h.want(owner1, db, current("192.0.2.1"))
		h.pass(2 * time.Second)
		h.want(owner1, db, stale("SERVFAIL", "192.0.2.1"))
	})
}

// Lookups that fail come less and less often.
func TestFailuresBackOff(t *testing.T) {
	for cause, reply := range map[string]reply{"refused": rcode(refused, 0), "malformed": broken, "timeout": silence} {
		t.Run(cause, func(t *testing.T) {
			inBubble(t, func(h *harness) {
				h.dns.set("db.example.com A", reply)
				h.Sync(owner1, defaultConfig(), []Wanted{name("db.example.com", IPv4)})
				h.start()
				h.pass(time.Minute)
				first := h.dns.count("db.example.com A")
				if first < 5 || first > 3*7 {
					t.Errorf("asked %d times in the first minute", first)
				}
				h.pass(time.Hour)
				if n := h.dns.count("db.example.com A") - first; n < 100 || n > 3*122 {
					t.Errorf("asked %d times in an hour", n)
				}
			})
		})
	}
}

// A TTL of zero leads to one lookup per lower bound, and at most one per second.
func TestZeroTTLKeepsTheMinimumInterval(t *testing.T) {
	for _, c := range []struct {
		desc    string
		min     time.Duration
		reply   reply
		atMost  int
		atLeast int
	}{
		{"records", 5 * time.Second, records(0, "192.0.2.1"), 720, 710},
		{"records without a lower bound", 0, records(0, "192.0.2.1"), 3600, 3000},
		{"NXDOMAIN", 5 * time.Second, rcode(nxDomain, 0), 720, 710},
		{"empty", 0, rcode(noError, 0), 3600, 3000},
	} {
		t.Run(c.desc, func(t *testing.T) {
			inBubble(t, func(h *harness) {
				cfg := defaultConfig()
				cfg.MinTTL = c.min
				h.dns.set("db.example.com A", c.reply)
				h.Sync(owner1, cfg, []Wanted{name("db.example.com", IPv4)})
				h.start()
				h.pass(time.Hour - time.Second)
				if n := h.dns.count("db.example.com A"); n > c.atMost || n < c.atLeast {
					t.Errorf("asked %d times in an hour", n)
				}
			})
		})
	}
}

// What an earlier process published serves like a last good answer until there is an answer.
func TestSeedServesUntilThereIsAnAnswer(t *testing.T) {
	t.Run("resolver down", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			db := seeded(name("db.example.com", IPv4), "192.0.2.1", "2001:db8::1")
			cfg := defaultConfig()
			cfg.Stale = time.Hour
			h.dns.set("db.example.com A", silence)
			h.Sync(owner1, cfg, []Wanted{db})
			h.pass(2 * time.Hour) // time before the start does not count
			h.want(owner1, db, Answer{Status: Pending, Addrs: addrs("192.0.2.1")})
			h.start()
			h.want(owner1, db, Answer{Status: Pending, Addrs: addrs("192.0.2.1")})
			h.pass(lookupTimeout)
			h.want(owner1, db, stale("timeout", "192.0.2.1"))
			h.pass(time.Hour - lookupTimeout - time.Second)
			h.want(owner1, db, stale("timeout", "192.0.2.1"))
			h.pass(time.Second)
			h.want(owner1, db, failed(ReasonResolutionFailed, "timeout"))
		})
	})
	t.Run("NXDOMAIN", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			db := seeded(name("db.example.com", IPv4), "192.0.2.1")
			cfg := defaultConfig()
			cfg.Stale = 0
			h.dns.set("db.example.com A", rcode(nxDomain, time.Minute))
			h.Sync(owner1, cfg, []Wanted{db})
			h.start()
			h.pass(29 * time.Second)
			h.want(owner1, db, stale("NXDOMAIN", "192.0.2.1"))
			h.pass(time.Second)
			h.want(owner1, db, failed(ReasonNameNotFound, "NXDOMAIN"))
			h.dns.set("db.example.com A", rcode(servFail, 0))
			h.pass(2 * time.Minute)
			h.want(owner1, db, failed(ReasonResolutionFailed, "SERVFAIL"))
		})
	})
	t.Run("answered", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			db := seeded(name("db.example.com", IPv4), "192.0.2.1", "192.0.2.2")
			h.dns.set("db.example.com A", records(time.Minute, "192.0.2.2", "192.0.2.3"))
			h.Sync(owner1, defaultConfig(), []Wanted{db})
			h.start()
			h.want(owner1, db, current("192.0.2.2", "192.0.2.3"))
			h.Sync(owner1, defaultConfig(), []Wanted{db}) // seeds of a known question are not read
			h.want(owner1, db, current("192.0.2.2", "192.0.2.3"))
		})
	})
	t.Run("removal delay counts from the start", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			db := seeded(name("db.example.com", IPv4), "192.0.2.1", "192.0.2.2")
			cfg := defaultConfig()
			cfg.RemovalDelay = 10 * time.Minute
			h.dns.set("db.example.com A", records(time.Minute, "192.0.2.3"))
			h.Sync(owner1, cfg, []Wanted{db})
			h.start()
			h.pass(10*time.Minute - time.Second)
			h.want(owner1, db, current("192.0.2.1", "192.0.2.2", "192.0.2.3"))
			h.pass(time.Second)
			h.want(owner1, db, current("192.0.2.3"))
		})
	})
	t.Run("one family empty", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			db := seeded(name("db.example.com", IPv4|IPv6), "192.0.2.1", "2001:db8::1")
			h.dns.set("db.example.com A", records(time.Minute, "192.0.2.1"))
			h.Sync(owner1, defaultConfig(), []Wanted{db})
			h.start()
			h.pass(29 * time.Second)
			h.want(owner1, db, current("192.0.2.1", "2001:db8::1"))
			h.pass(time.Second)
			h.want(owner1, db, current("192.0.2.1"))
		})
	})
	t.Run("given twice", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			db := seeded(name("db.example.com", IPv4), "192.0.2.1", "192.0.2.1")
			again := seeded(name("db.example.com", IPv4), "192.0.2.1", "192.0.2.2")
			again.Seed[0].Port = 5432 // a name's addresses have none
			again.Seed = append(again.Seed, Addr{})
			h.Sync(owner1, defaultConfig(), []Wanted{db, again})
			h.want(owner1, db, Answer{Status: Pending, Addrs: addrs("192.0.2.1", "192.0.2.2")})
		})
	})
	t.Run("one owner's seed is not another's", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			mine, theirs := seeded(name("db.example.com", IPv4), "192.0.2.1"), name("db.example.com", IPv4)
			h.dns.set("db.example.com A", rcode(servFail, 0))
			h.Sync(owner1, defaultConfig(), []Wanted{mine})
			h.Sync(owner2, defaultConfig(), []Wanted{theirs})
			h.start()
			h.want(owner1, mine, stale("SERVFAIL", "192.0.2.1"))
			h.want(owner2, theirs, failed(ReasonResolutionFailed, "SERVFAIL"))
		})
	})
}

// An address that good answers lack stays for the removal delay of its owner.
func TestAbsentAddressesStayForTheRemovalDelay(t *testing.T) {
	inBubble(t, func(h *harness) {
		pool, plain := name("pool.example.com", IPv4), name("pool.example.com", IPv4)
		cfg := defaultConfig()
		cfg.RemovalDelay = time.Minute
		h.dns.set("pool.example.com A", records(10*time.Second, "192.0.2.1", "192.0.2.2"))
		h.Sync(owner1, cfg, []Wanted{pool})
		h.Sync(owner2, defaultConfig(), []Wanted{plain})
		h.start()
		h.dns.set("pool.example.com A", records(10*time.Second, "192.0.2.3"))
		h.pass(10 * time.Second)
		h.want(owner1, pool, current("192.0.2.1", "192.0.2.2", "192.0.2.3"))
		h.want(owner2, plain, current("192.0.2.3"))

		h.dns.set("pool.example.com A", records(10*time.Second, "192.0.2.3", "192.0.2.1")) // seen again
		h.pass(30 * time.Second)
		h.dns.set("pool.example.com A", records(10*time.Second, "192.0.2.3"))
		h.pass(28 * time.Second)
		h.want(owner1, pool, current("192.0.2.1", "192.0.2.2", "192.0.2.3"))
		h.pass(2 * time.Second)
		h.want(owner1, pool, current("192.0.2.1", "192.0.2.3"))

		// While lookups fail, no address leaves, and removal delays stand still.
		h.dns.set("pool.example.com A", rcode(servFail, 0))
		h.pass(10 * time.Minute)
		h.want(owner1, pool, stale("SERVFAIL", "192.0.2.1", "192.0.2.3"))
		h.dns.set("pool.example.com A", records(10*time.Second, "192.0.2.3"))
		for h.Snapshot(owner1)[pool.Question].Status == Stale {
			h.pass(time.Second)
		}
		h.want(owner1, pool, current("192.0.2.1", "192.0.2.3"))
		h.pass(time.Minute)
		h.want(owner1, pool, current("192.0.2.3"))
	})
}

// A lower MaxTTL makes answers due that are older than it.
func TestShorterMaxTTLAppliesAtOnce(t *testing.T) {
	inBubble(t, func(h *harness) {
		db := name("db.example.com", IPv4)
		h.dns.set("db.example.com A", records(time.Hour, "192.0.2.1"))
		h.Sync(owner1, defaultConfig(), []Wanted{db})
		h.start()
		h.dns.set("db.example.com A", records(time.Hour, "192.0.2.2"))
		h.pass(time.Minute)
		cfg := defaultConfig()
		cfg.MaxTTL = 30 * time.Second
		h.Sync(owner1, cfg, []Wanted{db})
		h.pass(0)
		h.want(owner1, db, current("192.0.2.2"))
		before := h.dns.count("db.example.com A")
		h.pass(90 * time.Second)
		if n := h.dns.count("db.example.com A") - before; n != 3 {
			t.Errorf("asked %d times in 90 s", n)
		}
	})
}

// With NoQueries nothing is asked, and the last good answer goes stale and then fails.
func TestForbiddenQueriesGoStale(t *testing.T) {
	inBubble(t, func(h *harness) {
		db := name("db.example.com", IPv4)
		cfg := defaultConfig()
		cfg.Stale = time.Minute
		h.dns.set("db.example.com A", records(30*time.Second, "192.0.2.1"))
		h.Sync(owner1, cfg, []Wanted{db})
		h.Sync(owner2, cfg, []Wanted{db})
		h.start()
		h.pass(time.Second)
		cfg.NoQueries = true
		h.Sync(owner1, cfg, []Wanted{db})
		h.want(owner1, db, current("192.0.2.1"))
		h.dns.set("db.example.com A", records(30*time.Second, "192.0.2.9"))
		h.pass(30 * time.Second)
		h.want(owner1, db, stale(causeForbidden, "192.0.2.1")) // answers to other owners do not reach it
		h.want(owner2, db, current("192.0.2.9"))
		h.Forget(owner2)
		h.pass(time.Minute)
		h.want(owner1, db, failed(ReasonResolutionFailed, causeForbidden))
		before := h.dns.count("db.example.com A")
		h.pass(time.Hour)
		if n := h.dns.count("db.example.com A"); n != before {
			t.Errorf("asked %d times", n-before)
		}
		cfg.NoQueries = false
		h.Sync(owner1, cfg, []Wanted{db})
		h.pass(0)
		h.want(owner1, db, current("192.0.2.9"))
	})
}

// New nameservers that don't answer take nothing away.
func TestSilentNewNameserversRemoveNothing(t *testing.T) {
	inBubble(t, func(h *harness) {
		db := name("db.example.com", IPv4)
		cfg := defaultConfig()
		cfg.Stale = time.Minute
		h.dns.set("db.example.com A", records(time.Minute, "192.0.2.1"))
		h.Sync(owner1, cfg, []Wanted{db})
		h.start()
		h.dns.set("db.example.com A", silence)
		cfg.Nameservers = []netip.AddrPort{netip.MustParseAddrPort("198.51.100.54:853")}
		cfg.Transport, cfg.TLS, cfg.TLSIdentity = TLS, &tls.Config{}, "one"
		h.Sync(owner1, cfg, []Wanted{db})
		h.want(owner1, db, current("192.0.2.1"))
		h.pass(59 * time.Second)
		h.want(owner1, db, current("192.0.2.1"))
		h.pass(time.Second)
		h.want(owner1, db, stale("timeout", "192.0.2.1"))
		h.dns.set("db.example.com A", records(time.Minute, "192.0.2.2"))
		h.pass(maxBackoff + lookupTimeout + 4*time.Second)
		h.want(owner1, db, current("192.0.2.2"))
	})
}

// A nameserver that a policy refuses during a lookup gets no further query.
func TestRefusedNameserversAreAskedNoMore(t *testing.T) {
	refuse := withServers(1, 2)
	refuse.NoQueries = true
	db := name("db.example.com", IPv4)
	for _, c := range []struct {
		desc  string
		deny  func(h *harness)
		until time.Duration // the refusal comes
	}{
		{"all queries are refused", func(h *harness) { h.Sync(owner1, refuse, []Wanted{db}) }, 100 * time.Millisecond},
		{"all queries are refused while the server is checked", func(h *harness) { h.Sync(owner1, refuse, []Wanted{db}) },
			700 * time.Millisecond},
		{"the server is taken out", func(h *harness) { h.Sync(owner1, withServers(2), []Wanted{db}) },
			100 * time.Millisecond},
		{"the owner goes", func(h *harness) { h.Forget(owner1) }, 100 * time.Millisecond},
		{"the name goes", func(h *harness) { h.Sync(owner1, withServers(1, 2), nil) }, 100 * time.Millisecond},
	} {
		t.Run(c.desc, func(t *testing.T) {
			inBubble(t, func(h *harness) {
				s := newByServer(func(last byte, _ string) reply {
					if last == 1 {
						return silence
					}
					return records(time.Minute, "192.0.2.1")
				})
				h.lookuper.asker = s
				h.Sync(owner1, withServers(1, 2), []Wanted{db})
				h.start()
				h.pass(c.until)
				before := s.count(1, db.Name)
				c.deny(h)
				h.pass(0)
				if n, _ := s.waiting(1); n != 0 {
					t.Errorf("%d questions still wait for the server", n)
				}
				h.pass(time.Hour)
				if n := s.count(1, db.Name); n != before {
					t.Errorf("asked %d times after the denial", n-before)
				}
			})
		})
	}
}

// A lookup that another owner wants too goes on, and so does one whose nameserver is allowed again.
func TestRefusalAffectsNoOtherOwner(t *testing.T) {
	db := name("db.example.com", IPv4)
	slow := newByServer(func(byte, string) reply { return after(100*time.Millisecond, records(time.Minute, "192.0.2.1")) })
	refuse := withServers(1)
	refuse.NoQueries = true
	t.Run("another owner", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			h.lookuper.asker = slow
			h.Sync(owner1, withServers(1), []Wanted{db})
			h.Sync(owner2, withServers(1), []Wanted{db})
			h.start()
			h.Sync(owner1, refuse, []Wanted{db})
			h.pass(100 * time.Millisecond)
			h.want(owner2, db, current("192.0.2.1"))
		})
	})
	t.Run("allowed again", func(t *testing.T) {
		inBubble(t, func(h *harness) {
			h.lookuper.asker = slow
			h.Sync(owner1, withServers(1), []Wanted{db})
			h.start()
			h.Sync(owner1, refuse, []Wanted{db})
			h.Sync(owner1, withServers(1), []Wanted{db})
			h.pass(100 * time.Millisecond)
			h.want(owner1, db, current("192.0.2.1"))
		})
	})
}
