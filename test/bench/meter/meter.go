// Package meter is shared by the benchmarks on a development cluster. It has their main function, a
// watch of published slices, and the format of figures.
package meter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness/lab"
)

// Main does all that the main function of a benchmark has to do: it builds missing binaries, enters
// the namespaces, opens a lab with a manager compiled as by `make build`, and calls run. A signal
// ends the context.
func Main(options devcluster.Options, run func(context.Context, *lab.Lab) error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if devcluster.Nsenter() == "" { // still outside
		end(lab.Prepare(ctx, os.Stderr, false))
	}
	devcluster.Enter()
	end(onLab(ctx, options, run))
}

func end(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func onLab(ctx context.Context, options devcluster.Options, run func(context.Context, *lab.Lab) error) error {
	l, err := lab.Open(ctx, options, false)
	if err != nil {
		return err
	}
	return errors.Join(run(ctx, l), l.Close())
}

// Prefix has the addresses of targets. RFC 2544 reserves it for benchmarks.
const Prefix = "198.18.0.0/15"

// Address returns address i of [Prefix], which has 131,071.
func Address(i int) netip.Addr {
	i++ // the first address of a prefix names its network
	return netip.AddrFrom4([4]byte{198, 18 + byte(i>>16), byte(i >> 8), byte(i)})
}

// Spread is a set of durations.
type Spread []time.Duration

// At returns a percentile, from 0 (the minimum) to 100 (the maximum). Spread must not be empty.
func (s Spread) At(percent int) time.Duration {
	return slices.Sorted(slices.Values(s))[(len(s)-1)*percent/100]
}

// String returns the median, the 99th percentile and the maximum.
func (s Spread) String() string {
	return fmt.Sprintf("p50 %s, p99 %s, max %s", Milliseconds(s.At(50)), Milliseconds(s.At(99)), Milliseconds(s.At(100)))
}

// Milliseconds returns a duration as text, to a tenth of a millisecond.
func Milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

// LoadAverage returns the load average of the last minute.
func LoadAverage() (string, error) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "", err
	}
	return strings.Fields(string(text))[0], nil
}
