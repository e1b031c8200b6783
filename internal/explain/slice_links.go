package explain

import (
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
)

// This file has the links about what is published: serving, terminating, ready and slice.

const notPublished = "No slice publishes it."

// serving shows the formula of the condition serving.
func (e *explainer) serving() Link {
	l := Link{ID: LinkServing, Title: "Is it serving?"}
	if !e.formula(&l, func(c *publishedEndpoint) bool { return c.Serving }) {
		return l
	}
	p := e.published
	why := fmt.Sprintf("healthy is %t", p.Healthy)
	if active := e.Backend.Status.ActiveTier; active != nil {
		why += fmt.Sprintf(", and in the active tier is %t", *active == p.Tier)
	} else {
		why += ", and no tier is active"
	}
	l.say("serving = fail-open, or healthy and in the active tier: %t, because %s.", p.Serving, why)
	if p.Serving && !p.Healthy {
		l.say("It fails open: whenNoTierQualifies is %s.", e.Backend.Spec.Failover.EffectiveWhenNoTierQualifies())
	}
	return l
}

// terminating shows the formula of the condition terminating. The answer is "yes" if the endpoint
// stays.
func (e *explainer) terminating() Link {
	l := Link{ID: LinkTerminating, Title: "Does it stay (not terminating)?"}
	if !e.formula(&l, func(p *publishedEndpoint) bool { return !p.Terminating }) {
		return l
	}
	why := "it is neither"
	switch {
	case e.published.Leaving():
		why = "its address has left spec or DNS, and drains" + untilText(e.published.DrainUntil)
	case e.published.Terminating && e.target == nil:
		why = "its address has left spec or DNS, or its target is Draining"
	case e.published.Terminating:
		why = fmt.Sprintf("adminState is %s", e.adminState())
	}
	l.say("terminating = its target is Draining, or it is inside drainSeconds: %t, because %s.", e.published.Terminating, why)
	return l
}

// ready shows the formula of the condition ready.
func (e *explainer) ready() Link {
	l := Link{ID: LinkReady, Title: "Is it ready?"}
	if !e.formula(&l, func(p *publishedEndpoint) bool { return p.Ready }) {
		return l
	}
	p := e.published
	l.say("ready = publishNotReadyAddresses, or serving and not terminating: %t, because serving is %t and terminating is %t.",
		p.Ready, p.Serving, p.Terminating)
	if p.Ready && (!p.Serving || p.Terminating) {
		l.say("The Service has publishNotReadyAddresses, or another publisher hands it over.")
	}
	return l
}

// formula sets the answer of a link about a condition of the endpoint. It reports whether the
// endpoint is published and has conditions.
func (e *explainer) formula(l *Link, holds func(*publishedEndpoint) bool) bool {
	switch {
	case e.published == nil:
		l.Answer = Unknown
		l.say("%s", e.whyNoSlice())
		return false
	case holds(e.published):
		l.Answer = Yes
	default:
		l.Answer = No
	}
	return true
}

// whyNoSlice says that no slice has the endpoint, or that the slices were not read.
func (e *explainer) whyNoSlice() string {
	if e.SlicesUnread != "" {
		return "The slices are unknown: " + e.SlicesUnread + "."
	}
	return notPublished
}

// slice names the slice that publishes the endpoint.
func (e *explainer) slice() Link {
	l := Link{ID: LinkSlice, Title: "Does an EndpointSlice publish it?", Answer: Yes}
	programmed := e.condition(v1alpha1.ConditionProgrammed)
	switch {
	case plan.ServiceType(e.Backend) == v1alpha1.ServiceTypeExternalName:
		l.say("A Service of type ExternalName has no slices: it is an alias.")
	case e.published != nil:
		p := e.published
		l.say("EndpointSlice %q says ready %t, serving %t, terminating %t, for %s.",
			p.slice.Name, p.Ready, p.Serving, p.Terminating, describePorts(p.slice.Ports))
		e.sayMissingPorts(&l)
	case e.SlicesUnread != "":
		l.Answer = Unknown
		l.say("%s", e.whyNoSlice())
	default:
		l.Answer = No
		l.say("%s", notPublished)
	}
	l.sayCondition(programmed)
	if programmed != nil && programmed.Status != "True" {
		l.Reason, l.Hint = programmed.Reason, hints[programmed.Reason]
	}
	if stalled := e.condition(v1alpha1.ConditionStalled); stalled != nil {
		l.sayCondition(stalled)
	}
	return l
}

// sayMissingPorts names the ports of spec that the slice lacks.
func (e *explainer) sayMissingPorts(l *Link) {
	if e.published.slice.AddressType == discoveryv1.AddressTypeFQDN {
		return
	}
	for i := range e.Backend.Spec.Ports {
		port := &e.Backend.Spec.Ports[i]
		found := slices.ContainsFunc(e.published.Ports, func(p plan.Port) bool { return p.Name == port.Name })
		if !found {
			l.say("It lacks port %q of spec.ports.", port.Name)
		}
	}
}

func describePorts(ports []discoveryv1.EndpointPort) string {
	var out []string
	for i := range ports {
		p := &ports[i]
		if p.Name == nil || p.Port == nil {
			continue
		}
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %d", *p.Name, *p.Port)))
	}
	return "port " + plan.FirstFew(out, 4)
}
