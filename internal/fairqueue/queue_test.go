package fairqueue

import (
	"math/rand/v2"
	"testing"
)

// TestKeysTakeTurns compares a queue with a model that searches. The next key is the one whose last
// turn is the longest ago; a key that has just come counts as having had its turn then.
func TestKeysTakeTurns(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	keys := []string{"a", "b", "c", "d"}
	var queue Queue[int]
	items, since := map[string][]int{}, map[string]int{}
	length, clock := 0, 0
	for i := range 20_000 {
		clock++
		// The queue grows for 5000 steps, shrinks for 5000, and so on.
		if key := keys[random.IntN(len(keys))]; length == 0 || random.IntN(100) < 50+10*(i/5000%2*2-1) {
			queue.Push(key, i)
			if len(items[key]) == 0 {
				since[key] = clock
			}
			items[key] = append(items[key], i)
			length++
			continue
		}

		next := ""
		for _, key := range keys {
			if len(items[key]) > 0 && (next == "" || since[key] < since[next]) {
				next = key
			}
		}
		want := items[next][0]
		items[next], since[next] = items[next][1:], clock
		length--

		if first, ok := queue.First(); !ok || first != want {
			t.Fatalf("step %d: first is %d (%t), not %d", i, first, ok, want)
		}
		if got := queue.Pop(); got != want {
			t.Fatalf("step %d: popped %d, not %d", i, got, want)
		}
		if queue.Len() != length || queue.LenOf(next) != len(items[next]) {
			t.Fatalf("step %d: %d items, %d under %s; want %d and %d",
				i, queue.Len(), queue.LenOf(next), next, length, len(items[next]))
		}
	}
}

// TestNewKeyWaitsForOneItemOfEachOther pushes one item after a thousand of another key: only one of
// the thousand is popped before it.
func TestNewKeyWaitsForOneItemOfEachOther(t *testing.T) {
	var queue Queue[string]
	for range 1000 {
		queue.Push("crowd", "one of many")
	}
	queue.Push("single", "single")
	if queue.Pop(); queue.Pop() != "single" {
		t.Error("the crowd goes first")
	}
}

// TestEmptyQueueHoldsNothing pops the only item: no item and no key is left.
func TestEmptyQueueHoldsNothing(t *testing.T) {
	var queue Queue[*int]
	queue.Push("a", new(1))
	queue.Pop()
	if first, ok := queue.First(); ok || first != nil || queue.Len() != 0 || len(queue.items) != 0 {
		t.Error("an empty queue holds something")
	}
}

// BenchmarkQueue measures one item through a queue that is otherwise empty, as most queues are.
func BenchmarkQueue(b *testing.B) {
	var queue Queue[int]
	b.ReportAllocs()
	for b.Loop() {
		queue.Push("key", 1)
		queue.Pop()
	}
}
