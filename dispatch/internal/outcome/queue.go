package outcome

import (
	"container/heap"
	"iter"
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

// Writers is how many batches may be written at once.
const Writers = 2

// Config configures a Queue.
type Config[T any] struct {
	// EarlyWait is the wait after the n-th consecutive try that found the row not yet visible, n from 1.
	EarlyWait func(n int) time.Duration

	// Half returns the half to which an outcome belongs, 0 or 1. Outcomes of one half are written in the
	// order in which they are ready.
	Half func(of T) int

	// MinHalf is from how many outcomes on a half is written by itself. Fewer are written together with the
	// other half, because one statement costs less than two.
	MinHalf int
}

// Queue holds the outcomes of a sink's rows. It is not safe for concurrent use.
type Queue[T any] struct {
	cfg      Config[T]
	waiting  [2][]Outcome[T] // by half
	writing  [Writers]batch[T]
	first    int            // the half with which the latest batch of both began
	spares   [][]Outcome[T] // empty; their memory is reused
	deferred outcomeHeap[T]
	tables   map[string]*table[T] // locked now or before, by outbox

	early   int // early at the last try, wherever they are
	refused int // refused by the store, wherever they are
}

// batch is the outcomes that one writer writes.
type batch[T any] struct {
	outcomes []Outcome[T]
	has      [2]bool // the halves that it may have outcomes of
}

// NewQueue returns an empty queue.
func NewQueue[T any](cfg Config[T]) Queue[T] {
	return Queue[T]{cfg: cfg, tables: map[string]*table[T]{}}
}

// Add queues an outcome.
func (q *Queue[T]) Add(o Outcome[T]) {
	if t := q.lockedTable(o.Outbox); t != nil {
		t.outcomes = append(t.outcomes, o)
		return
	}
	half := q.cfg.Half(o.Of)
	q.waiting[half] = append(q.waiting[half], o)
}

// Waiting is how many outcomes wait to be written.
func (q *Queue[T]) Waiting() int { return len(q.waiting[0]) + len(q.waiting[1]) }

// Writing is how many outcomes are being written.
func (q *Queue[T]) Writing() int { return len(q.writing[0].outcomes) + len(q.writing[1].outcomes) }

// InFlight iterates over the outcomes that are being written.
func (q *Queue[T]) InFlight() iter.Seq[*Outcome[T]] {
	return each(q.writing[0].outcomes, q.writing[1].outcomes)
}

// Deferred returns the outcomes that wait for another try, in no particular order.
func (q *Queue[T]) Deferred() []Outcome[T] { return q.deferred }

// Len is the number of outcomes that are not yet in the store.
func (q *Queue[T]) Len() int {
	n := q.Waiting() + q.Writing() + len(q.deferred)
	for _, t := range q.tables {
		n += len(t.outcomes)
	}
	return n
}

// Busy reports whether an outcome will be written soon: early ones included, because their
// rows become visible soon.
func (q *Queue[T]) Busy() bool { return q.Waiting()+q.Writing()+q.early > 0 }

// Piled is how many outcomes pile up, because tables refuse them or show their rows much
// later than the log.
func (q *Queue[T]) Piled() int { return max(len(q.deferred), q.refused, q.early) }

// Refused is how many outcomes the store has refused and not accepted since, whether they
// are in the queue or not.
func (q *Queue[T]) Refused() int { return q.refused }

// Ready reports whether an idle writer would be given outcomes to write.
func (q *Queue[T]) Ready() bool { _, ok := q.next(); return ok }

// next returns the halves to write now; false if there is nothing to write, or it must wait.
func (q *Queue[T]) next() (halves [2]bool, ok bool) {
	busy := [2]bool{q.isBusy(0), q.isBusy(1)}
	a, b := len(q.waiting[0]), len(q.waiting[1])
	switch {
	case busy[0] && busy[1] || a+b == 0:
		return halves, false
	case busy[0]:
		return [2]bool{false, true}, b >= q.cfg.MinHalf
	case busy[1]:
		return [2]bool{true, false}, a >= q.cfg.MinHalf
	case min(a, b) < q.cfg.MinHalf:
		return [2]bool{true, true}, true
	}
	return [2]bool{a >= b, a < b}, true
}

func (q *Queue[T]) isBusy(half int) bool { return q.writing[0].has[half] || q.writing[1].has[half] }

// Next begins to write outcomes with a writer; nil if there are none, its batch is not Written, or the others
// must wait for another batch. Outcomes of one half are never in two batches, so they are written in order. A
// batch has at most limit outcomes, and half as many if it is one of two. An outcome that the store refused
// before is written alone. The batch is valid until Recycle.
func (q *Queue[T]) Next(writer, limit int) []Outcome[T] {
	to := &q.writing[writer]
	halves, ok := q.next()
	if !ok || len(to.outcomes) > 0 {
		return nil
	}
	to.has = halves
	if halves == [2]bool{true, true} {
		q.first = 1 - q.first // in turns, because the other may have to wait for the next batch
	} else {
		limit = max(1, limit/2)
	}
	first := q.first
	if !halves[first] || len(q.waiting[first]) == 0 {
		first = 1 - first
	}
	to.outcomes = q.take(first, limit)
	if rest := limit - len(to.outcomes); halves[1-first] && rest > 0 && !to.outcomes[0].WasRefused() {
		if waiting := q.waiting[1-first]; len(waiting) > 0 && !waiting[0].WasRefused() {
			more, less := q.take(1-first, rest), to.outcomes
			to.outcomes = append(append(q.spare(), less...), more...)
			q.Recycle(less)
			q.Recycle(more)
		}
	}
	return to.outcomes
}

// take removes the first outcomes of a half that may be written in one statement, at most limit.
func (q *Queue[T]) take(half, limit int) []Outcome[T] {
	in := q.waiting[half]
	n := 1
	for n < min(limit, len(in)) && !in[0].WasRefused() && !in[n].WasRefused() {
		n++
	}
	if q.waiting[half] = in[n:]; len(in) == n {
		q.waiting[half] = q.spare()
	}
	return in[:n:n]
}

// spare returns an empty list.
func (q *Queue[T]) spare() (list []Outcome[T]) {
	if last := len(q.spares) - 1; last >= 0 {
		list, q.spares = q.spares[last], q.spares[:last]
	}
	return list
}

// Written ends the batch of a writer and returns it. The caller passes each outcome to Handle, and then
// the batch to Recycle.
func (q *Queue[T]) Written(writer int) []Outcome[T] {
	written := q.writing[writer].outcomes
	q.writing[writer] = batch[T]{}
	return written
}

// maxSpares is one for each half and writer.
const maxSpares = 2 + Writers

// Recycle reuses the memory of a batch.
func (q *Queue[T]) Recycle(batch []Outcome[T]) {
	clear(batch)
	if len(q.spares) < maxSpares {
		q.spares = append(q.spares, batch[:0])
	}
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
		q.deferUntil(o, now.Add(q.cfg.EarlyWait(o.earlyTries)))
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
	return each(q.notReady(q.waiting[0], q.waiting[1], q.writing[0].outcomes, q.writing[1].outcomes)...)
}

// Unready iterates over the outcomes that are deferred or wait for a locked table.
func (q *Queue[T]) Unready() iter.Seq[*Outcome[T]] { return each(q.notReady()...) }

// notReady adds the lists of the outcomes that are deferred or wait for a locked table.
func (q *Queue[T]) notReady(lists ...[]Outcome[T]) [][]Outcome[T] {
	lists = append(lists, q.deferred)
	for _, t := range q.tables {
		lists = append(lists, t.outcomes)
	}
	return lists
}

func each[T any](lists ...[]Outcome[T]) iter.Seq[*Outcome[T]] {
	return func(yield func(*Outcome[T]) bool) {
		for _, list := range lists {
			for i := range list {
				if !yield(&list[i]) {
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
