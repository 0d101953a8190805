package ledger

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// failedKind is the kind of the records of FAILED rows whose tables cannot store FAILED, by
// outbox and row. failedQueue holds those rows whose content only the log has, with their
// content. No replay has its name.
const (
	failedKind  = "failed"
	failedQueue = "failed.rows"
)

// failedRow is a FAILED row in a record.
type failedRow struct {
	Outbox     text      `json:"outbox"`
	ID         text      `json:"id"`
	Kind       text      `json:"kind"` // of its lane
	Group      *text     `json:"group"`
	OwnKind    text      `json:"ownKind,omitempty"` // if it differs from that of the lane
	RetryCount int       `json:"retryCount,omitempty"`
	Error      text      `json:"error,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	At         time.Time `json:"at,omitzero"`
	Size       int       `json:"size"`
	Seq        store.Seq `json:"seq,omitempty"` // its number in failedQueue
}

// failedPrefix begins the keys of an outbox's FAILED rows.
func failedPrefix(outbox string) string { return hashKey(outbox)[:17] + "." }

func failedKey(row store.Ref) string {
	id := sha256.Sum256([]byte(row.ID))
	return failedPrefix(row.Outbox) + hex.EncodeToString(id[:20])
}

// recordOfFailed returns the record of an outcome FAILED.
func recordOfFailed(o *store.Outcome) *failedRow {
	row := o.Row
	if row == nil {
		row = &store.Item{}
	}
	rec := &failedRow{
		Outbox: text(o.Outbox), ID: text(o.ID), Kind: text(row.Kind), Group: groupText(row.Group), RetryCount: o.RetryCount,
		Error: reasonText(o.Error), At: utc(o.At), Size: row.PayloadSize, Seq: row.Seq,
	}
	if own := row.OwnKind(); own != row.Kind {
		rec.OwnKind = text(own)
	}
	if o.Reason != store.ReasonNone {
		rec.Reason = o.Reason.String()
	}
	return rec
}

func (r *failedRow) ref() store.Ref { return store.Ref{Outbox: string(r.Outbox), ID: string(r.ID)} }

func (r *failedRow) lane() store.LaneKey {
	return store.LaneKey{Outbox: string(r.Outbox), Kind: string(r.Kind), Group: groupOf(r.Group)}
}

// queued returns the reference to the row in failedQueue.
func (r *failedRow) queued() Ref { return Ref{Ref: r.ref(), N: int64(r.Seq)} }

func (r *failedRow) letter() store.DeadLetter {
	return store.DeadLetter{
		Ref: r.ref(), Kind: string(cmp.Or(r.OwnKind, r.Kind)), Group: groupOf(r.Group), RetryCount: r.RetryCount,
		Error: string(r.Error), FailedAt: r.At, PayloadSize: r.Size,
	}
}

// compareFailed orders FAILED rows by time, rows of one time by their place in the log.
func compareFailed(a, b *failedRow) int {
	return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Seq, b.Seq), strings.Compare(string(a.ID), string(b.ID)))
}

// failedRows knows the ids of the FAILED rows that records name, so that a claim of such a row
// costs one look-up, and a claim of any other outbox nothing. Its content is that of the
// records once this relay has become the leader, because only the leader writes them.
type failedRows struct {
	// change is read-locked by a call that changes records until the ids are up to date, and
	// locked by a call that reads all records.
	change   sync.RWMutex
	outboxes map[string]bool // those that cannot store FAILED

	mu     sync.RWMutex
	loaded bool
	unsure time.Time                      // until then each call reads the records
	forgot int                            // calls of forget
	number int64                          // the greatest one that FailedNumbers gave a FAILED row
	ids    map[string]map[string]struct{} // by outbox, then by id
}

func newFailedRows(boxes []store.Outbox) *failedRows {
	f := &failedRows{outboxes: map[string]bool{}, ids: map[string]map[string]struct{}{}}
	for i := range boxes {
		// The FAILED rows of an outbox with routes are those of its legs.
		if name := boxes[i].Name; len(boxes[i].Routes) == 0 && !boxes[i].Layout.Stores(store.Failed) {
			f.outboxes[name], f.ids[name] = true, map[string]struct{}{}
		}
	}
	return f
}

// set records that rows have become FAILED, or are not any more.
func (f *failedRows) set(failed bool, rows ...store.Ref) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, row := range rows {
		if failed {
			f.ids[row.Outbox][row.ID] = struct{}{}
		} else {
			delete(f.ids[row.Outbox], row.ID)
		}
	}
}

// lateCommit is how long a transaction whose answer was lost may still be committing.
const lateCommit = time.Minute

// forget makes the next calls read the records again: the next one, because another relay may
// have led meanwhile, or all of them for a while, because the result of a change is not known.
func (f *failedRows) forget(unsure time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.loaded, f.unsure = false, time.Now().Add(unsure)
	f.forgot++
}

func (f *failedRows) isLoaded() bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.loaded
}

// recordsFailed reports whether the FAILED rows of an outbox are in records.
func (l *Ledger) recordsFailed(outbox string) bool { return l.failed.outboxes[outbox] }

// loadFailed reads the ids of all FAILED rows in records, unless they are known.
func (l *Ledger) loadFailed(ctx context.Context) error {
	f := l.failed
	if len(f.outboxes) == 0 || f.isLoaded() {
		return nil
	}
	f.change.Lock()
	defer f.change.Unlock()
	if f.isLoaded() {
		return nil
	}
	f.mu.RLock()
	forgot, began := f.forgot, time.Now()
	f.mu.RUnlock()
	found, number := map[string]map[string]struct{}{}, int64(0)
	err := l.records.View(ctx, func(ctx context.Context, r Reader) error {
		for outbox := range f.outboxes {
			ids := map[string]struct{}{}
			found[outbox] = ids
			err := eachFailed(ctx, r, outbox, func(_ string, row *failedRow) {
				if ids[string(row.ID)] = struct{}{}; row.Seq.Epoch() == 0 {
					number = max(number, int64(row.Seq))
				}
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read records of FAILED rows: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ids, f.loaded = found, f.forgot == forgot && !began.Before(f.unsure)
	f.number = max(f.number, number)
	return nil
}

// numbersBegin is when the numbers of FAILED rows count from, 2026-01-01, in milliseconds since 1970. They
// last for 34 years.
const numbersBegin = 1_767_225_600_000

// FailedNumbers returns the first of n numbers for FAILED rows of legs that the log did not bring, which
// are their Seqs. They are behind all earlier ones, so that a requeue keeps the order in which the rows
// FAILED, and below the Seqs of all epochs, so that it puts the rows in front of their lanes.
func (l *Ledger) FailedNumbers(ctx context.Context, n int) (store.Seq, error) {
	if err := l.loadFailed(ctx); err != nil {
		return 0, err
	}
	f := l.failed
	f.mu.Lock()
	defer f.mu.Unlock()
	first := max(f.number+1, time.Now().UnixMilli()-numbersBegin)
	f.number = first + int64(n) - 1
	return store.NewSeq(0, first), nil
}

// failedIDs returns the ids of an outbox's FAILED rows in records.
func (l *Ledger) failedIDs(ctx context.Context, outbox string) (ids []string, err error) {
	if err := l.loadFailed(ctx); err != nil {
		return nil, err
	}
	l.failed.mu.RLock()
	defer l.failed.mu.RUnlock()
	for id := range l.failed.ids[outbox] {
		ids = append(ids, id)
	}
	return ids, nil
}

// failedAmong reports which of n rows are FAILED by a record, nil if none is.
func (l *Ledger) failedAmong(ctx context.Context, n int, row func(i int) *store.Ref) (failed []bool, err error) {
	if len(l.failed.outboxes) == 0 {
		return nil, nil
	}
	if err := l.loadFailed(ctx); err != nil {
		return nil, err
	}
	l.failed.mu.RLock()
	defer l.failed.mu.RUnlock()
	for i := range n {
		ref := row(i)
		if _, is := l.failed.ids[ref.Outbox][ref.ID]; is {
			if failed == nil {
				failed = make([]bool, n)
			}
			failed[i] = true
		}
	}
	return failed, nil
}

// orRecorded returns an AreFailed that reads the records for rows whose tables cannot store
// FAILED, and asks tables for all others.
func (l *Ledger) orRecorded(read reading, tables AreFailed) AreFailed {
	if len(l.failed.outboxes) == 0 {
		return tables
	}
	return func(ctx context.Context, rows []store.Ref) ([]bool, error) {
		var keys []string
		var others []store.Ref
		for _, row := range rows {
			if l.recordsFailed(row.Outbox) {
				keys = append(keys, failedKey(row))
			} else {
				others = append(others, row)
			}
		}
		recorded, err := getAll[failedRow](ctx, read, failedKind, distinct(keys))
		var stored []bool
		if err == nil && len(others) > 0 {
			stored, err = tables(ctx, others)
		}
		if err != nil {
			return nil, err
		}
		failed := make([]bool, len(rows))
		for i, row := range rows {
			if l.recordsFailed(row.Outbox) {
				failed[i] = recorded[failedKey(row)] != nil
			} else {
				failed[i], stored = stored[0], stored[1:]
			}
		}
		return failed, nil
	}
}

// newlyFailed returns the outcomes that made rows FAILED whose tables cannot store that. Of
// several outcomes of a row the last one counts.
func (l *Ledger) newlyFailed(outcomes []store.Outcome, results []store.SettleResult) map[store.Ref]*store.Outcome {
	failed := map[store.Ref]*store.Outcome{}
	for i := range outcomes {
		o := ended(&outcomes[i])
		switch {
		case endResult(&outcomes[i], results[i]) != store.Written || !l.recordsFailed(o.Outbox):
		case o.Status == store.Failed:
			failed[o.Ref] = o
		default:
			delete(failed, o.Ref)
		}
	}
	return failed
}

// recordFailed records the rows of newlyFailed, and the content of those that only the log has.
func (l *Ledger) recordFailed(ctx context.Context, tx Tx, outcomes []store.Outcome, results []store.SettleResult) error {
	records, rows := map[string]*failedRow{}, []store.Item(nil)
	for _, o := range l.newlyFailed(outcomes, results) {
		records[failedKey(o.Ref)] = recordOfFailed(o)
		if o.Row != nil && l.outboxes.Lookup(o.Outbox).Layout.LogOnly() {
			rows = append(rows, *o.Row)
		}
	}
	if len(rows) > 0 {
		slices.SortFunc(rows, func(a, b store.Item) int { return cmp.Compare(a.Seq, b.Seq) }) // the order of locks
		if _, err := tx.Enqueue(ctx, failedQueue, rows); err != nil {
			return err
		}
	}
	return putAll(ctx, tx, failedKind, records)
}

// eachFailed calls take for the FAILED rows of an outbox in records, in no order.
func eachFailed(ctx context.Context, r RecordReader, outbox string, take func(key string, row *failedRow)) error {
	return r.List(ctx, failedKind, failedPrefix(outbox), 0, func(rec Record) error {
		row := &failedRow{}
		if err := decode(failedKind, rec.Key, rec.Body, row); err != nil {
			return err
		}
		if string(row.Outbox) == outbox { // two names may share a prefix
			take(rec.Key, row)
		}
		return nil
	})
}

// readFailed returns the rows that a filter selects, the first ones by time, up to limit of
// them. It reads all records of the outbox, unless the filter names ids.
func (l *Ledger) readFailed(ctx context.Context, f *store.DeadLetterFilter, limit int) (rows []*failedRow, err error) {
	take := func(_ string, row *failedRow) {
		if d := row.letter(); !f.Matches(&d) {
			return
		}
		rows = append(rows, row)
		if len(rows)/2-500 > limit { // keeps memory bounded
			slices.SortFunc(rows, compareFailed)
			rows = rows[:limit]
		}
	}
	err = l.records.View(ctx, func(ctx context.Context, r Reader) error {
		rows = nil
		if len(f.IDs) == 0 {
			return eachFailed(ctx, r, f.Outbox, take)
		}
		keys := make([]string, len(f.IDs))
		for i, id := range f.IDs {
			keys[i] = failedKey(store.Ref{Outbox: f.Outbox, ID: id})
		}
		found, err := getAll[failedRow](ctx, r.Get, failedKind, distinct(keys))
		for key, row := range found {
			take(key, row)
		}
		return err
	})
	slices.SortFunc(rows, compareFailed)
	return rows[:min(limit, len(rows))], err
}
