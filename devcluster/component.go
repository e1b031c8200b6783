package devcluster

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
)

// Component is a process of the cluster.
type Component string

// The components, by the names of their binaries.
const (
	Etcd              Component = "etcd"
	APIServer         Component = "kube-apiserver"
	ControllerManager Component = "kube-controller-manager"
	Proxy             Component = "kube-proxy"
	CoreDNS           Component = "coredns"
)

// The ranges of the cluster.
var (
	ServiceCIDR4 = netip.MustParsePrefix("10.96.0.0/16")
	ServiceCIDR6 = netip.MustParsePrefix("fd00:10:96::/112")
	PodCIDR4     = netip.MustParsePrefix("10.244.0.0/24")
	PodCIDR6     = netip.MustParsePrefix("fd00:10:244::/64")
)

const (
	// EtcdURL is the URL of etcd's clients and metrics. Only the program can reach it.
	EtcdURL = "http://127.0.0.1:2379"
	// NodeName is the name of the only Node.
	NodeName = "node"
	// NodeZone is the Node's topology.kubernetes.io/zone.
	NodeZone = "zone-a"

	// All ports are free, because the cluster has its own network namespaces.
	apiPort    = 6443
	issuer     = "https://kubernetes.default.svc"
	healthPort = "10256"                       // of kube-proxy
	readyURL   = "http://127.0.0.1:8181/ready" // of CoreDNS

	auditPolicy = `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}`
)

// controllers lists the controllers of kube-controller-manager that Services, slices, owners, roles
// and namespaces need.
var controllers = []string{
	"clusterrole-aggregation-controller", "endpoints-controller", "endpointslice-controller",
	"endpointslice-mirroring-controller",
	"garbage-collector-controller", "namespace-controller", "service-cidr-controller", "serviceaccount-controller",
}

// command returns the component's command line.
func (c *Cluster) command(component Component) *exec.Cmd {
	binary := c.binaries[string(component)]
	switch component {
	case Etcd:
		// The data does not have to survive a crash of the machine, so etcd need not wait for disks.
		return exec.Command(binary, "--data-dir="+c.file("etcd"), "--unsafe-no-fsync", "--log-level=warn",
			"--listen-client-urls="+EtcdURL, "--advertise-client-urls="+EtcdURL,
			"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
			"--initial-cluster=default=http://127.0.0.1:2380")
	case APIServer:
		return exec.Command(binary, c.apiServerArgs()...)
	case ControllerManager:
		kubeconfig := c.file("system:kube-controller-manager.kubeconfig")
		return exec.Command(binary, "--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig,
			"--authorization-kubeconfig="+kubeconfig,
			"--controllers="+strings.Join(controllers, ","), "--leader-elect=false", "--bind-address=127.0.0.1",
			"--tls-cert-file="+c.file("server.crt"), "--tls-private-key-file="+c.file("server.key"), "--kube-api-qps=300",
			"--kube-api-burst=600",
			fmt.Sprintf("--service-cluster-ip-range=%s,%s", ServiceCIDR4, ServiceCIDR6))
	case Proxy:
		return c.node.Command(context.Background(), binary, "--config="+c.file("kube-proxy.json"))
	default:
		return c.dns.Command(context.Background(), binary, "-conf", c.file("Corefile"))
	}
}

func (c *Cluster) apiServerArgs() []string {
	args := []string{
		"--etcd-servers=" + EtcdURL, "--bind-address=::", fmt.Sprint("--secure-port=", apiPort),
		"--advertise-address=" + Outer4.String(),
		"--client-ca-file=" + c.file("ca.crt"),
		"--tls-cert-file=" + c.file("server.crt"), "--tls-private-key-file=" + c.file("server.key"),
		"--service-account-issuer=" + issuer, "--service-account-signing-key-file=" + c.file("token.key"),
		"--service-account-key-file=" + c.file("token.key"), "--authorization-mode=RBAC",
		fmt.Sprintf("--service-cluster-ip-range=%s,%s", ServiceCIDR4, ServiceCIDR6),
		// There are no Pods, so no Pod needs a ServiceAccount, and default/kubernetes needs no endpoints.
		"--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none",
		// As in OpenShift, a reference that blocks the owner's deletion needs a right to its finalizers.
		"--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
	}
	if c.options.Audit {
		args = append(args, "--audit-policy-file="+c.file("audit-policy.json"), "--audit-log-path="+c.AuditLog)
	}
	return append(args, c.options.APIServerArgs...)
}

// ready returns nil once the component is ready.
func (c *Cluster) ready(ctx context.Context, component Component) error {
	switch component {
	case Etcd:
		return probe(ctx, http.DefaultClient, EtcdURL+"/health")
	case APIServer:
		return probe(ctx, c.client, c.server()+"/readyz")
	case ControllerManager:
		if err := probe(ctx, c.client, "https://127.0.0.1:10257/healthz"); err != nil {
			return err
		}
		// This ServiceAccount exists once the controllers run.
		return probe(ctx, c.client, c.server()+"/api/v1/namespaces/default/serviceaccounts/default")
	case Proxy:
		return probe(ctx, c.node.client(), "http://127.0.0.1:"+healthPort+"/healthz")
	default:
		return probe(ctx, c.dns.client(), readyURL)
	}
}

func probe(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	_, err = get(client, req)
	return err
}

// client returns an HTTP client in the namespace, which uses a new connection for each request.
func (ns *Namespace) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: ns.Dial, DisableKeepAlives: true}}
}

func nodeObject() any {
	addresses := []any{map[string]any{"type": "Hostname", "address": NodeName}}
	for _, addr := range []netip.Addr{Node4, Node6} {
		addresses = append(addresses, map[string]any{"type": "InternalIP", "address": addr})
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"name": NodeName, "labels": map[string]any{
			"kubernetes.io/hostname": NodeName, "kubernetes.io/os": "linux", "topology.kubernetes.io/zone": NodeZone}},
		"spec": map[string]any{"podCIDR": PodCIDR4, "podCIDRs": []any{PodCIDR4, PodCIDR6}},
		"status": map[string]any{"addresses": addresses, "conditions": []any{
			map[string]any{"type": "Ready", "status": "True", "reason": "Devcluster",
				"message": "there is no kubelet to say otherwise"}}},
	}
}

func (c *Cluster) proxyConfiguration() any {
	return map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode": cmp.Or(c.options.ProxyMode, "nftables"), "hostnameOverride": NodeName,
		"clientConnection":   map[string]any{"kubeconfig": c.file("system:kube-proxy.kubeconfig")},
		"clusterCIDR":        fmt.Sprintf("%s,%s", PodCIDR4, PodCIDR6),
		"healthzBindAddress": "0.0.0.0:" + healthPort,
		// kube-proxy must not change these limits: they belong to the machine, not to the namespace.
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0},
	}
}

func (c *Cluster) corefile() string {
	return fmt.Sprintf(`. {
	errors
	ready
	kubernetes cluster.local in-addr.arpa ip6.arpa {
		kubeconfig %s
		fallthrough in-addr.arpa ip6.arpa
	}
	forward . %s {
		max_fails 0
	}
}
`, c.file("system:coredns.kubeconfig"), UpstreamDNS)
}
