package devcluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// startTimeout bounds how long one component may take to become ready on a busy machine.
const startTimeout = 3 * time.Minute

// Options configure a cluster. The zero value is a good default.
type Options struct {
	Kubernetes         string   // version, such as v1.36.4; default: the selected one, see [Kubernetes]
	ProxyMode          string   // of kube-proxy: nftables (default) or iptables (needs that Debian package)
	WithoutControllers bool     // run no kube-controller-manager; nothing is garbage-collected
	WithoutProxy       bool     // run no kube-proxy; there still is a Node
	WithoutDNS         bool     // run no DNS for the cluster
	QuickBuild         bool     // binaries that are missing are built with QuickBuild
	Audit              bool     // log every request in AuditLog
	APIServerArgs      []string // further flags for kube-apiserver
}

// edition returns the edition of the binaries.
func (o Options) edition() edition { return edition{kubernetes: o.Kubernetes, quick: o.QuickBuild} }

// components returns the components that start once the Node is there.
func (o Options) components() []Component {
	var list []Component
	if !o.WithoutControllers {
		list = append(list, ControllerManager)
	}
	if !o.WithoutProxy {
		list = append(list, Proxy)
	}
	if !o.WithoutDNS {
		list = append(list, CoreDNS)
	}
	return list
}

// binaries returns the names of the binaries that a cluster with these options needs.
func (o Options) binaries() []string {
	names := slices.Clone(envtestBinaries)
	for _, component := range o.components() {
		names = append(names, string(component))
	}
	return names
}

// Cluster is a running control plane with one node, on a [Network].
type Cluster struct {
	*Network
	Kubeconfig string // path of the administrator's kubeconfig
	Bin        string // directory with kubectl
	Logs       string // directory of logs; $DEVCLUSTER_LOGS, if set, outlives the cluster
	AuditLog   string // path; each line is a JSON object of audit.k8s.io/v1

	options  Options
	dir      string
	binaries map[string]string
	ca       *authority
	client   *http.Client
	node     *Namespace
	dns      *Namespace

	mu      sync.Mutex
	running map[Component]*process
	resolv  string // path on which the cluster's resolv.conf is mounted; "": it is not mounted
}

// Start starts a cluster, and returns when it is ready. Stop it before you start the next one.
//
//  1. Create the network, certificates and configuration files.
//  2. Start etcd, and then kube-apiserver.
//  3. Create the Node, and start all other components in parallel.
//  4. Resolve the program's names by the cluster's DNS.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if !inside {
		return nil, errOutside
	}
	wanted := options.edition()
	var err error
	if wanted.kubernetes, err = orSelected(wanted.kubernetes); err != nil {
		return nil, err
	}
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	binaries, missing := locate(cache, wanted, options.binaries())
	if len(missing) > 0 {
		return nil, fmt.Errorf("devcluster: not built: %v; call Ensure (or Main with %s) outside of the namespaces",
			missing, wanted.kubernetes)
	}
	if _, err := lookTool("iptables"); options.ProxyMode == "iptables" && err != nil {
		return nil, errors.New("devcluster: missing Debian package, install it with: apt-get install iptables")
	}
	c := &Cluster{options: options, Bin: filepath.Dir(binaries["kubectl"]),
		binaries: binaries, running: map[Component]*process{}}
	if c.Network, err = OpenNetwork(); err != nil {
		return nil, err
	}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("devcluster: %w", err), c.Stop())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	if err := c.prepare(); err != nil {
		return err
	}
	for _, component := range []Component{Etcd, APIServer} {
		if err := c.StartComponent(ctx, component); err != nil {
			return err
		}
	}
	if err := c.request(ctx, http.MethodPost, "/api/v1/nodes", nodeObject(), nil); err != nil {
		return fmt.Errorf("create the Node: %w", err)
	}
	components := c.options.components()
	errs := make([]error, len(components))
	var started sync.WaitGroup
	for i, component := range components {
		started.Go(func() { errs[i] = c.StartComponent(ctx, component) })
	}
	started.Wait()
	if err := errors.Join(errs...); err != nil || c.options.WithoutDNS {
		return err
	}
	return c.useDNS()
}

// prepare creates everything that the processes need: directories, namespaces, certificates and
// configuration files.
func (c *Cluster) prepare() (err error) {
	c.dir = filepath.Join(c.Network.dir, "cluster")
	c.Logs = cmp.Or(os.Getenv("DEVCLUSTER_LOGS"), filepath.Join(c.dir, "logs"))
	c.AuditLog = c.file("audit.log")
	if err := errors.Join(os.MkdirAll(c.dir, 0o750), os.MkdirAll(c.Logs, 0o750)); err != nil {
		return err
	}
	if c.node, err = c.AddNamespace("node", Node4.String(), Node6.String()); err != nil {
		return err
	}
	if err := c.node.Do(forwardPackets); err != nil {
		return err
	}
	if c.dns, err = c.AddNamespace("dns", DNS4.String(), DNS6.String()); err != nil {
		return err
	}
	if err := runTool(fmt.Sprintf("route add %s via %s\nroute add %s via %s\n", ServiceCIDR4, Node4, ServiceCIDR6, Node6),
		"ip", "-batch", "-"); err != nil {
		return err
	}
	if c.ca, err = newAuthority(); err != nil {
		return err
	}
	if c.client, err = c.ca.newClient(); err != nil {
		return err
	}
	if c.Kubeconfig, err = c.UserKubeconfig("admin", "system:masters"); err != nil {
		return err
	}
	return c.writeConfiguration()
}

// writeConfiguration writes the files that the components' flags name.
func (c *Cluster) writeConfiguration() error {
	server, err := c.ca.issue("kube-apiserver", []string{"system:masters"}, net.IPv4(127, 0, 0, 1), net.IPv6loopback,
		Outer4.AsSlice(), Outer6.AsSlice(), ServiceCIDR4.Addr().Next().AsSlice(), ServiceCIDR6.Addr().Next().AsSlice())
	if err != nil {
		return err
	}
	_, tokenKey, err := newKey()
	if err != nil {
		return err
	}
	proxy, err := json.Marshal(c.proxyConfiguration())
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"ca.crt": c.ca.pem, "server.crt": server.cert, "server.key": server.key, "token.key": tokenKey,
		"audit-policy.json": []byte(auditPolicy), "kube-proxy.json": proxy, "Corefile": []byte(c.corefile()),
		"resolv.conf": []byte("nameserver " + DNS4.String() + "\noptions timeout:1 attempts:2\n"),
	}
	for name, content := range files {
		if err := os.WriteFile(c.file(name), content, 0o600); err != nil {
			return err
		}
	}
	if err := os.Chmod(c.file("resolv.conf"), 0o644); err != nil { // every user resolves names
		return err
	}
	// kube-proxy has its usual rights. The roles of the others come with installers that we don't use.
	_, err = c.UserKubeconfig("system:kube-proxy")
	for _, user := range []string{"system:kube-controller-manager", "system:coredns"} {
		if err == nil {
			_, err = c.UserKubeconfig(user, "system:masters")
		}
	}
	return err
}

func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }

// useDNS mounts the cluster's resolv.conf over that of the program.
func (c *Cluster) useDNS() error {
	path, err := filepath.EvalSymlinks("/etc/resolv.conf")
	if errors.Is(err, os.ErrNotExist) {
		return nil // resolvers then ask a server on loopback, which does not exist
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(c.file("resolv.conf"), path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount resolv.conf: %w", err)
	}
	c.resolv = path
	return nil
}

// Stop kills all components, and removes the network and the data. The end of the program has the
// same effect.
func (c *Cluster) Stop() error {
	var errs []error
	for _, component := range []Component{CoreDNS, Proxy, ControllerManager, APIServer, Etcd} {
		c.StopComponent(component)
	}
	if c.resolv != "" {
		errs = append(errs, unix.Unmount(c.resolv, unix.MNT_DETACH))
	}
	return errors.Join(append(errs, c.Network.Close(), os.RemoveAll(c.dir))...)
}

// StartComponent starts a stopped component with the same data and addresses, and returns once it
// is ready.
func (c *Cluster) StartComponent(ctx context.Context, component Component) error {
	c.mu.Lock()
	if c.running[component] != nil {
		c.mu.Unlock()
		return fmt.Errorf("devcluster: %s is running", component)
	}
	p, err := startProcess(string(component), filepath.Join(c.Logs, string(component)+".log"), c.command(component))
	if err == nil {
		c.running[component] = p
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return p.await(ctx, func(ctx context.Context) error { return c.ready(ctx, component) })
}

// StopComponent kills a component, like a crash. It does nothing if the component does not run.
func (c *Cluster) StopComponent(component Component) {
	c.mu.Lock()
	p := c.running[component]
	delete(c.running, component)
	c.mu.Unlock()
	if p != nil {
		p.kill()
	}
}

// SignalComponent sends a signal to a component. SIGSTOP makes it hang until SIGCONT.
func (c *Cluster) SignalComponent(component Component, signal syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.running[component]
	if p == nil {
		return fmt.Errorf("devcluster: %s is not running", component)
	}
	return p.signal(signal)
}

// Node returns the namespace of the cluster's only Node, with kube-proxy's rules. A client in there
// sees the network like a Pod or the host.
func (c *Cluster) Node() *Namespace { return c.node }

// ClusterDNS returns the address of the cluster's DNS. It answers for cluster.local, and forwards
// all other queries to [UpstreamDNS].
func (c *Cluster) ClusterDNS() netip.AddrPort { return netip.AddrPortFrom(DNS4, 53) }

// DNSNamespace returns the namespace of the cluster's DNS, in which faults can be injected.
func (c *Cluster) DNSNamespace() *Namespace { return c.dns }

// request sends a JSON request to the API server. out may be nil.
func (c *Cluster) request(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, c.server()+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	answer, err := get(c.client, req)
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(answer, out)
}

// get returns the body of an answer with status 2xx. Any other status is an error.
func get(client *http.Client, req *http.Request) ([]byte, error) {
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, fmt.Errorf("%s %s: %s: %s", req.Method, req.URL, resp.Status, body)
	}
	return body, nil
}
