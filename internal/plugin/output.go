package plugin

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/yaml"
)

// addOutputFlag gives a command the flag --output.
func addOutputFlag(command *cobra.Command, format *string) {
	command.Flags().StringVarP(format, "output", "o", "", "Output format: json or yaml; by default a text for people.")
	utilruntime.Must(command.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(
		[]string{"json", "yaml"}, cobra.ShellCompDirectiveNoFileComp)))
}

// output prints value in the format json or yaml. Without a format, text prints it for people.
func (p *plugin) output(format string, value any, text func() error) error {
	switch format {
	case "":
		return text()
	case "json":
		encoder := json.NewEncoder(p.Out)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(value)
	case "yaml":
		data, err := yaml.Marshal(value)
		if err == nil {
			_, err = p.Out.Write(data)
		}
		return err
	}
	return checkFormat(format)
}

// checkFormat refuses formats that output does not know.
func checkFormat(format string) error {
	if format == "" || format == "json" || format == "yaml" {
		return nil
	}
	return fmt.Errorf("--output: %q must be json or yaml", format)
}
