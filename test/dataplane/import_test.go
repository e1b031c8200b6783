package dataplane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/importer/importertest"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

const (
	imported = 200
	// loaded is the distance between two generated Services that get traffic.
	loaded = 25
	// importers is how many Services are imported at a time.
	importers = 4
)

// The import of 200 generated Services, with all that the plugin then tells the user to do, loses
// no request. Those with traffic go on with serviceRef, as docs/migration.md says. What kube-proxy
// reads behind each Service is the same at every moment.
func TestImportsOfGeneratedServicesLoseNoRequest(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	serveGenerated(h)
	all := map[string]importertest.Service{}
	for seed := range uint64(imported) {
		name := fmt.Sprintf("web-%d", seed)
		all[name] = importertest.Generate(rand.New(rand.NewPCG(seed, 1)), name)
		h.Apply(all[name].Text)
	}
	for name, s := range all {
		h.Eventually("what is written behind "+name, func() error { return compareRouted(h, name, s.Routed) })
	}
	load := startLoadOn(h, all)
	wantSameRoutes := watchRoutes(h, all)

	importAll(h, all)
	for name, s := range all {
		h.Eventually("the import of "+name, func() error { return taken(h, name, s.Routed) })
	}
	for _, name := range loadedNames() {
		attachSecond(h, name)
	}
	for _, name := range loadedNames() {
		h.Eventually("the slices of "+name+" to be those of the second", func() error { return isAttached(h, name) })
	}
	load.waitMore()
	wantSameRoutes()
	load.stopWithoutLoss()
	for name, s := range all {
		if err := compareRouted(h, name, s.Routed); err != nil {
			t.Error(err)
		}
	}
}

// serveGenerated starts a machine that answers at all addresses and numbers of generated Services.
func serveGenerated(h *harness.Test) {
	h.T.Helper()
	m := h.Machine("servers")
	if err := m.AddAddresses(importertest.Prefix4, importertest.Prefix6); err != nil {
		h.T.Fatal(err)
	}
	for _, lowest := range importertest.LowestNumbers() {
		for i := range importertest.Numbers {
			h.Serve(m, "http", lowest+i)
		}
	}
}

// compareRouted returns an error unless kube-proxy reads these endpoints behind a Service.
func compareRouted(h *harness.Test, service string, want []string) error {
	if got := importertest.Routed(h.Slices(service)); !slices.Equal(got, want) {
		return fmt.Errorf("behind %s there is\n%s\nwant\n%s", service, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	return nil
}

// taken returns an error until the ExternalBackend has published its slices, and has replaced what
// was written by hand if it has a ready endpoint.
func taken(h *harness.Test, name string, routed []string) error {
	b := h.Backend(name)
	if !meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionAccepted) {
		return errors.New("it is not Accepted")
	}
	isReady := func(line string) bool { return strings.Contains(line, "true true") }
	if slices.ContainsFunc(routed, isReady) {
		return h.OnlyOurs(name)
	}
	if len(routed) > 0 && len(h.Endpoints(name)) == 0 {
		return errors.New("it publishes no endpoint")
	}
	return nil
}

// loadedNames returns the names of the generated Services that get traffic.
func loadedNames() (names []string) {
	for seed := 0; seed < imported; seed += loaded {
		names = append(names, fmt.Sprintf("web-%d", seed))
	}
	return names
}

// attachSecond deletes the ExternalBackend that has adopted a Service, with deletionPolicy Retain,
// and attaches a second one with the same targets to the Service.
func attachSecond(h *harness.Test, service string) {
	h.T.Helper()
	first := h.Backend(service)
	patched := first.DeepCopy()
	patched.Spec.DeletionPolicy = v1alpha1.DeletionPolicyRetain
	if err := h.Client.Patch(h.T.Context(), patched, client.MergeFrom(first)); err != nil {
		h.T.Fatal(err)
	}
	h.WaitReady(service) // Retain is in force once the manager has seen it
	if err := h.Client.Delete(h.T.Context(), patched); err != nil {
		h.T.Fatal(err)
	}
	h.Eventually("the end of the first "+service, func() error {
		err := h.Client.Get(h.T.Context(), h.Key(service), &v1alpha1.ExternalBackend{})
		if err == nil {
			return errors.New("it is there")
		}
		return client.IgnoreNotFound(err)
	})

	second := &v1alpha1.ExternalBackend{Spec: first.Spec}
	second.Name = service + "-servers"
	second.Spec.Service, second.Spec.ServiceRef = nil, &v1alpha1.ServiceReference{Name: service}
	h.ApplyObject(second)
}

// isAttached returns an error unless all slices behind a Service are those of the second one.
func isAttached(h *harness.Test, service string) error {
	for _, slice := range h.Slices(service) {
		if of := slice.Labels[v1alpha1.LabelName]; of != service+"-servers" {
			return fmt.Errorf("slice %s is of %q", slice.Name, of)
		}
	}
	return h.OnlyOurs(service)
}

// startLoadOn sends requests to every port, of every family, of a handful of Services in turn.
func startLoadOn(h *harness.Test, all map[string]importertest.Service) load {
	h.T.Helper()
	var sends []lab.Send
	var addrs []string
	for _, name := range loadedNames() {
		for i, port := range []string{"http", "grpc", "admin"} {
			for _, addr := range clusterAddrs(h, name, 80+i) {
				if !isRouted(all[name].Routed, port, strings.HasPrefix(addr, "[")) {
					continue
				}
				send := lab.Sender(h.Node(), "http", addr)
				h.Eventually("an answer from "+addr, func() error {
					_, err := send(h.T.Context())
					return err
				})
				sends, addrs = append(sends, send), append(addrs, addr)
			}
		}
	}
	h.T.Logf("traffic goes to %v", addrs)

	var next atomic.Int64
	inTurn := func(ctx context.Context) (string, error) {
		i := int(next.Add(1)) % len(sends)
		answer, err := sends[i](ctx)
		if err != nil {
			err = fmt.Errorf("%s: %w", addrs[i], err)
		}
		return answer, err
	}
	l := load{lab.StartLoad(h.T.Context(), interval, timeout, inTurn), h, "the generated Services"}
	h.T.Cleanup(func() { l.Stop() })
	return l
}

// isRouted reports whether an endpoint of a family serves a port.
func isRouted(routed []string, port string, v6 bool) bool {
	return slices.ContainsFunc(routed, func(line string) bool {
		rest, ok := strings.CutPrefix(line, port+" ")
		return ok && strings.Contains(rest, ":") == v6
	})
}

// importAll imports each Service by the plugin, and does what it tells the user to do.
func importAll(h *harness.Test, all map[string]importertest.Service) {
	h.T.Helper()
	names := make(chan string)
	errs := make(chan error, len(all))
	path := h.Plugin()
	var done sync.WaitGroup
	for range importers {
		done.Go(func() {
			for name := range names {
				cmd := exec.CommandContext(h.T.Context(), path, "--kubeconfig", h.Kubeconfig, "-n", h.Namespace,
					"import", "service/"+name)
				printed, err := cmd.Output()
				if err == nil {
					err = h.FollowImport(h.Kubeconfig, string(printed))
				}
				if err != nil {
					errs <- fmt.Errorf("%s: %w", name, err)
				}
			}
		})
	}
	for name := range all {
		names <- name
	}
	close(names)
	done.Wait()
	close(errs)
	for err := range errs {
		h.T.Error(err)
	}
}

// watchRoutes watches all slices of the namespace. The function that it returns ends the watch, and
// fails the test unless what kube-proxy reads behind each Service was the same at every moment.
func watchRoutes(h *harness.Test, all map[string]importertest.Service) (wantSame func()) {
	h.T.Helper()
	var list discoveryv1.EndpointSliceList
	if err := h.Client.List(h.T.Context(), &list, client.InNamespace(h.Namespace)); err != nil {
		h.T.Fatal(err)
	}
	watcher, err := h.Client.Watch(h.T.Context(), &discoveryv1.EndpointSliceList{}, client.InNamespace(h.Namespace),
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
	if err != nil {
		h.T.Fatal(err)
	}
	behind := map[string]map[string]discoveryv1.EndpointSlice{}
	for i := range list.Items {
		record(behind, watch.Added, &list.Items[i])
	}

	var wrong []string
	events := 0
	var stopped atomic.Bool
	var done sync.WaitGroup
	done.Go(func() {
		for event := range watcher.ResultChan() {
			slice, ok := event.Object.(*discoveryv1.EndpointSlice)
			if !ok {
				break // the watch failed, or was stopped
			}
			events++
			service := record(behind, event.Type, slice)
			got := importertest.Routed(slices.Collect(maps.Values(behind[service])))
			if want := all[service].Routed; !slices.Equal(got, want) {
				wrong = append(wrong, fmt.Sprintf("after %s of %s %s routes to\n%s\nwant\n%s", event.Type, slice.Name, service,
					strings.Join(got, "\n"), strings.Join(want, "\n")))
			}
		}
		if !stopped.Load() {
			wrong = append(wrong, "the watch ended early")
		}
	})
	return func() {
		h.T.Helper()
		stopped.Store(true)
		watcher.Stop()
		done.Wait()
		h.T.Logf("%d changes of slices were seen", events)
		if len(wrong) > 0 || events < imported {
			h.T.Errorf("after %d changes of slices, %d are wrong; the first:\n%s", events, len(wrong),
				strings.Join(wrong[:min(len(wrong), 3)], "\n"))
		}
	}
}

// record keeps the slices behind each Service as an event leaves them, and returns the Service.
func record(behind map[string]map[string]discoveryv1.EndpointSlice, event watch.EventType,
	slice *discoveryv1.EndpointSlice) (service string) {
	service = slice.Labels[discoveryv1.LabelServiceName]
	if behind[service] == nil {
		behind[service] = map[string]discoveryv1.EndpointSlice{}
	}
	if event == watch.Deleted {
		delete(behind[service], slice.Name)
	} else {
		behind[service][slice.Name] = *slice
	}
	return service
}
