package plugin

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// versionInfo is what `version` prints.
type versionInfo struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersionCommand(p *plugin) *cobra.Command {
	var format string
	command := &cobra.Command{
		Use:   "version",
		Short: "Print the version of the plugin",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			info := versionInfo{p.version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return p.output(format, info, func() error {
				_, err := fmt.Fprintf(p.Out, "%s (%s, %s)\n", info.Version, info.Go, info.Platform)
				return err
			})
		},
	}
	addOutputFlag(command, &format)
	return command
}
