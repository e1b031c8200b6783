package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Resolver asks the cluster's DNS, from outside of the node.
func (l *Lab) Resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, l.ClusterDNS().String())
	}}
}

var (
	serviceChain = regexp.MustCompile(`(?ms)^\tchain service-\w+-(\S+?) \{\n(.*?)^\t\}`)
	destination  = regexp.MustCompile(`dnat (?:ip6? )?to (\S+:\d+)|: (\S+) \. (\d+)|__(\S+)/(\d+)`)
)

// Routes are the endpoints, sorted, to which kube-proxy's rules send what comes for a Service on
// the node now. It knows the nftables mode.
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

// parseDestination reads one of three forms: of a rule for a sole endpoint, of a map of several,
// and of the name of an endpoint's chain, where nftables allows no colons.
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

// Write is a request of the manager's that the API server was to change something for; it may have
// changed nothing, or been refused.
type Write struct {
	Verb, Resource, Namespace, Name string // Resource: with the subresource, as in services/status
	Code                            int    // HTTP status of the answer
}

// Writes counts the manager's writes, from its making on.
type Writes struct {
	path   string
	offset int64
}

// CountWrites begins to count. The cluster has to have been started with Audit.
func (l *Lab) CountWrites() (*Writes, error) {
	info, err := os.Stat(l.AuditLog)
	if err != nil {
		return nil, fmt.Errorf("lab: no audit log: %w", err)
	}
	return &Writes{path: l.AuditLog, offset: info.Size()}, nil
}

// Since are all writes since CountWrites, those of events and leases not among them, in the order
// in which they were answered.
func (w *Writes) Since() ([]Write, error) {
	file, err := os.Open(w.path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(w.offset, io.SeekStart); err != nil {
		return nil, err
	}
	user := fmt.Sprintf("system:serviceaccount:%s:%s", SystemNamespace, serviceAccount)
	var writes []Write
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var entry struct {
			Verb           string
			User           struct{ Username string }
			ObjectRef      struct{ Resource, Subresource, Namespace, Name string }
			ResponseStatus struct{ Code int }
		}
		if err := json.Unmarshal(lines.Bytes(), &entry); err != nil {
			break // a line that is being written
		}
		o := entry.ObjectRef
		if entry.User.Username != user || slices.Contains([]string{"get", "list", "watch"}, entry.Verb) ||
			o.Resource == "events" ||
			o.Resource == "leases" {
			continue
		}
		if o.Subresource != "" {
			o.Resource += "/" + o.Subresource
		}
		writes = append(
			writes,
			Write{Verb: entry.Verb, Resource: o.Resource, Namespace: o.Namespace, Name: o.Name, Code: entry.ResponseStatus.Code},
		)
	}
	return writes, lines.Err()
}
