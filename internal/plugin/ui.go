package plugin

import (
	"context"
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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/read"
	"github.com/external-backend/operator/internal/ui"
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

	source := &uiSource{Source: read.NewSource(c, namespace), client: c}
	server := ui.New(source, p.contextName()+title, p.now)
	defer source.Start(ctx, server.Changed)()
	url := server.URL(listener)
	fmt.Fprintf(p.Out, "%s\nThe page is live until Ctrl-C. Whoever has its URL acts with your rights.\n", url)
	if !o.noBrowser && isTerminal(p.Out) {
		defer openBrowser(ctx, url)()
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

// openBrowser opens a URL, if this system can. The URL is printed in any case. The browser gets it
// from a file, because all users of a machine see the arguments of a command. end removes the file,
// and waits for the command that opens it. A command that goes on is killed then.
func openBrowser(ctx context.Context, url string) (end func()) {
	file, remove, err := privatePage(url)
	if err != nil {
		return remove
	}
	ctx, kill := context.WithCancel(ctx)
	command := exec.CommandContext(ctx, "xdg-open", file)
	switch runtime.GOOS {
	case "darwin":
		command = exec.CommandContext(ctx, "open", file)
	case "windows":
		command = exec.CommandContext(ctx, "rundll32", "url.dll,FileProtocolHandler", file)
	}
	var waiting sync.WaitGroup
	waiting.Go(func() { _ = command.Run() })
	return func() {
		kill()
		waiting.Wait()
		remove()
	}
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

// uiSource is what the page shows and changes, with the user's credentials.
type uiSource struct {
	*read.Source
	client client.Client
}
