package resolve

import (
	"bufio"
	"io"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	defaultResolvConf  = "/etc/resolv.conf"
	resolvConfInterval = 5 * time.Second // between looks at the file
	maxResolvConf      = 64 << 10        // bytes read of it
	maxNameservers     = 16              // taken from it
)

// resolvConf tells the nameservers of a resolv.conf(5), read again while they are asked for. Where
// it can't be read, or names none, what it said last holds; before that the local machine, as the
// manual page says.
type resolvConf struct {
	path string

	mu      sync.Mutex
	checked time.Time
	servers []netip.AddrPort
}

func newResolvConf(path string) *resolvConf {
	if path == "" {
		path = defaultResolvConf
	}
	c := &resolvConf{path: path, servers: []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)}}
	// the first look is over before anyone asks: later on who comes during one goes by what the last
	// one said
	c.nameservers()
	return c
}

// nameservers returns the present list; port 0 stands for the transport's own.
func (c *resolvConf) nameservers() []netip.AddrPort {
	if !c.due() {
		return c.current()
	}
	if f, err := os.Open(c.path); err == nil {
		c.set(parseResolvConf(io.LimitReader(f, maxResolvConf)))
		f.Close()
	}
	return c.current()
}

// due gives the turn to read the file to one caller per interval.
func (c *resolvConf) due() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if !c.checked.IsZero() && now.Sub(c.checked) < resolvConfInterval {
		return false
	}
	c.checked = now
	return true
}

func (c *resolvConf) set(servers []netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(servers) > 0 {
		c.servers = servers
	}
}

func (c *resolvConf) current() []netip.AddrPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.servers
}

// parseResolvConf reads the nameserver lines; an address may carry a port, as in OpenBSD's form
// "[192.0.2.1]:5353". Search lists and options don't concern fully qualified names.
func parseResolvConf(r io.Reader) []netip.AddrPort {
	var servers []netip.AddrPort
	lines := bufio.NewScanner(r)
	for lines.Scan() && len(servers) < maxNameservers {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if addr, err := netip.ParseAddr(fields[1]); err == nil {
			servers = append(servers, netip.AddrPortFrom(addr, 0))
		} else if server, err := netip.ParseAddrPort(unbracketIPv4(fields[1])); err == nil {
			servers = append(servers, server)
		}
	}
	return servers
}

// unbracketIPv4 turns "[192.0.2.1]:53" into "192.0.2.1:53".
func unbracketIPv4(s string) string {
	host, port, ok := strings.Cut(strings.TrimPrefix(s, "["), "]")
	if ok && strings.HasPrefix(s, "[") && !strings.Contains(host, ":") {
		return host + port
	}
	return s
}
