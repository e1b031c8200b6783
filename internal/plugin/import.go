package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/internal/importer"
)

// importOptions are the flags of import.
type importOptions struct {
	file, name, format string
	ports              []string
	ignoreUnsupported  bool
}

func newImportCommand(p *plugin) *cobra.Command {
	var o importOptions
	command := &cobra.Command{
		Use:   "import service/NAME | import -f FILE",
		Short: "Print an ExternalBackend made from a Service, or from an object of another kind",
		Long: `Print an ExternalBackend made from a Service with hand-written Endpoints or EndpointSlices, or from one of type
ExternalName. With -f also from a ServiceEntry of Istio, a Backend of Envoy Gateway, a ClusterEndpoint of sealos.io or
sealyun.com, or a DiscoveredService of discovery.k8sready.com. It changes nothing.

Its check only observes at first, so applying it changes no endpoint. The steps that follow are printed as comments.

What an ExternalBackend can't express is refused, field by field: it then prints nothing and exits with 2, unless you
let it leave those fields out by --ignore-unsupported.`,
		Example: `  # A Service with hand-written endpoints, to be adopted
  kubectl external-backend import service/legacy -n shop > legacy.yaml

  # A Service of type ExternalName, which names no ports
  kubectl external-backend import service/orders-db --port postgres=5432

  # Objects of another kind
  kubectl get serviceentry payments -o yaml | kubectl external-backend import -f -`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if (len(args) == 1) == (o.file != "") {
				return errors.New("import wants either service/NAME or -f FILE")
			}
			return p.importObjects(command.Context(), args, &o)
		},
	}
	flags := command.Flags()
	flags.StringVarP(&o.file, "filename", "f", "", "File with objects, Services together with their endpoints; "+
		"- is the standard input.")
	flags.StringVar(&o.name, "name", "", "Name of the ExternalBackend; by default it follows from the object's.")
	flags.StringSliceVar(&o.ports, "port", nil, "Port of a Service of type ExternalName: NUMBER, or NAME=NUMBER. "+
		"May be repeated.")
	flags.BoolVar(&o.ignoreUnsupported, "ignore-unsupported", false, "Leave out what an ExternalBackend can't express.")
	flags.StringVarP(&o.format, "output", "o", "yaml", "Output format: json or yaml.")
	utilruntime.Must(command.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(
		[]string{"json", "yaml"}, cobra.ShellCompDirectiveNoFileComp)))
	return command
}

// importObjects runs the command import.
func (p *plugin) importObjects(ctx context.Context, args []string, o *importOptions) error {
	if o.format != "json" && o.format != "yaml" {
		return fmt.Errorf("--output: %q must be json or yaml", o.format)
	}
	namespace, err := p.namespace()
	if err != nil {
		return err
	}
	options := importer.Options{Namespace: namespace, Name: o.name}
	if options.Ports, err = importer.ParsePorts(o.ports); err != nil {
		return fmt.Errorf("--port: %w", err)
	}

	var objects []*unstructured.Unstructured
	if o.file != "" {
		objects, err = readObjectFile(o.file, p.In)
	} else {
		objects, err = p.readForImport(ctx, namespace, args[0])
	}
	if err != nil {
		return err
	}
	results, err := importer.Import(objects, options)
	if err != nil {
		return err
	}
	if len(results) == 0 {
		return fmt.Errorf("%s: there is nothing in it that can be imported", o.file)
	}

	refused := p.remark(results)
	if refused && !o.ignoreUnsupported {
		fmt.Fprintln(p.ErrOut, "Nothing is printed. Leave these fields out by --ignore-unsupported.")
		return errFinding
	}
	for i := range results {
		if results[i].Incomplete != "" {
			return fmt.Errorf("%s can't be imported: %s", results[i].Source, results[i].Incomplete)
		}
	}
	return p.printImported(results, o.format)
}

// remark says what is refused and noted. It reports whether anything is refused.
func (p *plugin) remark(results []importer.Result) (refused bool) {
	for i := range results {
		for _, refusal := range results[i].Refusals {
			fmt.Fprintln(p.ErrOut, "refused:", refusal)
			refused = true
		}
		for _, note := range results[i].Notes {
			fmt.Fprintf(p.ErrOut, "note: %s: %s\n", results[i].Source, note)
		}
	}
	return refused
}

// printImported prints ExternalBackends, as YAML with the next steps as comments.
func (p *plugin) printImported(results []importer.Result, format string) error {
	if format == "json" {
		if len(results) == 1 {
			return p.output(format, results[0].Backend, nil)
		}
		items := make([]any, len(results))
		for i := range results {
			items[i] = results[i].Backend
		}
		return p.output(format, map[string]any{"apiVersion": "v1", "kind": "List", "items": items}, nil)
	}

	var out bytes.Buffer
	for i := range results {
		if i > 0 {
			out.WriteString("---\n")
		}
		fmt.Fprintf(&out, "# Made from %s. Next:\n", results[i].Source)
		for _, step := range results[i].Next {
			fmt.Fprintf(&out, "# %s\n", step)
		}
		text, err := yaml.Marshal(results[i].Backend)
		if err != nil {
			return err
		}
		out.Write(text)
	}
	_, err := out.WriteTo(p.Out)
	return err
}

// readForImport reads a Service and what others publish behind it.
func (p *plugin) readForImport(ctx context.Context, namespace, arg string) ([]*unstructured.Unstructured, error) {
	kind, name, ok := strings.Cut(arg, "/")
	if !ok || name == "" || kind != "service" && kind != "services" && kind != "svc" {
		return nil, fmt.Errorf("%q must be service/NAME; for another kind use kubectl get -o yaml and -f -", arg)
	}
	c, err := p.client()
	if err != nil {
		return nil, err
	}
	key := types.NamespacedName{Namespace: namespace, Name: name}
	var service corev1.Service
	var list discoveryv1.EndpointSliceList
	var endpoints corev1.Endpoints //nolint:staticcheck // Endpoints are deprecated, and are there.
	if err := c.Get(ctx, key, &service); err != nil {
		return nil, err
	}
	read := []client.Object{&service}
	if service.Spec.Type != corev1.ServiceTypeExternalName {
		err := c.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{discoveryv1.LabelServiceName: name})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			read = append(read, &list.Items[i])
		}
		switch err := c.Get(ctx, key, &endpoints); {
		case err == nil:
			read = append(read, &endpoints)
		case !apierrors.IsNotFound(err):
			return nil, err
		}
	}
	return toUnstructured(c.Scheme(), read)
}

// toUnstructured converts objects, with their kinds.
func toUnstructured(scheme *runtime.Scheme, objects []client.Object) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	for _, o := range objects {
		kind, err := apiutil.GVKForObject(o, scheme)
		if err != nil {
			return nil, err
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return nil, err
		}
		u := &unstructured.Unstructured{Object: content}
		u.SetGroupVersionKind(kind)
		out = append(out, u)
	}
	return out, nil
}
