package mongo

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/errortext"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/mongo/document"
)

// Settle implements store.Settler. It writes all outcomes of a call in one transaction, in
// their order. Error texts lose NUL bytes and invalid UTF-8 and are truncated to 2000
// characters; times are truncated to milliseconds.
//
// An outcome whose document another session changes in an open transaction is answered
// WasLocked, after one short wait.
//
// Outcomes are first written without reading the documents. If an outcome matches none, the
// transaction is aborted, and a second transaction reads the documents first to answer each
// outcome.
func (s *Store) Settle(ctx context.Context, epoch store.Epoch, outcomes []store.Outcome) ([]store.SettleResult, error) {
	if len(outcomes) == 0 {
		return nil, nil
	}

	for i := range outcomes {
		if _, err := s.outboxes.FindValid(outcomes[i].Outbox, &outcomes[i]); err != nil {
			return nil, fmt.Errorf("settle: %w", err)
		}
	}

	results, indexes := make([]store.SettleResult, len(outcomes)), make([]int, len(outcomes))
	for i := range indexes {
		indexes[i] = i
	}
	locked, err := s.contention.isolate(indexes, func(i int) store.Ref { return outcomes[i].Ref }, contentionWait, func(at []int, wait time.Duration) error {
		part := make([]store.Outcome, len(at))
		for k, i := range at {
			part[k] = outcomes[i]
		}
		got, err := s.settle(ctx, epoch, part, wait)
		for k, i := range at {
			results[i] = got[k]
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("settle: %w", asRefused(err))
	}
	for _, i := range locked {
		results[i] = store.WasLocked
	}
	return results, nil
}

// settle writes outcomes, all or none.
func (s *Store) settle(ctx context.Context, epoch store.Epoch, outcomes []store.Outcome, wait time.Duration) ([]store.SettleResult, error) {
	c := &settling{Store: s, outcomes: outcomes, results: make([]store.SettleResult, len(outcomes)), mayBeWritten: wait == 0}

	// A match count may hide that an id exists twice, and without transactions nothing is
	// rolled back.
	readFirst := slices.ContainsFunc(outcomes, func(o store.Outcome) bool {
		return document.IsNumberText(o.ID) || s.outboxes.Lookup(o.Outbox).Layout.DeleteDelivered && !isSingle(o.ID)
	})
	urgent := slices.ContainsFunc(outcomes, func(o store.Outcome) bool { return o.Status != store.Completed })
	if !readFirst && wait > 0 && s.settleWithoutTransaction(ctx, epoch, c) {
		return c.results, nil
	}

	err := retryChanged(func(try int) error {
		return s.runJob(ctx, &writeJob{epoch: epoch, contentionTimeout: wait, sharesTransaction: try == 0 && wait > 0, urgent: urgent || try > 0, write: func(ctx context.Context, on *conn) error {
			c.conn = on
			return c.write(ctx, readFirst || try > 0 || on.standalone.Load())
		}})
	})
	return c.results, err
}

// settling is one call of Settle.
type settling struct {
	*Store
	conn         *conn
	outcomes     []store.Outcome
	results      []store.SettleResult
	mayBeWritten bool // an earlier attempt without a transaction may have written some
}

// write writes the outcomes, in the call's transaction. It returns errDocumentChanged if an
// outcome does not match a document that should be open.
func (c *settling) write(ctx context.Context, readFirst bool) error {
	var states map[store.Ref]rowState
	if readFirst {
		var err error
		if states, err = c.readDocuments(ctx); err != nil {
			return err
		}
	}

	for _, w := range c.plan(states) {
		if err := c.writeOutbox(ctx, w, readFirst); err != nil {
			return err
		}
	}

	return c.tx(c.conn).run(ctx, func(ctx context.Context, tx ledger.Tx) error {
		return c.AfterSettle(ctx, tx, c.outcomes, c.results, c.failedInCall)
	})
}

// failedInCall is a ledger.AreFailed in the call's transaction. It reads no document that
// the call has made FAILED.
func (c *settling) failedInCall(ctx context.Context, rows []store.Ref) ([]bool, error) {
	written := map[store.Ref]bool{}
	for i := range c.outcomes {
		o := &c.outcomes[i]
		if o.Status == store.Failed && c.results[i] == store.Written && c.outboxes.Lookup(o.Outbox).Layout.Stores(store.Failed) {
			written[o.Ref] = true
		}
	}
	return c.readFailed(ctx, c.conn, rows, written)
}

// rowState is the state of a document during a call.
type rowState uint8

const (
	rowGone rowState = iota
	rowOpen
	rowSettled
	rowWrittenByCall // by this call, without a transaction
)

// readDocuments returns the states of the documents of the call.
func (c *settling) readDocuments(ctx context.Context) (map[store.Ref]rowState, error) {
	rows := map[store.Ref]rowState{}
	for _, w := range c.plan(nil) {
		fields := project(append(w.table.stateFields(), w.table.completedAt())...)
		err := w.table.eachOf(ctx, w.distinctIDs(), fields, func(id string, doc bson.Raw) error {
			ref := store.Ref{Outbox: w.table.Name, ID: id}
			switch {
			case !w.ids[id]:
			case rows[ref] != rowGone:
				return w.table.twinError(id)
			case w.table.isOpen(doc):
				rows[ref] = rowOpen
			case c.mayBeWritten && c.isCompletedByCall(w.table, ref, doc):
				rows[ref] = rowWrittenByCall
			default:
				rows[ref] = rowSettled
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// outboxWrites is the outcomes of one outbox that must be written.
type outboxWrites struct {
	table  *table
	groups [][]int         // indexes of outcomes with the same update, in the order of the call
	byTime map[int64]int   // group of the COMPLETED outcomes of a time
	ids    map[string]bool // of all outcomes
	rows   int
}

func (w *outboxWrites) distinctIDs() []string { return slices.Collect(maps.Keys(w.ids)) }

// add adds an outcome. COMPLETED outcomes share an update if they have the same time and no
// receipts, or delete their documents. Two outcomes of one document keep their order.
func (w *outboxWrites) add(i int, o *store.Outcome) {
	if w.ids[o.ID] {
		clear(w.byTime)
	}
	w.ids[o.ID] = true
	w.rows++

	at := o.At.UnixMilli()
	if w.table.Layout.DeleteDelivered {
		at = 0
	}
	k, known := w.byTime[at]
	if o.Status == store.Completed && known && len(w.table.Layout.Record) == 0 && len(w.groups[k]) < maxBatchIDs {
		w.groups[k] = append(w.groups[k], i)
		return
	}
	if o.Status == store.Completed {
		w.byTime[at] = len(w.groups)
	}
	w.groups = append(w.groups, []int{i})
}

// plan answers the outcomes whose documents are not open, and groups the others by outbox
// and update. Without states (nil) all documents count as open.
func (c *settling) plan(states map[store.Ref]rowState) (plan []*outboxWrites) {
	byOutbox := map[string]*outboxWrites{}
	for i := range c.outcomes {
		o := &c.outcomes[i]
		c.results[i] = store.Written
		in := c.outboxes.Lookup(o.Outbox)
		if in.Layout.LogOnly() {
			continue // only the fence matters: there is no state to write
		}

		w := byOutbox[o.Outbox]
		if w == nil {
			w = &outboxWrites{table: c.conn.table(in), byTime: map[int64]int{}, ids: map[string]bool{}}
			byOutbox[o.Outbox] = w
			plan = append(plan, w)
		}

		if states != nil {
			switch states[o.Ref] {
			case rowGone:
				c.results[i] = store.WasGone
				continue
			case rowSettled:
				c.results[i] = store.WasSettled
				continue
			case rowWrittenByCall:
				continue
			}
			states[o.Ref] = w.table.stateAfter(o.Status)
		}
		w.add(i, o)
	}
	return plan
}

// stateAfter returns the state of an open document after an outcome.
func (t *table) stateAfter(to store.Status) rowState {
	switch {
	case to == store.Completed && t.Layout.DeleteDelivered:
		return rowGone
	case to.Settled() && t.Layout.Stores(to):
		return rowSettled
	}
	return rowOpen
}

// ids returns the ids of some outcomes of the call.
func (c *settling) ids(indexes []int) []string {
	ids := make([]string, len(indexes))
	for k, i := range indexes {
		ids[k] = c.outcomes[i].ID
	}
	return ids
}

// writeOutbox writes the outcomes of one outbox.
func (c *settling) writeOutbox(ctx context.Context, w *outboxWrites, wereRead bool) error {
	t, n, rows := w.table, int64(0), 0
	var models []mongo.WriteModel
	for k, group := range w.groups {
		models, rows = append(models, c.model(t, group)), rows+len(group)
		if k < len(w.groups)-1 && len(models) < maxBatchWrites && rows < maxBatchIDs {
			continue
		}
		bound, cancel := context.WithTimeout(ctx, commandTimeout)
		done, err := t.collection.BulkWrite(bound, models, options.BulkWrite().SetOrdered(true))
		cancel()
		if err != nil {
			return err
		}
		n += done.MatchedCount + done.DeletedCount
		models, rows = nil, 0
	}
	if n != int64(w.rows) {
		return errDocumentChanged
	}

	if wereRead || t.Layout.DeleteDelivered {
		return nil
	}
	unique, err := t.oneDocumentEach(ctx, w.distinctIDs())
	if err == nil && !unique {
		err = errDocumentChanged
	}
	return err
}

// model writes the outcomes of a group.
func (c *settling) model(t *table, group []int) mongo.WriteModel {
	filter, o := t.openOf(c.ids(group)), &c.outcomes[group[0]]
	if o.Status == store.Completed && t.Layout.DeleteDelivered {
		return mongo.NewDeleteManyModel().SetFilter(filter)
	}
	return mongo.NewUpdateManyModel().SetFilter(filter).SetUpdate(t.outcome(o))
}

// openOf is the filter for open documents with one of the ids.
func (t *table) openOf(ids []string) bson.D { return append(bson.D{t.idIn(ids)}, t.open()...) }

// maxBatchWrites bounds the updates of one command, so that it is answered in time.
const maxBatchWrites = 500

// outcome is the update that writes an outcome.
func (t *table) outcome(o *store.Outcome) bson.D {
	return set(columns.Outcome(&t.Layout, o.Status, nil), func(a columns.Assignment) any {
		switch a.Value {
		case columns.Time:
			return t.time(o.At)
		case columns.Retries:
			return int32(min(o.RetryCount, math.MaxInt32)) //nolint:gosec // it fits
		case columns.Error:
			return errorText(o.Error)
		case columns.Receipt:
			return receipt(&t.Layout.Record[a.Record], o)
		}
		return stored(columns.StoredOutcome(&t.Layout, o))
	})
}

// receipt is the value of a field for a receipt: a long or a string.
func receipt(r *store.RecordColumn, o *store.Outcome) any {
	field := store.ColumnInfo{Integer: r.Max > 0, Max: r.Max}
	return columns.ReceiptValue(r, o, &field, func(text string) string { return errortext.Sanitize(text, 0, false) })
}
