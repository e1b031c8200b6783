// Package meter is what the benchmarks on a development cluster have in common: their frame, a
// watch of what is published, and how figures are told.
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

// Main is the whole of a benchmark's main: it builds what is missing, enters the namespaces, opens
// a lab whose manager is compiled as `make build` does, and runs on it. The context ends with a
// signal.
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

// Prefix is for the addresses of targets (RFC 2544: for benchmarks).
const Prefix = "198.18.0.0/15"

// Address is the i-th of [Prefix], of 131,071.
func Address(i int) netip.Addr {
	i++ // the first address of a prefix names its network
	return netip.AddrFrom4([4]byte{198, 18 + byte(i>>16), byte(i >> 8), byte(i)})
}

// Spread is durations of one kind.
type Spread []time.Duration

// At is the percentile, from 0 (the least) to 100 (the largest), of at least one duration.
func (s Spread) At(percent int) time.Duration {
	return slices.Sorted(slices.Values(s))[(len(s)-1)*percent/100]
}

// String tells median, 99th percentile and maximum.
func (s Spread) String() string {
	return fmt.Sprintf("p50 %s, p99 %s, max %s", Milliseconds(s.At(50)), Milliseconds(s.At(99)), Milliseconds(s.At(100)))
}

// Milliseconds tells a duration to a tenth of a millisecond.
func Milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

// LoadAverage is that of the last minute.
func LoadAverage() (string, error) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "", err
	}
	return strings.Fields(string(text))[0], nil
}
