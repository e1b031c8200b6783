package endpointslice

import (
	"hash/maphash"
	"net/netip"
)

// addressIndex numbers addresses in the order in which they come: a table with open addressing and
// without pointers, because every plan makes two of them for all endpoints. It tells the addresses
// of one family apart, and those of both as long as none is IPv4-mapped.
type addressIndex struct {
	keys  [][16]byte // by number
	slots []int32    // number + 1; 0: free. A power of two, at most half of them taken
	// the number after the one asked for last: addresses are mostly asked for in the order in which
	// they came
	next int
}

var hashSeed = maphash.MakeSeed() // addresses are other people's choice, and should not be able to collide at will

func newAddressIndex(n int) addressIndex {
	size := 8
	for size < 2*n {
		size *= 2
	}
	return addressIndex{keys: make([][16]byte, 0, n), slots: make([]int32, size)}
}

// find returns the number of an address; -1 where it has none.
func (x *addressIndex) find(a netip.Addr) int32 {
	key := a.As16()
	n, _ := x.lookup(&key)
	return n
}

// number returns the number of an address, a new one where it has none.
func (x *addressIndex) number(a netip.Addr) int32 {
	key := a.As16()
	n, slot := x.lookup(&key)
	if n >= 0 {
		return n
	}
	if 2*len(x.keys) >= len(x.slots) {
		x.grow()
		slot = x.slot(&key)
	}
	x.keys = append(x.keys, key)
	x.next = len(x.keys)
	x.slots[slot] = int32(x.next)
	return int32(x.next) - 1
}

// lookup returns the number of key, or -1 and the slot where it would be.
func (x *addressIndex) lookup(key *[16]byte) (n int32, slot int) {
	if x.next < len(x.keys) && x.keys[x.next] == *key {
		x.next++
		return int32(x.next) - 1, 0
	}
	slot = x.slot(key)
	if n = x.slots[slot] - 1; n >= 0 {
		x.next = int(n) + 1
	}
	return n, slot
}

// slot is where key is, or would be.
func (x *addressIndex) slot(key *[16]byte) int {
	mask := len(x.slots) - 1
	for i := int(maphash.Bytes(hashSeed, key[:])) & mask; ; i = (i + 1) & mask {
		if n := x.slots[i]; n == 0 || x.keys[n-1] == *key {
			return i
		}
	}
}

func (x *addressIndex) grow() {
	x.slots = make([]int32, 2*len(x.slots))
	for i := range x.keys {
		x.slots[x.slot(&x.keys[i])] = int32(i + 1)
	}
}
