// Package explain says why an endpoint of an ExternalBackend gets traffic, or why it gets none. It
// follows the endpoint from spec to kube-proxy and asks one question at each step. Each answer has
// its evidence: what spec, status and slices say. The first "no" is the cause.
//
// The package is pure. It decides nothing again that the manager has decided: it reads status and
// slices, and what is not in them is unknown.
package explain

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// Answer is the answer to the question of a link.
type Answer string

// The answers. Unknown means that what was read does not say it.
const (
	Yes     Answer = "yes"
	No      Answer = "no"
	Unknown Answer = "unknown"
)

// The IDs of the links, in the order of a chain.
const (
	LinkSpec        = "spec"
	LinkName        = "name"
	LinkPolicy      = "policy"
	LinkFamily      = "family"
	LinkDuplicate   = "duplicate"
	LinkLimit       = "limit"
	LinkVerdict     = "verdict"
	LinkTier        = "tier"
	LinkOverride    = "override"
	LinkServing     = "serving"
	LinkTerminating = "terminating"
	LinkReady       = "ready"
	LinkSlice       = "slice"
	LinkKubeProxy   = "kube-proxy"
)

// Link is one step on the way of an endpoint.
type Link struct {
	ID string `json:"id"`
	// Title is the question that Answer answers.
	Title  string `json:"title"`
	Answer Answer `json:"answer"`
	// Reason is the word of the API for the answer, or "" if there is none.
	Reason string `json:"reason,omitempty"`
	// Evidence are sentences. The first says most.
	Evidence []string `json:"evidence,omitempty"`
	// Hint says what a person can do about it, or "".
	Hint string `json:"hint,omitempty"`
}

// Chain is the explanation of one endpoint.
type Chain struct {
	Namespace string `json:"namespace"`
	Backend   string `json:"backend"`
	// Target is the name of the target, or "" if it is not known.
	Target string `json:"target,omitempty"`
	// Address is the address of the endpoint, or the name that is published itself. It is "" if the
	// target has no address now.
	Address string `json:"address,omitempty"`
	// Remark says why this endpoint was chosen, if there was a choice; else "".
	Remark string `json:"remark,omitempty"`
	// GetsTraffic is the answer of the last link.
	GetsTraffic Answer `json:"getsTraffic"`
	// Cause is the index in Links of the first "no", if the endpoint gets no traffic; else -1.
	Cause int    `json:"cause"`
	Links []Link `json:"links"`
}

// Input is what was read about one ExternalBackend. A list that could not be read is nil, and a
// text says why.
type Input struct {
	Backend *v1alpha1.ExternalBackend
	// Service is the Service of the ExternalBackend; nil if there is none, or it could not be read.
	Service       *corev1.Service
	ServiceUnread string
	// Slices are all slices behind the Service, those of others too.
	Slices       []*discoveryv1.EndpointSlice
	SlicesUnread string
	// Overrides are those of the ExternalBackend.
	Overrides       []v1alpha1.ExternalBackendOverride
	OverridesUnread string
	// Policies are all policies of the cluster, and NamespaceLabels the labels of the namespace.
	Policies        []v1alpha1.ExternalBackendPolicy
	NamespaceLabels map[string]string
	PoliciesUnread  string
	Now             time.Time
}

// Explain explains one endpoint: an endpoint of a target by its name, or the endpoint at an address
// (or address:port). Without what it explains the worst endpoint of the worst target.
func Explain(in Input, what string) (*Chain, error) {
	s, err := find(&in, what)
	if err != nil {
		return nil, err
	}
	e := explainer{Input: &in, subject: s}
	c := &Chain{
		Namespace: in.Backend.Namespace, Backend: in.Backend.Name, Target: s.name, Address: s.address(), Remark: s.remark,
		Cause: -1,
	}
	for _, step := range []func(*explainer) Link{
		(*explainer).spec, (*explainer).dnsName, (*explainer).policy, (*explainer).family, (*explainer).duplicate,
		(*explainer).limit, (*explainer).verdict, (*explainer).tier, (*explainer).override, (*explainer).serving,
		(*explainer).terminating, (*explainer).ready, (*explainer).slice, (*explainer).kubeProxy,
	} {
		link := step(&e)
		if link.Answer != Yes && link.Hint == "" {
			link.Hint = hints[link.Reason]
		}
		c.Links = append(c.Links, link)
	}

	c.GetsTraffic = c.Links[len(c.Links)-1].Answer
	if c.GetsTraffic != Yes {
		c.Cause = slices.IndexFunc(c.Links, func(l Link) bool { return l.Answer == No })
	}
	return c, nil
}
