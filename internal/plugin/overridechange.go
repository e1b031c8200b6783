package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/view"
)

// overrideChange is what a command, or the page, is about to do with overrides.
type overrideChange struct {
	overrideResult
	headline string // what is done
	outcome  string // what is so once it is done

	backend *v1alpha1.ExternalBackend
	create  *v1alpha1.ExternalBackendOverride // nil to end overrides
	end     []v1alpha1.ExternalBackendOverride
}

// planMove plans to create an override with that spec.
func planMove(
	o *view.Objects, spec v1alpha1.ExternalBackendOverrideSpec, now time.Time,
) (*overrideChange, error) {
	override := newOverride(o.Backend, spec, now)
	if err := view.CheckOverride(o, override, now); err != nil {
		return nil, err
	}
	if applied := o.Backend.Status.Override; applied != "" && o.WhyUnread(view.PartOverrides) != nil {
		return nil, fmt.Errorf("ExternalBackendOverride %q is applied, and a younger one would wait for its end", applied)
	}

	effect := plan.DescribeOverride(&spec)
	change := &overrideChange{
		overrideResult: overrideResult{Override: override.Name, Effect: effect},
		headline: fmt.Sprintf("%s of %s/%s until %s", effect, override.Namespace, o.Backend.Name,
			endText(override.EndTime(), now)),
		outcome: fmt.Sprintf("ExternalBackendOverride %q is in force.", override.Name),
		backend: o.Backend, create: override,
	}
	change.predict(o, append(slices.Clip(o.Overrides), *override), now)
	return change, nil
}

// planResume plans to end the applied override, or all.
func planResume(o *view.Objects, all bool, now time.Time) (*overrideChange, error) {
	if unread := o.WhyUnread(view.PartOverrides); unread != nil {
		return nil, errors.New(unread.Why)
	}
	change := &overrideChange{backend: o.Backend}
	var left []v1alpha1.ExternalBackendOverride
	var names, effects []string
	for _, override := range o.Overrides {
		applied := override.Name == o.Backend.Status.Override
		if !applied && (!all || !override.EndTime().After(now)) {
			left = append(left, override)
			continue
		}
		change.end = append(change.end, override)
		names, effects = append(names, override.Name), append(effects, plan.DescribeOverride(&override.Spec))
	}
	if len(change.end) == 0 {
		return nil, fmt.Errorf("no override of ExternalBackend %q is applied", o.Backend.Name)
	}

	change.Override, change.Effect = strings.Join(names, ","), "end of "+strings.Join(effects, "; ")
	change.headline = fmt.Sprintf("End of %s of %s/%s", strings.Join(effects, "; "), o.Backend.Namespace, o.Backend.Name)
	change.outcome = fmt.Sprintf("%s is ended.", firstFew(names, fewAddresses))
	change.predict(o, left, now)
	return change, nil
}

// apply makes the change, or lets the API server check that it could be made.
func (c *overrideChange) apply(ctx context.Context, to client.Client, dryRun bool) error {
	if c.create != nil {
		return createOverride(ctx, to, c.create, dryRun)
	}
	for i := range c.end {
		if err := deleteOverride(ctx, to, &c.end[i], dryRun); err != nil {
			return err
		}
	}
	return nil
}

// wait waits until the operator has acted on the change.
func (c *overrideChange) wait(ctx context.Context, on client.Client) error {
	if c.create != nil {
		return waitUntilApplied(ctx, on, c.create)
	}
	return waitUntilEnded(ctx, on, client.ObjectKeyFromObject(c.backend), strings.Split(c.Override, ","))
}
