package trail

import (
	"slices"

	"github.com/sluicebox/sluicebox/store"
)

// Kept chooses whose failed attempts the store keeps: those of rows that fail, and of FAILED rows as
// long as there is room. A row beyond the limit is left out until another one has ended.
type Kept struct {
	rows    map[store.Ref]*keptRow
	changed []store.Ref // not yet taken
	dropped []store.Ref // not yet taken
	failed  []store.Ref // in the order in which they became FAILED; some may have ended
	limit   int
}

// keptRow is a row whose attempts are kept.
type keptRow struct {
	failures *Failures
	changed  bool // it is in changed
	failed   bool // it is FAILED, or was failing under an earlier leader
}

// NewKept returns the attempts of no row, and of at most limit.
func NewKept(limit int) Kept { return Kept{rows: map[store.Ref]*keptRow{}, limit: limit} }

// Load adds what the store has. Call it before the others.
func (k *Kept) Load(saved *store.FailedAttempts) {
	k.rows[saved.Ref] = &keptRow{failures: &Failures{saved.Latest, saved.Total}, failed: true}
	k.failed = append(k.failed, saved.Ref)
}

// Of returns the attempts of a row, nil if none are kept.
func (k *Kept) Of(row *store.Ref) *Failures {
	if len(k.rows) == 0 {
		return nil
	}
	if r := k.rows[*row]; r != nil {
		return r.failures
	}
	return nil
}

// Failing records that a row has failed again.
func (k *Kept) Failing(row store.Ref, f *Failures) {
	r := k.rows[row]
	if r == nil {
		if len(k.rows) >= k.limit && !k.makeRoom() {
			return
		}
		r = &keptRow{}
		k.rows[row] = r
	}
	r.failures, r.failed = f, false
	if !r.changed {
		r.changed = true
		k.changed = append(k.changed, row)
	}
}

// makeRoom drops the row that became FAILED first, and reports whether there was one.
func (k *Kept) makeRoom() bool {
	for len(k.failed) > 0 {
		row := k.failed[0]
		k.failed = k.failed[1:]
		if r := k.rows[row]; r != nil && r.failed {
			k.Ended(&row)
			return true
		}
	}
	return false
}

// Failed records that a row is FAILED.
func (k *Kept) Failed(row store.Ref) {
	r := k.rows[row]
	if r == nil || r.failed {
		return
	}
	r.failed = true
	if len(k.failed) >= 2*k.limit { // most of them have ended since
		k.failed = slices.DeleteFunc(k.failed, func(row store.Ref) bool { return k.rows[row] == nil || !k.rows[row].failed })
	}
	k.failed = append(k.failed, row)
}

// Ended records that a row is delivered or gone.
func (k *Kept) Ended(row *store.Ref) {
	if len(k.rows) == 0 {
		return
	}
	if k.rows[*row] != nil {
		delete(k.rows, *row)
		k.dropped = append(k.dropped, *row)
	}
}

// Take returns the attempts of at most limit rows that have changed since, and the rows that have
// ended.
func (k *Kept) Take(limit int) (save []store.FailedAttempts, drop []store.Ref) {
	n := min(limit, len(k.changed))
	for _, row := range k.changed[:n] {
		if r := k.rows[row]; r != nil && r.changed {
			r.changed = false
			save = append(save, store.FailedAttempts{Ref: row, Latest: r.failures.Latest(), Total: r.failures.Total()})
		}
	}
	k.changed = append([]store.Ref(nil), k.changed[n:]...)
	for _, row := range k.dropped {
		if k.rows[row] == nil {
			drop = append(drop, row)
		}
	}
	k.dropped = nil
	return save, drop
}

// Settled returns the rows that are FAILED, or were when the store was read.
func (k *Kept) Settled() (rows []store.Ref) {
	for row, r := range k.rows {
		if r.failed {
			rows = append(rows, row)
		}
	}
	return rows
}
