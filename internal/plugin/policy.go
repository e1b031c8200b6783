package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/policyreport"
)

func newPolicyCommand(p *plugin) *cobra.Command {
	command := &cobra.Command{
		Use:   "policy",
		Short: "Say what ExternalBackendPolicies change, and who may publish an address",
	}
	command.AddCommand(newPolicyTestCommand(p), newPolicyWhoCanCommand(p))
	return command
}

// policyTest is the command `policy test`.
type policyTest struct {
	manager managerFlags
	files   []string
	deleted []string
	format  string
}

func newPolicyTestCommand(p *plugin) *cobra.Command {
	var t policyTest
	command := &cobra.Command{
		Use:   "test -f FILE [--delete NAME]",
		Short: "Say what a policy would withdraw or newly allow, before it is applied",
		Long: `Say what a policy would withdraw or newly allow, before it is applied.

The policies of the files are new, or replace those of the same names. All other policies stay. For each
ExternalBackend it says what would be withdrawn, refused or newly allowed, and which rule allows it. It
decides as the manager does, from what is published. It looks no names up.

It looks at all namespaces, or at that of -n. It exits with 2 if something that is published would be
withdrawn.`,
		Example: `  # What would change?
  kubectl external-backend policy test -f databases.yaml

  # What would change without the policy "databases"?
  kubectl external-backend policy test --delete databases`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if len(t.files)+len(t.deleted) == 0 {
				return errors.New("-f or --delete must name a policy")
			}
			return p.testPolicies(command.Context(), &t)
		},
	}
	flags := command.Flags()
	flags.StringArrayVarP(&t.files, "filename", "f", nil, "File with ExternalBackendPolicies; - is the standard input.")
	flags.StringArrayVar(&t.deleted, "delete", nil, "Name of a policy that would be deleted.")
	t.manager.add(flags)
	utilruntime.Must(command.RegisterFlagCompletionFunc("delete", p.completePolicies))
	addOutputFlag(command, &t.format)
	return command
}

// completePolicies offers the names of policies.
func (p *plugin) completePolicies(
	command *cobra.Command, _ []string, word string,
) ([]string, cobra.ShellCompDirective) {
	list := newMetadataList(v1alpha1.GroupVersion.WithKind("ExternalBackendPolicyList"))
	return p.completeObjects(command, list, word)
}

// policyTestResult is what `policy test` prints.
type policyTestResult struct {
	// ExternalBackends is how many were looked at.
	ExternalBackends int                   `json:"externalBackends"`
	Changes          []policyreport.Change `json:"changes"`
	// Problems are fields of the policies in the files that can't be read. They allow nothing.
	Problems []string `json:"problems,omitempty"`
	// Notes say what could not be read, and what follows from that.
	Notes []string `json:"notes,omitempty"`
}

// testPolicies runs `policy test`.
func (p *plugin) testPolicies(ctx context.Context, t *policyTest) error {
	changed, err := p.parsePolicies(t.files)
	if err != nil {
		return err
	}
	r, current, onlyCurrent, err := p.policyReader()
	if err != nil {
		return err
	}
	in, err := r.policyInput(ctx, &t.manager)
	if err != nil {
		return err
	}
	namespaces, err := r.namespaces(ctx, current, onlyCurrent)
	if err != nil {
		return err
	}
	if onlyCurrent = onlyCurrent || len(namespaces) == 1; onlyCurrent {
		current = namespaces[0].Name
	} else {
		current = ""
	}
	backends, err := r.backends(ctx, current, namespaces)
	if err != nil {
		return err
	}

	before, _ := policy.Compile(in)
	if in.Policies, err = replacePolicies(in.Policies, changed, t.deleted); err != nil {
		return err
	}
	after, problems := policy.Compile(in)
	result := policyTestResult{ExternalBackends: len(backends), Notes: r.notes, Changes: []policyreport.Change{}}
	for _, problem := range problems {
		if slices.ContainsFunc(changed, func(o v1alpha1.ExternalBackendPolicy) bool { return o.Name == problem.Policy }) {
			result.Problems = append(result.Problems, problem.String())
		}
	}
	for _, b := range backends {
		result.Changes = append(result.Changes, policyreport.Changes(before, after, b, p.now())...)
	}
	return p.printPolicyTest(&result, t.format)
}

// policyReader returns a reader with the current namespace, and whether the user has asked for no
// other one.
func (p *plugin) policyReader() (r *policyReader, current string, onlyCurrent bool, err error) {
	c, err := p.client()
	if err != nil {
		return nil, "", false, err
	}
	current, err = p.namespace()
	return &policyReader{Reader: c}, current, *p.flags.Namespace != "", err
}

// replacePolicies returns the policies after the change.
func replacePolicies(
	policies, changed []v1alpha1.ExternalBackendPolicy, deleted []string,
) ([]v1alpha1.ExternalBackendPolicy, error) {
	out := slices.Clone(policies)
	remove := func(name string) bool {
		n := len(out)
		out = slices.DeleteFunc(out, func(o v1alpha1.ExternalBackendPolicy) bool { return o.Name == name })
		return len(out) < n
	}
	for _, name := range deleted {
		if !remove(name) {
			return nil, fmt.Errorf("--delete: there is no ExternalBackendPolicy %q", name)
		}
	}
	for i := range changed {
		remove(changed[i].Name)
		out = append(out, changed[i])
	}
	return out, nil
}

func (p *plugin) printPolicyTest(result *policyTestResult, format string) error {
	err := p.output(format, result, func() error {
		for _, problem := range result.Problems {
			fmt.Fprintf(p.Out, "Can't be read, and allows nothing: %s\n", problem)
		}
		policyreport.WriteChanges(p.Out, result.Changes)
		fmt.Fprintf(p.Out, "ExternalBackends looked at: %d\n", result.ExternalBackends)
		p.printNotes(result.Notes)
		return nil
	})
	withdraws := slices.ContainsFunc(result.Changes, func(c policyreport.Change) bool {
		return c.Effect == policyreport.Withdrawn
	})
	if err == nil && withdraws {
		return errFinding
	}
	return err
}

// printNotes prints what could not be read.
func (p *plugin) printNotes(notes []string) {
	for _, note := range notes {
		fmt.Fprintf(p.Out, "Unknown: %s\n", note)
	}
}

// policyWhoCan is the command `policy who-can`.
type policyWhoCan struct {
	manager managerFlags
	ports   []string
	format  string
}

func newPolicyWhoCanCommand(p *plugin) *cobra.Command {
	var w policyWhoCan
	command := &cobra.Command{
		Use:   "who-can ADDRESS|NAME",
		Short: "Say which namespaces may publish an address or a name, and by which rules",
		Long: `Say which namespaces may publish an address or a name, and by which rules.

A rule with hostnames allows an address only under one of these names. A rule with cidrs allows a name only
as far as it leads to one of these addresses. It looks at all namespaces, or at that of -n.`,
		Example: `  # Who may send traffic to this address?
  kubectl external-backend policy who-can 203.0.113.10 --port 5432`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(command *cobra.Command, args []string) error {
			return p.whoCan(command.Context(), &w, args[0])
		},
	}
	flags := command.Flags()
	flags.StringSliceVar(&w.ports, "port", nil, "Port that has to be allowed, too, as PORT or PORT/PROTOCOL.")
	w.manager.add(flags)
	addOutputFlag(command, &w.format)
	return command
}

// whoCanResult is what `policy who-can` prints.
type whoCanResult struct {
	policyreport.Access
	Notes []string `json:"notes,omitempty"`
}

// whoCan runs `policy who-can`.
func (p *plugin) whoCan(ctx context.Context, w *policyWhoCan, subject string) error {
	question, err := parseQuestion(subject, w.ports)
	if err != nil {
		return err
	}
	r, current, onlyCurrent, err := p.policyReader()
	if err != nil {
		return err
	}
	in, err := r.policyInput(ctx, &w.manager)
	if err != nil {
		return err
	}
	namespaces, err := r.namespaces(ctx, current, onlyCurrent)
	if err != nil {
		return err
	}

	set, _ := policy.Compile(in)
	result := whoCanResult{Access: policyreport.WhoCan(set, in.Policies, namespaces, question), Notes: r.notes}
	return p.output(w.format, &result, func() error {
		policyreport.WriteAccess(p.Out, &result.Access)
		p.printNotes(result.Notes)
		return nil
	})
}

// parseQuestion reads an address or a name, and ports.
func parseQuestion(subject string, ports []string) (policyreport.Question, error) {
	var q policyreport.Question
	address, err := netip.ParseAddr(subject)
	switch {
	case err == nil && address.Zone() == "":
		q.Address = address
	case err == nil || strings.ContainsAny(subject, ":/* ") || !strings.Contains(subject, "."):
		return q, fmt.Errorf("%q must be an IP address or a DNS name", subject)
	default:
		q.Name = strings.TrimSuffix(strings.ToLower(subject), ".")
	}

	for _, text := range ports {
		number, protocol, found := strings.Cut(text, "/")
		if !found {
			protocol = string(corev1.ProtocolTCP)
		}
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || n == 0 || !slices.Contains([]string{"TCP", "UDP", "SCTP"}, protocol) {
			return q, fmt.Errorf("--port: %q must be PORT or PORT/PROTOCOL, such as 5432 or 53/UDP", text)
		}
		q.Ports = append(q.Ports, policy.Port{Protocol: corev1.Protocol(protocol), Port: uint16(n)})
	}
	return q, nil
}
