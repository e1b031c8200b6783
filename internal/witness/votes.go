package witness

import (
	"cmp"
	"hash/fnv"
	"slices"
	"time"

	"github.com/external-backend/operator/internal/probe"
)

const (
	// maxSubjects bounds the endpoints that a panel asks about, and those that a server probes.
	maxSubjects = 20_000
	// shunTime is for how long a peer is not asked that has not answered.
	shunTime = 10 * time.Second
	// keepTime is for how long a panel remembers whom it has asked about an endpoint.
	keepTime = 10 * time.Minute
)

// ballot holds the opinions about one endpoint.
type ballot struct {
	asked time.Time // last
	wait  time.Time // until when an opinion is waited for; zero: it is not needed yet
	votes []vote
}

// vote is the opinion of one peer.
type vote struct {
	peer    string
	opinion opinion
}

// ask notes a question. With a new doubt nobody has voted yet.
func (b *ballot) ask(q probe.Question, now time.Time) {
	b.asked = now
	switch {
	case q.Wait > 0:
		b.wait = now.Add(q.Wait)
	case !now.Before(b.wait):
		b.wait = time.Time{}
	}
	if q.First {
		for i := range b.votes {
			b.votes[i].opinion = pending
		}
	}
}

// count returns the votes. Who refuses has none. After wait those that are pending have none
// either.
func (b *ballot) count(now time.Time) (o probe.Opinions) {
	for _, v := range b.votes {
		switch {
		case v.opinion == healthy:
			o.Healthy++
		case v.opinion == unhealthy:
			o.Unhealthy++
		case v.opinion == pending && (b.wait.IsZero() || now.Before(b.wait)):
			o.Pending++
		}
	}
	return o
}

// set notes the opinion of a peer.
func (b *ballot) set(peer string, o opinion) {
	if i := slices.IndexFunc(b.votes, func(v vote) bool { return v.peer == peer }); i >= 0 {
		b.votes[i].opinion = o
	}
}

// waits reports whether the opinion of a peer is still waited for.
func (b *ballot) waits(peer string, now time.Time) bool {
	return now.Before(b.wait) && slices.Contains(b.votes, vote{peer, pending})
}

// elect chooses the peers that are asked about an endpoint. Those that were chosen before stay
// while they can be asked. Of several that are equally far, it takes others for other endpoints.
func (b *ballot) elect(s subject, peers []Peer, count int) {
	b.votes = slices.DeleteFunc(b.votes, func(v vote) bool {
		return !slices.ContainsFunc(peers, func(p Peer) bool { return p.Name == v.peer })
	})
	if len(b.votes) >= min(count, len(peers)) {
		return
	}
	left := slices.DeleteFunc(slices.Clone(peers), func(p Peer) bool {
		return slices.ContainsFunc(b.votes, func(v vote) bool { return v.peer == p.Name })
	})
	slices.SortFunc(left, func(x, y Peer) int {
		return cmp.Or(cmp.Compare(x.Distance, y.Distance), cmp.Compare(rank(s, x.Name), rank(s, y.Name)))
	})
	for _, p := range left[:min(len(left), count-len(b.votes))] {
		b.votes = append(b.votes, vote{p.Name, pending})
	}
}

// rank orders the peers for an endpoint.
func rank(s subject, peer string) uint64 {
	h := fnv.New64a()
	for _, text := range []string{s.owner.Namespace, s.owner.Name, s.id.Target, s.id.Addr.String(), peer} {
		_, _ = h.Write([]byte(text))
		_, _ = h.Write([]byte{0})
	}
	return h.Sum64()
}
