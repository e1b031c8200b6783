package endpointslice

import (
	"hash/maphash"
	"net/netip"
)

// addressIndex numbers addresses in the order in which they come. It is a hash table with open
// addressing and without pointers, because every plan makes two of them for all endpoints. An IPv4
// address and the same address mapped to IPv6 have one number.
type addressIndex struct {
	keys  [][16]byte // by number
	table []int32    // number + 1; 0: free. Its length is a power of two, at most half of it is taken
	// next is the number after the one that was looked up last: addresses are mostly looked up in the
	// order in which they came.
	next int
}

// hashSeed is random, because others choose the addresses and should not be able to make them
// collide.
var hashSeed = maphash.MakeSeed()

// newAddressIndex returns an index with memory for n addresses.
func newAddressIndex(n int) addressIndex {
	size := 8
	for size < 2*n {
		size *= 2
	}
	return addressIndex{keys: make([][16]byte, 0, n), table: make([]int32, size)}
}

// find returns the number of an address; -1 if it has none.
func (x *addressIndex) find(a netip.Addr) int32 {
	key := a.As16()
	n, _ := x.lookup(&key)
	return n
}

// number returns the number of an address. An address without one gets the next.
func (x *addressIndex) number(a netip.Addr) int32 {
	key := a.As16()
	n, position := x.lookup(&key)
	if n >= 0 {
		return n
	}
	if 2*len(x.keys) >= len(x.table) {
		x.grow()
		position = x.position(&key)
	}
	x.keys = append(x.keys, key)
	x.next = len(x.keys)
	x.table[position] = int32(x.next)
	return int32(x.next) - 1
}

// lookup returns the number of key, or -1 and the position in the table where it would be.
func (x *addressIndex) lookup(key *[16]byte) (n int32, position int) {
	if x.next < len(x.keys) && x.keys[x.next] == *key {
		x.next++
		return int32(x.next) - 1, 0
	}
	position = x.position(key)
	if n = x.table[position] - 1; n >= 0 {
		x.next = int(n) + 1
	}
	return n, position
}

// position is where key is in the table, or would be.
func (x *addressIndex) position(key *[16]byte) int {
	mask := len(x.table) - 1
	for i := int(maphash.Bytes(hashSeed, key[:])) & mask; ; i = (i + 1) & mask {
		if n := x.table[i]; n == 0 || x.keys[n-1] == *key {
			return i
		}
	}
}

// grow doubles the table.
func (x *addressIndex) grow() {
	x.table = make([]int32, 2*len(x.table))
	for i := range x.keys {
		x.table[x.position(&x.keys[i])] = int32(i + 1)
	}
}
