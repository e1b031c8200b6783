// Package resolve keeps the addresses of DNS names up to date by their TTL, and never turns a
// failing resolver into an outage: while a name cannot be looked up, its last good answer serves
// (RFC 8767).
//
// The way of one datum: wire.go, the one file that knows a DNS library, turns bytes into records,
// and answer.go turns records into an answer; exchange.go carries one query to one server; race.go
// asks several servers in order; outage.go remembers servers that answer nobody; lookup.go joins
// these and follows aliases; result.go says how a lookup ended. record.go and history.go keep what
// is known of one name and type, shared by all owners. phase.go says what a history amounts to at
// one time, for one owner; summary.go adds that up over the families of a name and the hosts of a
// service; question.go turns it into the answer that the owner may publish. engine.go has the lock;
// sharing.go takes what owners want, and ties questions to records; workers.go keeps to the
// schedule and does the lookups.
package resolve

import (
	"crypto/tls"
	"net/netip"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// Families is a set of IP families.
type Families uint8

// The two families; a Question asks for one or both.
const (
	IPv4 Families = 1 << iota
	IPv6
)

// Question is what an owner wants to know: the addresses of a name, or with SRV those of the hosts
// and ports behind a service name (RFC 2782).
type Question struct {
	Name     string // an FQDN in lower case without the trailing dot; no search list is applied
	SRV      bool
	Families Families // the other family is not asked for and counts in no state
}

// Wanted is a Question with the addresses that an earlier process published for it. They are the
// Seed: it serves as the last good answer until the engine has an answer of its own, and its TTL
// ends when the engine starts. The engine reads the Seed only of a question that is new for its
// owner.
type Wanted struct {
	Question
	Seed []Addr
}

// Addr is one address behind a name.
type Addr struct {
	IP   netip.Addr
	Port uint16 // of the SRV record; 0 for names
	Rank uint8  // SRV: the index of the record's priority among the distinct priorities, from 0 to 127
}

// Transport is how nameservers are reached, in the words of the API.
type Transport string

// The transports. UDP falls back to TCP where an answer is truncated; TLS is DNS over TLS (RFC
// 7858).
const (
	UDP Transport = "UDP"
	TCP Transport = "TCP"
	TLS Transport = "TLS"
)

// Config is one owner's spec.dns with its defaults applied.
type Config struct {
	// Nameservers are tried in this order. Port 0 means 53, or 853 for TLS. Without any, those of
	// Options.ResolvConf are asked.
	Nameservers []netip.AddrPort
	Transport   Transport   // "" = UDP
	TLS         *tls.Config // for TLS; nil = system roots. Without ServerName the server's address is verified
	TLSIdentity string      // a digest of TLS: owners share queries only where it is equal

	MinTTL, MaxTTL time.Duration // bounds of the TTL that counts, whatever records say
	Stale          time.Duration // how long past its TTL the last good answer serves while resolution fails (RFC 8767)
	RemovalDelay   time.Duration // how long an address stays that good answers lack

	NoQueries bool // no nameserver may be asked; answers go stale as if none replied
}

// Status says how far an answer can be trusted.
type Status string

const (
	// Pending means that there is no first answer yet. Addrs holds the seed.
	Pending Status = "Pending"
	// Current means that the answer is good, or that its refresh failed inside its TTL.
	Current Status = "Current"
	// Stale means that a part of the answer could not be refreshed. Addrs holds what was known last.
	Stale Status = "Stale"
	// Failed means that the name never resolved, is stale no longer, or does not exist. Addrs is
	// empty.
	Failed Status = "Failed"
)

// Reasons of an Answer that is Stale or Failed.
const (
	ReasonServingStale     = "ServingStale"     // Stale
	ReasonResolutionFailed = "ResolutionFailed" // Failed
	ReasonNameNotFound     = "NameNotFound"     // Failed by NXDOMAIN
)

// Answer is what may be published for a Question now.
type Answer struct {
	Status Status
	// Addrs is sorted by rank, address and port, and holds each address and port once. Those that left
	// the answer stay until their removal delay is over. Callers share Addrs and must not change it.
	Addrs  []Addr
	Reason string // one of the Reasons where Status is Stale or Failed, else ""
	// Cause is a fixed phrase where Status is Stale or Failed, such as "SERVFAIL", "timeout" or "empty
	// answer". It never holds an address or a time.
	Cause   string
	Omitted int // addresses beyond Options.MaxAddresses, or SRV records whose addresses were not asked for
}

// Options are set once for an Engine.
type Options struct {
	// Notify is called when an answer or the time changes what Snapshot returns to an owner. A change
	// that Sync makes itself is not notified, because its caller can read it at once. Notify is never
	// called under a lock, and must not block.
	Notify func(key types.NamespacedName)
	// ResolvConf is a file in the form of resolv.conf(5). It names the nameservers of owners without
	// their own, and is read again when it changes. "" = /etc/resolv.conf.
	ResolvConf string
	// MaxAddresses bounds what is published for one name. 0 = 1024.
	MaxAddresses int
	// MaxConcurrent bounds the lookups at one time. New names, and names that failed before, can use
	// only a part of it. 0 = 256.
	MaxConcurrent int
	Registerer    prometheus.Registerer // nil = no metrics
	Log           logr.Logger
}
