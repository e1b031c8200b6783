package cluster

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// site is a pair of machines behind two ExternalBackends: kept has deletionPolicy Retain, plain has
// the default. Machine a is healthy, machine b as the test says.
type site struct {
	h           *harness.Test
	a, b        *lab.Machine
	serverB     *lab.Server
	kept, plain traffic
}

// names of the two ExternalBackends and their Services.
const (
	kept  = "kept"
	plain = "plain"
)

// publish applies both ExternalBackends, waits until they are served, and starts the traffic.
func publish(h *harness.Test) *site {
	h.T.Helper()
	s := &site{h: h, a: h.Machine("a"), b: h.Machine("b")}
	h.Serve(s.a, "http", 8080)
	s.serverB = h.Serve(s.b, "http", 8080)
	for name, policy := range map[string]string{kept: "Retain", plain: "Delete"} {
		h.ApplyBackend(name, `
deletionPolicy: %s
service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: web, port: 80, targetPort: 8080}]
targets: [{name: a, address: "%s"}, {name: b, address: "%s"}]
healthCheck: %s
`, policy, s.a.V4, s.b.V4, harness.HTTPCheck)
	}
	s.wantFollowed()
	for _, name := range []string{kept, plain} {
		h.WaitReady(name)
		h.WaitRoutes(name, s.a.At4(8080), s.b.At4(8080))
	}
	s.kept, s.plain = startTraffic(h, kept), startTraffic(h, plain)
	return s
}

// wantFollowed proves that a manager is at work: it waits until the manager has seen machine b fall
// ill and recover. The server answers requests all the while.
func (s *site) wantFollowed() {
	s.h.T.Helper()
	for _, sick := range []bool{true, false} {
		s.serverB.SetSick(sick)
		state := harness.Healthy
		if sick {
			state = harness.Unhealthy
		}
		for _, name := range []string{kept, plain} {
			s.h.WaitStates(name, harness.States{s.a.At4(8080): harness.Healthy, s.b.At4(8080): state})
		}
	}
}

func (s *site) wantNoLoss(after string) {
	s.h.T.Helper()
	s.kept.wantNoLoss(after)
	s.plain.wantNoLoss(after)
}

// uids returns the UIDs of a Service and its slices.
func uids(h *harness.Test, service string) []string {
	h.T.Helper()
	all := []string{string(h.Service(service).UID)}
	for _, slice := range h.Slices(service) {
		all = append(all, string(slice.UID))
	}
	slices.Sort(all)
	return all
}

// wantGone fails the test unless the objects of the release are gone that must not stay.
func wantGone(h *harness.Test) {
	h.T.Helper()
	namespaced := client.ObjectKey{Namespace: lab.SystemNamespace, Name: deployment}
	for key, o := range map[client.ObjectKey]client.Object{
		namespaced:                              &appsv1.Deployment{},
		{Name: "external-backend-manager-role"}: &rbacv1.ClusterRole{},
		{Namespace: lab.SystemNamespace, Name: "external-backend-leader-election-role"}: &rbacv1.Role{},
	} {
		if err := h.Client.Get(h.T.Context(), key, o); !apierrors.IsNotFound(err) {
			h.T.Errorf("%T %s is still there: %v", o, key, err)
		}
	}
	if err := h.Client.Get(h.T.Context(), namespaced, &corev1.ServiceAccount{}); !apierrors.IsNotFound(err) {
		h.T.Errorf("the ServiceAccount is still there: %v", err)
	}
}

// knowKinds restarts the controller manager. Its garbage collector looks for new kinds when it
// starts, and then only twice a minute.
func knowKinds(h *harness.Test) {
	h.T.Helper()
	h.StopComponent(devcluster.ControllerManager)
	check(h, h.StartComponent(h.T.Context(), devcluster.ControllerManager))
}

// waitEstablished waits until the API server serves the CRDs.
func waitEstablished(h *harness.Test) {
	h.T.Helper()
	kubectl(h, "wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
}

// At 50 requests a second on each of two Services, none is lost while the chart is upgraded, rolled
// back, uninstalled and installed again. The CRDs follow the chart's version and outlive it. After
// the last uninstallation the CRDs are deleted too: then the Service with deletionPolicy Retain
// still serves, and the other one is gone.
func TestLifeOfAReleaseLosesNoRequest(t *testing.T) {
	h, m := begin(t)
	m.install(older(h), "{replicas: 1, flags: {orphan-grace: 5m}}")
	waitEstablished(h)
	knowKinds(h)
	wantColumn(h, false)
	manager := startManager(h)
	s := publish(h)
	before := map[string][]string{kept: uids(h, kept), plain: uids(h, plain)}

	m.upgrade(load(h), "{flags: {max-endpoints-per-slice: 50, default-target-policy: Allow}}")
	wantColumn(h, true)
	if args := arguments(h); !slices.Contains(args, "--max-endpoints-per-slice=50") {
		t.Errorf("the arguments after the upgrade: %v", args)
	}
	manager = replaceManager(h, manager)
	s.wantFollowed()
	s.wantNoLoss("the upgrade")

	m.rollback(1)
	wantColumn(h, false)
	if args := arguments(h); !slices.Contains(args, "--orphan-grace=5m") {
		t.Errorf("the arguments after the rollback: %v", args)
	}
	manager = replaceManager(h, manager)
	s.wantFollowed()
	s.wantNoLoss("the rollback")

	// Helm deletes the rights before the Pods have ended, so the manager still runs for a while.
	info := m.uninstall()
	for _, crd := range []string{"externalbackends", "externalbackendpolicies"} {
		if !strings.Contains(info, "[CustomResourceDefinition] "+crd+".external-backend.io") {
			t.Errorf("Helm does not say that it kept the CRD %s: %s", crd, info)
		}
	}
	wantGone(h)
	s.wantNoLoss("the uninstallation, with the manager running")
	manager.Stop()
	s.wantNoLoss("the uninstallation, without a manager")

	m.install(load(h), "")
	wantColumn(h, true)
	manager = startManager(h)
	s.wantFollowed()
	s.wantNoLoss("the second installation")
	for name, want := range before {
		if got := uids(h, name); !slices.Equal(got, want) {
			t.Errorf("Service and slices of %s were replaced: %v, then %v", name, want, got)
		}
	}

	m.uninstall()
	manager.Stop()
	s.wantNoLoss("the second uninstallation")
	s.plain.stopWithoutLoss()
	kubectl(h, "delete", "crd", "externalbackends.external-backend.io", "externalbackendpolicies.external-backend.io")
	h.Eventually("the Service without Retain to go", func() error {
		err := h.Client.Get(h.T.Context(), h.Key(plain), &corev1.Service{})
		if err == nil {
			return errors.New("it is still there")
		}
		return client.IgnoreNotFound(err)
	})
	s.kept.wantNoLoss("the deletion of the CRDs")
	s.kept.stopWithoutLoss()
	if got := uids(h, kept); !slices.Equal(got, before[kept]) {
		t.Errorf("Service and slices of kept were replaced: %v, then %v", before[kept], got)
	}
	h.WaitRoutes(kept, s.a.At4(8080), s.b.At4(8080))
}

// What config/default installed becomes a release by TakeOwnership. Objects stay the same, and no
// request is lost.
func TestReleaseTakesOverFromManifests(t *testing.T) {
	h, m := begin(t)
	kubectl(h, "apply", "--server-side", "-k", config+"/default")
	waitEstablished(h)
	knowKinds(h)
	check(h, h.RenewCredentials(t.Context()))
	manager := startManager(h)
	s := publish(h)
	before := uid(h)

	m.install(load(h), "", func(i *action.Install) { i.TakeOwnership, i.CreateNamespace = true, false })
	if after := uid(h); after != before {
		t.Errorf("the Deployment was replaced: %s, then %s", before, after)
	}
	manager = replaceManager(h, manager)
	s.wantFollowed()
	s.wantNoLoss("the installation")
	manager.Stop()
	m.uninstall()
	wantGone(h)
	s.kept.stopWithoutLoss()
	s.plain.stopWithoutLoss()
}

func uid(h *harness.Test) string {
	h.T.Helper()
	d := &appsv1.Deployment{}
	check(h, h.Client.Get(h.T.Context(), client.ObjectKey{Namespace: lab.SystemNamespace, Name: deployment}, d))
	return string(d.UID)
}

// In a new cluster with Deny, the upgrade after the installation creates the policies, and these
// outlive the release.
func TestPoliciesComeWithTheFirstUpgrade(t *testing.T) {
	h, m := begin(t)
	const values = `
flags: {default-target-policy: Deny}
policies: {everywhere: {namespaceSelector: {}, allow: [{anyTarget: {}}]}}
`
	m.install(load(h), values)
	waitEstablished(h)
	startManager(h)
	h.ApplyBackend("db", "{ports: [{port: 5432}], targets: [{name: a, address: 203.0.113.250}]}")
	h.WaitCondition("db", "Permitted", "False", "")
	m.upgrade(load(h), values)
	h.WaitCondition("db", "Permitted", "True", "")
	m.uninstall()
	if out := kubectl(h, "get", "externalbackendpolicies", "-o", "name"); !strings.Contains(out, "/everywhere") {
		t.Errorf("the policies after the uninstallation: %q", out)
	}
	kubectl(h, "delete", "externalbackendpolicy", "everywhere")
}

// The manager starts with exactly the arguments that the chart renders, by default and with all
// flags, and serves health and metrics where the Deployment says.
func TestManagerStartsWithRenderedArguments(t *testing.T) {
	h, m := begin(t)
	m.install(load(h), "")
	waitEstablished(h)
	for name, tc := range map[string]struct {
		values string
		flags  int // at least
	}{
		"default": {"", 3},
		"all flags": {`
metrics: {secure: false}
flags:
  default-target-policy: Deny
  cluster-cidrs: [10.96.0.0/12, 10.244.0.0/16]
  protected-services: [kube-system/kube-dns]
  cluster-domain: cluster.local
  resolv-conf: /etc/resolv.conf
  max-endpoints-per-slice: 500
  max-endpoints-per-backend: 1000000
  max-addresses-per-name: 2000
  max-concurrent-probes: 1000
  blind-threshold: 0
  orphan-grace: 1h30m
  zap-devel: false
  zap-encoder: console
  zap-log-level: 5
  zap-stacktrace-level: panic
  zap-time-encoding: rfc3339
`, 20},
	} {
		t.Run(name, func(t *testing.T) {
			h := h.Sub(t)
			m.upgrade(load(h), tc.values)
			args := arguments(h)
			if len(args) < tc.flags {
				t.Errorf("there are only the arguments %v", args)
			}
			// The harness serves metrics without TLS, unless the last flag says otherwise.
			manager := h.StartManager(append([]string{"--metrics-secure=true"}, args...)...)
			scheme, status := "https", http.StatusUnauthorized
			if slices.Contains(args, "--metrics-secure=false") {
				scheme, status = "http", http.StatusOK
			}
			h.Eventually("the metrics port", func() error { return scrape(h, scheme, status) })
			manager.Stop()
		})
	}
}

// scrape gets the metrics without a token. The answer must have this status.
func scrape(h *harness.Test, scheme string, status int) error {
	// The manager signs its certificate itself.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(h.T.Context(), http.MethodGet, scheme+"://127.0.0.1:8443/metrics", nil)
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != status {
		return fmt.Errorf("status %s, want %d", response.Status, status)
	}
	return nil
}
