package devcluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The helper programs of TestNothingIsLeftBehind are this binary, too. The environment selects one.
const leftoverEnv = "DEVCLUSTER_TEST_LEFTOVERS"

func TestMain(m *testing.M) {
	switch os.Getenv(leftoverEnv) {
	case "":
	case "serve":
		serveOutside()
	default:
		Enter()
		leaveBehind()
	}
	Main(m)
}

// startCluster starts a cluster for one test.
func startCluster(t *testing.T, options Options) *Cluster {
	t.Helper()
	begin := time.Now()
	c, err := Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("the cluster took %v to start", time.Since(begin).Round(time.Millisecond))
	return c
}

// kubectl runs kubectl and returns its output.
func (c *Cluster) kubectl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	out, err := c.tryKubectl(t, c.Kubeconfig, stdin, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

func (c *Cluster) tryKubectl(t *testing.T, kubeconfig, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(
		t.Context(),
		filepath.Join(c.Bin, "kubectl"),
		append([]string{"--kubeconfig=" + kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// serve answers every TCP connection to addr in the namespace with the namespace's name.
func serve(t *testing.T, ns *Namespace, addr string) {
	t.Helper()
	listener, err := ns.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, ns.Name())
			conn.Close()
		}
	}()
}

// ask dials from the namespace and returns the answer.
func ask(ctx context.Context, ns *Namespace, addr string) (string, error) {
	conn, err := ns.Dial(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return "", err
		}
	}
	var answer bytes.Buffer
	_, err = answer.ReadFrom(conn)
	return answer.String(), err
}

// eventually asks until the answer comes. kube-proxy takes a while to apply changes.
func eventually(t *testing.T, ns *Namespace, addr, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		attempt, cancelAttempt := context.WithTimeout(ctx, time.Second)
		got, err := ask(attempt, ns, addr)
		cancelAttempt()
		if err == nil && got == want {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("asked %s from %s: %q, %v; want %q", addr, ns.Name(), got, err, want)
		}
	}
}

// service is a dual-stack Service without selector, with one hand-written slice per family.
const service = `
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: default}
spec:
  ipFamilyPolicy: RequireDualStack
  ports: [{name: db, port: 5432}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-4, namespace: default, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: db, port: 7000}]
endpoints: [{addresses: ["%[2]s"], conditions: {ready: true}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-6, namespace: default, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv6
ports: [{name: db, port: 7000}]
endpoints: [{addresses: ["%[3]s"], conditions: {ready: true}}]
`

func (c *Cluster) clusterIPs(t *testing.T, name string) []string {
	t.Helper()
	return strings.Fields(c.kubectl(t, "", "get", "service", name, "-o", "jsonpath={.spec.clusterIPs[*]}"))
}

// Traffic of both families reaches a backend outside of the cluster through kube-proxy, and stops
// when its endpoint is removed.
func TestTrafficReachesBackendThroughProxy(t *testing.T) {
	c := startCluster(t, Options{})
	backend, err := c.AddNamespace("backend", "203.0.113.10", "2001:db8:113::10", "198.51.100.0/24")
	if err != nil {
		t.Fatal(err)
	}
	client, err := c.AddNamespace("client", "203.0.113.20", "2001:db8:113::20")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, backend, ":7000")
	c.kubectl(t, fmt.Sprintf(service, "db", "203.0.113.10", "2001:db8:113::10"), "apply", "-f", "-")

	for _, ip := range c.clusterIPs(t, "db") {
		eventually(t, c.Node(), net.JoinHostPort(ip, "5432"), "backend")
		eventually(t, client, net.JoinHostPort(ip, "5432"), "backend") // by its route through the node
	}
	eventually(t, c.Node(), "db.default.svc.cluster.local:5432", "backend")
	eventually(t, client, "198.51.100.77:7000", "backend") // any address of a routed prefix

	t.Run("a removed endpoint gets no traffic", func(t *testing.T) {
		c.kubectl(t, "", "delete", "endpointslice", "db-4")
		ip := c.clusterIPs(t, "db")[0]
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		for {
			if _, err := ask(ctx, c.Node(), net.JoinHostPort(ip, "5432")); err != nil && ctx.Err() == nil {
				return
			}
			if ctx.Err() != nil {
				t.Fatal("traffic still arrives")
			}
		}
	})
}

// kube-proxy also routes traffic in iptables mode.
func TestIPTablesModeRoutesTraffic(t *testing.T) {
	c := startCluster(t, Options{ProxyMode: "iptables", WithoutDNS: true})
	backend, err := c.AddNamespace("backend", "203.0.113.10", "2001:db8:113::10")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, backend, ":7000")
	c.kubectl(t, fmt.Sprintf(service, "db", "203.0.113.10", "2001:db8:113::10"), "apply", "-f", "-")
	for _, ip := range c.clusterIPs(t, "db") {
		eventually(t, c.Node(), net.JoinHostPort(ip, "5432"), "backend")
	}
}

const ownedSlice = `{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
	"addressType": "IPv4", "ports": [], "endpoints": [],
	"metadata": {"name": "owned", "namespace": "default", "ownerReferences": [
		{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": %q}]}}`

// The control plane deletes what a deleted owner owns, survives a restart of the API server, and
// enforces and logs the rights of a ServiceAccount.
func TestControlPlaneHasRightsAndSurvivesRestart(t *testing.T) {
	c := startCluster(t, Options{Audit: true, WithoutProxy: true, WithoutDNS: true})
	if got := c.kubectl(t, "", "get", "--raw", "/version"); !strings.Contains(got, `"`+Kubernetes()+`"`) {
		t.Errorf("version: %s", got)
	}
	addresses := c.kubectl(t, "", "get", "node", NodeName, "-o",
		`jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
	if want := Node4.String() + " " + Node6.String(); addresses != want {
		t.Errorf("InternalIPs: %s, want %s", addresses, want)
	}

	// kube-controller-manager takes away what an owner leaves.
	c.kubectl(t, "", "create", "configmap", "owner")
	uid := c.kubectl(t, "", "get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}")
	c.kubectl(t, fmt.Sprintf(ownedSlice, uid), "apply", "-f", "-")
	c.kubectl(t, "", "delete", "configmap", "owner")
	c.kubectl(t, "", "wait", "--for=delete", "endpointslice/owned", "--timeout=30s")

	c.StopComponent(APIServer)
	if out, err := c.tryKubectl(t, c.Kubeconfig, "", "get", "nodes"); err == nil {
		t.Errorf("without an API server, kubectl prints: %s", out)
	}
	if err := c.StartComponent(t.Context(), APIServer); err != nil {
		t.Fatal(err)
	}

	c.kubectl(t, "", "create", "serviceaccount", "reader")
	c.kubectl(t, "", "create", "role", "reader", "--verb=get", "--resource=services")
	c.kubectl(t, "", "create", "rolebinding", "reader", "--role=reader", "--serviceaccount=default:reader")
	reader, err := c.ServiceAccountKubeconfig(t.Context(), "default", "reader")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := c.tryKubectl(t, reader, "", "get", "service", "kubernetes"); err != nil {
		t.Errorf("what the role allows: %v: %s", err, out)
	}
	if out, err := c.tryKubectl(t, reader, "", "get", "nodes"); err == nil || !strings.Contains(out, "Forbidden") {
		t.Errorf("what the role does not allow: %v: %s", err, out)
	}

	log, err := os.ReadFile(c.AuditLog)
	if err != nil {
		t.Fatal(err)
	}
	requests := slices.Collect(strings.Lines(string(log)))
	if !slices.ContainsFunc(requests, func(line string) bool {
		var event struct {
			Verb      string
			User      struct{ Username string }
			ObjectRef struct{ Resource, Name string }
		}
		return json.Unmarshal([]byte(line), &event) == nil && event.Verb == "get" &&
			event.User.Username == "system:serviceaccount:default:reader" && event.ObjectRef.Resource == "services" &&
			event.ObjectRef.Name == "kubernetes"
	}) {
		t.Errorf("the audit log of %d requests lacks that of the ServiceAccount", len(requests))
	}
}

// A nameserver serves a changed zone, keeps the old one if the new one is invalid, and gives the
// answers of further server blocks.
func TestNameserverServesChangedZone(t *testing.T) {
	n := openNetwork(t)
	ns, err := n.AddNamespace("authority", UpstreamDNS.String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := ns.StartDNS(t.Context(), map[string]string{"example.com": "db 5 A 192.0.2.1"},
		"broken.test {\n\ttemplate ANY ANY {\n\t\trcode SERVFAIL\n\t}\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, netip.AddrPortFrom(UpstreamDNS, 53).String())
	}}
	lookup := func(name string) ([]string, error) { return resolver.LookupHost(t.Context(), name) }

	if got, err := lookup("db.example.com."); err != nil || !slices.Equal(got, []string{"192.0.2.1"}) {
		t.Errorf("at first: %v, %v", got, err)
	}
	if err := s.SetZone(t.Context(), "example.com",
		"db A 192.0.2.2\n   AAAA 2001:db8::2\n_x._tcp SRV 1 2 5432 db"); err != nil {
		t.Fatal(err)
	}
	got, err := lookup("db.example.com.")
	slices.Sort(got)
	if err != nil || !slices.Equal(got, []string{"192.0.2.2", "2001:db8::2"}) {
		t.Errorf("after the change: %v, %v", got, err)
	}
	if _, srv, err := resolver.LookupSRV(t.Context(), "x", "tcp", "example.com."); err != nil || len(srv) != 1 ||
		srv[0].Port != 5432 {
		t.Errorf("SRV: %v, %v", srv, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := s.SetZone(ctx, "example.com", "db A not-an-address"); err == nil {
		t.Error("an invalid zone was accepted")
	}
	if _, err := lookup("db.example.com."); err != nil {
		t.Errorf("after an invalid zone: %v", err)
	}
	var failure *net.DNSError
	if _, err := lookup("x.broken.test."); !errors.As(err, &failure) || failure.IsNotFound {
		t.Errorf("SERVFAIL: %v", err)
	}
	if _, err := lookup("absent.example.com."); !errors.As(err, &failure) || !failure.IsNotFound {
		t.Errorf("NXDOMAIN: %v", err)
	}
}
