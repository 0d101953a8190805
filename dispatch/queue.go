package dispatch

import "slices"

// fifo is a first-in, first-out queue.
type fifo[T any] struct{ items []T }

func (q *fifo[T]) push(v T) { q.items = append(q.items, v) }
func (q *fifo[T]) len() int { return len(q.items) }

func (q *fifo[T]) pop() T {
	var none T
	v := q.items[0]
	q.items[0] = none
	q.items = q.items[1:]
	return v
}

// remove removes the first value that matches and reports whether there was one.
func (q *fifo[T]) remove(is func(T) bool) bool {
	i := slices.IndexFunc(q.items, is)
	if i < 0 {
		return false
	}
	q.items = slices.Delete(q.items, i, i+1)
	return true
}

// removeAll removes and returns all values that match, in order.
func (q *fifo[T]) removeAll(is func(T) bool) (taken []T) {
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

// timers is a heap of waiting lanes by wakeAt; see container/heap.
type timers []*lane

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].wakeAt.Before(t[j].wakeAt) }
func (t timers) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *timers) Push(x any)        { *t = append(*t, x.(*lane)) }

func (t *timers) Pop() any {
	old := *t
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*t = old[:len(old)-1]
	return l
}

// outcomeHeap is a heap of outcomes by due; see container/heap.
type outcomeHeap []outcome

func (r outcomeHeap) Len() int           { return len(r) }
func (r outcomeHeap) Less(i, j int) bool { return r[i].due.Before(r[j].due) }
func (r outcomeHeap) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }
func (r *outcomeHeap) Push(x any)        { *r = append(*r, x.(outcome)) }

func (r *outcomeHeap) Pop() any {
	old := *r
	o := old[len(old)-1]
	old[len(old)-1] = outcome{}
	*r = old[:len(old)-1]
	return o
}
