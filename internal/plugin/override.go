package plugin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/read"
	"github.com/external-backend/operator/internal/view"
)

// overrideOptions are the flags of `pin`, `drain`, `disable` and `resume`.
type overrideOptions struct {
	period  time.Duration
	until   string
	yes     bool
	dryRun  bool
	all     bool
	timeout time.Duration
	format  string
}

// overrideResult is what these commands print as JSON or YAML.
type overrideResult struct {
	Override string `json:"override"`
	// Effect says for people what the override sets.
	Effect string `json:"effect"`
	DryRun bool   `json:"dryRun,omitempty"`
	// Prediction is nil if it is not known what changes. Unknown is then why.
	Prediction *view.Prediction `json:"prediction,omitempty"`
	Unknown    string           `json:"unknown,omitempty"`
}

func newPinCommand(p *plugin) *cobra.Command {
	return newMoveCommand(p, &cobra.Command{
		Use:   "pin NAME TIER",
		Short: "Make a tier active for a time, whatever its health",
		Example: `  kubectl external-backend pin orders-db 1 --for 2h
  kubectl external-backend pin orders-db 1 --until 08:00 --dry-run`,
		Args: cobra.ExactArgs(2),
	}, func(args []string) (v1alpha1.ExternalBackendOverrideSpec, error) {
		tier, err := strconv.ParseInt(args[1], 10, 32)
		if err != nil || tier < 0 || tier > 127 {
			return v1alpha1.ExternalBackendOverrideSpec{}, fmt.Errorf("TIER: %q must be a number from 0 to 127", args[1])
		}
		return v1alpha1.ExternalBackendOverrideSpec{PinnedTier: new(int32(tier))}, nil
	})
}

func newDrainCommand(p *plugin) *cobra.Command {
	return newMoveCommand(p, &cobra.Command{
		Use:     "drain NAME TARGET...",
		Short:   "Give targets no new connections for a time",
		Example: "  kubectl external-backend drain orders-db primary --for 2h",
		Args:    cobra.MinimumNArgs(2),
	}, setsAdminState(v1alpha1.AdminStateDraining))
}

func newDisableCommand(p *plugin) *cobra.Command {
	return newMoveCommand(p, &cobra.Command{
		Use:     "disable NAME TARGET...",
		Short:   "Neither publish nor probe targets for a time",
		Example: "  kubectl external-backend disable orders-db primary --for 2h",
		Args:    cobra.MinimumNArgs(2),
	}, setsAdminState(v1alpha1.AdminStateDisabled))
}

// setsAdminState returns a function that sets the adminState of the targets that arguments name.
func setsAdminState(state v1alpha1.AdminState) func([]string) (v1alpha1.ExternalBackendOverrideSpec, error) {
	return func(args []string) (v1alpha1.ExternalBackendOverrideSpec, error) {
		names := slices.Compact(slices.Sorted(slices.Values(args[1:])))
		if len(names) > maxOverrideTargets {
			return v1alpha1.ExternalBackendOverrideSpec{},
				fmt.Errorf("TARGET: %d targets are more than the %d that an override can name", len(names), maxOverrideTargets)
		}
		var spec v1alpha1.ExternalBackendOverrideSpec
		for _, name := range names {
			spec.Targets = append(spec.Targets, v1alpha1.TargetOverride{Name: name, AdminState: state})
		}
		return spec, nil
	}
}

// maxOverrideTargets is how many targets the schema lets an override name.
const maxOverrideTargets = 64

// newMoveCommand completes a command that creates an override. spec makes its spec from arguments.
func newMoveCommand(
	p *plugin, command *cobra.Command, spec func(args []string) (v1alpha1.ExternalBackendOverrideSpec, error),
) *cobra.Command {
	var o overrideOptions
	command.Long = command.Short + `.

It creates an ExternalBackendOverride, which ends by itself and leaves the spec alone. It shows first what will change,
asks on a terminal, and waits until the override is in force. ` + "`resume`" + ` ends it.`
	command.ValidArgsFunction = p.completeTargets
	if strings.HasPrefix(command.Use, "pin ") {
		command.ValidArgsFunction = p.completeTiers
	}
	command.RunE = func(command *cobra.Command, args []string) error {
		wanted, err := spec(args)
		if err != nil {
			return err
		}
		end, err := endOf(&o, p.now())
		if err != nil {
			return err
		}
		wanted.ExternalBackendRef.Name, wanted.ExpirationTime = args[0], metav1.NewTime(end)
		return p.move(command.Context(), wanted, o)
	}
	flags := command.Flags()
	flags.Var((*period)(&o.period), "for", "How long it holds, such as 30m, 2h or 3d; 7d at most.")
	flags.StringVar(&o.until, "until", "",
		"Until when it holds: a time such as 2026-12-01T10:00:00Z, or a time of day here such as 08:00.")
	addConfirmFlags(command, &o)
	return command
}

func newResumeCommand(p *plugin) *cobra.Command {
	var o overrideOptions
	command := &cobra.Command{
		Use:   "resume NAME",
		Short: "End the override that is applied, and let health choose again",
		Long: `End the override that is applied, and let health choose again.

It deletes the ExternalBackendOverride. If another one waits for its turn, that one is applied then; --all deletes
every override of the ExternalBackend. It shows first what will change, asks on a terminal, and waits until it is so.`,
		Example:           "  kubectl external-backend resume orders-db",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: p.completeNames,
		RunE: func(command *cobra.Command, args []string) error {
			return p.resume(command.Context(), args[0], o)
		},
	}
	command.Flags().BoolVar(&o.all, "all", false, "End every override of the ExternalBackend.")
	addConfirmFlags(command, &o)
	return command
}

// addConfirmFlags adds the flags that all commands have that change traffic.
func addConfirmFlags(command *cobra.Command, o *overrideOptions) {
	flags := command.Flags()
	flags.BoolVarP(&o.yes, "yes", "y", false, "Do it without asking. Wanted where nobody can be asked.")
	flags.BoolVar(&o.dryRun, "dry-run", false, "Only show what would change; the API server checks the override.")
	flags.DurationVar(&o.timeout, "timeout", 30*time.Second, "How long to wait until it is in force.")
	addOutputFlag(command, &o.format)
}

// move creates an override.
func (p *plugin) move(ctx context.Context, spec v1alpha1.ExternalBackendOverrideSpec, o overrideOptions) error {
	c, objects, err := p.readForOverride(ctx, spec.ExternalBackendRef.Name, &o)
	if err != nil {
		return err
	}
	change, err := planMove(objects, spec, p.now())
	if err != nil {
		return err
	}
	return p.carryOut(ctx, c, change, o)
}

// resume deletes the applied override, or all.
func (p *plugin) resume(ctx context.Context, name string, o overrideOptions) error {
	c, objects, err := p.readForOverride(ctx, name, &o)
	if err != nil {
		return err
	}
	change, err := planResume(objects, o.all, p.now())
	if err != nil {
		return err
	}
	return p.carryOut(ctx, c, change, o)
}

// carryOut shows a change, asks, makes it, and waits until it is so.
func (p *plugin) carryOut(ctx context.Context, c client.Client, change *overrideChange, o overrideOptions) error {
	change.DryRun = o.dryRun
	if err := p.confirm(change.headline, &change.overrideResult, o); err != nil {
		return err
	}
	if err := change.apply(ctx, c, o.dryRun); err != nil {
		return err
	}
	if o.dryRun {
		return p.reportOverride("Nothing is changed: this is a dry run.", &change.overrideResult, o)
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	if err := change.wait(ctx, c); err != nil {
		return err
	}
	return p.reportOverride(change.outcome, &change.overrideResult, o)
}

// readForOverride reads what a command needs that changes traffic.
func (p *plugin) readForOverride(
	ctx context.Context, name string, o *overrideOptions,
) (client.WithWatch, *view.Objects, error) {
	if err := checkFormat(o.format); err != nil {
		return nil, nil, err
	}
	if !o.yes && !o.dryRun && !isTerminal(p.In) {
		return nil, nil, errors.New("--yes is wanted, because nobody can be asked here")
	}
	namespace, err := p.namespace()
	if err != nil {
		return nil, nil, err
	}
	c, err := p.client()
	if err != nil {
		return nil, nil, err
	}
	key := client.ObjectKey{Namespace: namespace, Name: name}
	objects, err := read.Backend(ctx, c, namespace, name)
	if err != nil {
		return nil, nil, read.DescribeError(err, key)
	}
	return c, objects, nil
}

// predict adds what will change, or why that is not known.
func (r *overrideResult) predict(o *view.Objects, overrides []v1alpha1.ExternalBackendOverride, now time.Time) {
	prediction, err := view.Predict(o, overrides, now)
	if err != nil {
		r.Unknown = err.Error()
		return
	}
	r.Prediction = prediction
}

// confirm shows what will change, and asks on a terminal.
func (p *plugin) confirm(headline string, result *overrideResult, o overrideOptions) error {
	out := p.Out
	if o.format != "" {
		out = p.ErrOut // the output is for programs
	}
	s := &screen{colours: hasColours(out), now: p.now()}
	s.linef("%s", s.styled(bold, headline))
	s.writePrediction(result)
	if _, err := s.WriteTo(out); err != nil {
		return err
	}
	if o.yes || o.dryRun {
		return nil
	}

	fmt.Fprint(p.ErrOut, "\nDo it? [y/N] ")
	answer, err := bufio.NewReader(p.In).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New("nothing is changed, as you wish")
	}
	return nil
}

// writePrediction writes which targets get traffic before and after.
func (s *screen) writePrediction(r *overrideResult) {
	if r.Prediction == nil {
		s.linef("It is unknown what changes: %s.", printable(r.Unknown))
		return
	}
	n := r.Prediction
	if before, after := tierText(n.TierBefore), tierText(n.TierAfter); before != after {
		s.linef("Active tier: %s, then %s.", before, after)
	} else {
		s.linef("Active tier: %s, as before.", before)
	}
	if n.Within.Duration > 0 {
		s.linef("It returns to the better tier within %s (spec.failover.failbackDelaySeconds).",
			duration.HumanDuration(n.Within.Duration))
	}
	t := &table{header: []string{"TARGET", "TIER", "READY NOW", "READY THEN"}}
	shown := s.bound(len(n.Targets), fewTargets)
	for _, target := range n.Targets[:shown] {
		look := good
		if target.ReadyAfter < target.ReadyBefore {
			look = warn
		}
		t.add(cell{target.Target, plain}, cell{strconv.Itoa(int(target.Tier)), plain},
			cell{fmt.Sprintf("%d/%d", target.ReadyBefore, target.TotalBefore), plain},
			cell{fmt.Sprintf("%d/%d", target.ReadyAfter, target.TotalAfter), look})
	}
	s.section(t)
	if more := len(n.Targets) - shown; more > 0 {
		s.linef("... and %d more targets", more)
	}
	s.linef("\nReady endpoints: %d, then %d.", n.ReadyBefore, n.ReadyAfter)
	if n.ReadyAfter == 0 {
		s.linef("%s", s.styled(bad, "No endpoint will be ready. Traffic fails, or goes to draining endpoints as a last resort."))
	}
}

// tierText names a tier.
func tierText(tier *int32) string {
	if tier == nil {
		return "none"
	}
	return strconv.Itoa(int(*tier))
}

// reportOverride says what has become of it.
func (p *plugin) reportOverride(text string, result *overrideResult, o overrideOptions) error {
	return p.output(o.format, result, func() error {
		_, err := fmt.Fprintln(p.Out, printable(text))
		return err
	})
}
