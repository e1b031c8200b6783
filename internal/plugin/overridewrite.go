package plugin

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
)

const (
	// fieldManager is the name under which the plugin writes.
	fieldManager = "kubectl-external-backend"
	// pollPeriod is how often the plugin looks whether the operator has acted.
	pollPeriod = 200 * time.Millisecond
)

// period is a flag with a duration that may be in days.
type period time.Duration

// String returns the duration as text.
func (p *period) String() string {
	if *p == 0 {
		return ""
	}
	return time.Duration(*p).String()
}

// Type names the type of the flag in help texts.
func (*period) Type() string { return "duration" }

// Set reads a duration such as 30m, 2h or 3d.
func (p *period) Set(text string) error {
	d, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n int64
		n, err = strconv.ParseInt(days, 10, 16)
		d = time.Duration(n) * 24 * time.Hour
	}
	if err != nil || d <= 0 || d > v1alpha1.MaxOverrideAge {
		return fmt.Errorf("%q must be a duration such as 30m, 2h or 3d, and 7d at most", text)
	}
	*p = period(d)
	return nil
}

// endOf returns when an override ends, by --for or --until.
func endOf(o *overrideOptions, now time.Time) (time.Time, error) {
	switch {
	case (o.period == 0) == (o.until == ""):
		return time.Time{}, fmt.Errorf("either --for or --until is wanted")
	case o.period > 0:
		return now.Add(o.period), nil
	}

	end, err := time.Parse(time.RFC3339, o.until)
	if err != nil {
		clock, clockErr := time.Parse("15:04", o.until)
		if clockErr != nil {
			return time.Time{}, fmt.Errorf(
				"--until: %q must be a time such as 2026-12-01T10:00:00Z, or a time of day such as 08:00", o.until)
		}
		end = time.Date(now.Year(), now.Month(), now.Day(), clock.Hour(), clock.Minute(), 0, 0, now.Location())
		if !end.After(now) {
			end = time.Date(now.Year(), now.Month(), now.Day()+1, clock.Hour(), clock.Minute(), 0, 0, now.Location())
		}
	}
	switch {
	case !end.After(now):
		return time.Time{}, fmt.Errorf("--until: %q is over", o.until)
	case end.Sub(now) > v1alpha1.MaxOverrideAge:
		return time.Time{}, fmt.Errorf("--until: %q is more than 7 days ahead, and every override ends by then", o.until)
	}
	return end, nil
}

// newOverride returns an override of b with that spec. The owner reference deletes it together with
// b, and shows it below b in trees.
func newOverride(
	b *v1alpha1.ExternalBackend, spec v1alpha1.ExternalBackendOverrideSpec, now time.Time,
) *v1alpha1.ExternalBackendOverride {
	spec.ExternalBackendRef.Name = b.Name
	return &v1alpha1.ExternalBackendOverride{
		ObjectMeta: metav1.ObjectMeta{
			Name: b.Name + "-" + now.UTC().Format("060102150405"), Namespace: b.Namespace,
			CreationTimestamp: metav1.NewTime(now), // the API server sets its own
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "ExternalBackend", Name: b.Name, UID: b.UID,
			}},
		},
		Spec: spec,
	}
}

// createOverride creates an override, or lets the API server check that it could.
func createOverride(
	ctx context.Context, c client.Client, o *v1alpha1.ExternalBackendOverride, dryRun bool,
) error {
	options := []client.CreateOption{client.FieldOwner(fieldManager)}
	if dryRun {
		options = append(options, client.DryRunAll)
	}
	err := c.Create(ctx, o, options...)
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("you may not create externalbackendoverrides.external-backend.io in namespace %s: %w",
			o.Namespace, err)
	}
	return err
}

// deleteOverride deletes an override, or lets the API server check that it could. One that is gone
// already is fine.
func deleteOverride(
	ctx context.Context, c client.Client, o *v1alpha1.ExternalBackendOverride, dryRun bool,
) error {
	options := []client.DeleteOption{client.Preconditions{UID: &o.UID}}
	if dryRun {
		options = append(options, client.DryRunAll)
	}
	err := client.IgnoreNotFound(c.Delete(ctx, o, options...))
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("you may not delete externalbackendoverrides.external-backend.io in namespace %s: %w",
			o.Namespace, err)
	}
	return err
}

// waitUntilApplied waits until the ExternalBackend is subject to an override. It fails if the
// operator refuses the override, and if ctx ends first.
func waitUntilApplied(ctx context.Context, c client.Client, o *v1alpha1.ExternalBackendOverride) error {
	var last string
	err := wait.PollUntilContextCancel(ctx, pollPeriod, true, func(ctx context.Context) (bool, error) {
		var live v1alpha1.ExternalBackendOverride
		if err := c.Get(ctx, client.ObjectKeyFromObject(o), &live); err != nil {
			return false, err
		}
		applied := meta.FindStatusCondition(live.Status.Conditions, v1alpha1.ConditionApplied)
		if applied == nil || live.Status.ObservedGeneration != live.Generation {
			return false, nil
		}
		last = applied.Message
		if applied.Status == metav1.ConditionFalse {
			return false, fmt.Errorf("%s: %s", applied.Reason, applied.Message)
		}
		return applied.Status == metav1.ConditionTrue, nil
	})
	return describeWait(ctx, err, fmt.Sprintf("ExternalBackendOverride %q exists, and is not in force", o.Name), last)
}

// waitUntilEnded waits until the ExternalBackend is subject to none of these overrides.
func waitUntilEnded(ctx context.Context, c client.Client, key client.ObjectKey, names []string) error {
	err := wait.PollUntilContextCancel(ctx, pollPeriod, true, func(ctx context.Context) (bool, error) {
		var b v1alpha1.ExternalBackend
		if err := c.Get(ctx, key, &b); err != nil {
			return false, err
		}
		return !slices.Contains(names, b.Status.Override), nil
	})
	return describeWait(ctx, err, "The overrides are deleted, and status still names one", "")
}

// describeWait says why a wait has failed. state is what is so when its time is over, and last is
// what the operator said last.
func describeWait(ctx context.Context, err error, state, last string) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	if last == "" {
		last = "The operator has not answered. Is it running?"
	}
	return fmt.Errorf("%s yet. %s", state, last)
}

// completeTiers offers the names of ExternalBackends for the first argument, and the tiers of that
// one for the second.
func (p *plugin) completeTiers(
	command *cobra.Command, args []string, word string,
) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return p.completeNames(command, args, word)
	}
	var tiers []string
	for _, t := range p.targetsForCompletion(command, args[0]) {
		tier := strconv.Itoa(int(t.EffectiveTier()))
		if strings.HasPrefix(tier, word) && !slices.Contains(tiers, tier) {
			tiers = append(tiers, tier)
		}
	}
	return tiers, cobra.ShellCompDirectiveNoFileComp
}
