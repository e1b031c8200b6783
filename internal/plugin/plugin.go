// Package plugin is the kubectl plugin: its commands, what they read with the user's credentials,
// and what they print. It decides nothing itself. What it shows comes from package view, and what
// the operator would do comes from the packages that the operator uses.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
)

// Exit codes of the plugin.
const (
	exitFine    = 0
	exitError   = 1
	exitFinding = 2
)

// errFinding means that a command did its work and found something that is not as it should be. It
// has said what. The plugin then exits with 2.
var errFinding = errors.New("a finding")

// plugin is what all commands share.
type plugin struct {
	genericiooptions.IOStreams
	// flags are --kubeconfig, --context, --namespace and the others that choose a cluster and a user.
	flags   *genericclioptions.ConfigFlags
	now     func() time.Time
	version string
}

// newPlugin returns a plugin that talks over streams.
func newPlugin(streams genericiooptions.IOStreams, version string) *plugin {
	flags := genericclioptions.NewConfigFlags(true)
	flags.WrapConfigFn = func(config *rest.Config) *rest.Config {
		config.QPS, config.Burst = -1, -1 // the API server's priority and fairness is the limit
		config.WarningHandler = rest.NoWarnings{}
		return config
	}
	return &plugin{IOStreams: streams, flags: flags, now: time.Now, version: version}
}

// Main runs the plugin with the arguments of the process, and exits.
func Main(version string) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	p := newPlugin(genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}, version)
	code := p.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// run runs one command and returns the exit code.
func (p *plugin) run(ctx context.Context, args []string) int {
	root := newRootCommand(p)
	root.SetArgs(args)
	root.SetIn(p.In)
	root.SetOut(p.Out)
	root.SetErr(p.ErrOut)

	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitFine
	case errors.Is(err, errFinding):
		return exitFinding
	}
	fmt.Fprintln(p.ErrOut, "error:", err)
	return exitError
}

// newRootCommand returns the command `kubectl external-backend` with all others below it.
func newRootCommand(p *plugin) *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-external_backend",
		Short: "See, explain and move the traffic of ExternalBackends",
		Long: `See, explain and move the traffic of ExternalBackends.

It acts with your own credentials. What you may not read is "unknown", and the missing right is named.
It exits with 0, with 1 after an error, and with 2 if it found something that is not as it should be.`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl external-backend"},
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	p.flags.AddFlags(root.PersistentFlags())
	for name, complete := range map[string]completion{
		"namespace": p.completeNamespaces, "context": p.completeContexts,
	} {
		utilruntime.Must(root.RegisterFlagCompletionFunc(name, complete))
	}

	root.AddCommand(
		newExplainCommand(p),
		newImportCommand(p),
		newStatusCommand(p),
		newRenderCommand(p),
		newPinCommand(p),
		newDrainCommand(p),
		newDisableCommand(p),
		newResumeCommand(p),
		newPolicyCommand(p),
		newProbeCommand(p),
		newUICommand(p),
		newVersionCommand(p),
	)
	return root
}

// client returns a client with the user's credentials. It reads from the API server and caches
// nothing. It knows the kinds of the operator without asking the API server for them.
func (p *plugin) client() (client.WithWatch, error) {
	config, err := p.flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	scheme := newScheme()
	return client.NewWithWatch(config, client.Options{Scheme: scheme, Mapper: newMapper(scheme)})
}

// namespace returns the namespace of --namespace, or else that of the context.
func (p *plugin) namespace() (string, error) {
	namespace, _, err := p.flags.ToRawKubeConfigLoader().Namespace()
	return namespace, err
}

// newScheme returns a scheme with all kinds that the plugin reads or writes.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		v1alpha1.AddToScheme, coordinationv1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme,
		eventsv1.AddToScheme, networkingv1.AddToScheme,
	} {
		utilruntime.Must(add(scheme))
	}
	return scheme
}

// newMapper returns the resources of the kinds of a scheme. All names are regular. The usual mapper
// would ask the API server for all of its resources first.
func newMapper(scheme *runtime.Scheme) meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(scheme.PrioritizedVersionsAllGroups())
	clusterScoped := map[string]bool{"Namespace": true, "Node": true, "ServiceCIDR": true, "ExternalBackendPolicy": true}
	for kind := range scheme.AllKnownTypes() {
		scope := meta.RESTScopeNamespace
		if clusterScoped[kind.Kind] {
			scope = meta.RESTScopeRoot
		}
		mapper.Add(kind, scope)
	}
	// The plural of Endpoints is not regular.
	endpoints := corev1.SchemeGroupVersion.WithResource("endpoints")
	mapper.AddSpecific(corev1.SchemeGroupVersion.WithKind("Endpoints"), endpoints, endpoints, meta.RESTScopeNamespace)
	return mapper
}
