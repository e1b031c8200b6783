package explain

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
)

// kubeProxy says where traffic goes.
func (e *explainer) kubeProxy() Link {
	l := Link{ID: LinkKubeProxy, Title: "Does traffic go there?", Answer: No}
	ready := e.condition(v1alpha1.ConditionReady)
	switch {
	case plan.ServiceType(e.Backend) == v1alpha1.ServiceTypeExternalName:
		e.alias(&l)
	case e.Service == nil && e.ServiceUnread != "":
		l.Answer = Unknown
		l.say("The Service is unknown: %s.", e.ServiceUnread)
	case e.Service == nil:
		l.say("There is no Service %q.", e.Backend.EffectiveServiceName())
	case e.published == nil && e.SlicesUnread != "":
		l.Answer = Unknown
		l.say("%s", e.whyNoSlice())
	case e.published == nil:
		l.say("kube-proxy does not know it.")
	case plan.Headless(e.Service):
		e.headless(&l)
	default:
		e.virtualIP(&l)
	}
	l.sayCondition(ready)
	return l
}

// alias says where a Service of type ExternalName leads.
func (e *explainer) alias(l *Link) {
	switch {
	case e.Service == nil:
		name := e.Backend.EffectiveServiceName()
		l.say("There is no Service %q, or it could not be read%s.", name, inBrackets(e.ServiceUnread))
		if e.ServiceUnread != "" {
			l.Answer = Unknown
		}
	case e.Service.Spec.ExternalName == plan.UnresolvableName || e.Service.Spec.Type != corev1.ServiceTypeExternalName:
		l.say("The Service leads nowhere.")
	default:
		l.Answer = Yes
		l.say("Clients that resolve the Service get the alias %s. kube-proxy takes no part.", e.Service.Spec.ExternalName)
	}
}

// headless says what DNS makes of the endpoint.
func (e *explainer) headless(l *Link) {
	if e.published.Ready {
		l.Answer = Yes
		l.say("The Service is headless: the cluster's DNS answers with it, and clients connect to it themselves.")
		return
	}
	l.say("The Service is headless: the cluster's DNS leaves out what is not ready.")
}

// virtualIP says what kube-proxy makes of the endpoint.
func (e *explainer) virtualIP(l *Link) {
	p, others := e.published, e.count()
	switch {
	case p.Ready:
		l.Answer = Yes
		l.say("kube-proxy sends traffic to ready endpoints: to this one%s.", andOthers(others.ready-1))
	case others.ready > 0:
		l.say("kube-proxy sends traffic to ready endpoints alone: to %s.", countOthers(others.ready))
	case p.Serving && p.Terminating:
		l.Answer = Yes
		l.say("No endpoint is ready. As a last resort kube-proxy sends traffic to what is serving and terminating: to this one%s.",
			andOthers(others.lastResort-1))
	case others.lastResort > 0:
		l.say("No endpoint is ready. As a last resort kube-proxy sends traffic to %s, serving and terminating.",
			countOthers(others.lastResort))
	default:
		l.say("No endpoint is ready: kube-proxy refuses connections to the Service.")
	}
	if l.Answer != Yes {
		return
	}

	local := corev1.ServiceInternalTrafficPolicyLocal
	if policy := e.Service.Spec.InternalTrafficPolicy; policy != nil && *policy == local {
		l.say("internalTrafficPolicy is Local: only pods on node %q reach it.", p.NodeName)
	}
	if d := e.Service.Spec.TrafficDistribution; d != nil && p.Zone != "" {
		l.say("trafficDistribution is %s: clients in zone %s prefer it.", *d, p.Zone)
	}
}

// countOthers counts other endpoints for people.
func countOthers(n int) string {
	if n == 1 {
		return "1 other"
	}
	return fmt.Sprintf("%d others", n)
}

// andOthers continues a sentence about one endpoint; "" if there are no others.
func andOthers(n int) string {
	if n <= 0 {
		return ""
	}
	return " and " + countOthers(n)
}

// endpointCounts count the endpoints behind the Service, of all publishers.
type endpointCounts struct{ ready, lastResort int }

// count counts the endpoints of the family of the endpoint.
func (e *explainer) count() endpointCounts {
	var out endpointCounts
	everybody := func(s *discoveryv1.EndpointSlice) bool { return s.AddressType == e.published.slice.AddressType }
	for _, p := range publishedBy(e.Slices, everybody) {
		switch {
		case p.Ready:
			out.ready++
		case p.Serving && p.Terminating:
			out.lastResort++
		}
	}
	return out
}
