package plugin

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"

	"github.com/spf13/cobra"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/ui"
	"github.com/external-backend/operator/internal/view"
)

// uiOptions are the flags of `ui`.
type uiOptions struct {
	allNamespaces bool
	port          uint16
	noBrowser     bool
}

func newUICommand(p *plugin) *cobra.Command {
	var o uiOptions
	command := &cobra.Command{
		Use:   "ui",
		Short: "Show a live page of all ExternalBackends in the browser",
		Long: `Show a live page of all ExternalBackends in the browser, until Ctrl-C.

The page is served on 127.0.0.1, for whoever has its URL: a token in it stands for your rights. It changes nothing
unless you confirm it.`,
		Example: `  kubectl external-backend ui -A
  kubectl external-backend ui -n shop --port 8090 --no-browser`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return p.ui(command.Context(), o) },
	}
	flags := command.Flags()
	flags.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "Show the ExternalBackends of all namespaces.")
	flags.Uint16Var(&o.port, "port", 0, "The port to serve the page on; 0 for any free one.")
	flags.BoolVar(&o.noBrowser, "no-browser", false, "Only print the URL of the page.")
	return command
}

// ui serves the page until ctx ends.
func (p *plugin) ui(ctx context.Context, o uiOptions) error {
	namespace, err := p.namespace()
	if err != nil {
		return err
	}
	title := "namespace " + namespace
	if o.allNamespaces {
		namespace, title = "", "all namespaces"
	}
	c, err := p.client()
	if err != nil {
		return err
	}
	var first v1alpha1.ExternalBackendList
	if err := c.List(ctx, &first, client.InNamespace(namespace), client.Limit(1)); err != nil {
		return describeListError(err, namespace)
	}
	listener, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(o.port))))
	if err != nil {
		return fmt.Errorf("--port: %w", err)
	}

	source := &uiSource{client: c}
	server := ui.New(source, p.contextName()+title, p.now)
	source.changed = server.Changed
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	source.followed = follow(ctx, &watchedClient{WithWatch: c, note: source.note}, client.InNamespace(namespace))
	defer source.followed.stop()
	var forwarding sync.WaitGroup
	defer forwarding.Wait()
	defer cancel()
	forwarding.Go(func() { forward(ctx, source.followed.changed, server.Changed) })

	url := server.URL(listener)
	fmt.Fprintf(p.Out, "%s\nThe page is live until Ctrl-C. Whoever has its URL acts with your rights.\n", url)
	if !o.noBrowser && isTerminal(p.Out) {
		remove := openBrowser(url)
		defer remove()
	}
	return server.Serve(ctx, listener)
}

// contextName returns the name of the context for a title; "" if there is none.
func (p *plugin) contextName() string {
	config, err := p.flags.ToRawKubeConfigLoader().RawConfig()
	name := config.CurrentContext
	if p.flags.Context != nil && *p.flags.Context != "" {
		name = *p.flags.Context
	}
	if err != nil || name == "" {
		return ""
	}
	return name + ", "
}

// forward calls changed for each value of a channel, until ctx ends.
func forward(ctx context.Context, values <-chan struct{}, changed func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-values:
			changed()
		}
	}
}

// openBrowser opens a URL, if this system can. The URL is printed in any case. The browser gets it
// from a file, because all users of a machine see the arguments of a command. The caller removes
// the file at the end.
func openBrowser(url string) (remove func()) {
	file, remove, err := privatePage(url)
	if err != nil {
		return remove
	}
	command := exec.Command("xdg-open", file)
	switch runtime.GOOS {
	case "darwin":
		command = exec.Command("open", file)
	case "windows":
		command = exec.Command("rundll32", "url.dll,FileProtocolHandler", file)
	}
	if command.Start() == nil {
		go func() { _ = command.Wait() }() // ends with the command, which only hands the file over
	}
	return remove
}

// privatePage writes a page that leads to a URL, and that only this user can read.
func privatePage(url string) (file string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "external-backend-")
	if err != nil {
		return "", func() {}, err
	}
	file = filepath.Join(dir, "page.html")
	return file, func() { _ = os.RemoveAll(dir) }, os.WriteFile(file, redirectTo(url), 0o600)
}

// redirectTo returns a page that leads to a URL.
func redirectTo(url string) []byte {
	return fmt.Appendf(nil, `<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url=%[1]s">
<title>ExternalBackends</title>
<a href="%[1]s">Open the page</a>
`, html.EscapeString(url))
}

// uiSource is what the page shows, read with the user's credentials.
type uiSource struct {
	client   client.WithWatch
	followed *followed
	changed  func() // tells the page that Rows has changed

	mu     sync.Mutex
	notice string // why followed may be out of date
}

// Rows returns the followed ExternalBackends.
func (s *uiSource) Rows() ([]view.Row, string) {
	list := s.followed.backends.List()
	rows := make([]view.Row, len(list))
	for i := range list {
		rows[i] = view.BuildRow(list[i].(*v1alpha1.ExternalBackend))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return rows, s.notice
}

// Read reads an ExternalBackend and what belongs to it.
func (s *uiSource) Read(ctx context.Context, namespace, name string) (*view.Objects, error) {
	objects, err := readBackend(ctx, s.client, namespace, name)
	if err != nil {
		return nil, describeReadError(err, types.NamespacedName{Namespace: namespace, Name: name})
	}
	return objects, nil
}

// Follow calls changed when slices of an ExternalBackend change, as far as the user may watch them.
// The page reads now and then in any case, and says then what could not be read.
func (s *uiSource) Follow(ctx context.Context, namespace, name string, changed func()) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		watching, err := s.client.Watch(ctx, &discoveryv1.EndpointSliceList{}, client.InNamespace(namespace),
			client.MatchingLabels{v1alpha1.LabelName: name})
		if err != nil {
			return
		}
		defer watching.Stop()
		for range watching.ResultChan() {
			changed()
		}
	}, refreshPeriod)
}

// note remembers the outcome of the last list or watch.
func (s *uiSource) note(err error) {
	s.mu.Lock()
	s.notice = ""
	if err != nil && !errors.Is(err, context.Canceled) {
		s.notice = "What you see may be out of date: " + err.Error()
	}
	s.mu.Unlock()
	s.changed()
}

// watchedClient is a client that notes the outcome of lists and watches.
type watchedClient struct {
	client.WithWatch
	note func(error)
}

// List lists objects.
func (c *watchedClient) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	err := c.WithWatch.List(ctx, list, options...)
	c.note(err)
	return err
}

// Watch watches objects.
func (c *watchedClient) Watch(
	ctx context.Context, list client.ObjectList, options ...client.ListOption,
) (watch.Interface, error) {
	watching, err := c.WithWatch.Watch(ctx, list, options...)
	c.note(err)
	return watching, err
}
