// Command devcluster builds and runs the development cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/external-backend/operator/devcluster"
)

const usage = `Usage: devcluster COMMAND

  build             build etcd, Kubernetes and CoreDNS from Go modules into the user's cache, where they are missing
  up                start a cluster and keep it until Ctrl-C
  run -- CMD ARGS   start a cluster, run CMD beside it with KUBECONFIG and PATH set, stop it, exit as CMD did
  kubectl ARGS      run the cluster's kubectl
  doctor            say what this machine lacks

In the shell of a cluster that is up (by the line that up prints), each until Ctrl-C:

    machine FLAGS NAME ADDRESS...   run a machine outside of the cluster, at addresses of
                                  203.0.113.0/24 or 2001:db8:113::/64: --http PORT answers requests
                                  with 200, --failing PORT with 503, --tcp PORT accepts connections
  zone ORIGIN FILE                serve the records in FILE (such as: db 5 A 203.0.113.10), again
                                  whenever they change, as the zone ORIGIN (such as example.com)
                                  that the cluster's DNS knows

DEVCLUSTER_KUBERNETES chooses the version (default ` + devcluster.DefaultKubernetes + `), DEVCLUSTER_PROXY_MODE
kube-proxy's mode (nftables or iptables), DEVCLUSTER_CACHE the directory for the binaries,
DEVCLUSTER_LOGS one for logs that are to outlive the cluster.
`

// endSignals are the signals that ask the program to end.
var endSignals = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), endSignals...)
	defer stop()
	code, err := dispatch(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func dispatch(ctx context.Context, args []string) (code int, err error) {
	if len(args) == 0 {
		return wrongUsage()
	}
	switch command, rest := args[0], args[1:]; {
	case command == "build" && len(rest) == 0:
		return 0, devcluster.Ensure(ctx, os.Stderr)
	case command == "up" && len(rest) == 0:
		return withCluster(ctx, untilDone)
	case command == "run" && len(rest) > 1 && rest[0] == "--":
		return withCluster(ctx, func(context.Context, *devcluster.Cluster) (int, error) { return runCommand(rest[1:]) })
	case command == "kubectl":
		return kubectl(ctx, rest)
	case command == "machine":
		return machine(ctx, rest, os.Stdout)
	case command == "zone" && len(rest) == 2:
		return zone(ctx, rest[0], rest[1], os.Stdout)
	case command == "doctor" && len(rest) == 0:
		return doctor()
	case command == "help", command == "-h", command == "--help":
		fmt.Print(usage)
		return 0, nil
	}
	return wrongUsage()
}

func wrongUsage() (int, error) {
	fmt.Fprint(os.Stderr, usage)
	return 2, nil
}

// withCluster starts a cluster, sets KUBECONFIG and PATH for it, and runs f.
func withCluster(ctx context.Context, f func(context.Context, *devcluster.Cluster) (int, error)) (code int, err error) {
	if err := devcluster.Ensure(ctx, os.Stderr); err != nil {
		return 1, err
	}
	devcluster.Enter()
	c, err := devcluster.Start(ctx, devcluster.Options{ProxyMode: os.Getenv("DEVCLUSTER_PROXY_MODE")})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	path, err := commandPath(c)
	if err != nil {
		return 1, err
	}
	err = errors.Join(os.Setenv("KUBECONFIG", c.Kubeconfig), os.Setenv("PATH", path+":"+os.Getenv("PATH")))
	if err != nil {
		return 1, err
	}
	return f(ctx, c)
}

// commandPath returns the part of PATH with the cluster's kubectl and this command.
func commandPath(c *devcluster.Cluster) (string, error) {
	self, err := os.Executable()
	return c.Bin + ":" + filepath.Dir(self), err
}

func untilDone(ctx context.Context, c *devcluster.Cluster) (int, error) {
	path, err := commandPath(c)
	if err != nil {
		return 1, err
	}
	fmt.Printf(`Kubernetes %s is up, until Ctrl-C. It lives in namespaces of its own; a shell in there:

  %s -- env --chdir="$PWD" KUBECONFIG=%s PATH=%s:"$PATH" $SHELL

Logs in there: %s
`, devcluster.Kubernetes(), devcluster.Nsenter(), c.Kubeconfig, path, c.Logs)
	<-ctx.Done()
	return 0, nil
}

// runCommand runs a command until it ends, and forwards signals to it.
func runCommand(args []string) (code int, err error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return 127, err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, endSignals...)
	go func() { // until the process ends
		for sig := range signals {
			if sig != syscall.SIGINT || !devcluster.InForeground() {
				_ = cmd.Process.Signal(sig) // it may have ended
			}
		}
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return 0, err
	}
	if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return exit.ExitCode(), nil
}

func kubectl(ctx context.Context, args []string) (int, error) {
	dir, err := devcluster.Assets(ctx)
	if err != nil {
		return 1, err
	}
	path := filepath.Join(dir, "kubectl")
	return 1, syscall.Exec(path, append([]string{"kubectl"}, args...), os.Environ())
}

func doctor() (int, error) {
	missing := devcluster.Missing()
	if len(missing) > 0 {
		fmt.Println("missing Debian packages, install them with: apt-get install", strings.Join(missing, " "))
		return 1, nil
	}
	devcluster.Enter() // prints an error if it fails
	if _, err := devcluster.OpenNetwork(); err != nil {
		return 1, err
	}
	fmt.Println("everything that a cluster needs is there")
	return 0, nil
}
