package fair

import (
	"math/rand/v2"
	"testing"
)

// TestTurns compares a line with a model that searches: of the keys that wait, the one goes that
// has waited longest since its last turn, or since it came.
func TestTurns(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	keys := []string{"a", "b", "c", "d"}
	var line Line[int]
	waits, since := map[string][]int{}, map[string]int{}
	length, clock := 0, 0
	for i := range 20_000 {
		clock++
		// it grows and shrinks
		if key := keys[random.IntN(len(keys))]; length == 0 || random.IntN(100) < 50+10*(i/5000%2*2-1) {
			line.Push(key, i)
			if len(waits[key]) == 0 {
				since[key] = clock
			}
			waits[key] = append(waits[key], i)
			length++
			continue
		}
		next := ""
		for _, key := range keys {
			if len(waits[key]) > 0 && (next == "" || since[key] < since[next]) {
				next = key
			}
		}
		want := waits[next][0]
		waits[next], since[next] = waits[next][1:], clock
		length--
		if first, ok := line.First(); !ok || first != want {
			t.Fatalf("step %d: first is %d (%t), not %d", i, first, ok, want)
		}
		if got := line.Pop(); got != want {
			t.Fatalf("step %d: popped %d, not %d", i, got, want)
		}
		if line.Len() != length || line.Waiting(next) != len(waits[next]) {
			t.Fatalf(
				"step %d: %d wait, %d under %s; wanted %d and %d",
				i,
				line.Len(),
				line.Waiting(next),
				next,
				length,
				len(waits[next]),
			)
		}
	}
}

// TestCrowd: who comes behind a crowd waits for one of it.
func TestCrowd(t *testing.T) {
	var line Line[string]
	for range 1000 {
		line.Push("crowd", "one of many")
	}
	line.Push("single", "single")
	if line.Pop(); line.Pop() != "single" {
		t.Error("the crowd goes first")
	}
}

func TestEmpty(t *testing.T) {
	var line Line[*int]
	line.Push("a", new(1))
	line.Pop()
	if first, ok := line.First(); ok || first != nil || line.Len() != 0 || len(line.waits) != 0 {
		t.Error("an empty line holds something")
	}
}

// BenchmarkLine is one item through a line that is otherwise empty, as most are.
func BenchmarkLine(b *testing.B) {
	var line Line[int]
	b.ReportAllocs()
	for b.Loop() {
		line.Push("key", 1)
		line.Pop()
	}
}
