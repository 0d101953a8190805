package ledger

import (
	"context"
	"fmt"
	"slices"

	"github.com/sluicebox/sluicebox/store"
)

// legKind is the kind of the records of rows whose legs are not at one, by outbox and row; see
// store.LegRow.
const legKind = "leg"

// leg names the outbox and the route of a leg.
type leg struct{ outbox, route string }

func legsOf(boxes []store.Outbox) map[string]leg {
	legs := map[string]leg{}
	for i := range boxes {
		for _, r := range boxes[i].Routes {
			legs[store.LegName(boxes[i].Name, r.Name)] = leg{boxes[i].Name, r.Name}
		}
	}
	return legs
}

// legRow is a store.LegRow in a record.
type legRow struct {
	Outbox  text                `json:"outbox"`
	ID      text                `json:"id"`
	Matched []string            `json:"matched"`
	Done    []string            `json:"done,omitempty"`
	Failed  []string            `json:"failed,omitempty"`
	Spilled []string            `json:"spilled,omitempty"`
	Again   []string            `json:"again,omitempty"`
	Gone    []string            `json:"discarded,omitempty"`
	Retries map[string]legRetry `json:"retries,omitempty"`
}

type legRetry struct {
	Count int  `json:"count"`
	Error text `json:"error,omitempty"`
}

func recordOfLegs(r *store.LegRow) *legRow {
	rec := &legRow{
		Outbox: text(r.Outbox), ID: text(r.ID), Matched: r.Matched, Done: r.Done, Failed: r.Failed, Spilled: r.Spilled, Again: r.Again, Gone: r.Discarded,
	}
	for route, retry := range r.Retries {
		if rec.Retries == nil {
			rec.Retries = map[string]legRetry{}
		}
		rec.Retries[route] = legRetry{retry.Count, reasonText(retry.Error)}
	}
	return rec
}

func (r *legRow) ref() store.Ref { return store.Ref{Outbox: string(r.Outbox), ID: string(r.ID)} }

func (r *legRow) value() *store.LegRow {
	v := &store.LegRow{Ref: r.ref(), Matched: r.Matched, Done: r.Done, Failed: r.Failed, Spilled: r.Spilled, Again: r.Again, Discarded: r.Gone}
	for route, retry := range r.Retries {
		if v.Retries == nil {
			v.Retries = map[string]store.LegRetry{}
		}
		v.Retries[route] = store.LegRetry{Count: retry.Count, Error: string(retry.Error)}
	}
	return v
}

func legKey(row store.Ref) string { return failedKey(row) }

// LegRows returns the records of rows, by position, nil for a row without one. The rows are those
// of outboxes, not of legs.
func (l *Ledger) LegRows(ctx context.Context, rows []store.Ref) (found []*store.LegRow, err error) {
	if l.legKeys.none() {
		return make([]*store.LegRow, len(rows)), nil
	}
	for some := range slices.Chunk(rows, maxFailedRows) {
		keys := make([]string, len(some))
		for i, row := range some {
			keys[i] = legKey(row)
		}
		records, err := getAll[legRow](ctx, recordsOf(l.records), legKind, l.legKeys.among(distinct(keys)))
		if err != nil {
			return nil, fmt.Errorf("read records of legs: %w", err)
		}
		for _, key := range keys {
			var v *store.LegRow
			if rec := records[key]; rec != nil {
				v = rec.value()
			}
			found = append(found, v)
		}
	}
	return found, nil
}

// EachLegRow calls take for the records of an outbox's rows, in no order. take must not call the
// store, and gets records again if a call after an error starts over.
func (l *Ledger) EachLegRow(ctx context.Context, outbox string, take func(*store.LegRow)) error {
	err := l.records.View(ctx, func(ctx context.Context, r Reader) error {
		return r.List(ctx, legKind, failedPrefix(outbox), 0, func(rec Record) error {
			row := &legRow{}
			if err := decode(legKind, rec.Key, rec.Body, row); err != nil {
				return err
			}
			if string(row.Outbox) == outbox { // two names may share a prefix
				take(row.value())
			}
			return nil
		})
	})
	return wrap(err, "read records of legs of %s", outbox)
}

// SettleLegs records ends of legs that do not change their rows, durably and in one transaction:
// the record of the row, and what AfterSettle writes. After ErrNotLeader or a *RefusedError nothing
// was written. To repeat a call after another error is safe.
func (l *Ledger) SettleLegs(ctx context.Context, epoch store.Epoch, ends []store.LegEnd) error {
	if len(ends) == 0 {
		return nil
	}
	outcomes, results := make([]store.Outcome, len(ends)), make([]store.SettleResult, len(ends))
	for i := range ends {
		outcomes[i], results[i] = store.Outcome{Ref: ends[i].Of, Leg: &ends[i]}, store.Written
	}
	l.failed.change.RLock()
	defer l.failed.change.RUnlock()
	err := l.records.Update(ctx, epoch, Full, func(ctx context.Context, tx Tx) error {
		return l.AfterSettle(ctx, tx, outcomes, results, nil) // no leg has a table to ask
	})
	if err != nil {
		l.failed.forget(lateCommit) // it may have been written
		return fmt.Errorf("settle legs: %w", err)
	}
	for row := range l.newlyFailed(outcomes, results) {
		l.failed.set(true, row)
	}
	return nil
}

// ended returns the outcome whose records a call writes: that of the leg, if a leg brings it.
func ended(o *store.Outcome) *store.Outcome {
	if o.Leg != nil {
		return &o.Leg.Outcome
	}
	return o
}

// endResult returns the result of an outcome for whose records a call writes; see ended.
func endResult(o *store.Outcome, r store.SettleResult) store.SettleResult {
	if o.Leg != nil && o.Leg.Own && !r.NeedsRetry() {
		return store.Written
	}
	return r
}

// record writes the records of rows whose legs ended. Of several ends of a row the last counts.
func (k *legKeys) record(ctx context.Context, tx Tx, outcomes []store.Outcome, results []store.SettleResult) error {
	now, gone := map[string]*legRow{}, map[string]bool{}
	for i := range outcomes {
		end := outcomes[i].Leg
		if end == nil || results[i].NeedsRetry() {
			continue
		}
		key := legKey(end.Of)
		delete(now, key)
		if gone[key] = end.Record == nil; !gone[key] {
			now[key] = recordOfLegs(end.Record)
		}
	}
	return k.write(ctx, tx, now, gone)
}

func (k *legKeys) write(ctx context.Context, tx Tx, now map[string]*legRow, gone map[string]bool) error {
	var keys []string
	for key, is := range gone {
		if is {
			keys = append(keys, key)
		}
	}
	if len(keys) > 0 {
		if err := tx.Delete(ctx, legKind, distinct(keys)...); err != nil {
			return err
		}
	}
	return k.put(ctx, tx, now)
}

// SpillLegs is Spill for rows of legs. rows[i] is the record of the row of items[i] afterwards; it
// is written in the transaction that spills the item. No two items are of one row.
func (l *Ledger) SpillLegs(ctx context.Context, epoch store.Epoch, items []store.Item, rows []store.LegRow) error {
	return l.spillRows(ctx, epoch, items, func(ctx context.Context, tx Tx, from, n int) error {
		records := map[string]*legRow{}
		for i := range rows[from : from+n] {
			r := &rows[from+i]
			records[legKey(r.Ref)] = recordOfLegs(r)
		}
		return l.legKeys.put(ctx, tx, records)
	})
}

// changeLegs changes the records of the rows of legs, in a transaction. rows are named by their
// legs; rows of other outboxes are ignored. A record that is of no use afterwards is deleted.
func (l *Ledger) changeLegs(ctx context.Context, tx Tx, rows []store.Ref, change func(rec *legRow, route string)) error {
	var keys []string
	for _, row := range rows {
		if of, is := l.legs[row.Outbox]; is {
			keys = append(keys, legKey(store.Ref{Outbox: of.outbox, ID: row.ID}))
		}
	}
	if len(keys) == 0 {
		return nil
	}
	records, err := getAll[legRow](ctx, tx.Lock, legKind, distinct(keys))
	if err != nil {
		return err
	}
	gone := map[string]bool{}
	for _, row := range rows {
		of, is := l.legs[row.Outbox]
		if !is {
			continue
		}
		key := legKey(store.Ref{Outbox: of.outbox, ID: row.ID})
		rec := records[key]
		if rec == nil {
			rec = &legRow{Outbox: text(of.outbox), ID: text(row.ID), Matched: []string{of.route}}
			records[key] = rec
		}
		change(rec, of.route)
	}
	for key, rec := range records {
		if rec.isOver() {
			gone[key] = true
			delete(records, key)
		}
	}
	return l.legKeys.write(ctx, tx, records, gone)
}

// requeued moves a leg from the FAILED ones to the spilled ones.
func (r *legRow) requeued(route string) {
	r.Failed, r.Again = without(r.Failed, route), without(r.Again, route)
	r.Spilled = append(without(r.Spilled, route), route)
	delete(r.Retries, route)
}

// reopened moves a leg from the FAILED ones to those that are to deliver the row.
func (r *legRow) reopened(route string) {
	r.Failed = without(r.Failed, route)
	r.Again = append(without(r.Again, route), route)
	delete(r.Retries, route)
}

// discarded ends a leg, because nobody is to deliver the row for it any more.
func (r *legRow) discarded(route string) {
	r.Failed, r.Again = without(r.Failed, route), without(r.Again, route)
	r.Gone = append(without(r.Gone, route), route)
	delete(r.Retries, route)
}

// isOver reports whether the record says nothing, or that every leg has ended and none is FAILED.
func (r *legRow) isOver() bool {
	if len(r.Failed)+len(r.Spilled) > 0 {
		return false
	}
	return len(r.Done)+len(r.Again)+len(r.Gone)+len(r.Retries) == 0 || len(r.value().Missing()) == 0
}

func without(names []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == name })
}

// deleteLegAfter deletes the rows that a leg has spilled behind a number, and says so in their
// records, in transactions of a bounded size.
func (l *Ledger) deleteLegAfter(ctx context.Context, epoch store.Epoch, name string, after store.Seq) (total int, err error) {
	q := Scan{Queue: SpilledQueue, Outboxes: []string{name}, After: int64(after), Limit: l.batchRows}
	for {
		n := 0
		err := l.spill.Update(ctx, epoch, Full, func(ctx context.Context, tx Tx) error {
			items, err := tx.Scan(ctx, q)
			if n = len(items); err != nil || n == 0 {
				return err
			}
			refs, copies := make([]store.Ref, n), make([]Ref, n)
			for i := range items {
				refs[i], copies[i] = items[i].Ref, refOf(store.SpilledRef{Ref: items[i].Ref, Seq: items[i].Seq})
			}
			err = l.changeLegs(ctx, tx, refs, func(rec *legRow, route string) { rec.Spilled = without(rec.Spilled, route) })
			if err != nil {
				return err
			}
			_, err = tx.Dequeue(ctx, SpilledQueue, copies, nil)
			return err
		})
		if err != nil || n == 0 {
			return total, err
		}
		total += n
	}
}

// AdoptLegs adds the copies that the records of some rows are missing among the spilled rows of legs,
// made from those of other legs, durably and in transactions of a bounded size. It returns their
// number. It is for rows that no log and no table brings again.
func (l *Ledger) AdoptLegs(ctx context.Context, epoch store.Epoch, outbox string, ids []string) (total int, err error) {
	missing := map[string]bool{}
	for _, id := range ids {
		missing[id] = true
	}
	for name, of := range l.legs {
		if of.outbox != outbox || err != nil || len(missing) == 0 {
			continue
		}
		added := 0
		added, err = l.eachSpilled(ctx, epoch, name, func(ctx context.Context, tx Tx, items []store.Item) (int, error) {
			return l.adopt(ctx, tx, slices.DeleteFunc(items, func(it store.Item) bool { return !missing[it.ID] }))
		})
		total += added
	}
	return total, wrap(err, "adopt rows of legs of %s", outbox)
}

// eachSpilled calls do for the spilled rows of a leg, without payload, in transactions of a bounded
// size, and returns the sum of its results.
func (l *Ledger) eachSpilled(ctx context.Context, epoch store.Epoch, leg string, do func(ctx context.Context, tx Tx, items []store.Item) (int, error)) (total int, err error) {
	q := Scan{Queue: SpilledQueue, Outboxes: []string{leg}, Limit: l.batchRows}
	for n, last := -1, int64(0); n != 0 && err == nil; q.After = last {
		changed := 0
		err = l.spill.Update(ctx, epoch, Full, func(ctx context.Context, tx Tx) (err error) {
			var items []store.Item
			if items, err = tx.Scan(ctx, q); err != nil {
				return err
			}
			n, items = len(items), items[:min(len(items), max(1, l.contentLen(items)))]
			if n > 0 {
				last = int64(items[len(items)-1].Seq)
			}
			changed, err = do(ctx, tx, items)
			return err
		})
		total += changed
	}
	return total, err
}

// readSpilled returns the records of spilled rows, locked, with the key of each row, and by position
// the rows with their content; none for one that is gone.
func (l *Ledger) readSpilled(ctx context.Context, tx Tx, items []store.Item) (keys []string, records map[string]*legRow, whole [][]store.Item, err error) {
	keys = make([]string, len(items))
	from := make([]store.SpilledRange, len(items))
	for i := range items {
		it := &items[i]
		keys[i] = legKey(store.Ref{Outbox: l.legs[it.Outbox].outbox, ID: it.ID})
		from[i] = store.SpilledRange{Outbox: it.Outbox, Lane: it.Lane().Hash(), After: it.Seq - 1}
	}
	if records, err = getAll[legRow](ctx, tx.Lock, legKind, distinct(keys)); err == nil {
		whole, err = tx.Range(ctx, SpilledQueue, from, 1)
	}
	return keys, records, whole, err
}

// contentLen returns how many of the first rows have a content that one transaction may write.
func (l *Ledger) contentLen(items []store.Item) int {
	n, bytes := 0, int64(0)
	for ; n < len(items); n++ {
		if bytes += int64(items[n].TextBytes() + items[n].PayloadSize); l.batchBytes > 0 && bytes > l.batchBytes {
			break
		}
	}
	return n
}

// adopt copies spilled rows of a leg to the legs that their records are missing.
func (l *Ledger) adopt(ctx context.Context, tx Tx, items []store.Item) (int, error) {
	if len(items) == 0 {
		return 0, nil
	}
	keys, records, whole, err := l.readSpilled(ctx, tx, items)
	if err != nil {
		return 0, err
	}
	var copies []store.Item
	for i := range items {
		rec := records[keys[i]]
		if rec == nil || len(whole[i]) == 0 {
			continue
		}
		for _, route := range rec.value().Missing() {
			it := whole[i][0]
			it.Outbox, it.RetryCount = store.LegName(string(rec.Outbox), route), rec.Retries[route].Count
			copies = append(copies, it)
			rec.Spilled = append(rec.Spilled, route)
		}
	}
	if len(copies) == 0 {
		return 0, nil
	}
	if _, err := tx.Enqueue(ctx, SpilledQueue, copies); err != nil {
		return 0, err
	}
	return len(copies), l.legKeys.put(ctx, tx, records)
}
