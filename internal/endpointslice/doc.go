// Package endpointslice plans the writes of EndpointSlices: endpoints and existing slices come in,
// slices to create, update and delete come out. It also reads back what slices publish. It knows no
// clock, no client and no goroutine.
//
// # The fewest writes
//
// Every write of an EndpointSlice goes to every node of the cluster, and its endpoints can only be
// written all at once. A group is an address family and a list of ports; a slice belongs to one
// group. Within a group of n endpoints, B to a slice, ideal = ceil(n/B), [Plan]
//
//  1. matches what is published with what is wanted. The k slices that hold something to be
//     removed or changed have to be written, whatever the layout;
//  2. places the A additions: into emptied slices, then where their target or their zone is at
//     home among the k, then as many elsewhere among the
//     k as would not fit into ceil(max(0, A-F)/B) further slices, F being the room in the k;
//  3. cuts the rest, in the order of their fate, into just that many pieces. A piece goes into an
//     untouched slice that has room for all of it, else it becomes a slice;
//  4. folds: a slice that is light (at most half full, 2 x size <= B) moves as a whole into
//     another one that is written anyway, and is deleted instead of being written.
//     One of which nothing but metadata changes stays: a new owner or label moves no endpoint;
//  5. folds one untouched light slice more where otherwise over two light ones would remain.
//
// Writes. Every one of the k is written or deleted, once, by 1 and 4; 3 touches ceil(max(0, A-F)/B)
// others, and fewer would not hold the additions: that is W*, and without 5 it is the price. 5
// costs one deletion more: its receiver is being written already.
//
// Slices. Two light slices fit into one, so 4 leaves at most one light slice among those that were
// there and are written; the pieces waste less than B places together, so at most one new slice is
// light, and 4 folds the former into it. So at most one light slice is written, beside those of
// which only metadata changes. With the two that the plan before left there are three, and 5 makes
// them two. Now let h slices be more than half full: n > hB/2, so 2 x ideal > h, and with the light
// ones there are at most h + 2 <= 2 x ideal + 1. Where the bound is broken all the same (the cap
// was raised, slices were edited by hand), folding goes on, at its price, until two light ones are
// left.
//
// Between the writes. Endpoints move in two ways only: with a light slice, which is deleted last,
// and out of a slice that holds more than B (the cap was lowered), which is written after all that
// gain something. So nothing wanted is missing at any time, and after a crash the doubled endpoints
// count as published in the slice with most of them. Of the updates those come first that make
// endpoints ready, and last those that only take readiness away: a tier hands over to another one
// without a moment in which none is ready. A moved endpoint says the same in both slices: a slice
// whose endpoints change their conditions is no donor while others are to be had. It becomes one
// only where three light slices or more, with changes in all of them, would remain, and then it is
// written before all others, with the new conditions, and deleted last: a write beyond W*, which is
// the price of that compaction.
package endpointslice
