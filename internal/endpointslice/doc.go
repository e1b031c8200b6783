// Package endpointslice plans the writes of EndpointSlices: endpoints and existing slices come in,
// slices to create, update and delete come out. It also reads back what slices publish. It knows no
// clock, no client and no goroutine.
//
// # The fewest writes
//
// Every write of an EndpointSlice goes to every node of the cluster, and a write always carries all
// endpoints of the slice. So [Plan] makes few writes: W*, the fewest possible, and at most one more
// for each compaction (step 5 and the last section). Only a group with too many slices costs more.
//
// A group is an address family and a list of ports; a slice belongs to one group. A slice holds at
// most B endpoints. A group of n endpoints needs at least ideal = ceil(n/B) slices. A slice is
// half-empty if it holds at most half of what it may: 2 x size <= B. For each group, Plan
//
//  1. matches the published endpoints with the wanted ones. The k slices in which an endpoint is
//     removed or changed have to be written, whatever the layout;
//  2. adds the A new endpoints. F is the number of free places in the k slices, so
//     ceil(max(0, A-F)/B) further slices are needed. New endpoints go into emptied slices, then
//     into those of the k that hold endpoints of the same target or zone, then into the others of
//     the k until the rest fits into the further slices;
//  3. cuts the rest, ordered by failure domain, into exactly that many pieces. A piece goes into an
//     untouched slice that has places for all of it, or becomes a new slice;
//  4. compacts: all endpoints of a half-empty slice that has to be written move into another slice
//     that is written too, and the half-empty slice is deleted instead of written. A slice in which
//     only metadata changes stays: a new owner or label moves no endpoint;
//  5. compacts one untouched half-empty slice more, if otherwise more than two half-empty slices
//     remain.
//
// # Proof of the number of writes
//
// Each of the k slices is written or deleted once, by 1 and 4. Step 3 writes ceil(max(0, A-F)/B)
// others, and fewer could not hold the new endpoints. This sum is W*, the fewest writes possible,
// and the price of everything but step 5. Step 5 costs one deletion more: the receiving slice is
// written anyway. checkPrice in promises_test.go compares the writes of random histories with W*.
//
// # Proof of the number of slices
//
// Two half-empty slices fit into one. So step 4 leaves at most one half-empty slice among those
// that existed before and are written. The pieces of step 3 leave fewer than B places free
// together, so at most one new slice is half-empty, and step 4 moves the former into it. So at most
// one half-empty slice is written, beside those in which only metadata changes. The previous plan
// left at most two. One more makes three. Step 5 removes one.
//
// Now let h slices be more than half full. Then n > hB/2, so 2 x ideal > h, and together with the
// half-empty ones there are at most h + 2 <= 2 x ideal + 1 slices. If there are more all the same,
// because the maximum was raised or somebody edited slices, compaction goes on, at its price, until
// two half-empty slices are left.
//
// # Between the writes
//
// Endpoints move in two ways only: with a half-empty slice, which is deleted last, and out of a
// slice that holds more than B because the maximum was lowered, which is written after all slices
// that gain endpoints. So no wanted endpoint is missing at any time. After a crash an endpoint that
// is in two slices counts as published in the slice with more endpoints.
//
// In short, updates that make endpoints ready come first, and those that only take readiness away
// come last; writePhases has the exact order. So one tier takes over from another without a moment
// in which no endpoint is ready.
//
// A moved endpoint has the same conditions in both slices. Therefore the endpoints of a slice whose
// conditions change do not move while there is another choice. If three or more half-empty slices
// would remain, all with changed conditions, one of them is written before all others with the new
// conditions and deleted last. That is one write beyond W*, the price of that compaction.
package endpointslice
