package mongo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
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

	results := make([]store.SettleResult, len(outcomes))
	settleRows := func(ctx context.Context, at []int, wait time.Duration) error {
		part := make([]store.Outcome, len(at))
		for k, i := range at {
			part[k] = outcomes[i]
		}
		got, err := s.settle(ctx, epoch, part, wait)
		if err == nil {
			for k, i := range at {
				results[i] = got[k]
			}
		}
		return err
	}

	indexes := make([]int, len(outcomes))
	for i := range indexes {
		indexes[i] = i
	}

	skip := func(i int) { results[i] = store.WasLocked }
	if err := s.contention.isolate(ctx, indexes, func(i int) store.Ref { return outcomes[i].Ref }, contentionWait, settleRows, skip); err != nil {
		return nil, fmt.Errorf("settle: %w", asRefused(err))
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
	if !readFirst && !urgent && wait > 0 && s.settleWithoutTransaction(ctx, epoch, c) {
		return c.results, nil
	}

	err := errDocumentChanged
	for try := 0; errors.Is(err, errDocumentChanged) && try < maxClaimTries; try++ {
		err = s.runJob(ctx, &writeJob{epoch: epoch, contentionTimeout: wait, sharesTransaction: try == 0 && wait > 0, urgent: urgent || try > 0, write: func(ctx context.Context, on *conn) error {
			c.conn = on
			return c.write(ctx, readFirst || try > 0 || on.standalone.Load())
		}})
	}

	if errors.Is(err, errDocumentChanged) {
		err = &store.RefusedError{Err: err}
	}

	return c.results, err
}

// settling is one call of Settle.
type settling struct {
	*Store
	conn         *conn
	outcomes     []store.Outcome
	results      []store.SettleResult
	rows         map[store.Ref]rowState // states of the documents; nil if they were not read
	mayBeWritten bool                   // an earlier attempt without a transaction may have written some
}

// rowState is the state of a document during a call.
type rowState uint8

const (
	rowGone rowState = iota
	rowUnsettled
	rowSettled
	rowWrittenByCall // by this call, without a transaction
)

// write writes the outcomes, in the call's transaction. It returns errDocumentChanged if an
// outcome does not match a document that should be open.
func (c *settling) write(ctx context.Context, readFirst bool) error {
	c.rows = nil
	if readFirst {
		if err := c.readDocuments(ctx); err != nil {
			return err
		}
	}

	for _, p := range c.parts() {
		if err := c.writePart(ctx, p); err != nil {
			return err
		}
	}

	return c.tx(c.conn).run(ctx, func(ctx context.Context, tx ledger.Tx) error {
		return ledger.AfterSettle(ctx, tx, c.outcomes, c.results, c.failedInCall)
	})
}

// failedInCall is a ledger.AreFailed in the call's transaction. It reads no document that
// the call has made FAILED.
func (c *settling) failedInCall(ctx context.Context, rows []store.Ref) ([]bool, error) {
	written := map[store.Ref]bool{}
	for i := range c.outcomes {
		o := &c.outcomes[i]
		if o.Status == store.Failed && c.results[i] == store.Written && c.outboxes.Lookup(o.Outbox).Layout.State != store.StateNone {
			written[o.Ref] = true
		}
	}
	return c.readFailed(ctx, c.conn, rows, written)
}

// table returns the collection of an outbox of the call.
func (c *settling) table(outbox string) *table { return c.conn.table(c.outboxes.Lookup(outbox)) }

// readDocuments reads the documents of the call and records their states.
func (c *settling) readDocuments(ctx context.Context) error {
	c.rows = map[store.Ref]rowState{}
	ids := map[string][]string{}
	asked := map[store.Ref]bool{}
	for i := range c.outcomes {
		if o := &c.outcomes[i]; !asked[o.Ref] {
			asked[o.Ref] = true
			ids[o.Outbox] = append(ids[o.Outbox], o.ID)
		}
	}

	for _, name := range c.outboxes.Names() {
		t := c.table(name)
		if len(ids[name]) == 0 || t.Layout.State == store.StateNone {
			continue
		}
		err := t.states(ctx, ids[name], func(id string, open bool, doc bson.Raw) error {
			ref := store.Ref{Outbox: name, ID: id}
			if !asked[ref] {
				return nil
			}
			if c.rows[ref] != rowGone {
				return t.twinError(id)
			}
			switch {
			case open:
				c.rows[ref] = rowUnsettled
			case c.mayBeWritten && c.isCompletedByCall(t, ref, doc):
				c.rows[ref] = rowWrittenByCall
			default:
				c.rows[ref] = rowSettled
			}
			return nil
		})
		if err != nil {
			return err
		}
	}

	return nil
}

// states calls visit for each existing document with one of the ids, and says whether it is
// open.
func (t *table) states(ctx context.Context, ids []string, visit func(id string, open bool, doc bson.Raw) error) error {
	l := &t.Layout.Columns
	fields := project(l.ID, l.Status, l.Delivered, l.Failed, t.completedAt())
	return forEach(ctx, commandTimeout, t.collection, bson.D{t.idIn(ids)}, options.Find().SetProjection(fields), func(doc bson.Raw) error {
		id, err := document.ID(document.Lookup(doc, l.ID))
		if err != nil {
			return nil // no text matches such an id
		}
		return visit(id, t.isOpen(doc), doc)
	})
}

// writePart writes the outcomes of one part and sets their results.
func (c *settling) writePart(ctx context.Context, p *settlePart) error {
	t := c.table(p.outbox)
	if t.Layout.State == store.StateNone {
		for _, i := range p.at {
			c.results[i] = store.Written // only the fence matters: there is no state to write
		}
		return nil
	}

	var open []int
	for _, i := range p.at {
		state := rowUnsettled
		if c.rows != nil {
			state = c.rows[c.outcomes[i].Ref]
		}
		switch state {
		case rowGone:
			c.results[i] = store.WasGone
		case rowSettled:
			c.results[i] = store.WasSettled
		case rowWrittenByCall:
			c.results[i] = store.Written
		default:
			open = append(open, i)
		}
	}

	if len(open) == 0 {
		return nil
	}

	n, err := c.writeOpen(ctx, t, p, open)
	if err == nil && n != int64(len(open)) {
		return errDocumentChanged
	}

	if err == nil && c.rows == nil && !t.Layout.DeleteDelivered {
		unique, err := t.oneDocumentEach(ctx, c.ids(open))
		if err != nil {
			return err
		}
		if !unique {
			return errDocumentChanged
		}
	}

	for _, i := range open {
		c.recordState(t, p, i)
	}

	return err
}

// recordState records the state of a document after a write.
func (c *settling) recordState(t *table, p *settlePart, i int) {
	c.results[i] = store.Written
	if c.rows == nil {
		return
	}
	switch {
	case p.status == store.Completed && t.Layout.DeleteDelivered:
		c.rows[c.outcomes[i].Ref] = rowGone
	case p.status.Settled():
		c.rows[c.outcomes[i].Ref] = rowSettled
	}
}

// ids returns the ids of some outcomes of the call.
func (c *settling) ids(indexes []int) []string {
	ids := make([]string, len(indexes))
	for k, i := range indexes {
		ids[k] = c.outcomes[i].ID
	}
	return ids
}

// writeOpen writes outcomes and returns how many documents matched.
func (c *settling) writeOpen(ctx context.Context, t *table, p *settlePart, indexes []int) (int64, error) {
	if p.status == store.Completed && t.Layout.DeleteDelivered {
		return inBatches(c.ids(indexes), func(some []string) (int64, error) { return remove(ctx, t.collection, t.openOf(some)) })
	}

	if set(columns.Outcome(&t.Layout, p.status), func(columns.Value) any { return nil }) == nil {
		// The layout keeps nothing of this outcome. Still count the open documents for the
		// answer.
		n := int64(0)
		err := t.states(ctx, c.ids(indexes), func(_ string, open bool, _ bson.Raw) error {
			if open {
				n++
			}
			return nil
		})
		return n, err
	}

	groups := c.groupUpdates(p, indexes)
	if len(groups) == 1 {
		to := t.outcome(&c.outcomes[indexes[0]])
		return inBatches(c.ids(indexes), func(some []string) (int64, error) { return t.update(ctx, t.openOf(some), to) })
	}

	return c.writeEach(ctx, t, groups)
}

// openOf is the filter for open documents with one of the ids.
func (t *table) openOf(ids []string) bson.D { return append(bson.D{t.idIn(ids)}, t.open()...) }

// maxBatchWrites bounds the updates of one command, so that it is answered in time.
const maxBatchWrites = 500

// writeEach writes outcomes that each need their own update.
func (c *settling) writeEach(ctx context.Context, t *table, groups [][]int) (n int64, err error) {
	for some := range slices.Chunk(groups, maxBatchWrites) {
		models := make([]mongo.WriteModel, len(some))
		for k, indexes := range some {
			models[k] = mongo.NewUpdateManyModel().SetFilter(t.openOf(c.ids(indexes))).SetUpdate(t.outcome(&c.outcomes[indexes[0]]))
		}
		bound, cancel := context.WithTimeout(ctx, commandTimeout)
		done, err := t.collection.BulkWrite(bound, models, options.BulkWrite().SetOrdered(true))
		cancel()
		if err != nil {
			return n, err
		}
		n += done.MatchedCount
	}
	return n, nil
}

// outcome is the update that writes an outcome.
func (t *table) outcome(o *store.Outcome) any {
	to := set(columns.Outcome(&t.Layout, o.Status), func(v columns.Value) any {
		switch v {
		case columns.Time:
			return t.time(o.At)
		case columns.Retries:
			return int32(min(o.RetryCount, math.MaxInt32)) //nolint:gosec // it fits
		case columns.Error:
			return errorText(o.Error)
		}
		if o.Status == store.Failed && t.Layout.State == store.StateNumbers {
			return number(t.Layout.FailedNumber(o.Reason))
		}
		return t.status(o.Status)
	})
	if to == nil { // a retry without an error text, in a layout without a retry count
		return bson.D{{Key: "$setOnInsert", Value: bson.D{{Key: "_id", Value: 0}}}} // no-op: applies to upserts only
	}
	return to
}

// settlePart is the outcomes of one outbox, status and round; each id occurs once.
type settlePart struct {
	settleKey
	at []int // indexes in the call
}

type settleKey struct {
	round  int // the second outcome of an id is written in the second round, and so on
	outbox string
	status store.Status
}

// parts groups the outcomes of a call. Rounds keep the order of several outcomes of one id;
// parts are returned in the order of their rounds.
func (c *settling) parts() []*settlePart {
	var rounds [][]*settlePart
	byKey := map[settleKey]*settlePart{}
	count := make(map[store.Ref]int, len(c.outcomes))
	for i := range c.outcomes {
		o := &c.outcomes[i]
		k := settleKey{round: count[o.Ref], outbox: o.Outbox, status: o.Status}
		count[o.Ref]++
		p := byKey[k]
		if p == nil {
			p = &settlePart{settleKey: k}
			byKey[k] = p
			if k.round == len(rounds) {
				rounds = append(rounds, nil)
			}
			rounds[k.round] = append(rounds[k.round], p)
		}
		p.at = append(p.at, i)
	}

	var parts []*settlePart
	for _, round := range rounds {
		parts = append(parts, round...)
	}

	return parts
}

// groupUpdates groups the outcomes of a part by identical update: COMPLETED outcomes with
// the same time.
func (c *settling) groupUpdates(p *settlePart, indexes []int) [][]int {
	if p.status != store.Completed {
		each := make([][]int, len(indexes))
		for k := range indexes {
			each[k] = indexes[k : k+1]
		}
		return each
	}

	var sorted [][]int
	byTime := map[int64]int{}
	for _, i := range indexes {
		at := c.outcomes[i].At.UnixMilli()
		k, known := byTime[at]
		if !known {
			k = len(sorted)
			byTime[at] = k
			sorted = append(sorted, nil)
		}
		sorted[k] = append(sorted[k], i)
	}

	return sorted
}
