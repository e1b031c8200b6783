package resolve

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// byServer is an asker whose replies depend on the server's last octet and the name. It counts the
// queries.
type byServer struct {
	reply func(last byte, name string) reply

	mu       sync.Mutex
	asked    map[byte]map[string]int
	inFlight map[byte]int
	most     map[byte]int // in flight at once
}

func newByServer(reply func(last byte, name string) reply) *byServer {
	return &byServer{reply: reply, asked: map[byte]map[string]int{}, inFlight: map[byte]int{}, most: map[byte]int{}}
}

func (s *byServer) ask(ctx context.Context, _ *upstream, addr netip.AddrPort, q query) (answer, error) {
	last := addr.Addr().As4()[3]
	s.mu.Lock()
	if s.asked[last] == nil {
		s.asked[last] = map[string]int{}
	}
	s.asked[last][q.name]++
	s.inFlight[last]++
	s.most[last] = max(s.most[last], s.inFlight[last])
	reply := s.reply(last, q.name)
	s.mu.Unlock()

	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.inFlight[last]--
	}()
	return reply(ctx, addr)
}

func (s *byServer) close() {}

func (s *byServer) become(reply func(last byte, name string) reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reply = reply
}

func (s *byServer) count(last byte, name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[last][name]
}

// waiting returns how many queries wait for the server, and how many did at most.
func (s *byServer) waiting(last byte) (now, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inFlight[last], s.most[last]
}

func (s *byServer) total(last byte) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, asked := range s.asked[last] {
		n += asked
	}
	return n
}

func withServers(last ...byte) Config {
	cfg := defaultConfig()
	cfg.Nameservers = nil
	for _, l := range last {
		cfg.Nameservers = append(cfg.Nameservers, server(l))
	}
	return cfg
}

// A server that is slow or silent for one tenant's names, perhaps on purpose, is still asked first
// for the names of another tenant. The second server has other records for that tenant's name, or
// denies it.
func TestSlowNamesAffectNoOthers(t *testing.T) {
	inside := records(10*time.Second, "10.1.2.3")
	for _, second := range []struct {
		desc string
		says reply
	}{
		{"another view", records(10*time.Second, "192.0.2.9")},
		{"a denial", rcode(nxDomain, time.Minute)},
	} {
		for _, theirs := range []struct {
			desc  string
			reply reply
			names int
		}{
			{"a slow name", after(600*time.Millisecond, inside), 1},
			{"slow names", after(1500*time.Millisecond, inside), 100},
			{"a silent name", silence, 1},
			{"silent names", silence, 100},
		} {
			for _, list := range [][]byte{{1, 2}, {1, 3}} {
				t.Run(fmt.Sprintf("%s, %s, servers %v", second.desc, theirs.desc, list), func(t *testing.T) {
					inBubble(t, func(h *harness) {
						s := newByServer(func(last byte, name string) reply {
							switch {
							case name == "db.example.com" && last == 1:
								return inside
							case name == "db.example.com":
								return second.says
							case last == 1:
								return theirs.reply
							default:
								return inside
							}
						})
						h.lookuper.asker = s
						db := name("db.example.com", IPv4)
						var others []Wanted
						for i := range theirs.names {
							others = append(others, name(fmt.Sprintf("n%d.slow.example.net", i), IPv4))
						}
						h.start()
						h.Sync(types.NamespacedName{Namespace: "other", Name: "tenant"}, withServers(list...), others)
						h.pass(time.Minute)
						h.Sync(owner1, withServers(1, 2), []Wanted{db})
						for range 120 {
							h.pass(time.Second)
							h.want(owner1, db, current("10.1.2.3"))
						}
						if n := s.count(2, "db.example.com"); n != 0 {
							t.Errorf("the second server was asked %d times", n)
						}
					})
				})
			}
		}
	}
}

// A first server that loses one packet is not passed by, although it never answers the names of
// another tenant.
func TestLostPacketIsNoOutage(t *testing.T) {
	inBubble(t, func(h *harness) {
		lost := false
		s := newByServer(func(last byte, name string) reply {
			switch {
			case name == "db.example.com" && last == 2:
				return records(10*time.Second, "192.0.2.9")
			case last == 2:
				return records(10*time.Second, "192.0.2.7")
			case name == "db.example.com" && lost:
				return records(10*time.Second, "10.1.2.3")
			}
			lost = lost || name == "db.example.com"
			return silence
		})
		h.lookuper.asker = s
		db := name("db.example.com", IPv4)
		h.Sync(owner2, withServers(1, 2), []Wanted{name("silent.example.net", IPv4)})
		h.start()
		h.pass(time.Minute)
		h.Sync(owner1, withServers(1, 2), []Wanted{db})
		h.pass(hedgeDelay)
		h.want(owner1, db, current("192.0.2.9"))
		h.pass(10 * time.Second)
		h.want(owner1, db, current("10.1.2.3"))
		h.pass(10 * time.Minute)
		if n := s.count(2, "db.example.com"); n != 1 {
			t.Errorf("the second server was asked %d times", n)
		}
	})
}

// Each name waits once for a first server that answers nobody, and then passes it by until it
// answers again.
func TestDeadServerDelaysEachNameOnce(t *testing.T) {
	for _, c := range []struct {
		desc string
		says reply
		wait time.Duration
		want kind
	}{
		{"records", records(time.Minute, "192.0.2.1"), hedgeDelay, kindGood},
		{"NXDOMAIN", rcode(nxDomain, time.Minute), listenTime, kindNXDomain},
		{"nothing there", rcode(noError, time.Minute), listenTime, kindNoData},
	} {
		t.Run(c.desc, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dead := func(last byte, _ string) reply {
					if last == 1 {
						return silence
					}
					return c.says
				}
				s := newByServer(dead)
				l := newLookuper(s, "")
				tenants := []*upstream{upstreamOf(withServers(1, 2)), upstreamOf(withServers(1, 3))}
				look := func(when string, want kind, takes time.Duration) {
					t.Helper()
					for i, up := range tenants {
						begin := time.Now()
						got := l.lookup(t.Context(), up, fmt.Sprintf("n%d.example.com", i), typeA)
						if took := time.Since(begin); got.kind != want || took != takes {
							t.Errorf("%s: tenant %d has %+v after %v", when, i, got, took)
						}
					}
				}

				look("at first", c.want, c.wait)
				time.Sleep(lookupTimeout + c.wait)
				for range 50 {
					look("later", c.want, 0)
					time.Sleep(time.Minute)
				}

				s.become(func(byte, string) reply { return records(time.Minute, "192.0.2.8") })
				look("as it is back", kindGood, 0)
				synctest.Wait()
				before := s.count(2, "n0.example.com")
				look("after it has answered", kindGood, 0)
				if n := s.count(2, "n0.example.com"); n != before {
					t.Errorf("the second server is still asked")
				}

				s.become(dead)
				look("dead once more", c.want, c.wait)
				time.Sleep(lookupTimeout + c.wait)
				look("passed by again", c.want, 0)
				time.Sleep(maxOutage)
				look("after the longest time", c.want, c.wait)
			})
		})
	}
}

// Outages of servers that nobody asks any more are forgotten.
func TestOldOutagesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLookuper(newByServer(func(last byte, _ string) reply {
			if last < 200 {
				return silence
			}
			return records(time.Minute, "192.0.2.1")
		}), "")
		for i := range byte(100) {
			l.lookup(t.Context(), upstreamOf(withServers(i, 200)), "a.example.com", typeA)
		}
		time.Sleep(maxOutage)
		l.lookup(t.Context(), upstreamOf(withServers(100, 200)), "a.example.com", typeA)
		if n := len(l.outages.servers); n != 1 {
			t.Errorf("%d outages are remembered", n)
		}
	})
}

// With more names than may be checked at a time, all come to pass the dead server by, and all come
// back to it.
func TestChecksAreBounded(t *testing.T) {
	inBubble(t, func(h *harness) {
		good := records(10*time.Second, "192.0.2.1")
		s := newByServer(func(last byte, _ string) reply {
			if last == 1 {
				return silence
			}
			return good
		})
		h.lookuper.asker = s
		var names []Wanted
		for i := range 2 * maxChecks {
			names = append(names, name(fmt.Sprintf("n%d.example.com", i), IPv4))
		}
		h.Sync(owner1, withServers(1, 2), names)
		h.start()
		h.pass(2 * time.Minute)
		if _, most := s.waiting(1); most > h.options.MaxConcurrent+askRounds*maxChecks {
			t.Errorf("%d questions to the dead server at a time", most)
		}
		for _, n := range names {
			if !h.lookuper.outages.passedBy(connKey{server: server(1), transport: UDP}, query{n.Name, typeA}) {
				t.Fatalf("%s still waits for the dead server", n.Name)
			}
		}

		s.become(func(byte, string) reply { return good })
		h.pass(20 * time.Second)
		before := s.total(2)
		h.pass(time.Minute)
		if n := s.total(2) - before; n != 0 {
			t.Errorf("the second server is still asked %d times a minute", n)
		}
	})
}
