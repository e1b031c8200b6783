package policy

import "net/netip"

// A Kind says in fixed words why something is refused. Its words name neither
// an address nor a name and may stand in conditions, events and logs.
type Kind uint8

// The kinds, the strongest first: the ranges that are always forbidden, then those that a rule's
// cidrs (for nameservers: allowNameservers) may open, then what the rules say.
const (
	None Kind = iota
	NotAnAddress
	Loopback
	LinkLocal
	Multicast
	Broadcast
	Unspecified
	Mapped
	Metadata
	ClusterRange
	DiscoveredRange
	ClusterName
	NotAllowed
	PortNotAllowed
	kinds
)

var kindWords = [kinds]string{
	None:            "allowed",
	NotAnAddress:    "not an address",
	Unspecified:     "unspecified address",
	Loopback:        "loopback address",
	LinkLocal:       "link-local address",
	Multicast:       "multicast address",
	Broadcast:       "broadcast address",
	Mapped:          "IPv4-mapped address",
	Metadata:        "cloud metadata address",
	ClusterRange:    "address of this cluster",
	DiscoveredRange: "address of this cluster, known by discovery alone; cidrs of a policy rule would have to name it",
	ClusterName:     "name of this cluster",
	NotAllowed:      "not allowed by any policy",
	PortNotAllowed:  "port not allowed by any policy",
}

func (k Kind) String() string { return kindWords[k] }

// guarded kinds are refused unless a rule names the address.
func (k Kind) guarded() bool { return k >= Metadata && k <= DiscoveredRange }

// wellKnown lists the ranges that are the same in every cluster.
var wellKnown = []struct {
	kind     Kind
	prefixes []string
}{
	// 0.0.0.0/8 is "this network" (RFC 1122, 3.2.1.3): no destination.
	{Unspecified, []string{"0.0.0.0/8", "::/128"}},
	{Loopback, []string{"127.0.0.0/8", "::1/128"}},
	{LinkLocal, []string{"169.254.0.0/16", "fe80::/10"}},
	{Multicast, []string{"224.0.0.0/4", "ff00::/8"}},
	{Broadcast, []string{"255.255.255.255/32"}},
	// The API server refuses a slice with such an address, and a socket that
	// dials it speaks IPv4.
	{Mapped, []string{"::ffff:0:0/96"}},
	// Metadata and credential services that clouds serve outside link-local.
	{Metadata, []string{
		"100.100.100.200/32", "fd00:100::100:200/128", // Alibaba Cloud
		"fd00:ec2::254/128", "fd00:ec2::23/128", // AWS: instance metadata, EKS Pod Identity
		"168.63.129.16/32",                         // Azure WireServer
		"fd20:ce::254/128",                         // Google Cloud
		"fd00:a9fe:a9fe::1/128",                    // Akamai (Linode)
		"192.0.0.192/32", "fd00:c1::a9fe:a9fe/128", // Oracle Cloud
		"fd00:42::42/128", // Scaleway
		"100.80.80.80/32", // UCloud
		"100.96.0.96/32",  // Volcengine
	}},
}

// ClusterRanges are the address ranges that belong to the cluster itself.
type ClusterRanges struct {
	Declared      []netip.Prefix // --cluster-cidrs
	Discovered    []netip.Prefix // ServiceCIDR objects and the podCIDRs of Nodes
	NodeAddresses []netip.Addr   // the IP addresses in the status of Nodes; discovered too
}

// classifier knows the kind of every address.
type classifier struct{ table addrTable }

func newClassifier(r ClusterRanges) classifier {
	var claims []claim
	for _, w := range wellKnown {
		for _, p := range w.prefixes {
			claims = append(claims, claim{netip.MustParsePrefix(p), int(w.kind)})
		}
	}
	add := func(p netip.Prefix, k Kind) {
		if p.IsValid() {
			claims = append(claims, claim{p, int(k)})
		}
	}
	for _, p := range r.Declared {
		add(p, ClusterRange)
	}
	for _, p := range r.Discovered {
		add(p, DiscoveredRange)
	}
	for _, a := range r.NodeAddresses {
		add(netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), DiscoveredRange)
	}
	return classifier{newAddrTable(claims, newPool(int(kinds)))}
}

// own is the strongest kind of the address itself, None if it is in no range.
func (c classifier) own(a netip.Addr) Kind { return Kind(max(0, c.table.at(a).first())) }

// stronger returns the kind that decides if an address has both.
func stronger(a, b Kind) Kind {
	if a == None || b != None && b < a {
		return b
	}
	return a
}

// maxEmbedded is the most addresses that one address embeds: four places in
// 64:ff9b:1::/48, and ISATAP's.
const maxEmbedded = 5

// embedded appends the IPv4 addresses that an IPv6 address may lead to:
//   - IPv4-mapped, IPv4-compatible (but for :: and ::1) and IPv4-translated (RFC 4291,
//     RFC 2765): the last four bytes;
//   - NAT64's 64:ff9b::/96 (RFC 6052): the last four bytes;
//   - NAT64's local 64:ff9b:1::/48 (RFC 8215): wherever a prefix of 48, 56, 64 or 96 bits
//     puts the address, since nobody outside knows which one the network uses;
//   - 6to4 (RFC 3056): behind the prefix;
//   - Teredo (RFC 4380): the server behind the prefix, and the client in the last four bytes,
//     inverted;
//   - ISATAP (RFC 5214): the last four bytes behind 0:5efe or 200:5efe, under any prefix.
func embedded(a netip.Addr, found []netip.Addr) []netip.Addr {
	if !a.Is6() {
		return found
	}
	b := a.As16()
	pick := func(i, j, k, l int) { found = append(found, netip.AddrFrom4([4]byte{b[i], b[j], b[k], b[l]})) }
	if b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe {
		pick(12, 13, 14, 15)
	}
	switch {
	case compatible.Contains(a) && a.Compare(netip.IPv6Loopback()) > 0,
		translated.Contains(a), nat64.Contains(a), a.Is4In6():
		pick(12, 13, 14, 15)
	case nat64Local.Contains(a):
		pick(12, 13, 14, 15)
		for _, at := range [][4]int{{6, 7, 9, 10}, {7, 9, 10, 11}, {9, 10, 11, 12}} {
			// A 0 in front is a subnet number or padding of the /96 form.
			if b[at[0]] != 0 {
				pick(at[0], at[1], at[2], at[3])
			}
		}
	case sixToFour.Contains(a):
		pick(2, 3, 4, 5)
	case teredo.Contains(a):
		pick(4, 5, 6, 7)
		for i := 12; i < 16; i++ {
			b[i] = ^b[i]
		}
		pick(12, 13, 14, 15)
	}
	return found
}

var (
	compatible = netip.MustParsePrefix("::/96")
	translated = netip.MustParsePrefix("::ffff:0:0:0/96")
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	nat64Local = netip.MustParsePrefix("64:ff9b:1::/48")
	sixToFour  = netip.MustParsePrefix("2002::/16")
	teredo     = netip.MustParsePrefix("2001::/32")
)
