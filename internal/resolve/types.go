// Package resolve keeps the addresses of DNS names true by their TTL, and never turns a failing
// resolver into an outage: what a name last said is served on while it cannot be asked (RFC 8767).
//
// The way of one datum: wire.go (the one file that knows a DNS library) turns bytes into an answer;
// exchange.go carries one query to one server; race.go asks several servers in order; outage.go
// remembers who answers nobody; lookup.go joins these and follows aliases; record.go keeps what is
// known of one name and type, shared by all owners; view.go computes from records, one owner's
// settings and a time what that owner may publish; question.go carries that from one moment to the
// next. engine.go owns the lock, the schedule and the workers, and records.go ties questions to
// records.
package resolve

import (
	"cmp"
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
	Families Families // others are neither asked nor counted in any state
}

// Wanted is a Question with what an earlier process published for it. The Seed serves as the last
// good answer, its TTL expired when the engine started, until the engine has an answer of its own;
// it is read only when the owner's question is new to the engine.
type Wanted struct {
	Question
	Seed []Addr
}

// Addr is one address behind a name.
type Addr struct {
	IP   netip.Addr
	Port uint16 // of the SRV record; 0 for names
	Rank uint8  // SRV: the place of the record's priority among the distinct ones, 0 first, at most 127
}

// compareAddrs orders by rank, address and port: the order in which answers list them.
func compareAddrs(a, b Addr) int {
	return cmp.Or(cmp.Compare(a.Rank, b.Rank), compareUnits(a, b))
}

// compareUnits orders by address and port, the unit that is published once.
func compareUnits(a, b Addr) int {
	return cmp.Or(a.IP.Compare(b.IP), cmp.Compare(a.Port, b.Port))
}

// Transport is how nameservers are reached, in the words of the API.
type Transport string

// The transports. UDP turns to TCP where an answer is truncated; TLS is DNS over TLS (RFC 7858).
const (
	UDP Transport = "UDP"
	TCP Transport = "TCP"
	TLS Transport = "TLS"
)

// Config is one owner's spec.dns with its defaults applied.
type Config struct {
	// in the order in which to try them, port 0 = 53 (TLS: 853); none = those of Options.ResolvConf
	Nameservers []netip.AddrPort
	Transport   Transport   // "" = UDP
	TLS         *tls.Config // for TLS; nil = system roots. Without ServerName the server's address is verified
	TLSIdentity string      // a digest of TLS: owners share queries only where it is equal

	MinTTL, MaxTTL time.Duration // bounds of the TTL that counts, whatever records say
	Stale          time.Duration // how long past its TTL the last good answer serves when resolution fails (RFC 8767)
	RemovalDelay   time.Duration // how long an address absent from good answers stays

	NoQueries bool // nothing may be asked; answers go stale as if no server replied
}

// Status says how far an answer can be trusted.
type Status string

const (
	// Pending: no first answer yet. Addrs holds the seed.
	Pending Status = "Pending"
	// Current: the answer is good, or its refresh failed inside its TTL.
	Current Status = "Current"
	// Stale: something of the answer could not be refreshed; Addrs holds what was known last.
	Stale Status = "Stale"
	// Failed: never resolved, stale no longer, or the name does not exist. Addrs is empty.
	Failed Status = "Failed"
)

// Reasons of an Answer that is Stale or Failed.
const (
	ReasonServingStale     = "ServingStale"     // Stale
	ReasonResolutionFailed = "ResolutionFailed" // Failed
	ReasonNameNotFound     = "NameNotFound"     // Failed by NXDOMAIN
)

// Answer is what may be published for a Question now. Addrs is shared: callers must not change it.
type Answer struct {
	Status Status
	// sorted by rank, address and port, each address and port once; those of removed records inside
	// their delay are among them
	Addrs  []Addr
	Reason string // one of the Reasons where Stale or Failed, else ""
	// fixed phrase where Stale or Failed, e.g. "SERVFAIL", "timeout", "empty answer"; never an address
	// or a time
	Cause   string
	Omitted int // addresses, or SRV records with their unknown addresses, beyond Options.MaxAddresses
}

// Options are set once for an Engine.
type Options struct {
	// Notify is called, never under a lock, when an owner's Snapshot has changed by an answer or by
	// time. What Sync itself changes its caller can read at once and is not told of. It must not
	// block.
	Notify func(owner types.NamespacedName)
	// ResolvConf names the nameservers of owners without their own, in the form of resolv.conf(5);
	// it is read again when it changes. "" = /etc/resolv.conf.
	ResolvConf string
	// MaxAddresses bounds what is published for one name. 0 = 1024.
	MaxAddresses int
	// MaxConcurrent bounds the lookups at one time; those that failed before and those of new names
	// can't take all of it. 0 = 256.
	MaxConcurrent int
	Registerer    prometheus.Registerer // nil = no metrics
	Log           logr.Logger
}
