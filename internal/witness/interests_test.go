package witness

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/internal/probe"
)

func someEndpoints(n int) (out []probe.Endpoint) {
	for i := range n {
		out = append(out, probe.Endpoint{ID: probe.ID{
			Target: fmt.Sprint("t", i), Addr: netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), Port: 80,
		}})
	}
	return out
}

var defaultCheck = &probe.Check{
	TCP: &probe.TCPSocket{}, Period: 10 * time.Second, Timeout: time.Second, Confirm: time.Second,
	SuccessThreshold: 1, FailureThreshold: 3,
}

// A namespace that asks about too much leaves half of the places to the others.
func TestNamespacesSharePlaces(t *testing.T) {
	n, now := newInterests(100), time.Now()
	greedy := types.NamespacedName{Namespace: "greedy", Name: "a"}
	modest := types.NamespacedName{Namespace: "modest", Name: "a"}
	if _, busy := n.add(modest, 1, defaultCheck, someEndpoints(5), 0, now); len(busy) > 0 {
		t.Errorf("%d endpoints are refused while there is room", len(busy))
	}
	if _, busy := n.add(greedy, 1, defaultCheck, someEndpoints(200), 0, now); len(busy) != 150 {
		t.Errorf("%d of 200 endpoints are refused, want 150", len(busy))
	}
	if _, busy := n.add(modest, 1, defaultCheck, someEndpoints(45), 0, now); len(busy) > 0 {
		t.Errorf("%d endpoints of another namespace are refused", len(busy))
	}
	if n.total > n.most {
		t.Errorf("%d endpoints are probed, more than %d", n.total, n.most)
	}
}

// An endpoint is forgotten some time after the last question, and no earlier than its verdict may
// be needed.
func TestInterestEndsAfterTheLastQuestion(t *testing.T) {
	n, now := newInterests(100), time.Now()
	owner := types.NamespacedName{Namespace: "shop", Name: "db"}
	all := someEndpoints(3)
	n.add(owner, 1, defaultCheck, all, 0, now)
	now = now.Add(kept(defaultCheck))
	n.add(owner, 1, defaultCheck, all[:1], 0, now)
	if changed := n.expire(now); len(changed) > 0 {
		t.Errorf("%v is forgotten early", changed)
	}
	now = now.Add(time.Second)
	if changed := n.expire(now); len(changed) != 1 || len(changed[owner].endpoints) != 1 || n.total != 1 {
		t.Errorf("%d endpoints are left, want that which was asked about again", n.total)
	}
	now = now.Add(kept(defaultCheck))
	if changed := n.expire(now); changed[owner] != nil || len(changed) != 1 || n.total != 0 || len(n.byOwner) > 0 {
		t.Errorf("%d endpoints are left, want none", n.total)
	}
}

// What is asked about again within ten seconds is not found out anew.
func TestInterestIsRenewed(t *testing.T) {
	n, now := newInterests(10), time.Now()
	owner := types.NamespacedName{Namespace: "shop", Name: "db"}
	all := someEndpoints(3)
	n.add(owner, 1, defaultCheck, all[:2], 0, now)
	for name, test := range map[string]struct {
		generation int64
		ids        []probe.ID
		after      time.Duration
		want       bool
	}{
		"the same":           {1, []probe.ID{all[0].ID, all[1].ID}, time.Second, true},
		"one more":           {1, []probe.ID{all[0].ID, all[2].ID}, time.Second, false},
		"another generation": {2, []probe.ID{all[0].ID}, time.Second, false},
		"too late":           {1, []probe.ID{all[0].ID}, foundTime, false},
	} {
		if got := n.renew(owner, test.generation, test.ids, now.Add(test.after)); got != test.want {
			t.Errorf("%s: renewed is %t", name, got)
		}
	}
	if n.renew(types.NamespacedName{Name: "x"}, 1, nil, now) {
		t.Error("what was never asked about is renewed")
	}
}

// An ExternalBackend of which nothing is probed any more is forgotten.
func TestEmptyInterestIsForgotten(t *testing.T) {
	n, now := newInterests(2), time.Now()
	owner := types.NamespacedName{Namespace: "shop", Name: "db"}
	all := someEndpoints(2)
	n.add(owner, 1, defaultCheck, all, 0, now)
	n.restart(owner, map[probe.ID]bool{all[0].ID: true, all[1].ID: true})
	if changed := n.expire(now); len(changed) != 1 || n.total != 0 || len(n.byOwner) > 0 {
		t.Errorf("%d endpoints of %d ExternalBackends are left", n.total, len(n.byOwner))
	}
}

// The witness's last probe begins when the last one of the replica that asks does.
func TestWitnessCatchesUp(t *testing.T) {
	check := paced(defaultCheck, 100*time.Millisecond)
	if ends := 100*time.Millisecond + 2*check.Confirm; ends != 2*defaultCheck.Confirm {
		t.Errorf("the third probe begins after %v, want 2 s", ends)
	}
	if check := paced(defaultCheck, time.Hour); check.Confirm != defaultCheck.Confirm/2 {
		t.Errorf("the time between probes is %v, want no less than half", check.Confirm)
	}
}

// A peer in another zone is asked before one on another node, and equal ones take turns. Those
// that were asked stay.
func TestElectionPrefersTheFarther(t *testing.T) {
	peers := []Peer{{Name: "a", Distance: 2}, {Name: "b", Distance: 1}, {Name: "c", Distance: 0}, {Name: "d", Distance: 1}}
	first := map[string]int{}
	for i := range 200 {
		s := subject{id: probe.ID{Target: fmt.Sprint(i)}}
		b := &ballot{}
		b.elect(s, peers, 2)
		if len(b.votes) != 2 || b.votes[0].peer != "c" || b.votes[1].peer == "a" {
			t.Fatalf("asked are %v", b.votes)
		}
		first[b.votes[1].peer]++
		before := slices.Clone(b.votes)
		b.elect(s, peers, 2)
		if !slices.Equal(b.votes, before) {
			t.Fatalf("asked are %v, then %v", before, b.votes)
		}
		b.elect(s, peers[:1], 2)
		if len(b.votes) != 1 || b.votes[0].peer != "a" {
			t.Fatalf("of the one that is left, %v are asked", b.votes)
		}
	}
	if first["b"] < 50 || first["d"] < 50 {
		t.Errorf("equal peers are asked %v times", first)
	}
}
