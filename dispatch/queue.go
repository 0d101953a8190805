package dispatch

import (
	"container/heap"
	"iter"
	"slices"
	"time"
)

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

// batches is a queue that is written in batches, one at a time.
type batches[T any] struct{ waiting, writing []T }

func (b *batches[T]) add(v T) { b.waiting = append(b.waiting, v) }

// take begins to write the first n values.
func (b *batches[T]) take(n int) []T {
	b.writing = b.waiting[:n:n]
	b.waiting = b.waiting[n:]
	return b.writing
}

// written ends the batch and returns its values.
func (b *batches[T]) written() []T {
	batch := b.writing
	b.writing = nil
	return batch
}

// all iterates over the values, the waiting ones first.
func (b *batches[T]) all() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for _, queue := range [][]T{b.waiting, b.writing} {
			for i := range queue {
				if !yield(&queue[i]) {
					return
				}
			}
		}
	}
}

// timers holds the lanes that wait for their wakeAt.
type timers struct{ lanes laneHeap }

func (t *timers) add(l *lane) { heap.Push(&t.lanes, l) }

func (t *timers) remove(l *lane) { heap.Remove(&t.lanes, slices.Index(t.lanes, l)) }

// next returns the earliest wakeAt; false if no lane waits.
func (t *timers) next() (at time.Time, ok bool) {
	if len(t.lanes) == 0 {
		return at, false
	}
	return t.lanes[0].WakeAt, true
}

// due removes and returns the first lane that is due; nil if none is.
func (t *timers) due(now time.Time) *lane {
	if at, ok := t.next(); !ok || at.After(now) {
		return nil
	}
	return heap.Pop(&t.lanes).(*lane)
}

// laneHeap is a heap of lanes by wakeAt; see container/heap.
type laneHeap []*lane

func (h laneHeap) Len() int           { return len(h) }
func (h laneHeap) Less(i, j int) bool { return h[i].WakeAt.Before(h[j].WakeAt) }
func (h laneHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *laneHeap) Push(x any)        { *h = append(*h, x.(*lane)) }

func (h *laneHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return l
}

// requests are the requests in flight, by phase.
type requests struct {
	toSend    fifo[*request] // claimed
	claiming  int
	sending   int
	replaying int // being sent with replayed rows
}

// len is the number of requests in flight.
func (f *requests) len() int { return f.claiming + f.toSend.len() + f.sending }

// nextToSend passes the next claimed request to a sender.
func (f *requests) nextToSend() *request {
	req := f.toSend.pop()
	f.sending++
	if req.Job() != nil {
		f.replaying++
	}
	return req
}

// answered removes a request that was sent.
func (f *requests) answered(req *request) {
	f.sending--
	if req.Job() != nil {
		f.replaying--
	}
}

// replays is the number of requests with replayed rows.
func (f *requests) replays() int {
	n := f.replaying
	for _, req := range f.toSend.items {
		if req.Job() != nil {
			n++
		}
	}
	return n
}
