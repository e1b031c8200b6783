// Package lab is a cluster in which the operator can be watched at work. It applies the project's
// own manifests to a development cluster, runs the real manager with the rights of its
// ServiceAccount, adds machines outside of the cluster that can break in every way, and sends
// requests from inside. It does not depend on package testing.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	// SystemNamespace is the namespace into which config/default installs the manager.
	SystemNamespace = "external-backend-system"
	serviceAccount  = "external-backend-controller-manager"
)

// Lab is a cluster that the operator is installed in.
type Lab struct {
	*devcluster.Cluster
	Config *rest.Config     // of the administrator
	Client client.WithWatch // of the administrator, without a cache

	root       string // path of the checkout
	manager    string // path of the manager's binary
	kubeconfig string // path of the manager's kubeconfig
	managers   atomic.Int32
	addresses  addressPool
}

// Prepare builds the binaries that Open needs, where they are missing: those of the cluster for the
// given Kubernetes versions (none: the selected one) and the manager, with the race detector if
// race is true. It needs the network, so call it before devcluster.Enter.
func Prepare(ctx context.Context, progress io.Writer, race bool, versions ...string) error {
	if err := devcluster.Ensure(ctx, progress, versions...); err != nil {
		return err
	}
	return BuildManager(ctx, progress, race)
}

// BuildManager builds the manager that Open needs, with the race detector if race is true, else
// with the given flags of `go build` (none: -trimpath).
func BuildManager(ctx context.Context, progress io.Writer, race bool, flags ...string) error {
	root, err := checkout()
	if err != nil {
		return err
	}
	binary := managerBinary(root, race)
	if err := os.MkdirAll(filepath.Dir(binary), 0o755); err != nil {
		return err
	}
	// With the same flags as `go test -race` or `make build`, the build cache is used.
	cgo := "0"
	switch {
	case race:
		flags, cgo = []string{"-race"}, "1"
	case len(flags) == 0:
		flags = []string{"-trimpath"}
	}
	args := slices.Concat([]string{"build"}, flags, []string{"-o", binary, "./cmd"})
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	// The binary is built under another name and renamed, so processes that run the old one continue.
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOWORK=off", "GOTMPDIR="+filepath.Dir(binary), "PWD="+root)
	cmd.Stdout, cmd.Stderr = progress, progress
	fmt.Fprintln(progress, "lab: build the manager, which takes a minute or two the first time")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("lab: go build ./cmd: %w", err)
	}
	return nil
}

// Open starts a cluster and installs the operator in it, but starts no manager. race selects the
// manager that was built with the race detector. The caller closes the lab.
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
	if err := l.install(ctx, options); err != nil {
		return nil, errors.Join(fmt.Errorf("lab: %w", err), cluster.Stop())
	}
	return l, nil
}

// Close stops the cluster. Managers that still run lose their API server.
func (l *Lab) Close() error { return l.Stop() }

// install applies the manifests that `make deploy` applies, and creates the clients. No Pods run
// here, so the Deployment has no effect.
func (l *Lab) install(ctx context.Context, options devcluster.Options) (err error) {
	if l.Config, err = clientcmd.BuildConfigFromFlags("", l.Kubeconfig); err != nil {
		return err
	}
	l.Config.QPS = -1
	l.Config.WarningHandler = rest.NoWarnings{} // the API server warns that Endpoints are deprecated
	if l.Client, err = client.NewWithWatch(l.Config, client.Options{Scheme: Scheme()}); err != nil {
		return err
	}
	if _, err := l.Kubectl(ctx, "apply", "--server-side", "-k", filepath.Join(l.root, "config", "default")); err != nil {
		return err
	}
	if _, err := l.Kubectl(ctx, "wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"); err != nil {
		return err
	}
	// The garbage collector looks for new kinds when it starts, and then twice a minute.
	if !options.WithoutControllers {
		l.StopComponent(devcluster.ControllerManager)
		if err := l.StartComponent(ctx, devcluster.ControllerManager); err != nil {
			return err
		}
	}
	return l.RenewCredentials(ctx)
}

// RenewCredentials gives the managers that start from now on a new token. They need one after their
// ServiceAccount was created again.
func (l *Lab) RenewCredentials(ctx context.Context) (err error) {
	l.kubeconfig, err = l.ServiceAccountKubeconfig(ctx, SystemNamespace, serviceAccount)
	return err
}

// Kubectl runs kubectl as the administrator and returns its output. The error contains what it
// writes to stderr.
func (l *Lab) Kubectl(ctx context.Context, args ...string) (string, error) {
	kubectl := filepath.Join(l.Bin, "kubectl")
	cmd := exec.CommandContext(ctx, kubectl, append([]string{"--kubeconfig=" + l.Kubeconfig}, args...)...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Scheme returns a scheme with the kinds of Kubernetes and of the operator.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	err := errors.Join(clientgoscheme.AddToScheme(scheme), discoveryv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme))
	if err != nil {
		panic(err) // two types have one name, which is a programming error
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

// checkout returns the directory of the operator's module, at or above the working directory.
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
