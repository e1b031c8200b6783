package resolve

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

func ownerOf(i int) types.NamespacedName {
	return types.NamespacedName{Namespace: "shop", Name: fmt.Sprint("owner-", i)}
}

// All owners of a name share its queries, and each has an answer by its own settings.
func TestOwnersShareOneQuery(t *testing.T) {
	inBubble(t, func(h *harness) {
		db := name("db.example.com", IPv4)
		h.dns.set("db.example.com A", records(time.Minute, "192.0.2.1"))
		for i := range 100 {
			cfg := defaultConfig()
			cfg.Stale, cfg.RemovalDelay = time.Duration(i)*time.Minute, time.Duration(i)*time.Minute
			h.Sync(ownerOf(i), cfg, []Wanted{db})
		}
		h.start()
		if n := h.dns.count("db.example.com A"); n != 1 {
			t.Errorf("asked %d times for 100 owners", n)
		}
		h.dns.set("db.example.com A", records(time.Minute, "192.0.2.2"))
		h.pass(55 * time.Second)
		h.want(ownerOf(0), db, current("192.0.2.2"))
		h.want(ownerOf(99), db, current("192.0.2.1", "192.0.2.2"))
		for i := range 100 {
			if n := h.notifications(ownerOf(i)); n != 2 {
				t.Fatalf("owner %d was notified %d times", i, n)
			}
		}
		h.pass(time.Minute)
		h.want(ownerOf(1), db, current("192.0.2.2"))
		h.want(ownerOf(50), db, current("192.0.2.1", "192.0.2.2"))
	})
}

// The owner with the shortest interval decides when to ask, as long as it is there.
func TestShortestIntervalOfAllOwnersCounts(t *testing.T) {
	inBubble(t, func(h *harness) {
		db := name("db.example.com", IPv4)
		h.dns.set("db.example.com A", records(time.Hour, "192.0.2.1"))
		eager := defaultConfig()
		eager.MaxTTL = 10 * time.Second
		h.Sync(owner1, defaultConfig(), []Wanted{db})
		h.Sync(owner2, eager, []Wanted{db})
		h.start()
		h.pass(100 * time.Second)
		n := h.dns.count("db.example.com A")
		if n < 11 || n > 14 {
			t.Errorf("asked %d times in 100 s", n)
		}
		h.Forget(owner2)
		h.pass(100 * time.Second)
		if more := h.dns.count("db.example.com A") - n; more != 0 {
			t.Errorf("asked %d times more without the eager owner", more)
		}
	})
}

// Owners with different nameservers get the answers of their own.
func TestDifferentNameserversAreAskedSeparately(t *testing.T) {
	inBubble(t, func(h *harness) {
		var servers []netip.AddrPort
		h.dns.set("db.example.com A", func(_ context.Context, s netip.AddrPort) (answer, error) {
			h.dns.mu.Lock()
			defer h.dns.mu.Unlock()
			servers = append(servers, s)
			return answer{data: []datum{{ip: s.Addr()}}, ttl: time.Minute}, nil
		})
		db := name("db.example.com", IPv4)
		other := defaultConfig()
		other.Nameservers = []netip.AddrPort{netip.MustParseAddrPort("198.51.100.54:0")}
		system := defaultConfig()
		system.Nameservers = nil
		h.Sync(owner1, defaultConfig(), []Wanted{db})
		h.Sync(owner2, other, []Wanted{db})
		h.Sync(ownerOf(3), system, []Wanted{db})
		h.start()
		h.want(owner1, db, current("198.51.100.53"))
		h.want(owner2, db, current("198.51.100.54"))
		h.want(ownerOf(3), db, current("127.0.0.1"))
		if len(servers) != 3 ||
			h.records[recordKey{"db.example.com", typeA, upstreamOf(other).key}].up.servers[0].Port() != 53 {
			t.Errorf("asked %v", servers)
		}
	})
}

// A thousand new names resolve within a second, and then by their TTL, each with one query at a
// time.
func TestManyNewNamesResolveSoon(t *testing.T) {
	inBubble(t, func(h *harness) {
		const names = 1000
		wanted := make([]Wanted, names)
		for i := range wanted {
			wanted[i] = name(fmt.Sprintf("n%d.example.com", i), IPv4|IPv6)
			h.dns.set(wanted[i].Name+" A", func(ctx context.Context, _ netip.AddrPort) (answer, error) {
				select {
				case <-time.After(10 * time.Millisecond):
				case <-ctx.Done():
				}
				return answer{data: []datum{{ip: netip.MustParseAddr("192.0.2.1")}}, ttl: 30 * time.Second}, nil
			})
		}
		h.start()
		h.Sync(owner1, defaultConfig(), wanted)
		h.pass(time.Second)
		for q, a := range h.Snapshot(owner1) {
			if a.Status != Current {
				t.Fatalf("%s is %v", q.Name, a)
			}
		}
		h.pass(4 * time.Minute)
		if h.dns.most != 1 {
			t.Errorf("%d queries in flight for one question", h.dns.most)
		}
		per := h.dns.count("n7.example.com A")
		if per < 8 || per > 10 {
			t.Errorf("a name with a TTL of 30 s was asked for %d times in 4 min", per)
		}
	})
}

// All lookups share MaxConcurrent, and those of new and of failing names can use only a part of it.
func TestConcurrencyIsBounded(t *testing.T) {
	inBubble(t, func(h *harness) {
		h.options.MaxConcurrent = 8
		var now, most int
		var code int
		for i := range 100 {
			h.dns.set(fmt.Sprintf("n%d.example.com A", i), func(ctx context.Context, _ netip.AddrPort) (answer, error) {
				h.dns.mu.Lock()
				now++
				most = max(most, now)
				code := code
				h.dns.mu.Unlock()
				time.Sleep(100 * time.Millisecond)
				h.dns.mu.Lock()
				defer h.dns.mu.Unlock()
				now--
				return answer{rcode: code}, nil
			})
			h.Sync(ownerOf(i), defaultConfig(), []Wanted{name(fmt.Sprintf("n%d.example.com", i), IPv4)})
		}
		h.start()
		for _, phase := range []struct {
			desc string
			code int
			wait time.Duration
			most int
		}{
			{"new names", noError, 5 * time.Second, 4},
			{"known names", servFail, 8 * time.Second, 8},
			{"failing names", servFail, time.Minute, 1},
		} {
			h.dns.mu.Lock()
			most, code = 0, phase.code
			h.dns.mu.Unlock()
			h.pass(phase.wait)
			h.dns.mu.Lock()
			if most > 8 || phase.desc != "known names" && most != phase.most || most < phase.most-1 {
				t.Errorf("%s: %d queries at once", phase.desc, most)
			}
			h.dns.mu.Unlock()
		}
	})
}

// Thousands of names whose server is dead delay neither known nor new names.
func TestDeadNamesDelayNoOthers(t *testing.T) {
	inBubble(t, func(h *harness) {
		var dead []Wanted
		for i := range 3000 {
			dead = append(dead, name(fmt.Sprintf("d%d.example.com", i), IPv4))
			h.dns.set(dead[i].Name+" A", silence)
		}
		live, late := name("live.example.com", IPv4), name("late.example.com", IPv4)
		h.dns.set("live.example.com A", records(10*time.Second, "192.0.2.1"))
		h.dns.set("late.example.com A", records(10*time.Second, "192.0.2.2"))
		h.Sync(owner1, defaultConfig(), []Wanted{live})
		h.start()
		h.Sync(owner2, defaultConfig(), dead)
		h.pass(100 * time.Second)
		if n := h.dns.count("live.example.com A"); n < 11 {
			t.Errorf("asked %d times in 100 s beside new dead names", n)
		}
		h.pass(100 * time.Second)
		before := h.dns.count("live.example.com A")
		h.Sync(ownerOf(3), defaultConfig(), []Wanted{late})
		h.pass(0)
		h.want(ownerOf(3), late, current("192.0.2.2"))
		h.pass(100 * time.Second)
		if n := h.dns.count("live.example.com A") - before; n < 11 {
			t.Errorf("asked %d times in 100 s beside dead names", n)
		}
	})
}

// Thousands of slow names, known or new, delay only the names of their own namespace.
func TestSlowNamesDelayNoOthers(t *testing.T) {
	inBubble(t, func(h *harness) {
		for _, took := range []time.Duration{slowLookup - time.Millisecond, slowLookup, lookupTimeout - time.Millisecond} {
			crowd := types.NamespacedName{Namespace: "crowd", Name: took.String()}
			var slow []Wanted
			for i := range 3000 {
				slow = append(slow, name(fmt.Sprintf("s%d.%v.example.com", i, took), IPv4))
				h.dns.set(slow[i].Name+" A", func(ctx context.Context, server netip.AddrPort) (answer, error) {
					select {
					case <-ctx.Done():
						return answer{}, ctx.Err()
					case <-time.After(took):
						return records(time.Second, "192.0.2.1")(ctx, server)
					}
				})
			}
			h.Sync(crowd, defaultConfig(), append(slow, name("mine.example.com", IPv4)))
		}
		live, late := name("live.example.com", IPv4), name("late.example.com", IPv4)
		for _, n := range []string{"live", "late", "mine"} {
			h.dns.set(n+".example.com A", records(10*time.Second, "192.0.2.1"))
		}
		h.Sync(owner1, defaultConfig(), []Wanted{live, name("mine.example.com", IPv4)})
		h.start()
		h.pass(100 * time.Second)
		if n := h.dns.count("live.example.com A"); n < 9 {
			t.Errorf("asked %d times in 100 s beside slow names", n)
		}
		h.Sync(owner2, defaultConfig(), []Wanted{late})
		h.pass(lookupTimeout)
		h.want(owner2, late, current("192.0.2.1"))
		before := h.dns.count("mine.example.com A")
		h.pass(100 * time.Second)
		if n := h.dns.count("mine.example.com A") - before; n < 9 {
			t.Errorf("asked %d times in 100 s for a name that the crowd asks for too", n)
		}
	})
}

// many returns a reply with n addresses, different ones each time.
func many(n int) reply {
	round := 0
	return func(context.Context, netip.AddrPort) (answer, error) {
		round++
		a := answer{ttl: time.Second}
		for i := range n {
			a.data = append(a.data, datum{ip: netip.AddrFrom4([4]byte{10, byte(round), byte(i >> 8), byte(i)})})
		}
		return a, nil
	}
}

// However much the zones of one owner answer, the data kept for it are bounded, and other owners
// lose nothing.
func TestDataOfOneOwnerAreBounded(t *testing.T) {
	inBubble(t, func(h *harness) {
		var wanted []Wanted
		for i := range 100 {
			wanted = append(wanted, name(fmt.Sprintf("n%d.example.com", i), IPv4))
			h.dns.set(wanted[i].Name+" A", many(2000))
		}
		live := name("live.example.com", IPv4)
		h.dns.set("live.example.com A", records(10*time.Second, "192.0.2.1", "192.0.2.2"))
		cfg := defaultConfig()
		cfg.RemovalDelay = time.Hour
		h.start()
		h.Sync(owner1, cfg, append(wanted, live))
		h.Sync(owner2, defaultConfig(), []Wanted{live})
		h.pass(20 * time.Second)
		kept := 0
		for _, r := range h.records {
			if len(r.entries) == 0 {
				t.Errorf("of %s nothing is kept", r.name)
			}
			kept += len(r.entries)
		}
		if most := maxOwnerData + len(h.records); kept > most || kept < maxOwnerData {
			t.Errorf("%d data are kept, not about %d", kept, maxOwnerData)
		}
		if o := h.owners[owner1]; o.data != kept {
			t.Errorf("%d data are counted, of %d", o.data, kept)
		}
		full := 0
		for q, a := range h.Snapshot(owner1) {
			if q != live.Question && (a.Status != Current || len(a.Addrs) == 0 || a.Omitted == 0) {
				t.Fatalf("%s is %s with %d addresses, %d omitted", q.Name, a.Status, len(a.Addrs), a.Omitted)
			}
			if len(a.Addrs) == defaultMaxAddresses {
				full++
			}
		}
		if full == 0 {
			t.Error("no name has the most addresses that it may have")
		}
		h.want(owner2, live, current("192.0.2.1", "192.0.2.2"))

		h.Sync(owner1, cfg, []Wanted{live})
		h.pass(time.Minute)
		if o := h.owners[owner1]; o.data != 2 {
			t.Errorf("%d data are counted for an owner who wants two", o.data)
		}
		h.want(owner1, live, current("192.0.2.1", "192.0.2.2"))
	})
}

// A service of many ports on a host of many addresses holds no more than the bound of their
// product.
func TestServicesOfManyAddressesAreBounded(t *testing.T) {
	inBubble(t, func(h *harness) {
		var ports []datum
		for i := range 3000 {
			ports = append(ports, datum{host: "a.example.com", port: uint16(i + 1)})
		}
		h.dns.set("_db._tcp.example.com SRV", services(10*time.Second, ports...))
		h.dns.set("a.example.com A", many(4000))
		db := Wanted{Question: Question{Name: "_db._tcp.example.com", SRV: true, Families: IPv4}}
		h.Sync(owner1, defaultConfig(), []Wanted{db})
		h.start()
		h.pass(time.Second)
		a := h.Snapshot(owner1)[db.Question]
		if len(a.Addrs) != defaultMaxAddresses || a.Omitted == 0 {
			t.Errorf("there are %d addresses, %d omitted", len(a.Addrs), a.Omitted)
		}
		for _, q := range h.owners[owner1].questions {
			if v := q.summarize(time.Now()); len(v.addrs) > 2*maxEntries {
				t.Errorf("a summary holds %d addresses", len(v.addrs))
			}
		}
	})
}

// Names that were answered at the same time are asked for again at different times.
func TestJitterSpreadsLookups(t *testing.T) {
	seen := map[time.Duration]int{}
	for i := range 1000 {
		k := recordKey{name: fmt.Sprint(i)}
		if k.jitter() != k.jitter() {
			t.Fatal("the jitter of a key changes")
		}
		d := interval(100*time.Second, 5*time.Second, time.Hour, k.jitter())
		if d < 81*time.Second || d > 90*time.Second {
			t.Fatalf("interval %v", d)
		}
		seen[d.Truncate(time.Second)]++
	}
	for d, n := range seen {
		if n > 300 {
			t.Errorf("%d of 1000 intervals are %v", n, d)
		}
	}
}

// The interval lies within the bounds of the TTL, whatever the jitter.
func TestIntervalKeepsTheBounds(t *testing.T) {
	for _, c := range []struct{ ttl, lower, upper, atLeast, atMost float64 }{
		{100, 5, 3600, 81, 90},
		{7, 5, 3600, 5, 7},
		{5, 5, 3600, 5, 5.05},
		{0, 5, 3600, 5, 5.05},
		{0, 5, 5, 5, 5},
		{30, 60, 3600, 60, 60.6},
	} {
		for _, j := range []float64{0, 0.5, 0.999} {
			seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
			d := interval(seconds(c.ttl), seconds(c.lower), seconds(c.upper), j)
			if d < seconds(c.atLeast) || d > seconds(c.atMost) {
				t.Errorf("TTL %v in %v..%v: %v", c.ttl, c.lower, c.upper, d)
			}
		}
	}
}

// cache is a caching resolver for one name and type. It answers with the time left of the TTL, in
// whole seconds.
type cache struct {
	answer
	ttl   time.Duration
	ends  time.Time
	asked int
	late  time.Duration // the longest time between the end of an entry and the next query
}

func (c *cache) reply(context.Context, netip.AddrPort) (answer, error) {
	c.asked++
	now := time.Now()
	if late := now.Sub(c.ends); late >= 0 {
		if !c.ends.IsZero() {
			c.late = max(c.late, late)
		}
		c.ends = now.Add(c.ttl)
	}
	a := c.answer
	a.ttl = c.ends.Sub(now).Truncate(time.Second)
	return a, nil
}

// A caching resolver is asked before its entry ends, and again as soon as it has to ask anew.
func TestCacheIsAskedTwicePerTTL(t *testing.T) {
	const rounds = 50
	for _, ttl := range []time.Duration{time.Minute, 61500 * time.Millisecond, 5 * time.Minute, time.Hour} {
		t.Run(ttl.String(), func(t *testing.T) {
			inBubble(t, func(h *harness) {
				cfg := defaultConfig()
				cfg.MaxTTL = 2 * time.Hour
				db := name("db.example.com", IPv4|IPv6)
				some, none := &cache{ttl: ttl}, &cache{ttl: ttl}
				some.data = []datum{{ip: netip.MustParseAddr("192.0.2.1")}}
				h.dns.set("db.example.com A", some.reply)
				h.dns.set("db.example.com AAAA", none.reply)
				h.Sync(owner1, cfg, []Wanted{db})
				h.start()
				h.pass(rounds * ttl)
				for family, c := range []*cache{some, none} {
					if c.asked > 2*rounds+2 || c.late > cfg.MinTTL {
						t.Errorf("family %d: asked %d times in %d TTLs, at most %v after one ended", family, c.asked, rounds, c.late)
					}
				}
				h.want(owner1, db, current("192.0.2.1"))
			})
		})
	}
}

// The time left of a cached answer counts within the owner's bounds.
func TestCachedAnswersKeepTheBounds(t *testing.T) {
	o := settings{minTTL: 5 * time.Second, maxTTL: time.Minute}
	for _, c := range []struct{ left, atLeast, atMost time.Duration }{
		{time.Hour, 48 * time.Second, 54 * time.Second},
		{58 * time.Second, 59 * time.Second, time.Minute},
		{20 * time.Second, 21 * time.Second, 23 * time.Second},
		{5 * time.Second, 5 * time.Second, 5050 * time.Millisecond},
		{0, 5 * time.Second, 5050 * time.Millisecond},
	} {
		for _, jitter := range []float64{0, 0.5, 0.999} {
			h := history{kind: kindGood, latest: lifetime{ttl: c.left}, at: bubbleStart, cached: true}
			if d := h.refreshAt(o, false, jitter).Sub(bubbleStart); d < c.atLeast || d > c.atMost {
				t.Errorf("%v left: asked again after %v", c.left, d)
			}
		}
	}
}

// When all owners are gone, no record, timer or stale name remains, and nothing is asked.
func TestForgetLeavesNothing(t *testing.T) {
	inBubble(t, func(h *harness) {
		h.dns.set("db.example.com A", records(time.Hour, "192.0.2.1"))
		h.dns.set("bad.example.com A", rcode(servFail, 0))
		h.dns.set("_x._tcp.example.com SRV", services(time.Minute, datum{host: "db.example.com", port: 1}))
		wanted := []Wanted{
			name("db.example.com", IPv4|IPv6),
			name("bad.example.com", IPv4),
			service("_x._tcp.example.com", IPv4),
		}
		h.Sync(owner1, defaultConfig(), wanted)
		h.Sync(owner2, defaultConfig(), wanted[:1])
		h.start()
		h.pass(time.Minute)
		h.Sync(owner2, defaultConfig(), nil)
		h.Forget(owner1)
		h.Forget(ownerOf(9))
		if s := h.Snapshot(owner1); s != nil {
			t.Errorf("a forgotten owner has %v", s)
		}
		if s := h.Snapshot(owner2); len(s) != 0 {
			t.Errorf("an owner that wants nothing has %v", s)
		}
		asked := h.dns.count("db.example.com A") + h.dns.count("bad.example.com A")
		h.pass(2 * retention)
		if n := h.dns.count("db.example.com A") + h.dns.count("bad.example.com A"); n != asked {
			t.Errorf("asked %d times for nobody", n-asked)
		}
		if len(h.records) != 0 || h.schedule.Len() != 0 || len(h.stale) != 0 {
			t.Errorf("%d records, %d timers and %d stale names remain", len(h.records), h.schedule.Len(), len(h.stale))
		}
	})
}

// An owner that comes back soon finds what was known, and causes no query.
func TestReturningOwnerCausesNoQuery(t *testing.T) {
	inBubble(t, func(h *harness) {
		db := name("db.example.com", IPv4)
		h.dns.set("db.example.com A", records(time.Hour, "192.0.2.1"))
		h.start()
		for range 10 {
			h.Sync(owner1, defaultConfig(), []Wanted{db})
			h.pass(time.Second)
			h.want(owner1, db, current("192.0.2.1"))
			h.Forget(owner1)
			h.pass(time.Second)
		}
		if n := h.dns.count("db.example.com A"); n != 1 {
			t.Errorf("asked %d times", n)
		}
	})
}

// A lookup whose owner is gone leaves no record and notifies nobody.
func TestForgottenLookupChangesNothing(t *testing.T) {
	inBubble(t, func(h *harness) {
		h.dns.set("db.example.com A", func(context.Context, netip.AddrPort) (answer, error) {
			time.Sleep(hedgeDelay / 2)
			return answer{data: []datum{{ip: netip.MustParseAddr("192.0.2.1")}}, ttl: time.Minute}, nil
		})
		h.Sync(owner1, defaultConfig(), []Wanted{name("db.example.com", IPv4)})
		h.start()
		h.Forget(owner1)
		h.pass(time.Hour)
		if len(h.records) != 0 || h.notifications(owner1) != 0 || h.dns.count("db.example.com A") != 1 {
			t.Errorf("%d records, asked %d times", len(h.records), h.dns.count("db.example.com A"))
		}
	})
}

// Of too many addresses, those published before stay, and the others count as omitted.
func TestAddressesAreBounded(t *testing.T) {
	inBubble(t, func(h *harness) {
		h.options.MaxAddresses = 3
		db := name("db.example.com", IPv4)
		h.dns.set("db.example.com A", records(time.Minute, "192.0.2.5", "192.0.2.6", "192.0.2.7"))
		h.Sync(owner1, defaultConfig(), []Wanted{db})
		h.start()
		h.dns.set("db.example.com A", records(time.Minute, "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.6", "192.0.2.7"))
		h.pass(time.Minute)
		want := current("192.0.2.1", "192.0.2.6", "192.0.2.7")
		want.Omitted = 2
		h.want(owner1, db, want)
	})
}

// Every change of an answer is notified, and nothing else is.
func TestOnlyChangesAreNotified(t *testing.T) {
	inBubble(t, func(h *harness) {
		db := name("db.example.com", IPv4)
		var last map[Question]Answer
		h.options.Notify = func(o types.NamespacedName) {
			h.mu.Lock()
			defer h.mu.Unlock()
			now := h.Snapshot(o)
			if equalAnswers(now[db.Question], last[db.Question]) {
				t.Errorf("notified of no change: %v", now)
			}
			last = now
		}
		cfg := defaultConfig()
		cfg.Stale, cfg.RemovalDelay = 2*time.Minute, 20*time.Second
		replies := []reply{
			records(10*time.Second, "192.0.2.1", "192.0.2.2"), records(7*time.Second, "192.0.2.2", "192.0.2.1"),
			records(10*time.Second, "192.0.2.3"),
			rcode(servFail, 0), rcode(nxDomain, 10*time.Second), rcode(noError, 10*time.Second),
		}
		h.dns.set("db.example.com A", replies[0])
		h.Sync(owner1, cfg, []Wanted{db})
		h.start()
		for i := range 3000 {
			h.dns.set("db.example.com A", replies[(i/11*7+i/5)%len(replies)])
			h.pass(time.Second)
			h.mu.Lock()
			if now := h.Snapshot(owner1); !equalAnswers(now[db.Question], last[db.Question]) {
				t.Errorf("not notified of %v, only of %v", now, last)
			}
			h.mu.Unlock()
		}
	})
}

// gathered returns the value of each series, named by its metric and its label's value.
func gathered(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetName() + "=" + l.GetValue()
			}
			values[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return values
}

// The metrics count lookups by their result, and names that serve stale.
func TestMetricsCountLookupsAndStaleNames(t *testing.T) {
	inBubble(t, func(h *harness) {
		registry := prometheus.NewRegistry()
		h.metrics = newMetrics(registry)
		h.dns.set("db.example.com A", records(10*time.Second, "192.0.2.1"))
		db := name("db.example.com", IPv4|IPv6)
		h.Sync(owner1, defaultConfig(), []Wanted{db})
		h.Sync(owner2, defaultConfig(), []Wanted{db})
		h.start()
		if diff := cmp.Diff(map[string]float64{
			"externalbackend_dns_lookups_total rcode=NOERROR": 2,
			"externalbackend_dns_lookup_duration_seconds":     2,
			"externalbackend_dns_stale_names":                 0,
		}, gathered(t, registry)); diff != "" {
			t.Error(diff)
		}
		h.dns.set("db.example.com A", rcode(servFail, 0))
		h.pass(10 * time.Second)
		got := gathered(t, registry)
		if n := got["externalbackend_dns_lookups_total rcode=SERVFAIL"]; n < 1 || n > 3 {
			t.Errorf("%v SERVFAIL", n)
		}
		for _, step := range []struct {
			forget types.NamespacedName
			before float64
		}{{owner1, 1}, {owner2, 1}, {owner2, 0}} {
			if n := gathered(t, registry)["externalbackend_dns_stale_names"]; n != step.before {
				t.Errorf("%v stale names before %v is forgotten", n, step.forget)
			}
			h.Forget(step.forget)
		}
	})
}

// A second Start returns an error.
func TestSecondStartFails(t *testing.T) {
	inBubble(t, func(h *harness) {
		h.start()
		if err := h.Start(t.Context()); err == nil {
			t.Error("started twice")
		}
	})
}
