package plugin

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/policyreport"
	"github.com/external-backend/operator/internal/read"
	"github.com/external-backend/operator/internal/translate"
)

const (
	// maxFile and maxDocuments bound what is read from files.
	maxFile      = 8 << 20
	maxDocuments = 500
)

// managerFlags are the flags of the manager that decide what policy allows. Nobody can read them
// from the cluster.
type managerFlags struct {
	defaultPolicy string
	clusterCIDRs  []string
	clusterDomain string
}

func (f *managerFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.defaultPolicy, "default-target-policy", "Allow",
		"The manager's flag of that name: Allow or Deny, for namespaces that no policy selects.")
	flags.StringSliceVar(&f.clusterCIDRs, "cluster-cidrs", nil, "The manager's flag of that name: ranges of the cluster.")
	flags.StringVar(&f.clusterDomain, "cluster-domain", policy.DefaultClusterDomain, "The manager's flag of that name.")
}

// input returns the flags as input of policy.
func (f *managerFlags) input() (policy.Input, error) {
	in := policy.Input{ClusterDomain: f.clusterDomain, DefaultDeny: f.defaultPolicy == "Deny"}
	if !in.DefaultDeny && f.defaultPolicy != "Allow" {
		return in, fmt.Errorf("--default-target-policy: %q must be Allow or Deny", f.defaultPolicy)
	}
	for _, text := range f.clusterCIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return in, fmt.Errorf("--cluster-cidrs: %q must be a CIDR", text)
		}
		in.ClusterRanges.Declared = append(in.ClusterRanges.Declared, prefix)
	}
	return in, nil
}

// policyReader reads what policy decides from, and notes what it could not read.
type policyReader struct {
	client.Reader
	notes []string
}

// note notes that something could not be read, and what follows from that.
func (r *policyReader) note(right, consequence string, err error) {
	why := err.Error()
	if apierrors.IsForbidden(err) {
		why = "you may not " + right
	}
	r.notes = append(r.notes, why+": "+consequence)
}

// policyInput reads the policies and the ranges of the cluster. Without the policies nothing can be
// said, so that is an error.
func (r *policyReader) policyInput(ctx context.Context, flags *managerFlags) (policy.Input, error) {
	in, err := flags.input()
	if err != nil {
		return in, err
	}
	err = read.Pages(ctx, r,
		func() *v1alpha1.ExternalBackendPolicyList { return &v1alpha1.ExternalBackendPolicyList{} },
		func(page *v1alpha1.ExternalBackendPolicyList) bool {
			in.Policies = append(in.Policies, page.Items...)
			return true
		})
	if err != nil {
		return in, fmt.Errorf("what policy allows is unknown without the right to list "+
			"externalbackendpolicies.external-backend.io: %w", err)
	}
	in.ClusterRanges = r.clusterRanges(ctx, in.ClusterRanges.Declared)
	return in, nil
}

// clusterRanges reads the ranges of the cluster, as far as the user may.
func (r *policyReader) clusterRanges(ctx context.Context, declared []netip.Prefix) policy.ClusterRanges {
	const consequence = "addresses of this cluster that --cluster-cidrs does not name may be taken for free ones"
	var nodes []corev1.Node
	err := read.Pages(ctx, r, func() *corev1.NodeList { return &corev1.NodeList{} },
		func(page *corev1.NodeList) bool { nodes = append(nodes, page.Items...); return true })
	if err != nil {
		r.note("list nodes", consequence, err)
	}
	var cidrs []networkingv1.ServiceCIDR
	err = read.Pages(ctx, r, func() *networkingv1.ServiceCIDRList { return &networkingv1.ServiceCIDRList{} },
		func(page *networkingv1.ServiceCIDRList) bool { cidrs = append(cidrs, page.Items...); return true })
	if err != nil {
		r.note("list servicecidrs.networking.k8s.io", consequence, err)
	}
	return translate.ClusterRanges(declared, nodes, cidrs)
}

// namespaces reads all namespaces. If the user may not, or if only one is asked for, it reads that
// one.
func (r *policyReader) namespaces(
	ctx context.Context, current string, onlyCurrent bool,
) ([]policyreport.Namespace, error) {
	var out []policyreport.Namespace
	if !onlyCurrent {
		err := read.Pages(ctx, r, func() *corev1.NamespaceList { return &corev1.NamespaceList{} },
			func(page *corev1.NamespaceList) bool {
				for i := range page.Items {
					out = append(out, policyreport.Namespace{Name: page.Items[i].Name, Labels: page.Items[i].Labels})
				}
				return true
			})
		if err == nil {
			return out, nil
		}
		r.note("list namespaces", fmt.Sprintf("all but namespace %s is unknown", current), err)
	}
	var n corev1.Namespace
	if err := r.Get(ctx, types.NamespacedName{Name: current}, &n); err != nil {
		return nil, fmt.Errorf("which policies select namespace %s is unknown: %w", current, err)
	}
	return []policyreport.Namespace{{Name: n.Name, Labels: n.Labels}}, nil
}

// backends reads the ExternalBackends of the namespaces with all that policy decides from.
// namespace is "" for all namespaces.
func (r *policyReader) backends(
	ctx context.Context, namespace string, namespaces []policyreport.Namespace,
) ([]policyreport.Backend, error) {
	in := client.InNamespace(namespace)
	labels := map[string]map[string]string{}
	for _, n := range namespaces {
		labels[n.Name] = n.Labels
	}
	var out []policyreport.Backend
	err := read.Pages(ctx, r, func() *v1alpha1.ExternalBackendList { return &v1alpha1.ExternalBackendList{} },
		func(page *v1alpha1.ExternalBackendList) bool {
			for i := range page.Items {
				b := &page.Items[i]
				if of, known := labels[b.Namespace]; known {
					out = append(out, policyreport.Backend{Object: b, NamespaceLabels: of})
				}
			}
			return true
		}, in)
	if err != nil {
		return nil, err
	}

	services, slicesOf, overrides := r.services(ctx, in), r.slices(ctx, in), r.overrides(ctx, in)
	for i := range out {
		b := &out[i]
		b.Service = services[types.NamespacedName{Namespace: b.Object.Namespace, Name: b.Object.EffectiveServiceName()}]
		b.Slices = slicesOf[client.ObjectKeyFromObject(b.Object)]
		b.Overrides = overrides[client.ObjectKeyFromObject(b.Object)]
	}
	return out, nil
}

func (r *policyReader) services(ctx context.Context, in client.InNamespace) map[types.NamespacedName]*corev1.Service {
	out := map[types.NamespacedName]*corev1.Service{}
	err := read.Pages(ctx, r, func() *corev1.ServiceList { return &corev1.ServiceList{} },
		func(page *corev1.ServiceList) bool {
			for i := range page.Items {
				out[client.ObjectKeyFromObject(&page.Items[i])] = &page.Items[i]
			}
			return true
		}, in)
	if err != nil {
		r.note("list services", "the Services are taken to be as their slices are", err)
	}
	return out
}

// slices reads the slices of the operator, by their ExternalBackends.
func (r *policyReader) slices(
	ctx context.Context, in client.InNamespace,
) map[types.NamespacedName][]*discoveryv1.EndpointSlice {
	out := map[types.NamespacedName][]*discoveryv1.EndpointSlice{}
	err := read.Pages(ctx, r, func() *discoveryv1.EndpointSliceList { return &discoveryv1.EndpointSliceList{} },
		func(page *discoveryv1.EndpointSliceList) bool {
			for i := range page.Items {
				s := &page.Items[i]
				key := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[v1alpha1.LabelName]}
				out[key] = append(out[key], s)
			}
			return true
		}, in, client.MatchingLabels{discoveryv1.LabelManagedBy: v1alpha1.ManagedBy})
	if err != nil {
		r.note("list endpointslices.discovery.k8s.io", "what is published is unknown, so nothing is shown as withdrawn", err)
	}
	return out
}

// overrides reads the overrides, by their ExternalBackends.
func (r *policyReader) overrides(
	ctx context.Context, in client.InNamespace,
) map[types.NamespacedName][]v1alpha1.ExternalBackendOverride {
	out := map[types.NamespacedName][]v1alpha1.ExternalBackendOverride{}
	err := read.Pages(ctx, r,
		func() *v1alpha1.ExternalBackendOverrideList { return &v1alpha1.ExternalBackendOverrideList{} },
		func(page *v1alpha1.ExternalBackendOverrideList) bool {
			for i := range page.Items {
				o := &page.Items[i]
				key := types.NamespacedName{Namespace: o.Namespace, Name: o.Spec.ExternalBackendRef.Name}
				out[key] = append(out[key], *o)
			}
			return true
		}, in)
	if err != nil {
		r.note("list externalbackendoverrides.external-backend.io", "overrides are left out", err)
	}
	return out
}

// readDocuments reads the YAML or JSON documents of files; "-" is the standard input.
func (p *plugin) readDocuments(files []string) ([][]byte, error) {
	var out [][]byte
	for _, name := range files {
		data, err := p.readFile(name)
		if err != nil {
			return nil, err
		}
		reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
		for {
			document, err := reader.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if text := bytes.TrimSpace(document); len(text) > 0 && !bytes.Equal(text, []byte("---")) {
				out = append(out, text)
			}
			if len(out) > maxDocuments {
				return nil, fmt.Errorf("%s: more than %d documents", name, maxDocuments)
			}
		}
	}
	return out, nil
}

func (p *plugin) readFile(name string) ([]byte, error) {
	in := p.In
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	data, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s: more than %d bytes", name, maxFile)
	}
	return data, err
}

// kindOf returns the kind of a document, if it is one of ours.
func kindOf(document []byte) (kind, name string, err error) {
	var o struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	if err := yaml.Unmarshal(document, &o); err != nil {
		return "", "", err
	}
	if o.APIVersion != v1alpha1.GroupVersion.String() {
		return "", o.Metadata.Name, nil
	}
	return o.Kind, o.Metadata.Name, nil
}

// parsePolicies reads policies from files.
func (p *plugin) parsePolicies(files []string) ([]v1alpha1.ExternalBackendPolicy, error) {
	documents, err := p.readDocuments(files)
	if err != nil {
		return nil, err
	}
	var out []v1alpha1.ExternalBackendPolicy
	for i, document := range documents {
		kind, name, err := kindOf(document)
		switch {
		case err != nil:
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		case kind != "ExternalBackendPolicy" || name == "":
			return nil, fmt.Errorf("document %d must be an ExternalBackendPolicy of %s with a name",
				i+1, v1alpha1.GroupVersion)
		case slices.ContainsFunc(out, func(o v1alpha1.ExternalBackendPolicy) bool { return o.Name == name }):
			return nil, fmt.Errorf("document %d: policy %q is there twice", i+1, name)
		}
		var o v1alpha1.ExternalBackendPolicy
		if err := yaml.Unmarshal(document, &o); err != nil {
			return nil, fmt.Errorf("document %d, policy %q: %w", i+1, name, err)
		}
		out = append(out, o)
	}
	return out, nil
}
