// Command scale measures the operator at its bounds on a real API server: 100 ExternalBackends of
// 1,000 literal targets and one of 10,000 resolved addresses, every endpoint of which is probed
// over TCP. It prints how fast they are published and at which cost, how long it takes from a
// failed probe to a written slice, and what is written while nothing changes.
package main

import (
	"context"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/bench/meter"
	"github.com/external-backend/operator/test/harness/lab"
)

// main runs the benchmark on a cluster without kube-proxy. On a small machine, kube-proxy's work
// with so many endpoints would hide that of the manager.
func main() {
	meter.Main(devcluster.Options{WithoutProxy: true, Audit: true}, func(ctx context.Context, l *lab.Lab) error {
		b, err := open(ctx, l)
		if err != nil {
			return err
		}
		defer b.close()
		return b.run(ctx)
	})
}
