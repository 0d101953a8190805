package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/errortext"
)

// Settle implements store.Settler. It writes all outcomes of a call in one transaction,
// in their order.
//
//   - Error texts lose NUL bytes and invalid UTF-8, and are cut to 2000 characters or to
//     the size of the column.
//   - Times are truncated to the precision of the column.
//
// The first attempt writes without reading the rows. If an outcome matches no row, the
// transaction is rolled back, and a second one locks the rows first to find out why.
func (s *Store) Settle(ctx context.Context, epoch store.Epoch, outcomes []store.Outcome) ([]store.SettleResult, error) {
	if len(outcomes) == 0 {
		return nil, nil
	}
	for i := range outcomes {
		if _, err := s.outboxes.FindValid(outcomes[i].Outbox, &outcomes[i]); err != nil {
			return nil, fmt.Errorf("settle: %w", err)
		}
	}

	number, done := s.settling.Take()
	session := s.outcomes[number]
	call := &settling{Store: s, link: session.link, outcomes: outcomes, results: make([]store.SettleResult, len(outcomes))}
	err := session.do(ctx, func(ctx context.Context, c *conn) error {
		call.conn, call.noWait = c, time.Now().Before(session.noWaitUntil)
		if !call.noWait {
			switch done, err := call.settleInOneTrip(ctx, epoch); {
			case isLockTimeout(err):
				call.startNoWait()
			case err != nil || done:
				return err
			}
		}

		for try := 1; ; try++ {
			err := s.runAsLeader(ctx, c, epoch, func() error { return call.write(ctx, try > 1) })
			if isLockTimeout(err) && !call.noWait {
				call.startNoWait()
				continue
			}
			if !errors.Is(err, errRowChanged) {
				return err
			}
			if try == maxSettleTries {
				return &store.RefusedError{Err: fmt.Errorf("row %q of outbox %s or another of the call: update had no effect; check triggers on the table",
					outcomes[0].ID, outcomes[0].Outbox)}
			}
		}
	})
	done(cmp.Or(err, call.lostSessionErr))
	if err == nil && call.lostSessionErr != nil && slices.ContainsFunc(call.results, func(r store.SettleResult) bool { return r != store.Written }) {
		err = &commitError{call.lostSessionErr} // the first attempt may have written them
	}
	if err != nil {
		return nil, fmt.Errorf("settle: %w", asRefused(err))
	}

	return call.results, nil
}

// maxSettleTries limits how often outcomes are written: without a read, with one, and
// again with the current columns of an altered table.
const maxSettleTries = 4

// settling is one call of Settle.
type settling struct {
	*Store
	link           *link // that it uses
	conn           *conn
	outcomes       []store.Outcome
	results        []store.SettleResult
	lostSessionErr error                  // error of a lost session that may have committed
	rows           map[store.Ref]rowState // known states of the rows; nil if they were not read
	noWait         bool                   // skip locked rows and tables
}

// startNoWait makes this call, and those of the next noWaitPeriod, skip locked rows and
// tables.
func (c *settling) startNoWait() {
	c.noWait = true
	c.link.noWaitUntil = time.Now().Add(noWaitPeriod)
}

// rowState is the state of a row during a call.
type rowState uint8

const (
	rowGone rowState = iota
	rowUnsettled
	rowSettled
	rowLocked
	rowTableLocked
)

// write writes the outcomes in the call's transaction. It returns errRowChanged if an
// outcome matches no row although the row is unsettled as far as is known.
func (c *settling) write(ctx context.Context, look bool) error {
	parts, err := c.parts(ctx)
	if err != nil {
		return err
	}

	c.rows = nil
	// If two rows may share an id, the second could make up for a missing one.
	sharesID := func(p *settlePart) bool { return !p.table.single }
	switch {
	case c.noWait:
		err = c.lockRowsSkipping(ctx)
	case look || slices.ContainsFunc(parts, sharesID):
		err = c.lockRows(ctx)
	}
	if err != nil {
		return err
	}

	if err := c.checkAltered(ctx, parts); err != nil {
		return err
	}
	for _, p := range parts {
		if err := c.writePart(ctx, p); err != nil {
			return err
		}
	}

	return c.AfterSettle(ctx, c.tx(c.conn), c.outcomes, c.results, func(ctx context.Context, rows []store.Ref) ([]bool, error) {
		return c.readFailed(ctx, c.conn, rows)
	})
}

// lockRows locks the rows of the call and records their states. It waits for inserts that
// have not committed.
func (c *settling) lockRows(ctx context.Context) error {
	c.rows = map[store.Ref]rowState{}
	byOutbox := c.keyBatches()
	for _, name := range c.outboxes.Names() {
		batch, t := byOutbox[name], c.conn.tables[name]
		if batch == nil || t.Layout.LogOnly() {
			continue
		}
		err := batch.chunks(func(chunk *keyBatch) error { return c.lockAmong(ctx, t, chunk.keys, " FOR UPDATE", false) })
		if err != nil {
			return err
		}
	}

	return nil
}

// keyBatches returns the rows of the call by outbox, each once.
func (c *settling) keyBatches() map[string]*keyBatch {
	byOutbox := map[string]*keyBatch{}
	seen := map[store.Ref]bool{}
	for i := range c.outcomes {
		o := &c.outcomes[i]
		key, valid := c.conn.tables[o.Outbox].id().key(o.ID)
		if seen[o.Ref] || !valid {
			continue
		}
		seen[o.Ref] = true
		if byOutbox[o.Outbox] == nil {
			byOutbox[o.Outbox] = &keyBatch{}
		}
		byOutbox[o.Outbox].add(i, key)
	}

	return byOutbox
}

// lockAmong reads rows, with or without a lock, and records their states. If locked is
// set, the rows it finds are locked by another session.
func (c *settling) lockAmong(ctx context.Context, t *table, keys []any, lock string, locked bool) error {
	s := &statement{}
	text := "SELECT " + t.id().textOf() + ", " + t.open(s) + " IS TRUE\nFROM " + t.from() + "\nWHERE " + t.idIn(s, keys) + lock
	return c.conn.query(ctx, text, s.args, func(rows *sql.Rows) error {
		var id string
		var open bool
		if err := rows.Scan(&id, &open); err != nil {
			return err
		}

		ref := store.Ref{Outbox: t.Name, ID: id}
		switch {
		case locked:
			if _, known := c.rows[ref]; !known {
				c.rows[ref] = rowLocked
			}
		case open: // without a unique id, one unsettled row is enough
			c.rows[ref] = rowUnsettled
		case c.rows[ref] != rowUnsettled:
			c.rows[ref] = rowSettled
		}

		return nil
	})
}

// checkAltered returns errRowChanged if rows seem gone and their table was altered. It
// checks each table once.
func (c *settling) checkAltered(ctx context.Context, parts []*settlePart) error {
	checked := map[string]bool{}
	for _, p := range parts {
		if checked[p.outbox] || p.table.Layout.LogOnly() {
			continue
		}
		for k, i := range p.at {
			if p.keys[k] != nil && (c.rows == nil || c.rows[c.outcomes[i].Ref] != rowGone) {
				continue
			}
			checked[p.outbox] = true
			if altered, err := c.conn.tableAltered(ctx, p.table.Outbox); err != nil || altered {
				return cmp.Or(err, errRowChanged)
			}
			break
		}
	}

	return nil
}

// writePart writes the outcomes of one part and sets their results.
func (c *settling) writePart(ctx context.Context, p *settlePart) error {
	if p.table.Layout.LogOnly() {
		for _, i := range p.at {
			c.results[i] = store.Written // only the fence matters
		}
		return nil
	}

	var open keyBatch
	for k, i := range p.at {
		state := rowUnsettled
		if c.rows != nil {
			state = c.rows[c.outcomes[i].Ref]
		}

		switch {
		case state == rowLocked:
			c.results[i] = store.WasLocked
			c.startNoWait()
		case state == rowTableLocked:
			c.results[i] = store.TableWasLocked
		case p.keys[k] == nil || state == rowGone:
			c.results[i] = store.WasGone
		case state == rowSettled:
			c.results[i] = store.WasSettled
		default:
			open.add(i, p.keys[k])
		}
	}

	return open.chunksOf(p.chunkSize(), func(chunk *keyBatch) error {
		n, err := c.writeChunk(ctx, p, chunk)
		if err == nil && n < int64(len(chunk.at)) {
			return errRowChanged
		}
		for _, i := range chunk.at {
			c.recordState(p, i)
		}
		return err
	})
}

// recordState records the state of a row after its outcome.
func (c *settling) recordState(p *settlePart, i int) {
	c.results[i] = store.Written
	if c.rows == nil {
		return
	}
	switch {
	case p.status == store.Completed && p.table.Layout.DeleteDelivered:
		c.rows[c.outcomes[i].Ref] = rowGone
	case p.status.Settled() && p.table.Layout.Stores(p.status):
		c.rows[c.outcomes[i].Ref] = rowSettled
	}
}

// writeChunk writes outcomes that share their values, and returns how many rows it
// matched.
func (c *settling) writeChunk(ctx context.Context, p *settlePart, chunk *keyBatch) (int64, error) {
	t, s := p.table, &statement{}
	deletes := p.status == store.Completed && t.Layout.DeleteDelivered
	if !deletes && len(t.Outcome(p.status)) == 0 {
		// The layout stores nothing for this outcome, but the row must be unsettled.
		text := "SELECT COUNT(*) FROM " + t.from() + "\nWHERE " + t.idExactlyIn(s, chunk.keys) + " AND " + t.open(s)
		var n int64
		err := c.conn.row(ctx, text, s.args, &n)
		return n, err
	}
	return c.conn.exec(ctx, c.outcomeText(s, p, chunk), s.args...)
}

// outcomeText returns the statement that writes outcomes with shared values.
func (c *settling) outcomeText(s *statement, p *settlePart, chunk *keyBatch) string {
	t, o := p.table, &c.outcomes[chunk.at[0]]
	verb := "DELETE o FROM " + t.from()
	if p.status != store.Completed || !t.Layout.DeleteDelivered {
		verb = "UPDATE " + t.from() + " SET " + t.assign(s, t.Outcome(p.status),
			func(col column, a columns.Assignment) any {
				if a.Value == columns.Receipt {
					return c.receipts(t, col, &t.Layout.Record[a.Record], chunk)
				}
				return t.outcomeValue(col, a.Value, o)
			})
	}
	return verb + "\nWHERE " + t.idExactlyIn(s, chunk.keys) + " AND " + t.open(s)
}

// outcomeValue returns the value of a column for an outcome.
func (t *table) outcomeValue(col column, v columns.Value, o *store.Outcome) any {
	switch v {
	case columns.Time:
		return col.time(o.At)
	case columns.Retries:
		return min(int64(o.RetryCount), col.maxInteger())
	case columns.Error:
		return col.errorText(o.Error)
	}
	return columns.StoredOutcome(&t.Layout, o)
}

// receipts returns the values of a column for the receipts of a chunk's rows: valuesByKey, or the
// value of all.
func (c *settling) receipts(t *table, col column, r *store.RecordColumn, chunk *keyBatch) any {
	info, same := col.checked(), true
	values := make([]any, len(chunk.at))
	for k, i := range chunk.at {
		values[k] = columns.ReceiptValue(r, &c.outcomes[i], &info, col.errorText)
		same = same && values[k] == values[0]
	}
	if same {
		return values[0]
	}
	return valuesByKey{chunk.keys, values}
}

// errorText sanitizes a text for the column. A column whose limit counts bytes, or whose
// charset is not utf8mb4, gets ASCII only.
func (c column) errorText(text string) string {
	limit := c.limit
	if c.typ != "varchar" && c.typ != "char" {
		limit /= 4 // bytes
	}
	unicode := c.charset == "utf8mb4" || c.family == familyJSON
	return errortext.Sanitize(text, limit, !unicode)
}

// areFailed is a ledger.AreFailed on the operator's session. It reads the columns of the
// tables again, because a block whose row is not found would be released.
func (s *Store) areFailed(ctx context.Context, rows []store.Ref) (failed []bool, err error) {
	err = s.operator.do(ctx, func(ctx context.Context, c *conn) error {
		return c.tx(ctx, func() (err error) {
			checked := map[string]bool{}
			for i := range rows {
				name := rows[i].Outbox
				if checked[name] {
					continue
				}
				checked[name] = true
				if _, err := c.tableAltered(ctx, s.outboxes.Lookup(name)); err != nil {
					return err
				}
			}
			failed, err = s.readFailed(ctx, c, rows)
			return err
		})
	})
	return failed, Explain(err)
}

// readFailed reports which rows are FAILED, in the call's transaction. If several rows have
// the same id, one FAILED row suffices.
func (s *Store) readFailed(ctx context.Context, c *conn, rows []store.Ref) ([]bool, error) {
	failed := make([]bool, len(rows))
	byOutbox := map[string]*keyBatch{}
	for i := range rows {
		t, err := c.table(ctx, s.outboxes.Lookup(rows[i].Outbox))
		if err != nil {
			return nil, err
		}
		key, valid := t.id().key(rows[i].ID)
		if !t.Layout.Stores(store.Failed) || !valid {
			continue
		}
		if byOutbox[t.Name] == nil {
			byOutbox[t.Name] = &keyBatch{}
		}
		byOutbox[t.Name].add(i, key)
	}

	for name, batch := range byOutbox {
		t, found := c.tables[name], map[string]bool{}
		err := batch.chunks(func(chunk *keyBatch) error {
			st := &statement{}
			text := "SELECT " + t.id().textOf() + " FROM " + t.from() + "\nWHERE " + t.idExactlyIn(st, chunk.keys) + " AND " + t.state(st).Failed()
			return c.query(ctx, text, st.args, func(rows *sql.Rows) error {
				var id string
				err := rows.Scan(&id)
				found[id] = true
				return err
			})
		})
		if err != nil {
			return nil, err
		}
		for _, i := range batch.at {
			failed[i] = found[rows[i].ID]
		}
	}
	return failed, nil
}

// settlePart is a set of outcomes that share their values, each id once, so that one
// statement can write them.
type settlePart struct {
	settleKey
	table *table
	keyBatch
}

// maxReceiptKeys bounds the rows of one statement whose receipts differ. For each row the server
// compares the id with those of all rows.
const maxReceiptKeys = 64

// chunkSize is how many rows one statement of the part writes.
func (p *settlePart) chunkSize() int {
	if p.status == store.Completed && len(p.table.Layout.Record) > 0 {
		return maxReceiptKeys
	}
	return maxKeys
}

type settleKey struct {
	round  int // an id's second outcome is written in the second round, and so on
	outbox string
	status store.Status
	when   time.Time
	// Written with every status except COMPLETED.
	retries int
	error   string
	reason  store.Reason
}

// parts groups the call's outcomes. Rounds keep the order of several outcomes for one id;
// the parts are in the order of their rounds.
func (c *settling) parts(ctx context.Context) ([]*settlePart, error) {
	var rounds [][]*settlePart
	byKey := map[settleKey]*settlePart{}
	count := make(map[store.Ref]int, len(c.outcomes))
	for i := range c.outcomes {
		o := &c.outcomes[i]
		t, err := c.conn.table(ctx, c.outboxes.Lookup(o.Outbox))
		if err != nil {
			return nil, err
		}

		k := settleKey{round: count[o.Ref], outbox: o.Outbox, status: o.Status, when: o.At}
		count[o.Ref]++
		if o.Status != store.Completed {
			k.retries, k.error, k.reason = o.RetryCount, o.Error, o.Reason
		}

		p := byKey[k]
		if p == nil {
			p = &settlePart{settleKey: k, table: t}
			byKey[k] = p
			if k.round == len(rounds) {
				rounds = append(rounds, nil)
			}
			rounds[k.round] = append(rounds[k.round], p)
		}

		key, valid := t.id().key(o.ID)
		if !valid {
			key = nil // no row has this id
		}
		p.add(i, key)
	}

	var parts []*settlePart
	for _, round := range rounds {
		parts = append(parts, round...)
	}

	return parts, nil
}
