// Command manager runs the External Backend Operator.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/controllers"
	"github.com/external-backend/operator/internal/fleet"
	"github.com/external-backend/operator/internal/witness"
)

// version is set when a release is built.
var version = "dev"

// flags are the settings of the command line.
type flags struct {
	metricsAddress, healthAddress, leaderElectionNamespace string
	metricsSecure, leaderElect, shard                      bool
	metricsCertPath                                        string
	protected, clusterCIDRs, defaultPolicy                 string
	options                                                controllers.Options
	zap                                                    zap.Options
}

// bind defines the flags.
func (f *flags) bind(set *flag.FlagSet) {
	set.StringVar(&f.metricsAddress, "metrics-bind-address", "0",
		"Where metrics are served, such as :8443; 0 turns them off.")
	set.BoolVar(&f.metricsSecure, "metrics-secure", true,
		"Serve metrics over HTTPS, to those only whom the API server authenticates and allows to get /metrics.")
	set.StringVar(&f.metricsCertPath, "metrics-cert-path", "",
		"A directory with tls.crt and tls.key for metrics; empty: a self-signed certificate.")
	set.StringVar(&f.healthAddress, "health-probe-bind-address", ":8081",
		"Where /healthz and /readyz are served; 0 turns them off. Standby replicas are ready, too.")
	set.BoolVar(&f.leaderElect, "leader-elect", false,
		"Run several managers as replicas, which share the work. Without it, a manager does everything and must be alone.")
	set.BoolVar(&f.shard, "shard", true,
		"With --leader-elect: every replica works for its share of the ExternalBackends; "+
			"false: one replica works and the others wait.")
	set.IntVar(&f.options.Witnesses.Count, "witnesses", 2,
		"How many other replicas are asked to probe an endpoint before it goes by silence, 0 to 4; 0: none.")
	set.StringVar(&f.options.Witnesses.Address, "witness-bind-address", ":9444",
		"Where this replica answers others that ask what it reaches. Without a host it listens on every address, "+
			"and others reach it at $POD_IP. It listens only while there are others.")
	set.StringVar(&f.leaderElectionNamespace, "leader-election-namespace", "",
		"Where the Leases of the replicas live; empty: the manager's own namespace, "+
			"outside a cluster $POD_NAMESPACE, else external-backend-system.")
	set.IntVar(&f.options.MaxEndpointsPerSlice, "max-endpoints-per-slice", 100,
		"Endpoints in one EndpointSlice at most, 1 to 1000. "+
			"A larger number means fewer slices, and larger writes to every node.")
	set.IntVar(&f.options.MaxEndpointsPerBackend, "max-endpoints-per-backend", 10000,
		"Endpoints of one ExternalBackend at most. The others are left out and reported as Truncated.")
	set.IntVar(&f.options.MaxConcurrentProbes, "max-concurrent-probes", 4096,
		"Probes in flight at most; never more than half of the process's limit of open files. "+
			"Kept connections and spare sockets use the rest, except 600 files (a quarter, where there are few), "+
			"and are closed when files run short. Targets that don't answer get at most half of the probes in flight, "+
			"which the namespaces that need it share equally.")
	set.IntVar(&f.options.BlindThreshold, "blind-threshold", 90,
		"Percent of the healthy endpoints that fall silent together "+
			"where the manager takes its own network for broken, and none for unhealthy because of silence; 0: never.")
	set.IntVar(&f.options.MaxAddressesPerName, "max-addresses-per-name", 1024,
		"Addresses published for one DNS name at most. The others are left out and reported as Truncated.")
	set.DurationVar(&f.options.OrphanGrace, "orphan-grace", 10*time.Minute,
		"How long EndpointSlices without owner, ExternalBackend and Service are kept for a restore to bring them back, "+
			"counted from the later of their creation and the manager's start. Those with a Service stay.")
	set.StringVar(&f.protected, "protected-services", "",
		"Services that no ExternalBackend may stand behind, as namespace/name,...; default/kubernetes always is one.")
	set.StringVar(&f.options.ClusterDomain, "cluster-domain", "cluster.local",
		"The DNS domain of this cluster, whose names can't be published as such.")
	set.StringVar(&f.options.ResolvConf, "resolv-conf", "/etc/resolv.conf",
		"The file with the nameservers of ExternalBackends without spec.dns.nameservers. "+
			"It is read again when it changes; its search lists and options are ignored.")
	set.StringVar(&f.clusterCIDRs, "cluster-cidrs", "",
		"Pod, Service and node ranges of this cluster beside those discovered, as CIDR,...; "+
			"targets in them need a policy that names them.")
	set.StringVar(&f.defaultPolicy, "default-target-policy", "Allow",
		"What a namespace may use that no ExternalBackendPolicy selects: Allow (all that is not forbidden) or Deny.")
	f.zap.BindFlags(set)
}

func parseFlags(set *flag.FlagSet, args []string) (*flags, error) {
	f := &flags{}
	f.bind(set)
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	if set.NArg() > 0 { // the flags after it have not been parsed
		return nil, fmt.Errorf("unexpected argument %q: write flags as --name=value, "+
			"lists with commas and without spaces", set.Arg(0))
	}

	const verbosity = "zap-log-level"
	if level, err := strconv.Atoi(set.Lookup(verbosity).Value.String()); err == nil && level > maxVerbosity {
		if err := set.Set(verbosity, strconv.Itoa(maxVerbosity)); err != nil {
			return nil, err
		}
	}

	return f, f.complete()
}

// maxVerbosity bounds --zap-log-level. Above it the client logs the bodies of requests, which
// contain whole specs with the headers of their checks.
const maxVerbosity = 7

// complete checks bounds, and parses the flags that are lists or words.
func (f *flags) complete() error {
	for _, bound := range []struct {
		name             string
		value, low, high int
	}{
		{"max-endpoints-per-slice", f.options.MaxEndpointsPerSlice, 1, 1000},
		{"max-endpoints-per-backend", f.options.MaxEndpointsPerBackend, 1, 1_000_000},
		{"max-concurrent-probes", f.options.MaxConcurrentProbes, 1, 1_000_000},
		{"max-addresses-per-name", f.options.MaxAddressesPerName, 1, 1_000_000},
		{"blind-threshold", f.options.BlindThreshold, 0, 100},
		{"witnesses", f.options.Witnesses.Count, 0, 4},
	} {
		if bound.value < bound.low || bound.value > bound.high {
			return fmt.Errorf("--%s=%d: must be from %d to %d", bound.name, bound.value, bound.low, bound.high)
		}
	}
	if f.options.OrphanGrace < 0 {
		return fmt.Errorf("--orphan-grace=%s: must not be negative", f.options.OrphanGrace)
	}

	if _, err := f.witnessAddress(""); err != nil {
		return err
	}

	f.options.Protected = map[types.NamespacedName]bool{}
	for _, text := range list(f.protected) {
		namespace, name, ok := strings.Cut(text, "/")
		if !ok || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Label(name)) > 0 {
			return fmt.Errorf("--protected-services: %q must be namespace/name, without wildcards", text)
		}
		f.options.Protected[types.NamespacedName{Namespace: namespace, Name: name}] = true
	}

	for _, text := range list(f.clusterCIDRs) {
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4In6() {
			return fmt.Errorf("--cluster-cidrs: %q must be a CIDR, an IPv4 one in IPv4's form", text)
		}
		f.options.ClusterCIDRs = append(f.options.ClusterCIDRs, p)
	}

	switch f.defaultPolicy {
	case "Allow":
	case "Deny":
		f.options.DefaultDeny = true
	default:
		return fmt.Errorf("--default-target-policy=%s: must be Allow or Deny", f.defaultPolicy)
	}
	return nil
}

// list splits a text at commas and spaces.
func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// witnessAddress returns where other replicas reach this one. It is not valid if pod is needed,
// and is no IP address.
func (f *flags) witnessAddress(pod string) (netip.AddrPort, error) {
	text := f.options.Witnesses.Address
	host, port, err := net.SplitHostPort(text)
	number, portErr := strconv.ParseUint(port, 10, 16)
	ip, hostErr := netip.ParseAddr(host)
	if err != nil || portErr != nil || number == 0 || host != "" && hostErr != nil {
		return netip.AddrPort{}, fmt.Errorf(
			"--witness-bind-address=%s: must be :port or IP:port, with a port from 1 to 65535", text)
	}
	if host == "" || ip.IsUnspecified() {
		ip, _ = netip.ParseAddr(pod) // not valid where pod is no address
	}
	return netip.AddrPortFrom(ip, uint16(number)), nil
}

// contact returns how other replicas reach this one, and makes the certificate that it shows
// them.
func (f *flags) contact() (fleet.Contact, error) {
	contact := fleet.Contact{Node: os.Getenv("NODE_NAME")}
	if f.options.Witnesses.Count == 0 {
		return contact, nil
	}
	address, err := f.witnessAddress(os.Getenv("POD_IP"))
	if err != nil {
		return contact, err
	}
	if !address.IsValid() {
		ctrl.Log.Info("POD_IP is no IP address, so no other replica can ask this one what it reaches")
	}
	contact.Address = address
	f.options.Witnesses.Certificate, contact.Fingerprint, err = witness.NewCertificate()
	return contact, err
}

// namespaceFile contains the manager's own namespace inside a cluster.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// leaseName is the name of the Lease that elects a leader, where the replicas don't share the work.
const leaseName = "external-backend.io"

// replica returns the name of this replica: that of its Pod, or else of its host.
func replica() (string, error) {
	if name := os.Getenv("POD_NAME"); name != "" {
		return name, fleet.ValidateName(name)
	}
	return os.Hostname()
}

// joins reports whether this manager is one of several that share the work.
func (f *flags) joins() bool { return f.leaderElect && f.shard }

// lease returns the namespace and name of this manager's Lease. Without --leader-elect it has no
// name, and its namespace is the manager's.
func (f *flags) lease(replica string) types.NamespacedName {
	lease := types.NamespacedName{Namespace: f.leaseNamespace()}
	if lease.Namespace == "" {
		if own, err := os.ReadFile(namespaceFile); err == nil {
			lease.Namespace = strings.TrimSpace(string(own))
		}
	}
	switch {
	case f.joins():
		lease.Name = fleet.LeaseName(replica)
	case f.leaderElect:
		lease.Name = leaseName
	}
	return lease
}

// leaseNamespace returns the namespace of the Lease. "" leaves it to controller-runtime, which uses
// the manager's own namespace inside a cluster.
func (f *flags) leaseNamespace() string {
	if f.leaderElectionNamespace != "" {
		return f.leaderElectionNamespace
	}
	if _, err := os.Stat(namespaceFile); err == nil {
		return ""
	}
	if namespace := os.Getenv("POD_NAMESPACE"); namespace != "" {
		return namespace
	}
	return "external-backend-system"
}

func main() {
	f, err := parseFlags(flag.CommandLine, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&f.zap)))
	if err := run(ctrl.SetupSignalHandler(), f); err != nil {
		ctrl.Log.Error(err, "The manager has stopped")
		os.Exit(1)
	}
}

func run(ctx context.Context, f *flags) error {
	ctrl.Log.Info("Starting the External Backend Operator", "version", version)
	client, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	client.QPS = -1                           // the API server limits clients by priority and fairness
	client.WarningHandler = rest.NoWarnings{} // Endpoints and FQDN slices are deprecated, and we use both
	client.Wrap(func(rt http.RoundTripper) http.RoundTripper { return retryingTransport{rt} })

	name, err := replica()
	if err != nil {
		return err
	}
	f.options.Lease = f.lease(name)
	grace := 30 * time.Second
	lease, renew := 45*time.Second, 40*time.Second // an API server may be away for half a minute
	mgr, err := ctrl.NewManager(client, ctrl.Options{
		Scheme: scheme(),
		Cache:  controllers.CacheOptions(f.options.Lease.Namespace),
		// A standby fills its caches before it becomes the leader.
		Controller:                    config.Controller{EnableWarmup: new(true)},
		Metrics:                       f.metrics(),
		HealthProbeBindAddress:        f.healthAddress,
		LeaderElection:                f.leaderElect && !f.shard,
		LeaderElectionID:              leaseName,
		LeaderElectionNamespace:       f.leaseNamespace(),
		LeaderElectionReleaseOnCancel: true, // the process ends with the manager
		LeaseDuration:                 &lease,
		RenewDeadline:                 &renew,
		GracefulShutdownTimeout:       &grace,
	})
	if err != nil {
		return err
	}

	if err := awaitKinds(ctx, mgr.GetRESTMapper()); err != nil {
		return err
	}
	replica, err := f.member(mgr, name)
	if err != nil {
		return err
	}
	if err := controllers.Setup(ctx, mgr, f.options, replica, metrics.Registry); err != nil {
		return err
	}

	if err := mgr.AddHealthzCheck("healthz", healthz.Ping); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("readyz", healthz.Ping); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// member returns this manager as one of several replicas, or nil if it does not share the work.
func (f *flags) member(mgr ctrl.Manager, name string) (*fleet.Replica, error) {
	if !f.joins() {
		return nil, nil
	}
	contact, err := f.contact()
	if err != nil {
		return nil, err
	}
	return fleet.New(fleet.Options{
		Name: name, Namespace: f.options.Lease.Namespace, Pod: types.UID(os.Getenv("POD_UID")),
		LeaderLease: leaseName, Contact: contact,
		Writer: mgr.GetClient(), Live: mgr.GetAPIReader(), Cache: mgr.GetCache(),
		Log: mgr.GetLogger().WithName("fleet"),
	}), nil
}

// awaitKinds waits until the API server serves our kinds. Right after an installation that may take
// a moment.
func awaitKinds(ctx context.Context, mapper meta.RESTMapper) error {
	group := v1alpha1.GroupVersion
	served := func(context.Context) (bool, error) {
		for _, kind := range []string{"ExternalBackend", "ExternalBackendPolicy", "ExternalBackendOverride"} {
			_, err := mapper.RESTMapping(group.WithKind(kind).GroupKind(), group.Version)
			if meta.IsNoMatchError(err) {
				ctrl.Log.Info("Waiting for the CustomResourceDefinition", "kind", kind)
				return false, nil
			}
			if err != nil {
				return false, err
			}
		}
		return true, nil
	}
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, time.Minute, true, served)
	if wait.Interrupted(err) && ctx.Err() == nil {
		return errors.New("the CustomResourceDefinitions of external-backend.io are not installed: see make install")
	}
	return err
}

func (f *flags) metrics() metricsserver.Options {
	o := metricsserver.Options{BindAddress: f.metricsAddress, SecureServing: f.metricsSecure, CertDir: f.metricsCertPath}
	if f.metricsSecure {
		o.FilterProvider = filters.WithAuthenticationAndAuthorization
		// A flood of HTTP/2 resets costs much CPU (CVE-2023-44487).
		o.TLSOpts = []func(*tls.Config){func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }}
	}
	return o
}

func scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(s))
	utilruntime.Must(v1alpha1.AddToScheme(s))
	return s
}
