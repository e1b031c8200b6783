package plugin

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
)

const (
	// completionTimeout is how long a shell waits at most for the names that it offers.
	completionTimeout = 3 * time.Second
	// maxCompletions bounds the names that are read for a shell.
	maxCompletions = 500
)

// completion returns what a shell offers for a word.
type completion = func(command *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective)

// completeNames offers the names of ExternalBackends for the first argument.
func (p *plugin) completeNames(
	command *cobra.Command, args []string, word string,
) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	namespace, err := p.namespace()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list := newMetadataList(v1alpha1.GroupVersion.WithKind("ExternalBackendList"))
	return p.completeObjects(command, list, word, client.InNamespace(namespace))
}

// completeTargets offers the names of ExternalBackends for the first argument, and the targets of
// that ExternalBackend for all others.
func (p *plugin) completeTargets(
	command *cobra.Command, args []string, word string,
) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return p.completeNames(command, args, word)
	}
	var names []string
	for _, t := range p.targetsForCompletion(command, args[0]) {
		if strings.HasPrefix(t.Name, word) && !slices.Contains(args[1:], t.Name) {
			names = append(names, t.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// targetsForCompletion returns the targets of an ExternalBackend; none if it can't be read.
func (p *plugin) targetsForCompletion(command *cobra.Command, name string) []v1alpha1.Target {
	ctx, cancel := context.WithTimeout(command.Context(), completionTimeout)
	defer cancel()
	namespace, err := p.namespace()
	if err != nil {
		return nil
	}
	c, err := p.client()
	if err != nil {
		return nil
	}
	var b v1alpha1.ExternalBackend
	if err := c.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &b); err != nil {
		return nil
	}
	return b.Spec.Targets
}

// completeNamespaces offers the names of namespaces.
func (p *plugin) completeNamespaces(
	command *cobra.Command, _ []string, word string,
) ([]string, cobra.ShellCompDirective) {
	list := newMetadataList(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	return p.completeObjects(command, list, word)
}

// completeContexts offers the contexts of the kubeconfig.
func (p *plugin) completeContexts(_ *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	config, err := p.flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for name := range config.Contexts {
		if strings.HasPrefix(name, word) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, cobra.ShellCompDirectiveNoFileComp
}

// newMetadataList returns a list that is read without specs and statuses.
func newMetadataList(kind schema.GroupVersionKind) *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind)
	return list
}

// completeObjects offers the names of the objects of list that begin with word.
func (p *plugin) completeObjects(
	command *cobra.Command, list *metav1.PartialObjectMetadataList, word string, options ...client.ListOption,
) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(command.Context(), completionTimeout)
	defer cancel()
	c, err := p.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if err := c.List(ctx, list, append(options, client.Limit(maxCompletions))...); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}

	var names []string
	for i := range list.Items {
		if name := list.Items[i].Name; strings.HasPrefix(name, word) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
