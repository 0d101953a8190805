package lane

import (
	"container/heap"
	"slices"
	"time"
)

// Fifo is a first-in, first-out queue. The zero value is empty.
type Fifo[T any] struct{ items []T }

// Push adds a value at the end.
func (q *Fifo[T]) Push(v T) { q.items = append(q.items, v) }

// Len is the number of values.
func (q *Fifo[T]) Len() int { return len(q.items) }

// Items returns the values, the first one first. They belong to the queue.
func (q *Fifo[T]) Items() []T { return q.items }

// Pop removes and returns the first value. The queue must not be empty.
func (q *Fifo[T]) Pop() T {
	var none T
	v := q.items[0]
	q.items[0] = none
	q.items = q.items[1:]
	return v
}

// Remove removes the first value that matches and reports whether there was one.
func (q *Fifo[T]) Remove(is func(T) bool) bool {
	i := slices.IndexFunc(q.items, is)
	if i < 0 {
		return false
	}
	q.items = slices.Delete(q.items, i, i+1)
	return true
}

// RemoveAll removes and returns all values that match, in order.
func (q *Fifo[T]) RemoveAll(is func(T) bool) (taken []T) {
	var kept []T
	for _, v := range q.items {
		if is(v) {
			taken = append(taken, v)
		} else {
			kept = append(kept, v)
		}
	}
	q.items = kept
	return taken
}

// timers holds the lanes that wait for their WakeAt.
type timers struct{ lanes laneHeap }

func (t *timers) add(l *Lane) { heap.Push(&t.lanes, l) }

func (t *timers) remove(l *Lane) { heap.Remove(&t.lanes, slices.Index(t.lanes, l)) }

// next returns the earliest WakeAt; false if no lane waits.
func (t *timers) next() (at time.Time, ok bool) {
	if len(t.lanes) == 0 {
		return at, false
	}
	return t.lanes[0].WakeAt, true
}

// due removes and returns the first lane that is due; nil if none is.
func (t *timers) due(now time.Time) *Lane {
	if at, ok := t.next(); !ok || at.After(now) {
		return nil
	}
	return heap.Pop(&t.lanes).(*Lane)
}

// laneHeap is a heap of lanes by WakeAt; see container/heap.
type laneHeap []*Lane

func (h laneHeap) Len() int           { return len(h) }
func (h laneHeap) Less(i, j int) bool { return h[i].WakeAt.Before(h[j].WakeAt) }
func (h laneHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *laneHeap) Push(x any)        { *h = append(*h, x.(*Lane)) }

func (h *laneHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return l
}
