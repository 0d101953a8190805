package outcome

import "time"

// Wait before the store is asked about a locked table. The first wait is zero. It doubles
// each time the table is locked again within tableMemory of being free.
const (
	minTableWait = 50 * time.Millisecond
	MaxTableWait = 2 * time.Second
	tableMemory  = 10 * time.Second
)

// table is the table of an outbox that another session locks, or locked recently. Its
// outcomes wait here, so that those of other outboxes in the same statement go on.
type table[T any] struct {
	locked   bool
	outcomes []Outcome[T] // in order
	relocks  int          // locks soon after it was free
	freed    time.Time
	due      time.Time // next wait for the table
}

// lockedTable returns the lock on an outbox's table; nil if it is not locked.
func (q *Queue[T]) lockedTable(outbox string) *table[T] {
	if t := q.tables[outbox]; t != nil && t.locked {
		return t
	}
	return nil
}

// TableLocked reports whether the table of an outbox is locked.
func (q *Queue[T]) TableLocked(outbox string) bool { return q.lockedTable(outbox) != nil }

// LockTable marks a table as locked and sets its outcomes aside. It reports false if the
// table was locked before.
func (q *Queue[T]) LockTable(outbox string, now time.Time) bool {
	t := q.tables[outbox]
	if t == nil {
		t = &table[T]{}
		q.tables[outbox] = t
	}
	if t.locked {
		return false
	}
	t.due = now
	if t.relocks++; now.Sub(t.freed) > tableMemory {
		t.relocks = 1
	}
	if t.relocks > 1 {
		t.due = now.Add(min(minTableWait<<min(t.relocks-2, 10), MaxTableWait))
	}

	t.locked = true
	waiting := q.waiting
	q.waiting = [2][]Outcome[T]{}
	for _, half := range waiting {
		for _, o := range half {
			q.Add(o)
		}
	}
	return true
}

// NextTable returns the locked table that is due first; false if none is locked.
func (q *Queue[T]) NextTable() (outbox string, due time.Time, ok bool) {
	for name, t := range q.tables {
		if t.locked && (!ok || t.due.Before(due) || t.due.Equal(due) && name < outbox) {
			outbox, due, ok = name, t.due, true
		}
	}
	return outbox, due, ok
}

// DeferTable postpones the next wait for a table.
func (q *Queue[T]) DeferTable(outbox string, due time.Time) {
	if t := q.lockedTable(outbox); t != nil {
		t.due = due
	}
}

// UnlockTable returns the outcomes that waited for a table, those of a half in order; false if it
// was not locked. The caller adds them again.
func (q *Queue[T]) UnlockTable(outbox string, now time.Time) (outcomes []Outcome[T], ok bool) {
	t := q.lockedTable(outbox)
	if t == nil {
		return nil, false
	}
	outcomes = t.outcomes
	t.locked, t.freed, t.outcomes = false, now, nil
	return outcomes, true
}
