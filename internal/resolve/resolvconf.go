package resolve

import (
	"io"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	defaultResolvConf  = "/etc/resolv.conf"
	resolvConfInterval = 5 * time.Second // between two reads of the file
	maxResolvConf      = 64 << 10        // bytes read of it
	maxNameservers     = 16              // taken from it
)

// resolvConf gives the nameservers of a resolv.conf(5), and reads it again while they are asked
// for. Where the file can't be read or names no nameserver, those of the last successful read
// count. Before one, it is the local machine, as the manual page says.
type resolvConf struct {
	path    string
	servers atomic.Pointer[[]netip.AddrPort]

	reading sync.Mutex // held by the one caller that looks at the file
	checked time.Time  // when a caller read it last
}

func newResolvConf(path string) *resolvConf {
	if path == "" {
		path = defaultResolvConf
	}
	local := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)
	c := &resolvConf{path: path}
	c.servers.Store(&[]netip.AddrPort{local})
	c.nameservers() // read once before anyone asks; a later caller does not wait for a read under way
	return c
}

// nameservers returns the present list. Port 0 stands for the default port of the transport.
func (c *resolvConf) nameservers() []netip.AddrPort {
	if c.reading.TryLock() {
		c.refresh()
		c.reading.Unlock()
	}
	return *c.servers.Load()
}

// refresh reads the file, unless it was read within the interval.
func (c *resolvConf) refresh() {
	now := time.Now()
	if now.Sub(c.checked) < resolvConfInterval {
		return
	}
	c.checked = now
	if f, err := os.Open(c.path); err == nil {
		if servers := parseResolvConf(io.LimitReader(f, maxResolvConf)); len(servers) > 0 {
			c.servers.Store(&servers)
		}
		f.Close()
	}
}

// parseResolvConf reads the addresses of nameserver lines. An address may have a port, as in
// OpenBSD's form "[192.0.2.1]:5353". Search lists and options do not apply to fully qualified
// names.
func parseResolvConf(r io.Reader) (servers []netip.AddrPort) {
	for _, text := range nameserverLines(r) {
		if addr, err := netip.ParseAddr(text); err == nil {
			servers = append(servers, netip.AddrPortFrom(addr, 0))
		} else if server, err := netip.ParseAddrPort(unbracketIPv4(text)); err == nil {
			servers = append(servers, server)
		}
	}
	return servers[:min(len(servers), maxNameservers)]
}

// unbracketIPv4 turns "[192.0.2.1]:53" into "192.0.2.1:53".
func unbracketIPv4(s string) string {
	host, port, ok := strings.Cut(strings.TrimPrefix(s, "["), "]")
	if ok && strings.HasPrefix(s, "[") && !strings.Contains(host, ":") {
		return host + port
	}
	return s
}
