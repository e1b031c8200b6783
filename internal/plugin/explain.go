package plugin

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/external-backend/operator/internal/explain"
	"github.com/external-backend/operator/internal/read"
)

func newExplainCommand(p *plugin) *cobra.Command {
	var format string
	command := &cobra.Command{
		Use:   "explain NAME [TARGET|ADDRESS]",
		Short: "Say why an endpoint gets traffic, or why it gets none",
		Long: `Say why an endpoint gets traffic, or why it gets none.

It follows one endpoint from spec to kube-proxy. Each step is a question with its answer and the evidence.
The first "no" is the cause, and is marked with ">". TARGET is a target of spec.targets, ADDRESS the address
of an endpoint, or address:port. Without either it explains the worst endpoint of the worst target.

It exits with 2 if the endpoint gets no traffic, and with 1 if that is unknown.`,
		Example: `  # Why is the worst target not ready?
  kubectl external-backend explain orders-db

  # Why does this address get no traffic?
  kubectl external-backend explain orders-db 203.0.113.11`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: p.completeTarget,
		RunE: func(command *cobra.Command, args []string) error {
			what := ""
			if len(args) > 1 {
				what = args[1]
			}
			return p.explain(command, args[0], what, format)
		},
	}
	addOutputFlag(command, &format)
	return command
}

// completeTarget offers the names of ExternalBackends, and then those of the targets of one.
func (p *plugin) completeTarget(
	command *cobra.Command, args []string, word string,
) ([]string, cobra.ShellCompDirective) {
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return p.completeTargets(command, args, word)
}

// explain prints the chain of one endpoint.
func (p *plugin) explain(command *cobra.Command, name, what, format string) error {
	c, err := p.client()
	if err != nil {
		return err
	}
	namespace, err := p.namespace()
	if err != nil {
		return err
	}
	objects, err := read.Backend(command.Context(), c, namespace, name)
	if err != nil {
		return err
	}
	chain, err := explain.Explain(explain.InputOf(objects, p.now()), what)
	if err != nil {
		return err
	}

	err = p.output(format, chain, func() error {
		_, err := fmt.Fprint(p.Out, chain.Text())
		return err
	})
	switch {
	case err != nil:
		return err
	case chain.GetsTraffic == explain.No:
		return errFinding
	case chain.GetsTraffic == explain.Unknown:
		return errors.New("whether the endpoint gets traffic is unknown: the last question says what could not be read")
	}
	return nil
}
