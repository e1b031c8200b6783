package priorityqueue

import (
	"math/rand/v2"
	"testing"
)

type number int

func (n number) Before(other number) bool { return n < other }

type item struct{ position Position }

func (i *item) Position() *Position { return &i.position }

// FuzzQueueAgainstMap compares a queue with a map of items to keys, which is searched for its least
// key.
func FuzzQueueAgainstMap(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 200, 7, 0, 255, 9})
	f.Fuzz(func(t *testing.T, steps []byte) {
		items := make([]item, 16)
		keys := map[*item]number{}
		var queue Queue[number, *item]
		for i, step := range steps {
			switch it := &items[step%16]; step / 16 {
			case 0:
				queue.Remove(it)
				delete(keys, it)
			case 1:
				queue.Rekey(func(it *item, n number) number {
					keys[it]++
					return n + 1
				})
			default:
				keys[it] = number(step) * 7 % 64
				queue.Set(it, keys[it])
			}

			first, key, ok := queue.First()
			if ok != (len(keys) > 0) || queue.Len() != len(keys) {
				t.Fatalf("step %d: %d items, want %d", i, queue.Len(), len(keys))
			}
			if want, has := keys[first]; ok && (!has || want != key) {
				t.Fatalf("step %d: the first item has key %d, want %d", i, key, want)
			}
			for it, other := range keys {
				if other < key || it.position == 0 {
					t.Fatalf("step %d: an item with key %d at position %d, the first has key %d", i, other, it.position, key)
				}
			}
		}
	})
}

// TestRemovedItemsAreInNoQueue removes all items in a random order: their positions are zero again.
func TestRemovedItemsAreInNoQueue(t *testing.T) {
	items := make([]item, 100)
	var queue Queue[number, *item]
	for i := range items {
		queue.Set(&items[i], number(i*37%100))
	}
	for _, i := range rand.New(rand.NewPCG(1, 1)).Perm(len(items)) {
		queue.Remove(&items[i])
		if items[i].position != 0 {
			t.Fatalf("item %d is at position %d", i, items[i].position)
		}
		queue.Remove(&items[i]) // changes nothing
	}
	if _, _, ok := queue.First(); ok || queue.Len() != 0 {
		t.Errorf("%d items are left", queue.Len())
	}
}

// TestPopUntilStopsBehindTheLimit pops the items whose keys are at most 4.
func TestPopUntilStopsBehindTheLimit(t *testing.T) {
	items := make([]item, 10)
	var queue Queue[number, *item]
	for i := range items {
		queue.Set(&items[i], number(i*7%10))
	}
	for want := number(0); want <= 4; want++ {
		if it, key, ok := queue.PopUntil(4); !ok || key != want || it.position != 0 {
			t.Errorf("got key %d at position %d, %v, want key %d", key, it.position, ok, want)
		}
	}
	if _, _, ok := queue.PopUntil(4); ok || queue.Len() != 5 {
		t.Errorf("%d items are left, want 5", queue.Len())
	}
}

// BenchmarkQueue gives the first of 100,000 items a later key.
func BenchmarkQueue(b *testing.B) {
	items := make([]item, 100_000)
	var queue Queue[number, *item]
	for i := range items {
		queue.Set(&items[i], number(i))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		first, key, _ := queue.First()
		queue.Set(first, key+100_000)
	}
}
