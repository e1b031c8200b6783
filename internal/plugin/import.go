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
	"github.com/external-backend/operator/internal/read"
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

What an ExternalBackend can't express is refused, field by field. An object with such a field is not printed, and the
exit code is 2, unless you leave those fields out by --ignore-unsupported. The other objects of the file are printed.`,
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
	var unreadable []error
	if o.file != "" {
		objects, unreadable, err = readObjectFile(o.file, p.In)
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
	if len(results)+len(unreadable) == 0 {
		return fmt.Errorf("%s: there is nothing in it that can be imported", o.file)
	}
	return p.showImported(results, unreadable, o)
}

// showImported prints the ExternalBackends that can be applied, and says what is refused and noted.
// An object that can't be imported is an error. A refused field is a finding, unless the user
// lets it be left out.
func (p *plugin) showImported(results []importer.Result, unreadable []error, o *importOptions) error {
	var printed []importer.Result
	var left []string
	refused := false
	for i := range results {
		r := &results[i]
		p.remark(r)
		switch {
		case r.Incomplete != "":
			left = append(left, fmt.Sprintf("%s can't be imported: %s", r.Source, r.Incomplete))
		case len(r.Refusals) > 0 && !o.ignoreUnsupported:
			fmt.Fprintf(p.ErrOut, "%s is not printed. Leave these fields out by --ignore-unsupported.\n", r.Source)
			refused = true
		default:
			printed = append(printed, *r)
		}
	}
	for _, err := range unreadable {
		left = append(left, fmt.Sprintf("%s can't be read: %v", o.file, err))
	}

	if len(printed) > 0 {
		if err := p.printImported(printed, o.format); err != nil {
			return err
		}
	}
	switch {
	case len(left) > 0:
		return errors.New(strings.Join(left, "\nerror: "))
	case refused:
		return errFinding
	}
	return nil
}

// remark says what is refused and noted about one object.
func (p *plugin) remark(r *importer.Result) {
	for _, refusal := range r.Refusals {
		fmt.Fprintln(p.ErrOut, "refused:", refusal)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(p.ErrOut, "note: %s: %s\n", r.Source, note)
	}
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
	if err := c.Get(ctx, key, &service); err != nil {
		return nil, unknownTo(fmt.Sprintf("Service %q", name), "get services", namespace, err)
	}
	read := []client.Object{&service}
	if service.Spec.Type != corev1.ServiceTypeExternalName {
		endpoints, err := readEndpointsOf(ctx, c, key)
		if err != nil {
			return nil, err
		}
		read = append(read, endpoints...)
	}
	return toUnstructured(c.Scheme(), read)
}

// readEndpointsOf reads the EndpointSlices and the Endpoints behind a Service. Without one of them
// it is unknown what is published, so the error names every right that is missing.
func readEndpointsOf(ctx context.Context, c client.Reader, key types.NamespacedName) ([]client.Object, error) {
	var out []client.Object
	listErr := read.Pages(ctx, c, func() *discoveryv1.EndpointSliceList { return &discoveryv1.EndpointSliceList{} },
		func(page *discoveryv1.EndpointSliceList) bool {
			for i := range page.Items {
				out = append(out, &page.Items[i])
			}
			return true
		}, client.InNamespace(key.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: key.Name})
	var endpoints corev1.Endpoints //nolint:staticcheck // Endpoints are deprecated, and are there.
	getErr := c.Get(ctx, key, &endpoints)
	if getErr == nil {
		out = append(out, &endpoints)
	}

	what := fmt.Sprintf("what is published behind Service %q", key.Name)
	return out, errors.Join(
		unknownTo(what, "list endpointslices.discovery.k8s.io", key.Namespace, listErr),
		unknownTo(what, "get endpoints", key.Namespace, client.IgnoreNotFound(getErr)))
}

// unknownTo says that a user may not read something, and names the right that is missing. Other
// errors stay as they are.
func unknownTo(what, right, namespace string, err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	return fmt.Errorf("%s is unknown: you may not %s in namespace %s", what, right, namespace)
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
