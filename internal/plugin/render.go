package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/read"
	"github.com/external-backend/operator/internal/render"
	"github.com/external-backend/operator/internal/view"
)

// renderOptions are the flags of render.
type renderOptions struct {
	file          string
	diff, healthy bool
	families      []string
	maxPerSlice   int
	format        string
}

func newRenderCommand(p *plugin) *cobra.Command {
	var o renderOptions
	command := &cobra.Command{
		Use:   "render NAME | render -f FILE",
		Short: "Print the Service and the EndpointSlices that the manager would write",
		Long: `Print the Service and the EndpointSlices that the manager would write.

With NAME it plans as a manager that has just started: verdicts, tier and addresses of names are those that status and
slices show. With -f it asks no cluster: no target has been checked, no name is resolved, and policy and the rules of
the API server are not asked. With -f and --diff it takes what the cluster knows, and the spec of the file.
What was assumed is said on stderr.

With --diff it exits with 2 if something differs.`,
		Example: `  # What would this manifest become?
  kubectl external-backend render -f orders-db.yaml --assume-healthy

  # What would change if it was applied?
  kubectl external-backend render -f orders-db.yaml --diff

  # Does everything stand as planned?
  kubectl external-backend render orders-db --diff`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: p.completeNames,
		RunE: func(command *cobra.Command, args []string) error {
			if (len(args) == 1) == (o.file != "") {
				return errors.New("render wants either the NAME of an ExternalBackend or -f FILE")
			}
			return p.render(command.Context(), args, &o)
		},
	}
	flags := command.Flags()
	flags.StringVarP(&o.file, "filename", "f", "", "File with ExternalBackends; - is the standard input.")
	flags.BoolVar(&o.diff, "diff", false, "Print what differs from what stands in the cluster.")
	flags.BoolVar(&o.healthy, "assume-healthy", false, "Assume that every endpoint is healthy.")
	flags.StringSliceVar(&o.families, "ip-families", []string{"IPv4"},
		"IP families that the API server gives to a Service whose spec does not name them.")
	flags.IntVar(&o.maxPerSlice, "max-endpoints-per-slice", render.DefaultMaxPerSlice, "That flag of the manager.")
	flags.StringVarP(&o.format, "output", "o", "yaml", "Output format: json or yaml.")
	utilruntime.Must(command.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(
		[]string{"json", "yaml"}, cobra.ShellCompDirectiveNoFileComp)))
	return command
}

// rendering is what is rendered of one ExternalBackend.
type rendering struct {
	input   render.Input
	planned *render.Result
}

// render renders one ExternalBackend of the cluster, or all of a file.
func (p *plugin) render(ctx context.Context, args []string, o *renderOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	inputs, err := p.renderInputs(ctx, args, o)
	if err != nil {
		return err
	}

	var live, planned []render.Document
	for i := range inputs {
		result, err := render.Render(inputs[i])
		if err != nil {
			return fmt.Errorf("ExternalBackend %q: %w", inputs[i].Backend.Name, err)
		}
		for _, remark := range result.Remarks {
			fmt.Fprintln(p.ErrOut, "note:", remark)
		}
		before, after, err := documentsOf(&rendering{inputs[i], result})
		if err != nil {
			return err
		}
		live, planned = append(live, before...), append(planned, after...)
	}
	if o.diff {
		return p.printDiff(live, planned)
	}
	return p.printDocuments(planned, o.format)
}

// check checks the flags.
func (o *renderOptions) check() error {
	if o.maxPerSlice < 1 || o.maxPerSlice > 1000 {
		return fmt.Errorf("--max-endpoints-per-slice: %d must be 1 to 1000", o.maxPerSlice)
	}
	if len(o.families) == 0 {
		return errors.New("--ip-families: name IPv4, IPv6 or both")
	}
	for _, f := range o.families {
		if f != string(corev1.IPv4Protocol) && f != string(corev1.IPv6Protocol) {
			return fmt.Errorf("--ip-families: %q must be IPv4 or IPv6", f)
		}
	}
	if o.format != "json" && o.format != "yaml" {
		return fmt.Errorf("--output: %q must be json or yaml", o.format)
	}
	return nil
}

// documentsOf returns what stands and what is planned.
func documentsOf(r *rendering) (live, planned []render.Document, err error) {
	service := r.input.Service
	if r.planned.Service == nil { // somebody else's
		service = nil
	}
	if live, err = render.Documents(service, render.Apply(endpointslice.Changes{}, r.input.Slices)); err != nil {
		return nil, nil, err
	}
	planned, err = render.Documents(r.planned.Service, r.planned.Slices)
	return live, planned, err
}

// printDiff prints what differs. A difference is a finding.
func (p *plugin) printDiff(live, planned []render.Document) error {
	text, err := render.Diff(live, planned)
	if err != nil || text == "" {
		return err
	}
	if _, err := fmt.Fprint(p.Out, text); err != nil {
		return err
	}
	return errFinding
}

// printDocuments prints YAML documents, or a List as JSON.
func (p *plugin) printDocuments(documents []render.Document, format string) error {
	if format == "json" {
		items := make([]any, len(documents))
		for i := range documents {
			items[i] = documents[i].Object
		}
		return p.output(format, map[string]any{"apiVersion": "v1", "kind": "List", "items": items}, nil)
	}
	var texts []string
	for i := range documents {
		text, err := documents[i].YAML()
		if err != nil {
			return err
		}
		texts = append(texts, text)
	}
	_, err := fmt.Fprint(p.Out, strings.Join(texts, "---\n"))
	return err
}

// renderInputs returns an input for each ExternalBackend.
func (p *plugin) renderInputs(ctx context.Context, args []string, o *renderOptions) ([]render.Input, error) {
	namespace, err := p.namespace()
	if err != nil {
		return nil, err
	}
	if len(args) == 1 {
		c, err := p.client()
		if err != nil {
			return nil, err
		}
		objects, err := read.Backend(ctx, c, namespace, args[0])
		if err != nil {
			return nil, err
		}
		in, err := p.clusterInput(objects, o)
		return []render.Input{in}, err
	}

	backends, err := readBackendFile(o.file, p.In, namespace)
	if err != nil {
		return nil, err
	}
	if !o.diff {
		fmt.Fprintln(p.ErrOut, "note: No cluster is asked: not its policy, and not the rules of its API server.")
		if !o.healthy {
			fmt.Fprintln(p.ErrOut, "note: No target has been checked: initialState holds where there is a healthCheck.")
		}
	}
	var out []render.Input
	for _, b := range backends {
		in := p.input(b, o)
		if o.diff {
			if in, err = p.appliedInput(ctx, b, o); err != nil {
				return nil, err
			}
		}
		out = append(out, in)
	}
	return out, nil
}

// input returns an input without anything of a cluster.
func (p *plugin) input(b *v1alpha1.ExternalBackend, o *renderOptions) render.Input {
	in := render.Input{
		Backend: b, MaxPerSlice: o.maxPerSlice, MaxPerBackend: render.DefaultMaxPerBackend, Now: p.now(),
	}
	for _, f := range o.families {
		in.Families = append(in.Families, corev1.IPFamily(f))
	}
	if o.healthy {
		in.State = func(*plan.Probe) plan.ProbeState { return plan.ProbeState{Verdict: plan.Healthy} }
	}
	return in
}

// appliedInput returns the input as if b was applied to the cluster.
func (p *plugin) appliedInput(
	ctx context.Context, b *v1alpha1.ExternalBackend, o *renderOptions,
) (render.Input, error) {
	c, err := p.client()
	if err != nil {
		return render.Input{}, err
	}
	var live v1alpha1.ExternalBackend
	err = c.Get(ctx, client.ObjectKeyFromObject(b), &live)
	switch {
	case apierrors.IsNotFound(err):
		live = *b
	case err != nil:
		return render.Input{}, err
	default:
		live.Spec = b.Spec
	}
	return p.clusterInput(read.Objects(ctx, c, &live), o)
}

// clusterInput returns the input with all that the cluster knows.
func (p *plugin) clusterInput(objects *view.Objects, o *renderOptions) (render.Input, error) {
	b := objects.Backend
	for _, part := range []view.Part{view.PartService, view.PartSlices, view.PartOverrides, view.PartSiblings} {
		if part == view.PartOverrides && b.Status.Override == "" {
			continue
		}
		if unread := objects.WhyUnread(part); unread != nil {
			return render.Input{}, fmt.Errorf("what would be written is unknown without %s: %s", part, unread.Why)
		}
	}
	c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionProgrammed)
	if c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonServiceConflict &&
		c.ObservedGeneration == b.Generation {
		return render.Input{}, fmt.Errorf("the manager writes no slices of ExternalBackend %q: %s", b.Name, c.Message)
	}

	in := p.input(b, o)
	in.Overrides, in.Service, in.Slices = objects.Overrides, objects.Service, objects.OwnSlices()
	for i := range objects.Siblings {
		sibling := &objects.Siblings[i]
		theirs := view.Objects{Backend: sibling, Slices: objects.Slices}
		in.Siblings = append(in.Siblings, plan.Sibling{
			Name: sibling.Name, Older: plan.IsOlder(sibling, b),
			Endpoints: endpointslice.Published(behind(theirs.OwnSlices(), b.EffectiveServiceName())).Endpoints(),
		})
	}
	return in, nil
}

// behind returns the slices of a Service.
func behind(list []*discoveryv1.EndpointSlice, service string) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, s := range list {
		if s.Labels[discoveryv1.LabelServiceName] == service {
			out = append(out, s)
		}
	}
	return out
}
