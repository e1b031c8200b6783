package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Resolver returns a resolver that asks the cluster's DNS from outside of the node.
func (l *Lab) Resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, l.ClusterDNS().String())
	}}
}

var (
	serviceChain = regexp.MustCompile(`(?ms)^\tchain service-\w+-(\S+?) \{\n(.*?)^\t\}`)
	destination  = regexp.MustCompile(`dnat (?:ip6? )?to (\S+:\d+)|: (\S+) \. (\d+)|__(\S+)/(\d+)`)
)

// Routes returns the endpoints, sorted, to which kube-proxy's rules on the node now send
// connections for a Service. kube-proxy must run in nftables mode.
func (l *Lab) Routes(ctx context.Context, namespace, service string) ([]netip.AddrPort, error) {
	var routes []netip.AddrPort
	for _, family := range []string{"ip", "ip6"} {
		rules, err := l.Node().Command(ctx, "nft", "list", "table", family, "kube-proxy").Output()
		if err != nil {
			return nil, fmt.Errorf("lab: nft list table %s kube-proxy: %w", family, err)
		}
		for _, chain := range serviceChain.FindAllStringSubmatch(string(rules), -1) {
			if !strings.HasPrefix(chain[1], namespace+"/"+service+"/") {
				continue
			}
			for _, to := range destination.FindAllStringSubmatch(chain[2], -1) {
				route, err := parseDestination(to)
				if err != nil {
					return nil, err
				}
				routes = append(routes, route)
			}
		}
	}
	slices.SortFunc(routes, netip.AddrPort.Compare)
	return slices.Compact(routes), nil
}

// parseDestination reads one of three forms: a rule for a single endpoint, an entry in a map of
// several, or the name of an endpoint's chain, in which nftables allows no colons.
func parseDestination(match []string) (netip.AddrPort, error) {
	if match[1] != "" {
		return netip.ParseAddrPort(match[1])
	}
	host, port := match[2], match[3]
	if host == "" {
		host, port = match[4], match[5]
		if _, err := netip.ParseAddr(host); err != nil {
			host = strings.ReplaceAll(host, ".", ":")
		}
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	return netip.AddrPortFrom(addr, uint16(number)), err
}
