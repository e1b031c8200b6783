package integration

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// at parses an address and port.
func at(addr string) netip.AddrPort { return netip.MustParseAddrPort(addr) }

// serverSet is a set of HTTP servers for targets a, b, c and so on.
type serverSet struct {
	*lab.Machine // of the first server
	servers      []*lab.Server
	addrs        []netip.AddrPort
}

// startServers starts servers at different ports of one machine.
func startServers(h *harness.Test, n int) serverSet {
	h.T.Helper()
	set := serverSet{Machine: h.Machine("servers")}
	for i := range n {
		set.add(h, set.Machine, uint16(8001+i))
	}
	return set
}

// startServersApart starts each server on its own machine.
func startServersApart(h *harness.Test, n int) serverSet {
	h.T.Helper()
	set := serverSet{}
	for i := range n {
		set.add(h, h.Machine(fmt.Sprintf("host%d", i)), 8001)
	}
	return set
}

func (set *serverSet) add(h *harness.Test, m *lab.Machine, port uint16) {
	h.T.Helper()
	if set.Machine == nil {
		set.Machine = m
	}
	set.servers, set.addrs = append(set.servers, h.Serve(m, "http", int(port))), append(set.addrs, m.At4(port))
}

// at returns the endpoint of target i.
func (set serverSet) at(i int) netip.AddrPort { return set.addrs[i] }

// target returns the YAML of target i for an ExternalBackend with a port named web. more has
// further fields, such as ", tier: 1".
func (set serverSet) target(i int, more string) string {
	return fmt.Sprintf("- {name: \"%c\", address: %s, ports: [{name: web, targetPort: %d}]%s}\n", 'a'+i, set.at(i).Addr(),
		set.at(i).Port(), more)
}

// targets returns the YAML of all targets, without further fields.
func (set serverSet) targets() string {
	var text strings.Builder
	for i := range set.servers {
		text.WriteString(set.target(i, ""))
	}
	return text.String()
}
