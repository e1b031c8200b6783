package fleet

import (
	"hash/fnv"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Share says who works for which key, as one replica sees it at one moment.
type Share struct {
	self    string
	works   bool // the replica itself works
	term    int
	members []member
}

type member struct {
	name string
	hash uint64
}

// newShare returns the share of self among members, whose order does not matter. If self does not
// work, it owns nothing.
func newShare(self string, works bool, term int, members []string) *Share {
	s := &Share{self: self, works: works, term: term}
	for _, name := range slices.Sorted(slices.Values(members)) {
		s.members = append(s.members, member{name, hashOf(name)})
	}
	return s
}

// Owner returns the member that works for key: the one that has the highest hash together with key
// (rendezvous hashing: Thaler and Ravishankar, 1998). So a member that comes or goes only moves
// what it gets or had. It returns "" if there is no member.
func (s *Share) Owner(key types.NamespacedName) string {
	var owner string
	var highest uint64
	hash := hashOf(key.Namespace, key.Name)
	for i, m := range s.members {
		if score := mix(hash ^ m.hash); i == 0 || score > highest {
			owner, highest = m.name, score
		}
	}
	return owner
}

// Owns reports whether the replica works for key.
func (s *Share) Owns(key types.NamespacedName) bool { return s.works && s.Owner(key) == s.self }

// Works reports whether the replica itself works.
func (s *Share) Works() bool { return s.works }

// Term is another number after a time in which the process did not run. What it remembers from an
// earlier term may be outdated.
func (s *Share) Term() int { return s.term }

func (s *Share) equal(other *Share) bool {
	return s.works == other.works && s.term == other.term && slices.Equal(s.members, other.members)
}

// hashOf returns the hash of the parts, each of which ends with a byte that no name contains.
func hashOf(parts ...string) uint64 {
	h := fnv.New64a()
	for _, part := range parts {
		_, _ = h.Write([]byte(part))
		_, _ = h.Write([]byte{0})
	}
	return mix(h.Sum64())
}

// mix spreads the difference of two hashes over all bits. It is the last step of SplitMix64
// (Steele, Lea and Flood, 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
