package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/read"
	"github.com/external-backend/operator/internal/view"
)

// statusOptions are the flags of `status`.
type statusOptions struct {
	name          string
	allNamespaces bool
	watch         bool
	all           bool
	format        string
	// managerNamespace is where the Leases of the replicas are.
	managerNamespace string
}

func newStatusCommand(p *plugin) *cobra.Command {
	var o statusOptions
	command := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show on one screen where traffic goes, and why",
		Long: `Show on one screen where the traffic of an ExternalBackend goes: tiers, targets worst first, what names
resolve to, slices, policy, overrides and the last events. Without NAME it lists ExternalBackends, worst first.

With NAME it exits with 2 unless the ExternalBackend is Healthy. The list exits with 0 whatever it shows, and so does
--watch when it is interrupted.`,
		Example: `  kubectl external-backend status shop
  kubectl external-backend status -A --watch`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: p.completeNames,
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.name = args[0]
			}
			return p.status(command.Context(), o)
		},
	}
	flags := command.Flags()
	flags.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "List the ExternalBackends of all namespaces.")
	flags.BoolVarP(&o.watch, "watch", "w", false, "Show it again whenever it changes, until Ctrl-C.")
	flags.BoolVar(&o.all, "all", false, "Show all rows, and not just those that fit on a screen.")
	flags.StringVar(&o.managerNamespace, "manager-namespace", "external-backend-system",
		"Where the replicas of the manager run, of which one works for an ExternalBackend.")
	utilruntime.Must(command.RegisterFlagCompletionFunc("manager-namespace", p.completeNamespaces))
	addOutputFlag(command, &o.format)
	return command
}

// status runs the command `status`.
func (p *plugin) status(ctx context.Context, o statusOptions) error {
	switch {
	case o.name != "" && o.allNamespaces:
		return errors.New("NAME and --all-namespaces exclude each other; choose a namespace by --namespace")
	case o.watch && o.format != "":
		return errors.New("--watch writes a text for people, and has no --output")
	}
	namespace, err := p.namespace()
	if err != nil {
		return err
	}
	c, err := p.client()
	if err != nil {
		return err
	}

	switch {
	case o.name != "" && o.watch:
		return p.watchBackend(ctx, c, types.NamespacedName{Namespace: namespace, Name: o.name}, o)
	case o.name != "":
		return p.showBackend(ctx, c, types.NamespacedName{Namespace: namespace, Name: o.name}, o)
	case o.allNamespaces:
		namespace = ""
	}
	if o.watch {
		return p.watchList(ctx, c, namespace, o)
	}
	return p.showList(ctx, c, namespace, o)
}

// showBackend prints one ExternalBackend.
func (p *plugin) showBackend(ctx context.Context, c client.Client, key types.NamespacedName, o statusOptions) error {
	objects, err := read.Backend(ctx, c, key.Namespace, key.Name)
	if err != nil {
		return read.DescribeError(err, key)
	}
	b := view.Build(objects)
	p.findReplica(ctx, c, o.managerNamespace, &b)
	err = p.output(o.format, b, func() error {
		s := p.newScreen(o.all)
		s.writeBackend(&b)
		_, err := s.WriteTo(p.Out)
		return err
	})
	if err == nil && b.State != view.StateHealthy {
		err = errFinding
	}
	return err
}

// showList prints the ExternalBackends of a namespace; "" for all.
func (p *plugin) showList(ctx context.Context, c client.Client, namespace string, o statusOptions) error {
	var rows []view.Row
	err := read.Pages(ctx, c, func() *v1alpha1.ExternalBackendList { return &v1alpha1.ExternalBackendList{} },
		func(page *v1alpha1.ExternalBackendList) bool {
			for i := range page.Items {
				rows = append(rows, view.BuildRow(&page.Items[i]))
			}
			return true
		}, client.InNamespace(namespace))
	if err != nil {
		return describeListError(err, namespace)
	}

	view.SortRows(rows)
	return p.output(o.format, rows, func() error {
		s := p.newScreen(true)
		s.writeRows(rows, namespace)
		_, err := s.WriteTo(p.Out)
		return err
	})
}

// describeListError says why the ExternalBackends of a namespace could not be listed.
func describeListError(err error, namespace string) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	return fmt.Errorf("you may not list externalbackends.external-backend.io in %s",
		cmp.Or(namespacePhrase(namespace), "all namespaces"))
}

// namespacePhrase names a namespace; "" for all.
func namespacePhrase(namespace string) string {
	if namespace == "" {
		return ""
	}
	return "namespace " + namespace
}

// writeRows writes the list of ExternalBackends of a namespace; "" for all.
func (s *screen) writeRows(rows []view.Row, namespace string) {
	if len(rows) == 0 {
		s.linef("There is no ExternalBackend in %s.", cmp.Or(namespacePhrase(namespace), "any namespace"))
		return
	}
	t := &table{header: []string{"NAMESPACE", "NAME", "STATE", "READY", "TIER", "OVERRIDE", "SERVICE", "AGE", "WHY"}}
	shown := s.bound(len(rows), fewRows)
	for i := range rows[:shown] {
		r := &rows[i]
		where := ""
		if namespace == "" {
			where = r.Namespace
		}
		tier := ""
		if r.ActiveTier != nil {
			tier = strconv.Itoa(int(*r.ActiveTier))
		}
		t.add(cell{where, plain}, cell{r.Name, plain}, cell{string(r.State), stateStyles[r.State]},
			cell{r.Ready, plain}, cell{tier, plain}, cell{r.Override, warn}, cell{r.Service, plain},
			cell{s.ago(&r.Created), faint}, cell{r.Why, plain})
	}
	t.writeTo(s)
	s.more(len(rows), shown, "ExternalBackends, none of them worse")

	counts := map[view.State]int{}
	for i := range rows {
		counts[rows[i].State]++
	}
	var parts []string
	for _, state := range view.StatesWorstFirst {
		if counts[state] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[state], state))
		}
	}
	s.linef("\n%s: %s", counted(len(rows), "ExternalBackend"), firstFew(parts, len(parts)))
}

// fewRows is how many ExternalBackends fit on a screen that shows itself again and again.
const fewRows = 30

// equalRows reports whether two lists show the same.
func equalRows(a, b []view.Row) bool {
	return slices.EqualFunc(a, b, func(x, y view.Row) bool { return x.Equal(&y) })
}
