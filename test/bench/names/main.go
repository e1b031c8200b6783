// Command names measures how soon a changed DNS record is a written EndpointSlice, with the real
// CoreDNS as the authority. A resolver may use an answer for as long as its TTL says, so that time
// counts from the moment when the record has changed and the last answer before has expired,
// whichever is later. Beside it stands the operator's own part: from the moment at which the first
// answer with the new address leaves the nameserver. Both end when a watch has delivered the slice.
package main

import (
	"context"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/bench/meter"
	"github.com/external-backend/operator/test/harness/lab"
)

// main measures without kube-proxy, whose work is no part of it.
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
