package plan

import (
	"runtime"
	"slices"
	"testing"

	"github.com/external-backend/operator/api/v1alpha1"
)

// BenchmarkTargetMemory reports the status of 1,000 targets again, with nothing changed. The other
// figures are the bytes for each target that a TargetMemory and a status keep, names apart.
func BenchmarkTargetMemory(b *testing.B) {
	const targets, reports = 1000, 100
	healthy := slices.Repeat([]ProbeState{{Verdict: Healthy}}, targets)
	var in StatusInput
	statusOf(healthy, func(i *StatusInput) { in = *i })
	memories, statuses := make([]TargetMemory, reports), make([]v1alpha1.ExternalBackendStatus, reports)
	memoryBytes := heapGrowth(func() {
		for i := range memories {
			memories[i] = Status(in).TargetMemory
		}
	})
	statusBytes := heapGrowth(func() {
		for i := range statuses {
			statuses[i] = Status(in).Status
		}
	})
	runtime.KeepAlive(memories)
	runtime.KeepAlive(statuses)

	in.TargetMemory = memories[0]
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		in.TargetMemory = Status(in).TargetMemory
	}
	b.ReportMetric(memoryBytes/(targets*reports), "memory-B/target")
	b.ReportMetric(statusBytes/(targets*reports), "status-B/target")
}

// heapGrowth returns how many bytes f keeps.
func heapGrowth(f func()) float64 {
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	before := heap()
	f()
	return heap() - before
}
