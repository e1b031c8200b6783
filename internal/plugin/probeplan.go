package plugin

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/credentials"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/resolve"
	"github.com/external-backend/operator/internal/translate"
	"github.com/external-backend/operator/internal/view"
)

// probePlanner finds out what to probe, as the manager does, and what must not be probed.
type probePlanner struct {
	objects *view.Objects
	spec    *v1alpha1.ExternalBackend // with its override
	target  string                    // "": all
	now     time.Time
	traits  plan.ServiceTraits
	// view decides, and lookups says which names may be looked up. despite reports whether view counts
	// for nothing.
	view, lookups *policy.View
	despite       bool
	answers       map[string]plan.Answer
	report        *probeReport
}

// newProbePlanner returns an error if there is nothing to probe.
func newProbePlanner(objects *view.Objects, target string, now time.Time) (*probePlanner, error) {
	b := objects.Backend
	if problem := plan.Validate(b, objects.Service); problem != "" {
		return nil, fmt.Errorf("the spec is not valid: %s", problem)
	}
	pl := &probePlanner{
		objects: objects, target: target, now: now,
		spec:   plan.Override(b, true, objects.Overrides, now).Backend,
		traits: plan.ServiceTraits{Families: plan.Families{IPv4: true, IPv6: true}},
		report: &probeReport{Namespace: b.Namespace, Name: b.Name},
	}
	pl.traits.ServesPort = func(*v1alpha1.Port) bool { return true }
	if objects.Service != nil {
		pl.traits = plan.TraitsOf(objects.Service)
	}
	isNamed := func(t v1alpha1.Target) bool { return t.Name == target }
	switch {
	case pl.spec.Spec.HealthCheck == nil:
		return nil, errors.New("it has no spec.healthCheck, so there is nothing to check")
	case !plan.Resolves(pl.spec):
		return nil, errors.New("it publishes a name, so there are no endpoints to check")
	case target != "" && !slices.ContainsFunc(pl.spec.Spec.Targets, isNamed):
		return nil, fmt.Errorf("spec.targets has no target %q", target)
	}
	pl.spec = pl.spec.DeepCopy()
	if target != "" {
		pl.spec.Spec.Targets = slices.DeleteFunc(pl.spec.Spec.Targets,
			func(t v1alpha1.Target) bool { return t.Name != target })
	}
	return pl, nil
}

// judge finds out what policy says. Without the right to read policies, only what every policy
// refuses is refused.
func (pl *probePlanner) judge(ctx context.Context, r *policyReader, flags *managerFlags, despite bool) error {
	in, err := flags.input()
	if err != nil {
		return err
	}
	var labels map[string]string
	unread := pl.objects.WhyUnread(view.PartPolicies)
	unread = cmp.Or(unread, pl.objects.WhyUnread(view.PartNamespace))
	if unread != nil {
		pl.report.Notes = append(pl.report.Notes, "what policy refuses is not known: "+unread.Why)
	} else if pl.objects.Namespace != nil {
		in.Policies, labels = pl.objects.Policies, pl.objects.Namespace.Labels
	}
	if !despite {
		in.ClusterRanges = r.clusterRanges(ctx, in.ClusterRanges.Declared)
	}
	set, _ := policy.Compile(in)
	pl.view, pl.despite = set.For(labels), despite
	if pl.lookups = pl.view; despite {
		nothing, _ := policy.Compile(policy.Input{})
		pl.lookups = nothing.For(nil)
	}
	return nil
}

// permits reports whether policy permits something, or does not count.
func (pl *probePlanner) permits(d policy.Decision) bool { return d.Allowed || pl.despite }

// names returns the names to look up.
func (pl *probePlanner) names() translate.Names {
	return translate.NamesOf(pl.spec, pl.lookups, pl.traits.Families, endpointslice.Published(nil))
}

// resolve looks the names up, and reports how long each took.
func (pl *probePlanner) resolve(ctx context.Context, references *readReferences) {
	names := pl.names()
	wanted := names.Wanted(false)
	answers, took := resolveNames(ctx, pl.dnsConfig(references), wanted)
	pl.answers = names.Answers(answers)
	for i := range pl.spec.Spec.Targets {
		t := &pl.spec.Spec.Targets[i]
		name := cmp.Or(t.Hostname, t.SRVName)
		if name == "" || t.AdminState == v1alpha1.AdminStateDisabled {
			continue
		}
		answer := pl.answers[t.Name]
		r := nameResult{Target: t.Name, Name: name}
		for q, time := range took {
			if q.Name == name && q.SRV == (t.SRVName != "") {
				r.Took = tookText(time)
			}
		}
		switch {
		case answer.Refusal.Denied:
			r.Refused = answer.Refusal.Text()
		case answer.Status == plan.AnswerPending:
			r.Problem = fmt.Sprintf("no answer within %s", resolveTime)
		case len(answer.Addrs) == 0:
			r.Problem = cmp.Or(answer.Cause, "no address")
		}
		for _, a := range answer.Addrs[:min(len(answer.Addrs), maxProbes)] {
			r.Addresses = append(r.Addresses, a.IP.String())
		}
		pl.report.Names = append(pl.report.Names, r)
	}
}

// dnsConfig says how to look names up. It leaves out the nameservers that policy refuses.
func (pl *probePlanner) dnsConfig(references *readReferences) resolve.Config {
	spec := pl.spec.Spec.DNS
	var allowed []netip.AddrPort
	none := references.dnsMissing
	if spec != nil && len(spec.Nameservers) > 0 {
		for i, text := range spec.Nameservers {
			ns, err := translate.ParseNameserver(text, spec.Transport)
			if d := pl.view.Nameserver(ns); err == nil && pl.permits(d) {
				allowed = append(allowed, ns)
			} else {
				pl.report.Notes = append(pl.report.Notes,
					fmt.Sprintf("spec.dns.nameservers[%d] is not asked: %s", i, d.Kind))
			}
		}
		none = none || len(allowed) == 0
	}
	return translate.DNSConfig(spec, allowed, none, references.dnsRoots, "")
}

// plan returns the probes, and reports what policy refuses.
func (pl *probePlanner) plan() []plan.Probe {
	permit := translate.Permit(pl.view)
	candidates := new(plan.Cache).Candidates(plan.Input{
		Backend: pl.spec, Families: pl.traits.Families, Headless: pl.traits.Headless, ServesPort: pl.traits.ServesPort,
		Answers: pl.answers, Rules: pl.view, Published: endpointslice.Published(nil), Max: math.MaxInt, Now: pl.now,
		Permit: func(name string, a netip.Addr, ports []plan.Port) plan.Refusal {
			r := permit(name, a, ports)
			if !r.Denied {
				return r
			}
			if pl.despite {
				pl.report.Notes = append(pl.report.Notes, fmt.Sprintf("policy refuses %s: %s; probed despite that", a, r.Text()))
				return plan.Refusal{}
			}
			pl.report.Refused = append(pl.report.Refused, refusedProbe{Name: name, Address: a.String(), Why: r.Text()})
			return r
		},
	}, endpointslice.Template{})
	probes, _ := candidates.Probes(nil)
	return probes
}

// readReferences are the certificates and keys to which an ExternalBackend refers.
type readReferences struct {
	check      translate.Credentials
	dnsRoots   *x509.CertPool
	dnsMissing bool
	problems   []string
}

// readCredentials reads the certificates and keys, as far as the user may.
func readCredentials(ctx context.Context, c client.Reader, b *v1alpha1.ExternalBackend) *readReferences {
	reader := func() *credentials.Reader {
		return &credentials.Reader{Live: c, Namespace: b.Namespace, NotPermitted: func(kind, name string) string {
			return fmt.Sprintf("you may not get %s %q in namespace %q", kind, name, b.Namespace)
		}}
	}
	out := &readReferences{}
	check, dns := reader(), reader()
	if t := b.Spec.HealthCheck.TLS; t != nil {
		out.check.Roots = check.Roots(ctx, "spec.healthCheck.tls.caCertificateRefs", t.CACertificateRefs)
		if t.ClientCertificateRef != nil {
			out.check.Certificate = check.Certificate(ctx, "spec.healthCheck.tls.clientCertificateRef", t.ClientCertificateRef)
		}
	}
	if b.Spec.DNS != nil && b.Spec.DNS.TLS != nil {
		out.dnsRoots = dns.Roots(ctx, "spec.dns.tls.caCertificateRefs", b.Spec.DNS.TLS.CACertificateRefs)
	}
	out.check.Missing, out.dnsMissing = !check.Complete(), !dns.Complete()
	for _, r := range []*credentials.Reader{check, dns} {
		switch {
		case r.Problem.Message != "":
			out.problems = append(out.problems, r.Problem.Message)
		case r.Err != nil:
			out.problems = append(out.problems, r.Err.Error())
		}
	}
	return out
}
