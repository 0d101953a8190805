package dispatch

import (
	"container/heap"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// outcome is a row's outcome on its way to the store.
type outcome struct {
	store.Outcome
	row  *row
	lane *lane // waits for the write; nil if it went on

	// tries counts refusals by the store, earlyTries consecutive results that the row is
	// not yet visible, lockedTries results that the row is locked. due is the time of the
	// next try.
	tries, earlyTries, lockedTries int
	due                            time.Time

	// refusal is the database's latest error, since the time of the first.
	refusal string
	since   time.Time

	// maybeWritten: the answer to a try was lost, so the outcome may be in the store.
	maybeWritten bool
}

// outcomes holds the outcomes on their way to the store, except those of locked tables.
type outcomes struct {
	batches[outcome]
	spare   []outcome   // empty; its memory is reused
	retry   outcomeHeap // refused, locked or early outcomes, until they are retried
	early   int         // early at the last try, in any queue
	refused int         // refused by the store, in any queue
}

// next begins to write at most limit outcomes; nil if there are none, or a batch is being
// written. An outcome that the store refused before is written alone.
func (q *outcomes) next(limit int) []outcome {
	if len(q.writing) > 0 || len(q.waiting) == 0 {
		return nil
	}
	n := 1
	for n < min(limit, len(q.waiting)) && q.waiting[0].tries == 0 && q.waiting[n].tries == 0 {
		n++
	}
	batch := q.take(n)
	if len(q.waiting) == 0 {
		q.waiting, q.spare = q.spare, nil
	}
	return batch
}

// recycle reuses the memory of a written batch.
func (q *outcomes) recycle(batch []outcome) {
	clear(batch)
	q.spare = batch[:0]
}

// deferUntil sets an outcome aside until a time.
func (q *outcomes) deferUntil(o *outcome, due time.Time) {
	o.due = due
	heap.Push(&q.retry, *o)
}

// deferEarly sets aside an outcome whose row the store does not see yet, and reports
// whether it did. The waits are those of a claim of an invisible row.
func (q *outcomes) deferEarly(o *outcome, result store.SettleResult, now time.Time) bool {
	if o.earlyTries > 0 {
		q.early--
	}
	if result != store.TooEarly {
		o.earlyTries = 0
		return false
	}
	q.early++
	o.earlyTries++
	q.deferUntil(o, now.Add(visibilityWait(o.earlyTries)))
	return true
}

// deferRowLocked sets aside an outcome whose row is locked.
func (q *outcomes) deferRowLocked(o *outcome, now time.Time) {
	wait := min(minRowLockWait<<min(o.lockedTries, 10), maxRowLockWait)
	o.lockedTries++
	q.deferUntil(o, now.Truncate(wait).Add(wait)) // with others that wait as long
}

// deferRefused sets aside an outcome that the store refused.
func (q *outcomes) deferRefused(o *outcome, now time.Time) {
	if o.tries == 0 {
		q.refused++
		o.since = now
	}
	wait := min(minRefusalWait<<min(o.tries, 10), maxRefusalWait)
	o.tries++
	q.deferUntil(o, now.Add(wait))
}

// due removes and returns the first deferred outcome that is due; false if none is.
func (q *outcomes) due(now time.Time) (o outcome, ok bool) {
	if at, ok := q.nextRetry(); !ok || at.After(now) {
		return o, false
	}
	return heap.Pop(&q.retry).(outcome), true
}

// nextRetry returns when the first deferred outcome is due; false if there is none.
func (q *outcomes) nextRetry() (at time.Time, ok bool) {
	if len(q.retry) == 0 {
		return at, false
	}
	return q.retry[0].due, true
}

// piled is how many outcomes pile up: deferred, refused or early ones, whichever are most.
func (q *outcomes) piled() int { return max(len(q.retry), q.refused, q.early) }

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
