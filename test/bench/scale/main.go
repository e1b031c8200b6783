// Command scale measures the operator at its bounds on a real API server: 100 ExternalBackends of 1,000 literal targets and one of 10,000 resolved
// addresses, every endpoint of which is probed over TCP. It prints what was published how fast and at which cost, how long a failed probe takes
// to become a written slice, and what is written while nothing changes.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if devcluster.Nsenter() == "" { // still outside
		end(lab.Prepare(ctx, os.Stderr, false))
	}
	devcluster.Enter()
	end(run(ctx))
}

func end(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run measures on a cluster without kube-proxy, whose own work with so many endpoints would hide the manager's on a small machine.
func run(ctx context.Context) (err error) {
	l, err := lab.Open(ctx, devcluster.Options{WithoutProxy: true, Audit: true}, false)
	if err != nil {
		return err
	}
	defer func() {
		if e := l.Close(); err == nil {
			err = e
		}
	}()
	b, err := open(ctx, l)
	if err != nil {
		return err
	}
	defer b.close()
	return b.run(ctx)
}
