// Command demo shows traffic following health: it starts a development cluster, runs the real
// manager beside it, puts three real backends into network namespaces of their own, sends requests
// to their Service through kube-proxy, and breaks the backends one after the other.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness/lab"
)

const (
	usualLength = 45 * time.Second
	leastLength = 20 * time.Second
	untilCtrlC  = 1000 * time.Hour
	namespace   = "default"
	name        = "web"
	port        = 8080

	// interval is the time between two requests, timeout bounds each of them.
	interval = 20 * time.Millisecond
	timeout  = time.Second
)

// options leave out what the demo does not need, because compiling takes minutes.
var options = devcluster.Options{WithoutControllers: true, WithoutDNS: true, QuickBuild: true}

// sample is the ExternalBackend of the demo. Its arguments are the addresses of the backends.
const sample = `apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata:
  name: web
spec:
  ports:
  - {name: http, port: 80, targetPort: 8080}
  targets:
  - {name: web-1, address: %s}
  - {name: web-2, address: %s}
  - {name: web-3, address: %s}
  healthCheck:
    httpGet: {path: /healthz}
    periodSeconds: 1
    timeoutSeconds: 1
    failureThreshold: 3
    confirmPeriodMilliseconds: 200
`

func main() {
	length, err := lengthOf(os.Getenv("DEMO_FOR"), os.Getenv("UI"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if devcluster.Nsenter() == "" { // outside of the namespaces
		fmt.Println("Missing binaries are built first.")
		end(ctx, devcluster.EnsureFor(ctx, os.Stdout, options))
		end(ctx, lab.BuildManager(ctx, os.Stdout, false, devcluster.QuickBuild...))
		socket, err := listenOutside()
		end(ctx, err)
		stop()
		devcluster.Enter(socket)
	}
	end(ctx, run(ctx, length, devcluster.Files()[0]))
	stop()
}

// end exits if err is an error. A Ctrl-C exits without an error.
func end(ctx context.Context, err error) {
	if ctx.Err() != nil {
		os.Exit(0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// lengthOf returns how long the demo lasts, by DEMO_FOR and UI.
func lengthOf(text, ui string) (time.Duration, error) {
	switch {
	case ui != "" && ui != "0" && ui != "1":
		return 0, fmt.Errorf("UI=%s must be 1, which lets the demo run until Ctrl-C", ui)
	case ui == "1" && text != "":
		return 0, fmt.Errorf("UI=1 lets the demo run until Ctrl-C: leave DEMO_FOR=%s out", text)
	case ui == "1":
		return untilCtrlC, nil
	case text == "":
		return usualLength, nil
	}
	length, err := time.ParseDuration(text)
	if err != nil || length < leastLength {
		return 0, fmt.Errorf("DEMO_FOR=%s must be a duration of at least %v, such as 1m", text, leastLength)
	}
	return length, nil
}

// run does everything that happens inside of the namespaces.
//
//  1. Start the cluster, the manager, the live page and the backends, and apply the sample.
//  2. Send requests, break and mend backends, and show what happens.
//  3. Print a summary.
func run(ctx context.Context, length time.Duration, socket *os.File) (err error) {
	began := time.Now()
	say := func(text string, args ...any) {
		fmt.Printf("%5.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(text, args...))
	}
	say("starting etcd, kube-apiserver and kube-proxy, Kubernetes %s", devcluster.Kubernetes())
	l, err := lab.Open(ctx, options, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	say("the cluster runs, CRDs and roles are installed")
	manager, err := l.StartManager(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, manager.Stop()) }()
	say("the manager runs, with the rights of its own ServiceAccount")
	page, stopPage, err := servePage(ctx, l, socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopPage()) }()
	say("the live page, for a browser on this machine, is %s", page)
	backends, err := startBackends(l)
	if err != nil {
		return err
	}
	document := fmt.Sprintf(sample, backends[0].V4, backends[1].V4, backends[2].V4)
	say("three HTTP backends run outside of the cluster; this makes them one Service:\n\n%s", document)
	address, err := publish(ctx, l, document)
	if err != nil {
		return fmt.Errorf("%w; the manager said:\n%s", err, manager.Tail())
	}
	say("Service %s is at %s; a client on the cluster's node sends it %d requests a second", name, address,
		time.Second/interval)

	load := lab.StartLoad(ctx, interval, timeout, lab.Sender(l.Node(), "http", address))
	view := newView(backends, load, length, page)
	perr := perform(ctx, l, view)
	tally := load.Stop()
	view.close()
	fmt.Print(view.summary(tally))
	return perr
}

// perform plays while the view is updated, for at most the length of the view.
func perform(ctx context.Context, l *lab.Lab, view *view) error {
	ctx, cancel := context.WithTimeout(ctx, view.length)
	defer cancel()
	done := view.watch(ctx, l)
	err := play(ctx, view)
	if err != nil {
		cancel()
	}
	<-done
	return err
}

// publish applies the sample, and returns the address of its Service once all backends get
// requests.
func publish(ctx context.Context, l *lab.Lab, document string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(document), &u.Object); err != nil {
		return "", err
	}
	u.SetNamespace(namespace)
	if err := l.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("demo")); err != nil {
		return "", err
	}
	if _, err := l.Kubectl(ctx, "wait", "--for=condition=Healthy", "externalbackend/"+name, "--timeout=30s"); err != nil {
		return "", err
	}
	ip, err := l.Kubectl(ctx, "get", "service", name, "-o", "jsonpath={.spec.clusterIP}")
	for routes := 0; err == nil && routes < 3; {
		if !sleepUntil(ctx, time.Now().Add(look)) {
			return "", fmt.Errorf("kube-proxy routes to %d of 3 backends: %w", routes, ctx.Err())
		}
		var all []netip.AddrPort
		all, err = l.Routes(ctx, namespace, name)
		routes = len(all)
	}
	return ip + ":80", err
}

// isTerminal reports whether w is a terminal on which a screen can be drawn.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd())) && os.Getenv("TERM") != "dumb"
}
