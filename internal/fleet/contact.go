package fleet

import (
	"net/netip"
	"strings"
	"time"
)

// The annotations of the Lease of a replica.
const (
	annotationAddress     = "external-backend.io/address"
	annotationFingerprint = "external-backend.io/certificate-sha256"
	annotationNode        = "external-backend.io/node"
	annotationSetAside    = "external-backend.io/set-aside"
)

// Contact is how other replicas reach a replica, and where it runs.
type Contact struct {
	// Address is where it answers. One that is not valid answers nobody.
	Address netip.AddrPort
	// Fingerprint is the SHA-256 of its certificate, in hexadecimal digits.
	Fingerprint string
	// Node is the name of its Node; "" if it is not known.
	Node string
}

// Peer is another replica that lives, and can be reached.
type Peer struct {
	// Lease is the name of its Lease.
	Lease string
	Contact
}

// annotations are those of the Lease of a replica.
func (c Contact) annotations(setAside bool) map[string]string {
	out := map[string]string{}
	if c.Address.IsValid() {
		out[annotationAddress], out[annotationFingerprint] = c.Address.String(), c.Fingerprint
	}
	if c.Node != "" {
		out[annotationNode] = c.Node
	}
	if setAside {
		out[annotationSetAside] = "true"
	}
	return out
}

// contactOf reads the annotations of a Lease. What can't be read is left out.
func contactOf(annotations map[string]string) Contact {
	c := Contact{Node: annotations[annotationNode], Fingerprint: annotations[annotationFingerprint]}
	if address, err := netip.ParseAddrPort(annotations[annotationAddress]); err == nil && isDigest(c.Fingerprint) {
		c.Address = address
	}
	return c
}

// isDigest reports whether text is a SHA-256 in hexadecimal digits.
func isDigest(text string) bool {
	return len(text) == 64 && strings.Trim(text, "0123456789abcdef") == ""
}

// Contact returns how others reach this replica.
func (r *Replica) Contact() Contact { return r.options.Contact }

// Peers returns the other replicas that live and can be reached.
func (r *Replica) Peers() (peers []Peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for name, s := range r.roster.others {
		if s.contact.Address.IsValid() && s.held(r.roster.horizon(now)) {
			peers = append(peers, Peer{Lease: name, Contact: s.contact})
		}
	}
	return peers
}

// SetAside makes this replica give its share away, or take one again. Its share is only given
// away while another replica is not set aside.
func (r *Replica) SetAside(aside bool) {
	r.mu.Lock()
	r.roster.setAside(aside)
	r.mu.Unlock()
	r.notify()
}
