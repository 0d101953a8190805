package outcome

import (
	"container/heap"
	"iter"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// minRefusalWait and maxRefusalWait bound the wait before a refused outcome is retried.
const (
	minRefusalWait = time.Second
	maxRefusalWait = time.Minute
)

// minRowLockWait and MaxRowLockWait bound the wait before the outcome of a locked row is
// retried.
const (
	minRowLockWait = 100 * time.Millisecond
	MaxRowLockWait = time.Second
)

// Outcome is the outcome of a row. T is what the caller keeps with it.
type Outcome[T any] struct {
	store.Outcome
	Of T

	// Refusal is the database's latest error, set by the caller. Since is the time of the
	// first.
	Refusal string
	Since   time.Time

	// MaybeWritten: the answer to a try was lost, so the outcome may be in the store.
	MaybeWritten bool

	// refusals counts refusals by the store, earlyTries consecutive results that the row is
	// not yet visible, lockedTries results that the row is locked. due is the time of the
	// next try.
	refusals, earlyTries, lockedTries int
	due                               time.Time
}

// WasRefused reports whether the store has refused the outcome.
func (o *Outcome[T]) WasRefused() bool { return o.refusals > 0 }

// RowWasLocked reports whether the outcome has found its row locked.
func (o *Outcome[T]) RowWasLocked() bool { return o.lockedTries > 0 }

// Due is the time of the next try of a deferred outcome.
func (o *Outcome[T]) Due() time.Time { return o.due }

// Queue holds the outcomes of a sink's rows. It is not safe for concurrent use.
type Queue[T any] struct {
	earlyWait func(n int) time.Duration
	waiting   []Outcome[T]
	writing   []Outcome[T]
	spare     []Outcome[T] // empty; its memory is reused
	deferred  outcomeHeap[T]
	tables    map[string]*table[T] // locked now or before, by outbox

	early   int // early at the last try, wherever they are
	refused int // refused by the store, wherever they are
}

// NewQueue returns an empty queue. earlyWait is the wait after the n-th consecutive try
// that found the row not yet visible, n from 1.
func NewQueue[T any](earlyWait func(n int) time.Duration) Queue[T] {
	return Queue[T]{earlyWait: earlyWait, tables: map[string]*table[T]{}}
}

// Add queues an outcome.
func (q *Queue[T]) Add(o Outcome[T]) {
	if t := q.lockedTable(o.Outbox); t != nil {
		t.outcomes = append(t.outcomes, o)
		return
	}
	q.waiting = append(q.waiting, o)
}

// Waiting returns the outcomes to write, in order. The caller may sort them in place.
func (q *Queue[T]) Waiting() []Outcome[T] { return q.waiting }

// Writing returns the outcomes being written.
func (q *Queue[T]) Writing() []Outcome[T] { return q.writing }

// Deferred returns the outcomes that wait for another try, in no particular order.
func (q *Queue[T]) Deferred() []Outcome[T] { return q.deferred }

// Len is the number of outcomes that are not yet in the store.
func (q *Queue[T]) Len() int {
	n := len(q.waiting) + len(q.writing) + len(q.deferred)
	for _, t := range q.tables {
		n += len(t.outcomes)
	}
	return n
}

// Busy reports whether an outcome will be written soon: early ones included, because their
// rows become visible soon.
func (q *Queue[T]) Busy() bool { return len(q.waiting)+len(q.writing)+q.early > 0 }

// Piled is how many outcomes pile up, because tables refuse them or show their rows much
// later than the log.
func (q *Queue[T]) Piled() int { return max(len(q.deferred), q.refused, q.early) }

// Refused is how many outcomes the store has refused and not accepted since, whether they
// are in the queue or not.
func (q *Queue[T]) Refused() int { return q.refused }

// Next begins to write at most limit outcomes; nil if there are none, or a batch is being
// written. An outcome that the store refused before is written alone. The batch is valid
// until Recycle.
func (q *Queue[T]) Next(limit int) []Outcome[T] {
	if len(q.writing) > 0 || len(q.waiting) == 0 {
		return nil
	}
	n := 1
	for n < min(limit, len(q.waiting)) && q.waiting[0].refusals == 0 && q.waiting[n].refusals == 0 {
		n++
	}
	q.writing = q.waiting[:n:n]
	if q.waiting = q.waiting[n:]; len(q.waiting) == 0 {
		q.waiting, q.spare = q.spare, nil
	}
	return q.writing
}

// Written ends the batch and returns it. The caller passes each outcome to Handle, and then
// the batch to Recycle.
func (q *Queue[T]) Written() []Outcome[T] {
	batch := q.writing
	q.writing = nil
	return batch
}

// Recycle reuses the memory of a batch.
func (q *Queue[T]) Recycle(batch []Outcome[T]) {
	clear(batch)
	q.spare = batch[:0]
}

// Step is what follows a try to write an outcome.
type Step uint8

const (
	// Done means that the outcome needs no further try.
	Done Step = iota

	// Deferred means that the queue keeps the outcome until it is tried again.
	Deferred

	// Refused is Deferred after a refusal of the store.
	Refused

	// TableLocked is Deferred after the queue has learned of a locked table.
	TableLocked
)

// Handle takes the result of a try.
func (q *Queue[T]) Handle(o *Outcome[T], result store.SettleResult, now time.Time) Step {
	if o.earlyTries > 0 {
		q.early--
	}
	if result != store.TooEarly {
		o.earlyTries = 0
	}

	switch result {
	case store.TooEarly:
		q.early++
		o.earlyTries++
		q.deferUntil(o, now.Add(q.earlyWait(o.earlyTries)))
		return Deferred
	case store.WasLocked:
		wait := min(minRowLockWait<<min(o.lockedTries, 10), MaxRowLockWait)
		o.lockedTries++
		q.deferUntil(o, now.Truncate(wait).Add(wait)) // with others that wait as long
		return Deferred
	case store.TableWasLocked:
		newly := q.LockTable(o.Outbox, now)
		q.Add(*o)
		if newly {
			return TableLocked
		}
		return Deferred
	case store.Refused:
		if o.refusals == 0 {
			q.refused++
			o.Since = now
		}
		wait := min(minRefusalWait<<min(o.refusals, 10), maxRefusalWait)
		o.refusals++
		q.deferUntil(o, now.Add(wait))
		return Refused
	}

	if o.refusals > 0 {
		q.refused--
	}
	return Done
}

func (q *Queue[T]) deferUntil(o *Outcome[T], due time.Time) {
	o.due = due
	heap.Push(&q.deferred, *o)
}

// Due removes and returns the first deferred outcome that is due; false if none is. The
// caller adds it again.
func (q *Queue[T]) Due(now time.Time) (o Outcome[T], ok bool) {
	if at, some := q.NextDue(); !some || at.After(now) {
		return o, false
	}
	return heap.Pop(&q.deferred).(Outcome[T]), true
}

// NextDue returns when the first deferred outcome is due; false if there is none.
func (q *Queue[T]) NextDue() (at time.Time, ok bool) {
	if len(q.deferred) == 0 {
		return at, false
	}
	return q.deferred[0].due, true
}

// All iterates over all outcomes that are not yet in the store.
func (q *Queue[T]) All() iter.Seq[*Outcome[T]] {
	return q.each(q.waiting, q.writing, q.deferred)
}

// Unready iterates over the outcomes that are deferred or wait for a locked table.
func (q *Queue[T]) Unready() iter.Seq[*Outcome[T]] { return q.each(q.deferred) }

// each iterates over some queues and the outcomes of locked tables.
func (q *Queue[T]) each(queues ...[]Outcome[T]) iter.Seq[*Outcome[T]] {
	return func(yield func(*Outcome[T]) bool) {
		all := slices.Clip(queues)
		for _, t := range q.tables {
			all = append(all, t.outcomes)
		}
		for _, queue := range all {
			for i := range queue {
				if !yield(&queue[i]) {
					return
				}
			}
		}
	}
}

// outcomeHeap is a heap of outcomes by due; see container/heap.
type outcomeHeap[T any] []Outcome[T]

func (h outcomeHeap[T]) Len() int           { return len(h) }
func (h outcomeHeap[T]) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h outcomeHeap[T]) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *outcomeHeap[T]) Push(x any)        { *h = append(*h, x.(Outcome[T])) }

func (h *outcomeHeap[T]) Pop() any {
	old := *h
	o := old[len(old)-1]
	old[len(old)-1] = Outcome[T]{}
	*h = old[:len(old)-1]
	return o
}
