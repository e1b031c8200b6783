package devcluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// The link that all namespaces share. The program has the Outer addresses, the cluster those of
// Node and DNS. The cluster's DNS forwards queries to UpstreamDNS. All other addresses are free for
// namespaces.
var (
	Link4 = netip.MustParsePrefix("203.0.113.0/24")
	Link6 = netip.MustParsePrefix("2001:db8:113::/64")

	Outer4      = netip.MustParseAddr("203.0.113.1")
	Outer6      = netip.MustParseAddr("2001:db8:113::1")
	Node4       = netip.MustParseAddr("203.0.113.2")
	Node6       = netip.MustParseAddr("2001:db8:113::2")
	DNS4        = netip.MustParseAddr("203.0.113.53")
	DNS6        = netip.MustParseAddr("2001:db8:113::53")
	UpstreamDNS = netip.MustParseAddr("203.0.113.54")
)

const bridge = "cluster0"

// These errors prevent a change of the machine's own network.
var (
	errOutside   = errors.New("devcluster: not inside namespaces, call Enter or Main first")
	errNoNetwork = errors.New("devcluster: no cluster runs here, `devcluster up` says how to get into its shell")
)

// Network is a bridge in the program's network namespace, which connects further namespaces. A
// program has one at a time.
type Network struct {
	dir string

	mu         sync.Mutex
	namespaces map[string]*Namespace
}

// OpenNetwork creates the bridge. [Start] calls it. A benchmark of the data plane needs nothing
// else.
func OpenNetwork() (*Network, error) {
	if !inside {
		return nil, errOutside
	}
	dir, err := runDir()
	if err != nil {
		return nil, err
	}
	n := &Network{dir: dir, namespaces: map[string]*Namespace{}}
	if err := os.MkdirAll(n.pins(), 0o750); err != nil {
		return nil, err
	}
	if err := errors.Join(tuneNetns(), forwardPackets()); err != nil {
		return nil, err
	}
	if err := runTool(fmt.Sprintf(`link add %[1]s type bridge forward_delay 0 mcast_snooping 0
addr add %[2]s/%[3]d dev %[1]s
addr add %[4]s/%[5]d dev %[1]s nodad
link set %[1]s up
`, bridge, Outer4, Link4.Bits(), Outer6, Link6.Bits()), "ip", "-batch", "-"); err != nil {
		return nil, fmt.Errorf("devcluster: create the bridge: %w", err)
	}
	return n, nil
}

// JoinNamespace adds a namespace to the network of another program, such as `devcluster up`. The
// caller runs in that program's namespaces (see [Nsenter]) and closes the namespace in the end; see
// [Network.AddNamespace] for the rest.
func JoinNamespace(name string, addresses ...string) (*Namespace, error) {
	dir, err := runDir()
	if err != nil {
		return nil, err
	}
	n := &Network{dir: dir, namespaces: map[string]*Namespace{}}
	if _, err := os.Stat(n.pins()); errors.Is(err, os.ErrNotExist) {
		return nil, errNoNetwork
	}
	return n.AddNamespace(name, addresses...)
}

// pins returns the directory with a path for each namespace of the network, whichever program
// created it.
func (n *Network) pins() string { return filepath.Join(n.dir, "netns") }

// Close removes the bridge and every namespace.
func (n *Network) Close() error {
	n.mu.Lock()
	namespaces := n.namespaces
	n.namespaces = map[string]*Namespace{}
	n.mu.Unlock()
	var errs []error
	for _, ns := range namespaces {
		errs = append(errs, ns.remove())
	}
	return errors.Join(append(errs, runTool("", "ip", "link", "del", bridge))...)
}

// tuneNetns configures the calling thread's network namespace: addresses are usable at once and
// independent of each other, and redirects of neighbours are ignored.
func tuneNetns() error {
	settings := []string{"ipv6/conf/all/disable_ipv6=0",
		"ipv6/conf/default/disable_ipv6=0", "ipv6/conf/default/accept_dad=0"}
	for _, conf := range []string{"all", "default"} {
		settings = append(settings,
			"ipv4/conf/"+conf+"/send_redirects=0",
			"ipv4/conf/"+conf+"/accept_redirects=0",
			"ipv4/conf/"+conf+"/promote_secondaries=1",
			"ipv6/conf/"+conf+"/accept_redirects=0",
			"ipv6/conf/"+conf+"/accept_ra=0",
		)
	}
	return writeSysctls(settings)
}

// forwardPackets makes the calling thread's network namespace a router.
func forwardPackets() error {
	return writeSysctls([]string{"ipv4/ip_forward=1", "ipv6/conf/all/forwarding=1"})
}

func writeSysctls(settings []string) error {
	for _, setting := range settings {
		name, value, _ := strings.Cut(setting, "=")
		if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
			return fmt.Errorf("devcluster: %w", err)
		}
	}
	return nil
}

// Namespace is a network namespace on the link: a machine outside of the cluster, a client, or the
// cluster's node.
type Namespace struct {
	name    string
	network *Network
	path    string // bind mount of the namespace, for tools
	file    *os.File

	mu     sync.Mutex
	onLink []netip.Addr
	drops  []netip.AddrPort
}

// AddNamespace creates a namespace with the given addresses, as in [Namespace.AddAddresses].
func (n *Network) AddNamespace(name string, addresses ...string) (*Namespace, error) {
	path := filepath.Join(n.pins(), name)
	reserved, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("devcluster: namespace %s: %w", name, err)
	}
	reserved.Close()
	ns := &Namespace{name: name, network: n, path: path}
	if err = ns.create(); err == nil {
		err = ns.AddAddresses(addresses...)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("devcluster: namespace %s: %w", name, err), ns.remove())
	}
	n.mu.Lock()
	n.namespaces[name] = ns
	n.mu.Unlock()
	return ns, nil
}

// create creates the namespace in a thread, pins it to a path, and connects it with the bridge.
func (ns *Namespace) create() error {
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Mount("/proc/thread-self/ns/net", ns.path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("pin: %w", err)
		}
		return tuneNetns()
	})
	if err != nil {
		return err
	}
	if ns.file, err = os.Open(ns.path); err != nil {
		return err
	}
	// The kernel names our end of the link, because several programs may add namespaces.
	if err := runTool("", "ip", "link", "add", "up", "master", bridge, "type", "veth", "peer", "name",
		"eth0", "netns", ns.path); err != nil {
		return err
	}
	return ns.tool("link set lo up\nlink set eth0 up\n", "ip", "-batch", "-")
}

// Close removes the namespace from the network. Processes that still run in it have no link any
// more.
func (ns *Namespace) Close() error {
	ns.network.mu.Lock()
	delete(ns.network.namespaces, ns.name)
	ns.network.mu.Unlock()
	ns.mu.Lock()
	gone := ns.onLink
	ns.mu.Unlock()
	return errors.Join(ns.remove(), ns.network.forget(gone))
}

func (ns *Namespace) remove() error {
	// Each step is tried even if others fail, because the namespace may be incomplete.
	var errs []error
	if ns.file != nil {
		errs = append(errs, ns.file.Close(), ns.tool("", "ip", "link", "del", "eth0"))
	}
	return errors.Join(append(errs, unix.Unmount(ns.path, unix.MNT_DETACH), os.Remove(ns.path))...)
}

// AddAddresses gives the namespace further addresses. Each is an address of [Link4] or [Link6], or
// a prefix outside of them such as 198.51.100.0/24 or 198.18.0.0/15. The namespace answers at every
// address of a prefix, which is routed through the namespace's first address of that family on the
// link. Neighbour entries for many thousand addresses would overflow the kernel's table; a prefix
// needs one.
func (ns *Namespace) AddAddresses(addresses ...string) error {
	var local, outer strings.Builder
	ns.mu.Lock()
	defer ns.mu.Unlock()
	for _, text := range addresses {
		prefix, err := parsePrefix(text)
		if err != nil {
			return err
		}
		addr := prefix.Addr()
		link, router := linkOf(addr)
		gateway := slices.IndexFunc(ns.onLink, func(a netip.Addr) bool { return a.Is6() == addr.Is6() })
		switch {
		case link.Contains(addr):
			fmt.Fprintf(&local, "addr add %s/%d dev eth0 nodad\n", addr, link.Bits())
			if gateway < 0 {
				fmt.Fprintf(&local, "route replace default via %s dev eth0\n", router)
			}
			ns.onLink = append(ns.onLink, addr)
		case gateway < 0:
			return fmt.Errorf("%s: needs an address in %s to be routed by", prefix, link)
		default:
			fmt.Fprintf(&local, "route add local %s dev lo\n", prefix)
			fmt.Fprintf(&outer, "route add %s via %s\n", prefix, ns.onLink[gateway])
		}
	}
	return errors.Join(ns.tool(local.String(), "ip", "-batch", "-"), runTool(outer.String(), "ip", "-batch", "-"))
}

// RemoveAddresses removes addresses on the link, so that another namespace can have them.
func (ns *Namespace) RemoveAddresses(addresses ...string) error {
	var batch strings.Builder
	var gone []netip.Addr
	ns.mu.Lock()
	defer ns.mu.Unlock()
	for _, text := range addresses {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return err
		}
		link, _ := linkOf(addr)
		fmt.Fprintf(&batch, "addr del %s/%d dev eth0\n", addr, link.Bits())
		ns.onLink = slices.DeleteFunc(ns.onLink, func(a netip.Addr) bool { return a == addr })
		gone = append(gone, addr)
	}
	return errors.Join(ns.tool(batch.String(), "ip", "-batch", "-"), ns.network.forget(gone))
}

// forget deletes the neighbour entries of addresses in all namespaces, which would still lead to
// the previous owner.
func (n *Network) forget(addrs []netip.Addr) error {
	var batch strings.Builder
	for _, addr := range addrs {
		fmt.Fprintf(&batch, "neigh flush to %s\n", addr)
	}
	others, err := os.ReadDir(n.pins()) // includes namespaces of other programs
	if err != nil {
		return err
	}
	errs := []error{runTool(batch.String(), "ip", "-batch", "-")}
	for _, other := range others {
		path := filepath.Join(n.pins(), other.Name())
		err := toolIn(path, batch.String(), "ip", "-batch", "-")
		var fs unix.Statfs_t
		// Otherwise it was closed meanwhile, or is not complete yet.
		if unix.Statfs(path, &fs) == nil && fs.Type == unix.NSFS_MAGIC {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// linkOf returns the link's prefix and the program's address of the same family as addr.
func linkOf(addr netip.Addr) (link netip.Prefix, router netip.Addr) {
	if addr.Is4() {
		return Link4, Outer4
	}
	return Link6, Outer6
}

func parsePrefix(text string) (netip.Prefix, error) {
	if strings.Contains(text, "/") {
		return netip.ParsePrefix(text)
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	return addr.Prefix(addr.BitLen())
}

// Name returns the name of the namespace.
func (ns *Namespace) Name() string { return ns.name }

// Path returns a file that stands for the namespace, as `nsenter --net=` and `ip link set netns`
// need it.
func (ns *Namespace) Path() string { return ns.path }

// onThread runs f on a new operating system thread, which ends with f. So changes of the thread
// affect nothing else.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		err := errors.New("devcluster: the function ended its goroutine") // as t.FailNow does
		defer func() { done <- err }()
		runtime.LockOSThread() // never unlocked
		err = f()
	}()
	return <-done
}

// Do runs f on a thread in the namespace. Sockets that f opens stay in the namespace. Goroutines
// that f starts are not in it. It costs a thread while f runs.
func (ns *Namespace) Do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("devcluster: enter namespace %s: %w", ns.name, err)
		}
		return f()
	})
}

// Listen is net.Listen in the namespace. The host must be an address or empty.
func (ns *Namespace) Listen(network, address string) (listener net.Listener, err error) {
	err = ns.Do(func() (err error) {
		listener, err = net.Listen(network, address)
		return err
	})
	return listener, err
}

// ListenPacket is net.ListenPacket in the namespace. The host must be an address or empty.
func (ns *Namespace) ListenPacket(network, address string) (conn net.PacketConn, err error) {
	err = ns.Do(func() (err error) {
		conn, err = net.ListenPacket(network, address)
		return err
	})
	return conn, err
}

// Dial connects from the namespace. It can be the DialContext of an http.Transport. The program
// resolves names, by the cluster's DNS once [Start] has returned, and tries their addresses one
// after the other.
func (ns *Namespace) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	addrs := []string{host}
	if _, err := netip.ParseAddr(host); err != nil {
		if addrs, err = net.DefaultResolver.LookupHost(ctx, host); err != nil {
			return nil, err
		}
	}
	var errs []error
	for _, addr := range addrs {
		var conn net.Conn
		err := ns.Do(func() (err error) {
			// For an address, Dialer opens the socket in the goroutine of the caller.
			conn, err = new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(addr, port))
			return err
		})
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// Command is exec.CommandContext in the namespace.
func (ns *Namespace) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + ns.path, "--", name}, args...)...)
}

// tool is runTool in the namespace.
func (ns *Namespace) tool(stdin, name string, args ...string) error {
	return toolIn(ns.path, stdin, name, args...)
}

func toolIn(path, stdin, name string, args ...string) error {
	return runTool(stdin, "nsenter", append([]string{"--net=" + path, "--", name}, args...)...)
}

// Drop drops every packet from and to the given addresses and ports in the namespace. Port 0 stands
// for all ports. The address can still be resolved on the link, so it is a black hole, not an
// absent host. Established connections stall, too.
func (ns *Namespace) Drop(what ...netip.AddrPort) error {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	drops := slices.Clone(ns.drops)
	for _, d := range what {
		if !slices.Contains(drops, d) {
			drops = append(drops, d)
		}
	}
	return ns.setDropsLocked(drops)
}

// Undrop reverts Drop for exactly these addresses and ports, or for all without arguments.
func (ns *Namespace) Undrop(what ...netip.AddrPort) error {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	return ns.setDropsLocked(slices.DeleteFunc(slices.Clone(ns.drops), func(d netip.AddrPort) bool {
		return len(what) == 0 || slices.Contains(what, d)
	}))
}

// setDropsLocked replaces all rules in one nftables transaction.
func (ns *Namespace) setDropsLocked(drops []netip.AddrPort) error {
	var rules strings.Builder
	rules.WriteString("add table inet drops\ndelete table inet drops\ntable inet drops {\nchain drops {\n" +
		"icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept\n")
	for _, d := range drops {
		family := "ip"
		if d.Addr().Is6() {
			family = "ip6"
		}
		for _, side := range []string{"s", "d"} {
			fmt.Fprintf(&rules, "%s %saddr %s", family, side, d.Addr())
			if d.Port() != 0 {
				fmt.Fprintf(&rules, " meta l4proto { tcp, udp, sctp } th %sport %d", side, d.Port())
			}
			rules.WriteString(" drop\n")
		}
	}
	rules.WriteString("}\n")
	for _, hook := range []string{"input", "forward", "output"} {
		fmt.Fprintf(&rules, "chain %s { type filter hook %[1]s priority -10; jump drops; }\n", hook)
	}
	rules.WriteString("}\n")
	if err := ns.tool(rules.String(), "nft", "-f", "-"); err != nil {
		return fmt.Errorf("devcluster: namespace %s: %w", ns.name, err)
	}
	ns.drops = drops
	return nil
}
