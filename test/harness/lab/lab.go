// Package lab is a workbench on which the operator can be watched at work: a development cluster
// into which the project's own manifests are applied, the real manager beside it with the rights of
// its own ServiceAccount, machines outside of the cluster that can break in every way, and clients
// inside. It knows nothing of testing.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/devcluster"
)

const (
	// SystemNamespace is where config/default installs the manager.
	SystemNamespace = "external-backend-system"
	serviceAccount  = "external-backend-controller-manager"
)

// Lab is a cluster that the operator is installed in.
type Lab struct {
	*devcluster.Cluster
	Config *rest.Config     // the administrator's
	Client client.WithWatch // the administrator's; uncached

	root       string // the checkout
	manager    string // the binary
	kubeconfig string // the manager's
	managers   atomic.Int32
	machines   machines
}

// Prepare builds what Open needs and is missing: the cluster's binaries for the given Kubernetes
// versions (none: the selected one) and, with or without the race detector, the manager. It needs
// the network, so it comes before devcluster.Enter.
func Prepare(ctx context.Context, progress io.Writer, race bool, versions ...string) error {
	if err := devcluster.Ensure(ctx, progress, versions...); err != nil {
		return err
	}
	root, err := checkout()
	if err != nil {
		return err
	}
	binary := managerBinary(root, race)
	if err := os.MkdirAll(filepath.Dir(binary), 0o755); err != nil {
		return err
	}
	// Flags as those with which our own packages are compiled before: `go test -race`, or `make
	// build`.
	flag, cgo := "-trimpath", "0"
	if race {
		flag, cgo = "-race", "1"
	}
	cmd := exec.CommandContext(ctx, "go", "build", flag, "-o", binary, "./cmd")
	cmd.Dir = root
	// Built beside its place, the binary is renamed into it: whoever runs the old one goes on running
	// it.
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOWORK=off", "GOTMPDIR="+filepath.Dir(binary), "PWD="+root)
	cmd.Stdout, cmd.Stderr = progress, progress
	fmt.Fprintln(progress, "lab: build the manager, which takes a minute or two the first time")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("lab: go build ./cmd: %w", err)
	}
	return nil
}

// Open starts a cluster and installs the operator in it, but starts no manager. race chooses which
// one of those that Prepare has built is to be run. Close it in the end.
func Open(ctx context.Context, options devcluster.Options, race bool) (*Lab, error) {
	root, err := checkout()
	if err != nil {
		return nil, err
	}
	cluster, err := devcluster.Start(ctx, options)
	if err != nil {
		return nil, err
	}
	l := &Lab{Cluster: cluster, root: root, manager: managerBinary(root, race)}
	if err := l.install(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("lab: %w", err), cluster.Stop())
	}
	return l, nil
}

// Close ends the cluster. Managers that still run see its API server go.
func (l *Lab) Close() error { return l.Stop() }

// install applies the manifests that `make deploy` applies, and makes the clients. Nothing runs
// Pods, so the Deployment stays a wish.
func (l *Lab) install(ctx context.Context) (err error) {
	if l.Config, err = clientcmd.BuildConfigFromFlags("", l.Kubeconfig); err != nil {
		return err
	}
	l.Config.QPS = -1
	l.Config.WarningHandler = rest.NoWarnings{} // Endpoints are deprecated, as is known
	if l.Client, err = client.NewWithWatch(l.Config, client.Options{Scheme: Scheme()}); err != nil {
		return err
	}
	if _, err := l.Kubectl(ctx, "apply", "--server-side", "-k", filepath.Join(l.root, "config", "default")); err != nil {
		return err
	}
	if _, err := l.Kubectl(ctx, "wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"); err != nil {
		return err
	}
	// The garbage collector looks for new kinds twice a minute, and when it starts.
	l.StopComponent(devcluster.ControllerManager)
	if err := l.StartComponent(ctx, devcluster.ControllerManager); err != nil {
		return err
	}
	l.kubeconfig, err = l.ServiceAccountKubeconfig(ctx, SystemNamespace, serviceAccount)
	return err
}

// Kubectl runs kubectl as the administrator and returns what it says; what it complains of is in
// the error.
func (l *Lab) Kubectl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(
		ctx,
		filepath.Join(l.Bin, "kubectl"),
		append([]string{"--kubeconfig=" + l.Kubeconfig}, args...)...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Scheme knows Kubernetes' own kinds and ours.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), discoveryv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		panic(err) // two types of one name: an error in the code
	}
	return scheme
}

func managerBinary(root string, race bool) string {
	name := "manager"
	if race {
		name = "manager-race"
	}
	return filepath.Join(root, "bin", "lab", name)
}

// checkout is the directory of the operator's module, at or above the working directory.
func checkout() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(mod), "module github.com/external-backend/operator\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("lab: not inside a checkout of the operator")
		}
	}
}
