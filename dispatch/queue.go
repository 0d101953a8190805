package dispatch

import "slices"

// fifo is a queue.
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

// queue is lanes that wait for a sender, first in first out. It is kept by kind,
// because a request has rows of one kind.
type queue struct {
	kinds map[string]*fifo[*lane]
	n     int
	stamp uint64
}

func (q *queue) len() int { return q.n }

func (q *queue) push(l *lane) {
	if q.kinds == nil {
		q.kinds = map[string]*fifo[*lane]{}
	}
	f := q.kinds[l.name.Kind]
	if f == nil {
		f = &fifo[*lane]{}
		q.kinds[l.name.Kind] = f
	}
	q.stamp++
	l.queued = q.stamp
	f.push(l)
	q.n++
}

// longest returns the lanes of the kind whose first lane has waited longest. The
// queue must not be empty.
func (q *queue) longest() *fifo[*lane] {
	var first *fifo[*lane]
	for _, f := range q.kinds {
		if f.len() > 0 && (first == nil || f.items[0].queued < first.items[0].queued) {
			first = f
		}
	}
	return first
}

// pop takes the first lane of a kind's part.
func (q *queue) pop(f *fifo[*lane]) *lane {
	q.n--
	return f.pop()
}

// remove takes a lane out, wherever it stands, and reports whether it was there.
func (q *queue) remove(l *lane) bool {
	f := q.kinds[l.name.Kind]
	if f == nil {
		return false
	}
	i := slices.Index(f.items, l)
	if i < 0 {
		return false
	}
	f.items = slices.Delete(f.items, i, i+1)
	q.n--
	return true
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

// refusals is a heap of outcomes by due; see container/heap.
type refusals []outcome

func (r refusals) Len() int           { return len(r) }
func (r refusals) Less(i, j int) bool { return r[i].due.Before(r[j].due) }
func (r refusals) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }
func (r *refusals) Push(x any)        { *r = append(*r, x.(outcome)) }

func (r *refusals) Pop() any {
	old := *r
	o := old[len(old)-1]
	old[len(old)-1] = outcome{}
	*r = old[:len(old)-1]
	return o
}
