// Command names measures how long it takes from a changed DNS record to a written EndpointSlice,
// with the real CoreDNS as the authority. A resolver may use an answer until its TTL ends. So the
// time begins when the record has changed and the last answer before has expired, whichever is
// later. The operator's own part of it begins when the first answer with the new address leaves the
// nameserver. Both end when a watch has delivered the slice.
package main

import (
	"context"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/bench/meter"
	"github.com/external-backend/operator/test/harness/lab"
)

// main measures without kube-proxy, whose work does not count.
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
