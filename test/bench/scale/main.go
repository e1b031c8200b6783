// Command scale measures the operator at its bounds on a real API server: 100 ExternalBackends of
// 1,000 literal targets and one of 10,000 resolved addresses, every endpoint of which is probed
// over TCP. It prints what was published how fast and at which cost, how long a failed probe takes
// to become a written slice, and what is written while nothing changes.
package main

import (
	"context"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/bench/meter"
	"github.com/external-backend/operator/test/harness/lab"
)

// main measures on a cluster without kube-proxy, whose own work with so many endpoints would hide
// the manager's on a small machine.
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
