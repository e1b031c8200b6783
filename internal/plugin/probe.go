package plugin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/read"
	"github.com/external-backend/operator/internal/translate"
	"github.com/external-backend/operator/internal/view"
)

const (
	// maxProbes bounds the endpoints that one call probes, and maxProbesAtOnce those at a time.
	maxProbes       = 100
	maxProbesAtOnce = 8
	// resolveTime is how long names may take to resolve.
	resolveTime = 10 * time.Second
)

// probeCommand is the command `probe`.
type probeCommand struct {
	manager managerFlags
	files   []string
	target  string
	despite bool
	limit   time.Duration
	format  string
}

func newProbeCommand(p *plugin) *cobra.Command {
	var o probeCommand
	command := &cobra.Command{
		Use:   "probe NAME [TARGET] | -f FILE [TARGET]",
		Short: "Check the targets of an ExternalBackend once, from this machine",
		Long: `Check the targets of an ExternalBackend once, from this machine.

It resolves names, connects and asks as spec.healthCheck says, by the code of the manager, and times each
step. The manager checks from elsewhere, so its verdict may differ; it stands beside. What policy refuses
is not probed. Certificates and keys are read if you may read their Secrets and ConfigMaps.

It exits with 2 if a check fails, and with 1 if something could not be checked.`,
		Example: `  # Is this target healthy, seen from here?
  kubectl external-backend probe orders-db primary

  # Would the targets of a manifest be healthy?
  kubectl external-backend probe -f orders-db.yaml`,
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: p.completeTarget,
		RunE: func(command *cobra.Command, args []string) error {
			if len(o.files) == 0 && len(args) == 0 {
				return errors.New("a name, or -f with a file, must say which ExternalBackend to probe")
			}
			return p.probe(command.Context(), &o, args)
		},
	}
	flags := command.Flags()
	flags.StringArrayVarP(&o.files, "filename", "f", nil, "File with ExternalBackends; - is the standard input.")
	flags.BoolVar(&o.despite, "despite-policy", false, "Probe also what policy refuses.")
	flags.DurationVar(&o.limit, "timeout", time.Minute, "How long all probes together may take.")
	o.manager.add(flags)
	addOutputFlag(command, &o.format)
	return command
}

// probe runs `probe`.
func (p *plugin) probe(ctx context.Context, o *probeCommand, args []string) error {
	c, err := p.client()
	if err != nil {
		return err
	}
	namespace, err := p.namespace()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()

	backends, err := p.backendsToProbe(ctx, c, o, namespace, &args)
	if err != nil {
		return err
	}
	if len(args) > 1 {
		return errors.New("with -f at most one argument, a target, may follow")
	}
	if len(args) > 0 {
		o.target = args[0]
	}
	var reports []*probeReport
	for _, objects := range backends {
		report, err := p.probeBackend(ctx, c, o, objects)
		if err != nil {
			b := objects.Backend
			return fmt.Errorf("ExternalBackend %q in namespace %q: %w", b.Name, b.Namespace, err)
		}
		reports = append(reports, report)
	}
	return p.printProbes(reports, o.format)
}

// backendsToProbe reads the ExternalBackends: those of the files, or that of the first argument,
// which it removes.
func (p *plugin) backendsToProbe(
	ctx context.Context, c client.Client, o *probeCommand, namespace string, args *[]string,
) ([]*view.Objects, error) {
	if len(o.files) == 0 {
		key := types.NamespacedName{Namespace: namespace, Name: (*args)[0]}
		objects, err := read.Backend(ctx, c, key.Namespace, key.Name)
		if err != nil {
			return nil, read.DescribeError(err, key)
		}
		*args = (*args)[1:]
		return []*view.Objects{objects}, nil
	}

	documents, err := p.readDocuments(o.files)
	if err != nil {
		return nil, err
	}
	var out []*view.Objects
	for i, document := range documents {
		kind, name, err := kindOf(document)
		switch {
		case err != nil:
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		case kind != "ExternalBackend" || name == "":
			continue // a manifest may hold other objects, too
		}
		b := &v1alpha1.ExternalBackend{}
		if err := yaml.Unmarshal(document, b); err != nil {
			return nil, fmt.Errorf("document %d, ExternalBackend %q: %w", i+1, name, err)
		}
		if b.Namespace == "" {
			b.Namespace = namespace
		}
		objects := read.Objects(ctx, c, b)
		var live v1alpha1.ExternalBackend
		if err := c.Get(ctx, client.ObjectKeyFromObject(b), &live); err == nil {
			b.Status = live.Status
		}
		out = append(out, objects)
	}
	if len(out) == 0 {
		return nil, errors.New("the files hold no ExternalBackend of " + v1alpha1.GroupVersion.String())
	}
	return out, nil
}

// probeBackend probes the targets of one ExternalBackend.
func (p *plugin) probeBackend(
	ctx context.Context, c client.Client, o *probeCommand, objects *view.Objects,
) (*probeReport, error) {
	planner, err := newProbePlanner(objects, o.target, p.now())
	if err != nil {
		return nil, err
	}
	r := &policyReader{Reader: c}
	if err := planner.judge(ctx, r, &o.manager, o.despite); err != nil {
		return nil, err
	}
	references := readCredentials(ctx, c, planner.spec)
	planner.resolve(ctx, references)
	probes := planner.plan()

	report := planner.report
	report.Notes = append(report.Notes, r.notes...)
	report.Notes = append(report.Notes, references.problems...)
	if references.check.Missing {
		report.Unchecked += len(probes)
		return report, nil
	}
	if more := len(probes) - maxProbes; more > 0 {
		report.Notes = append(report.Notes, fmt.Sprintf("%d more endpoints are not probed; name a target", more))
		report.Unchecked += more
		probes = probes[:maxProbes]
	}
	endpoints, _ := translate.ProbeEndpoints(probes)
	traces := runProbes(ctx, translate.HealthCheck(planner.spec.Spec.HealthCheck, references.check), endpoints)
	managers := newManagerVerdicts(objects)
	for i := range traces {
		report.Probes = append(report.Probes, newProbeResult(&endpoints[i], &traces[i], managers))
	}
	return report, nil
}

// runProbes runs one probe of each endpoint, a few at a time.
func runProbes(ctx context.Context, check *probe.Check, endpoints []probe.Endpoint) []probe.Trace {
	traces := make([]probe.Trace, len(endpoints))
	places := make(chan struct{}, maxProbesAtOnce)
	var group sync.WaitGroup
	for i := range endpoints {
		places <- struct{}{}
		group.Go(func() {
			defer func() { <-places }()
			traces[i] = probe.Run(ctx, check, endpoints[i])
		})
	}
	group.Wait()
	return traces
}

// printProbes prints the reports, and returns the error that makes the exit code.
func (p *plugin) printProbes(reports []*probeReport, format string) error {
	err := p.output(format, reports, func() error {
		for _, r := range reports {
			r.write(p.Out)
		}
		return nil
	})
	if err != nil {
		return err
	}
	unchecked := 0
	for _, r := range reports {
		if r.fails() {
			return errFinding
		}
		unchecked += r.unchecked()
	}
	if unchecked > 0 {
		return fmt.Errorf("%d endpoints or targets could not be checked", unchecked)
	}
	return nil
}
