// Package cluster installs, upgrades, rolls back and uninstalls the Helm chart by Helm's own
// library, on a real API server, while requests flow through the real kube-proxy. No Pods run
// there: the manager is a process with the arguments of the chart's Deployment.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage/driver"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

func TestMain(m *testing.M) { harness.Main(m, devcluster.Options{}) }

const (
	config      = "../../../config"
	chartDir    = "../../../charts/external-backend-operator"
	releaseName = "external-backend-operator"
	deployment  = "external-backend-controller-manager"
)

// helm runs Helm's actions as an administrator.
type helm struct {
	h     *harness.Test
	cache string // directory of what Helm knows of the cluster's kinds
}

// config returns the configuration of one action. It remembers the kinds of the cluster, so that
// each action has its own, like each run of the command.
func (m helm) config() *action.Configuration {
	m.h.T.Helper()
	flags := genericclioptions.NewConfigFlags(false)
	namespace := lab.SystemNamespace
	flags.KubeConfig, flags.Namespace, flags.CacheDir = &m.h.Kubeconfig, &namespace, &m.cache
	c := &action.Configuration{}
	check(m.h, c.Init(flags, namespace, "secret", func(string, ...any) {}))
	return c
}

func check(h *harness.Test, err error) {
	h.T.Helper()
	if err != nil {
		h.T.Fatal(err)
	}
}

func parse(h *harness.Test, values string) map[string]any {
	h.T.Helper()
	parsed, err := chartutil.ReadValues([]byte(values))
	check(h, err)
	return parsed
}

// install installs the chart with values in YAML.
func (m helm) install(c *chart.Chart, values string, options ...func(*action.Install)) *release.Release {
	m.h.T.Helper()
	install := action.NewInstall(m.config())
	install.ReleaseName, install.Namespace, install.CreateNamespace = releaseName, lab.SystemNamespace, true
	for _, option := range options {
		option(install)
	}
	r, err := install.RunWithContext(m.h.T.Context(), c, parse(m.h, values))
	check(m.h, err)
	check(m.h, m.h.RenewCredentials(m.h.T.Context()))
	return r
}

func (m helm) upgrade(c *chart.Chart, values string) *release.Release {
	m.h.T.Helper()
	upgrade := action.NewUpgrade(m.config())
	upgrade.Namespace = lab.SystemNamespace
	r, err := upgrade.RunWithContext(m.h.T.Context(), releaseName, c, parse(m.h, values))
	check(m.h, err)
	return r
}

func (m helm) rollback(revision int) {
	m.h.T.Helper()
	rollback := action.NewRollback(m.config())
	rollback.Version = revision
	check(m.h, rollback.Run(releaseName))
}

// uninstall removes the release, and returns what Helm says that it kept.
func (m helm) uninstall() string {
	m.h.T.Helper()
	uninstall := action.NewUninstall(m.config())
	uninstall.Wait, uninstall.Timeout = true, harness.Patience
	response, err := uninstall.Run(releaseName)
	check(m.h, err)
	return response.Info
}

// begin removes the operator, whatever installed it, and all that it left. When the test ends, the
// CRDs are there again, since the harness deletes ExternalBackends.
func begin(t *testing.T) (*harness.Test, helm) {
	t.Helper()
	h := harness.New(t)
	m := helm{h, t.TempDir()}
	t.Cleanup(func() {
		if _, err := m.config().Releases.Last(releaseName); !errors.Is(err, driver.ErrReleaseNotFound) {
			m.uninstall()
		}
		for _, args := range [][]string{
			{"apply", "--server-side", "--force-conflicts", "-k", config + "/crd"},
			{"wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"},
		} {
			if _, err := h.Kubectl(context.Background(), args...); err != nil {
				t.Error(err)
			}
		}
	})
	kubectl(h, "delete", "--ignore-not-found", "-k", config+"/default")
	return h, m
}

// kubectl runs kubectl, which must succeed.
func kubectl(h *harness.Test, args ...string) string {
	h.T.Helper()
	out, err := h.Kubectl(h.T.Context(), args...)
	check(h, err)
	return out
}

// load reads the chart of this checkout.
func load(h *harness.Test) *chart.Chart {
	h.T.Helper()
	c, err := loader.Load(chartDir)
	check(h, err)
	return c
}

// olderColumn is what the older chart's CRD lacks.
const olderColumn = "Tier"

// older packs an older chart: no version was released yet, so it is this one with a lower version,
// whose CRD lacks a column.
func older(h *harness.Test) *chart.Chart {
	h.T.Helper()
	dir := filepath.Join(h.T.TempDir(), releaseName)
	check(h, os.CopyFS(dir, os.DirFS(chartDir)))
	paths, err := filepath.Glob(dir + "/files/*_externalbackends.external-backend.io.yaml")
	if err != nil || len(paths) != 1 {
		h.T.Fatalf("the chart has the CRDs %v: %v", paths, err)
	}
	text, err := os.ReadFile(paths[0])
	check(h, err)
	var crd map[string]any
	check(h, yaml.Unmarshal(text, &crd))
	version := crd["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
	columns := version["additionalPrinterColumns"].([]any)
	fewer := slices.DeleteFunc(slices.Clone(columns),
		func(column any) bool { return column.(map[string]any)["name"] == olderColumn })
	if len(fewer) != len(columns)-1 {
		h.T.Fatalf("the CRD has the columns %v", columns)
	}
	version["additionalPrinterColumns"] = fewer
	text, err = yaml.Marshal(crd)
	check(h, err)
	check(h, os.WriteFile(paths[0], text, 0o600))

	c, err := loader.Load(dir)
	check(h, err)
	c.Metadata.Version, c.Metadata.AppVersion = "0.0.0-older", "older"
	archive, err := chartutil.Save(c, h.T.TempDir())
	check(h, err)
	packed, err := loader.Load(archive)
	check(h, err)
	return packed
}

// wantColumn fails the test unless the CRD has, or lacks, the column that the older chart lacks.
func wantColumn(h *harness.Test, want bool) {
	h.T.Helper()
	columns := kubectl(h, "get", "crd", "externalbackends.external-backend.io", "-o",
		"jsonpath={.spec.versions[0].additionalPrinterColumns[*].name}")
	if got := slices.Contains(strings.Fields(columns), olderColumn); got != want {
		h.T.Errorf("the CRD has the columns %s; want %s: %t", columns, olderColumn, want)
	}
}

// arguments returns the arguments of the manager in the Deployment that the API server has.
func arguments(h *harness.Test) []string {
	h.T.Helper()
	d := &appsv1.Deployment{}
	check(h, h.Client.Get(h.T.Context(), client.ObjectKey{Namespace: lab.SystemNamespace, Name: deployment}, d))
	return d.Spec.Template.Spec.Containers[0].Args
}

// startManager starts a manager with the arguments of the Deployment. Only its ports are others,
// because two managers run at a time on one machine.
func startManager(h *harness.Test) *harness.Manager {
	h.T.Helper()
	args := slices.DeleteFunc(arguments(h), func(arg string) bool { return strings.Contains(arg, "-bind-address=:") })
	return h.StartManager(args...)
}

// replaceManager starts a manager with the Deployment's arguments before it stops the old one, as a
// rollout does.
func replaceManager(h *harness.Test, old *harness.Manager) *harness.Manager {
	h.T.Helper()
	m := startManager(h)
	old.Stop()
	return m
}

const (
	interval = 20 * time.Millisecond // 50 requests a second
	timeout  = 3 * time.Second       // of a request
	enough   = 50                    // requests: those of a second
)

// traffic is an HTTP load on a Service, of which no request may be lost.
type traffic struct {
	*lab.Load
	h       *harness.Test
	service string
}

func startTraffic(h *harness.Test, service string) traffic {
	h.T.Helper()
	addr := net.JoinHostPort(h.Service(service).Spec.ClusterIP, "80")
	l := traffic{lab.StartLoad(h.T.Context(), interval, timeout, lab.Sender(h.Node(), "http", addr)), h, service}
	h.T.Cleanup(func() { l.Load.Stop() })
	return l
}

// waitMore waits until enough further requests were sent.
func (l traffic) waitMore() {
	l.h.T.Helper()
	until := l.Tally().Sent + enough
	l.h.Eventually("requests to "+l.service, func() error {
		if sent := l.Tally().Sent; sent < until {
			return fmt.Errorf("%d of %d were sent", sent, until)
		}
		return nil
	})
}

// wantNoLoss fails the test if a request has been lost so far.
func (l traffic) wantNoLoss(after string) {
	l.h.T.Helper()
	l.waitMore()
	report(l.h, l.service, after, l.Tally())
}

// stopWithoutLoss stops the load, and fails the test if a request was lost.
func (l traffic) stopWithoutLoss() {
	l.h.T.Helper()
	report(l.h, l.service, "the end", l.Load.Stop())
}

func report(h *harness.Test, service, after string, tally lab.Tally) {
	h.T.Helper()
	h.T.Logf("until %s: %d requests to %s, %d lost", after, tally.Sent, service, tally.Failed)
	for _, f := range tally.Failures {
		h.T.Errorf("a request to %s at %s was lost: %v", service, f.At.Format(time.StampMilli), f.Err)
	}
}
