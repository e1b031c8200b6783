// Package probe finds out which endpoints are healthy.
//
// An Engine keeps one schedule for all endpoints of all owners. Its single loop starts the probes
// that are due, gets their outcomes from the network, and gives each outcome to the threshold
// machine of its endpoint:
//
//	Sync -> schedule -> admission -> network -> exchange -> machine -> Notify, States
//
// Four parts decide, and use neither sockets nor clocks: the machine (thresholds, confirmation,
// damping), sight (are the endpoints silent, or is the prober blind?), slot (when an endpoint's
// regular probes begin) and the exchanges (which bytes are sent to a peer, and how its answer is
// judged). Only the network does I/O: with epoll on Linux, with a goroutine for each probe
// elsewhere.
//
// A probe that could not be run is unknown, which is never a failure.
package probe

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// ID names an endpoint within its owner.
type ID struct {
	Target string     // spec.targets[].name
	Addr   netip.Addr // the published address
	Port   uint16     // the endpoint's first target port, which differs between the SRV endpoints of a host
}

// Compare orders IDs.
func (id ID) Compare(other ID) int {
	return cmp.Or(
		strings.Compare(id.Target, other.Target), id.Addr.Compare(other.Addr), cmp.Compare(id.Port, other.Port))
}

// Endpoint is one endpoint to be probed. Endpoints are comparable.
type Endpoint struct {
	ID   ID
	Dial netip.AddrPort // the address that is dialled
	Host string         // the target's hostname, "" for a literal target
	Seed Verdict        // the first verdict, for an ID that the owner does not have yet
}

// Verdict is what probes say about an endpoint's health.
type Verdict uint8

// The verdicts. Without one yet, an endpoint is Unknown.
const (
	Unknown Verdict = iota
	Healthy
	Unhealthy
)

func (v Verdict) String() string {
	return [...]string{Unknown: "Unknown", Healthy: "Healthy", Unhealthy: "Unhealthy"}[v]
}

// The reasons of a State that is Unhealthy.
const (
	ReasonConnectionRefused = "ConnectionRefused" // nobody listens
	ReasonConnectionReset   = "ConnectionReset"   // the peer reset the connection
	ReasonTimeout           = "Timeout"           // no answer within the timeout
	// a router or firewall says so, or ARP is not answered
	ReasonUnreachable           = "Unreachable"
	ReasonTLSUnknownAuthority   = "TLSUnknownAuthority"   // nobody trusted has signed the peer's certificate
	ReasonTLSNameMismatch       = "TLSNameMismatch"       // the peer's certificate is for other names
	ReasonTLSCertificateExpired = "TLSCertificateExpired" // the peer's certificate has expired
	// the peer's certificate is refused for any other cause
	ReasonTLSVerificationFailed        = "TLSVerificationFailed"
	ReasonTLSClientCertificateRequired = "TLSClientCertificateRequired" // the peer wants a certificate and was shown none
	ReasonTLSHandshakeFailed           = "TLSHandshakeFailed"           // no TLS session, for any other cause
	// an HTTP or gRPC status other than the expected ones
	ReasonUnexpectedStatus = "UnexpectedStatus"
	// an answer that is not of the protocol, cut off, or without the expected text
	ReasonUnexpectedResponse = "UnexpectedResponse"
	// grpc.health.v1 says other than SERVING, or does not know the service
	ReasonGRPCNotServing = "GRPCNotServing"
)

// State is the state of one endpoint.
type State struct {
	Verdict  Verdict
	Reason   string // of an Unhealthy verdict, one of the Reason constants; "" for a seeded one
	Detail   string // what was seen and what was expected when Reason was found, for people; "" where Reason says it all
	Flapping bool   // the verdict is Unhealthy, and the endpoint's recoveries are held back
	Blind    bool   // the endpoint is silent, and not Unhealthy for that because the prober is blind
	Probed   bool   // a probe has ended with success or failure since the endpoint was first synced
}

// Check is one health check with its defaults applied. Exactly one of HTTP, TCP and GRPC is set.
// It must not be changed after it was handed to Sync.
type Check struct {
	HTTP *HTTPGet
	TCP  *TCPSocket
	GRPC *GRPC
	TLS  *TLS // nil: plaintext

	Period  time.Duration // between the starts of regular probes
	Timeout time.Duration // of a whole probe, from the dial to the last byte that is judged
	Confirm time.Duration // between the starts of probes while the verdict is in doubt

	SuccessThreshold int // consecutive successes that make an endpoint Healthy, at least 1
	FailureThreshold int // consecutive failures that make it Unhealthy, at least 1

	Suspended bool // nothing is probed and the verdicts stay
}

// HTTPGet asks by HTTP/1.1 GET, over TLS where the Check has a TLS.
type HTTPGet struct {
	Path     string // request target, "" is "/"
	Headers  []Header
	Expected []StatusRange // empty: 200-399
}

// Header is one HTTP request header. A "Host" replaces the Host header, and its name is the
// server name for TLS. Without one the Host header is the endpoint's host, else its dialled
// address, with the port where it is not the scheme's own.
type Header struct{ Name, Value string }

// StatusRange holds the HTTP statuses From..To, both included.
type StatusRange struct{ From, To int }

// String returns the range as spec.healthCheck writes it, such as "200" or "200-399".
func (r StatusRange) String() string {
	if r.From == r.To {
		return strconv.Itoa(r.From)
	}
	return strconv.Itoa(r.From) + "-" + strconv.Itoa(r.To)
}

// TCPSocket connects, sends Send and waits until Expect is part of the first 4 KiB that come
// back. An empty Expect waits for nothing.
type TCPSocket struct{ Send, Expect string }

// GRPC calls grpc.health.v1.Health/Check.
type GRPC struct{ Service string }

// TLS says how a peer proves who it is, and what is shown to it.
type TLS struct {
	ServerName         string           // "": the Host header's name, else the endpoint's host, else its dialled address
	RootCAs            *x509.CertPool   // nil: the system's roots
	Certificate        *tls.Certificate // shown to a peer that asks for one; may be nil
	InsecureSkipVerify bool
	Identity           string // digest of RootCAs and Certificate: with an equal one nothing has changed
}

// Options are what an Engine needs from its surroundings.
type Options struct {
	// Notify gets the owner of a State that has changed. The engine's loop calls it, so it must not
	// block.
	Notify func(owner types.NamespacedName)
	// MaxConcurrent bounds the probes in flight; 0 is 4096. Half of the process's file descriptors
	// bound it too.
	MaxConcurrent int
	// Permit gets the address of each probe right before the dial. After an error nothing is dialled,
	// and the verdict stays. The engine's loop calls it, so it must not block. nil permits
	// everything.
	Permit func(owner types.NamespacedName, addr netip.AddrPort) error
	// BlindThreshold is the percentage of endpoints that have to fall silent together for the prober
	// to be blind. 0: it is never blind. A blind prober makes no endpoint Unhealthy by silence.
	BlindThreshold int
	// Blind is called when the prober becomes blind, and when it is no longer blind. It gets how many
	// endpoints are silent and how many are Healthy. The engine's loop calls it, so it must not
	// block. It may be nil.
	Blind func(blind bool, silent, healthy int)
	// Witnesses are asked about endpoints that are silent. nil: this replica decides alone.
	Witnesses Witnesses
	// AtOnce makes the first probe of an endpoint begin at once, where it would be spread over a
	// part of the period.
	AtOnce     bool
	Registerer prometheus.Registerer // nil: no metrics
	Log        logr.Logger
}

// rules are the numbers of a check.
type rules struct {
	period, confirm, timeout time.Duration
	rise, fall               int // consecutive successes and failures that make a verdict
}

// rules are the numbers that the threshold machine goes by, made safe for any input.
func (c *Check) rules() rules {
	r := rules{period: max(c.Period, time.Millisecond), rise: max(c.SuccessThreshold, 1), fall: max(c.FailureThreshold, 1)}
	r.confirm, r.timeout = c.Confirm, c.Timeout
	if r.confirm <= 0 {
		r.confirm = r.period
	}
	if r.timeout <= 0 {
		r.timeout = r.period
	}
	return r
}

// asksTheSame reports whether two checks ask the same question of a peer, however often they ask
// it.
func (c *Check) asksTheSame(other *Check) bool {
	return reflect.DeepEqual(c.TCP, other.TCP) && reflect.DeepEqual(c.GRPC, other.GRPC) &&
		reflect.DeepEqual(c.HTTP, other.HTTP) && c.TLS.equal(other.TLS)
}

func (t *TLS) equal(other *TLS) bool {
	if t == nil || other == nil {
		return t == other
	}
	if t.ServerName != other.ServerName || t.InsecureSkipVerify != other.InsecureSkipVerify ||
		t.Identity != other.Identity {
		return false
	}
	return t.Identity != "" || t.RootCAs == other.RootCAs && t.Certificate == other.Certificate
}
