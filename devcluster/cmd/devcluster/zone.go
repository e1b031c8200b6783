package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/external-backend/operator/devcluster"
)

// zone serves a file's records until ctx ends, and follows their changes. It serves them at the
// address to which the cluster's DNS forwards queries.
func zone(ctx context.Context, origin, file string, out io.Writer) (code int, err error) {
	ns, err := devcluster.JoinNamespace("zone", devcluster.UpstreamDNS.String())
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()

	nameserver, err := ns.StartDNS(ctx, map[string]string{origin: ""}, "")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, nameserver.Close()) }()

	return 0, follow(ctx, file, func(records string) {
		attempt, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		switch err := nameserver.SetZone(attempt, origin, records); {
		case err == nil:
			fmt.Fprintf(out, "%s is served by %s as %s has it, until Ctrl-C\n", origin, devcluster.UpstreamDNS, file)
		case ctx.Err() == nil:
			fmt.Fprintf(out, "%s is not served as %s has it now: %v\n", origin, file, err)
		}
	})
}

// follow calls use with a file's content, first at once and then at each change, until ctx ends.
func follow(ctx context.Context, file string, use func(string)) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	use(string(content))

	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now, err := os.ReadFile(file)
		if err == nil && string(now) != string(content) { // while an editor replaces the file, it may not exist
			content = now
			use(string(content))
		}
	}
}
