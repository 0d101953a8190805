package postgres

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/errortext"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// maxSettleTries bounds how often an outcome is written again because another session
// changed its row during the statement and left it unsettled.
const maxSettleTries = 5

// Settle implements store.Settler. It takes one round trip and one transaction unless an
// outcome matches no row, is FAILED or changes records. NUL bytes and invalid UTF-8
// are removed from error texts, which are cut to 2000 characters or to the column's limit.
// Times are truncated to microseconds.
func (s *Store) Settle(ctx context.Context, epoch store.Epoch, outcomes []store.Outcome) ([]store.SettleResult, error) {
	if len(outcomes) == 0 {
		return nil, nil
	}

	results := make([]store.SettleResult, len(outcomes))
	todo := make([]int, len(outcomes))
	for i := range outcomes {
		todo[i] = i
		if _, err := s.outboxes.FindValid(outcomes[i].Outbox, &outcomes[i]); err != nil {
			return nil, fmt.Errorf("settle: %w", err)
		}
	}

	number, done := s.settling.Take()
	err := s.outcomes[number].do(ctx, func(ctx context.Context, sess *session) error {
		call := &settling{s, sess, epoch, outcomes, results}
		if time.Now().Before(sess.skipLocked) {
			return call.settleSkippingLocked(ctx, todo)
		}

		todo, err := call.settle(ctx, todo)
		if IsLockTimeout(err) {
			sess.skipLocked = time.Now().Add(skipLockedPeriod)
			for _, i := range todo {
				results[i] = 0 // rolled back
			}
			return call.settleSkippingLocked(ctx, todo)
		}
		return err
	})
	done(err)
	if err != nil {
		return nil, fmt.Errorf("settle: %w", asRefused(explainOwn(err)))
	}
	return results, nil
}

// settlePart is the outcomes of one status for one outbox, each id once.
type settlePart struct {
	settleKey
	table *table
	at    []int // indexes in the call
}

type settleKey struct {
	round  int // a second outcome of an id is written in the second round, and so on
	outbox string
	status store.Status
	when   time.Time // of rows COMPLETED by settleManyQuery, else zero
}

// usesSettleMany reports whether settleManyQuery writes the part.
func (p *settlePart) usesSettleMany() bool {
	return !p.when.IsZero() && (len(p.table.Layout.Record) == 0 || len(p.at) <= maxReceiptsByPosition)
}

// maxReceiptsByPosition bounds the rows whose receipts settleManyQuery writes, because it looks
// through all ids for each row. For 10 rows it is ten times as fast as settleQuery, for 500 slower
// (measured).
const maxReceiptsByPosition = 200

// settling is one call of Settle.
type settling struct {
	*Store
	sess     *session
	epoch    store.Epoch
	outcomes []store.Outcome
	results  []store.SettleResult
}

// settle writes the outcomes at todo and waits for locks. With an error it returns the
// outcomes that were rolled back.
func (c *settling) settle(ctx context.Context, todo []int) ([]int, error) {
	t := newTransaction(c.sess.conn, c.name)
	if !c.durable() { // each attempt is a transaction
		return c.write(ctx, t, todo)
	}
	t.exec("BEGIN")
	t.exec("SET LOCAL synchronous_commit = on")
	return todo, t.run(ctx, func() error {
		if _, err := c.write(ctx, t, todo); err != nil {
			return err
		}
		return c.after(ctx, t)
	})
}

// write writes the outcomes at todo, in several attempts while other sessions change their
// rows. It returns the outcomes of the last attempt.
func (c *settling) write(ctx context.Context, t *transaction, todo []int) ([]int, error) {
	for range maxSettleTries {
		var left []int
		missed, err := c.attempt(ctx, t, todo, false)
		if err == nil {
			left, err = c.explainMissed(ctx, missed)
		}
		if err != nil || len(left) == 0 {
			return todo, err
		}
		todo = left
	}

	o := &c.outcomes[todo[0]]
	return todo, &store.RefusedError{Err: fmt.Errorf("settle row %q of outbox %s: concurrent updates kept changing it; retries exhausted", o.ID, o.Outbox)}
}

// settleSkippingLocked writes the outcomes at todo, except on locked rows and tables.
func (c *settling) settleSkippingLocked(ctx context.Context, todo []int) error {
	var boxes []*store.Outbox
	for _, i := range todo {
		if o := c.outboxes.Lookup(c.outcomes[i].Outbox); !slices.Contains(boxes, o) {
			boxes = append(boxes, o)
		}
	}

	return c.skipLockedTx(ctx, c.sess.conn, c.epoch, c.durable(), boxes, func(locked map[string]bool) error {
		free := make([]int, 0, len(todo))
		for _, i := range todo {
			if locked[c.outcomes[i].Outbox] {
				c.results[i] = store.TableWasLocked
			} else {
				free = append(free, i)
			}
		}

		t := newTransaction(c.sess.conn, c.name)
		missed, err := c.attempt(ctx, t, free, true)
		if err != nil {
			return err
		}
		left, err := c.explainMissed(ctx, missed)
		if err != nil {
			return err
		}
		for _, i := range left { // the row exists and is unsettled
			c.results[i] = store.WasLocked
			c.sess.skipLocked = time.Now().Add(skipLockedPeriod)
		}
		return t.run(ctx, func() error { return c.after(ctx, t) })
	})
}

// durable reports whether the call must be durable when it returns. No other call writes
// more than the outcomes.
func (c *settling) durable() bool {
	return slices.ContainsFunc(c.outcomes, func(o store.Outcome) bool { return o.ChangesRecords() })
}

// after writes what accompanies the outcomes, once all of them have their result.
func (c *settling) after(ctx context.Context, t *transaction) error {
	return c.AfterSettle(ctx, settleTx{t}, c.outcomes, c.results, func(ctx context.Context, rows []store.Ref) ([]bool, error) {
		return c.readFailed(ctx, c.sess, rows)
	})
}

// settleTx is the transaction of a call of Settle.
type settleTx struct{ *transaction }

// Dequeue sends the deletion with the commit, which saves a round trip. It returns no number
// of rows, because AfterSettle needs none.
func (t settleTx) Dequeue(_ context.Context, queue string, refs []ledger.Ref, _ func(int, *store.Item)) (int, error) {
	t.add(t.dequeueQuery(queue, refs, false), nil)
	return 0, nil
}

// attempt sends the statements that write the outcomes at todo. It returns the outcomes that
// matched no row.
func (c *settling) attempt(ctx context.Context, t *transaction, todo []int, skip bool) (missed []outboxPart, err error) {
	parts, err := c.parts(ctx, todo, skip)
	if err != nil {
		return nil, err
	}

	fenced := false
	for _, p := range parts {
		values := c.fenced(c.epoch)
		write, read := p.statement(values, c.outcomes, skip)
		t.add(write.with(values), func(results pgx.BatchResults) error {
			passed, written, err := read(results.QueryRow(), c.outcomes, c.results)
			if fenced = fenced || passed; err == nil && written < len(p.at) {
				missed = append(missed, p.missed(c.results))
			}
			return err
		})
	}
	if err := t.flush(ctx); err != nil {
		return nil, err
	}
	if fenced {
		return nil, store.ErrNotLeader
	}
	return missed, nil
}

// parts groups a call. Rounds preserve the order of several outcomes of one id, and parts
// are sorted by round. With skip there is no part for the hot path, because its
// statements wait for locks.
func (c *settling) parts(ctx context.Context, todo []int, skip bool) (parts []*settlePart, err error) {
	byKey := map[settleKey]*settlePart{}
	turns := c.sess.turns
	clear(turns)
	var part *settlePart
	last := 0
	for _, i := range todo {
		o := &c.outcomes[i]
		t, err := c.sess.table(ctx, c.outboxes.Lookup(o.Outbox))
		if err != nil {
			return nil, err
		}
		turn := turns[o.Ref]
		turns[o.Ref] = turn + 1
		key := settleKey{round: turn, outbox: o.Outbox, status: o.Status}
		if !skip && o.Status == store.Completed && !t.Layout.LogOnly() && t.idIsText() {
			key.when = o.At.Truncate(time.Microsecond)
		}
		last = max(last, key.round)
		if part == nil || part.settleKey != key { // most outcomes have the key of the previous one
			part = byKey[key]
		}
		if part == nil {
			part = &settlePart{settleKey: key, table: t}
			byKey[key] = part
			parts = append(parts, part)
		}
		part.at = append(part.at, i)
	}

	if last == 0 {
		return parts, nil
	}

	ordered := make([]*settlePart, 0, len(parts))
	for turn := 0; turn <= last; turn++ {
		for _, p := range parts {
			if p.round == turn {
				ordered = append(ordered, p)
			}
		}
	}

	return ordered, nil
}

// resultReader reads the result of a part's statement and counts the rows written. fenced
// means that the epoch is stale.
type resultReader func(row pgx.Row, outcomes []store.Outcome, results []store.SettleResult) (fenced bool, n int, err error)

// statement returns the part's statement, and sets its parameters.
func (p *settlePart) statement(values map[string]any, outcomes []store.Outcome, skip bool) (*query, resultReader) {
	t, variant := p.table, 0
	if skip {
		variant = 1
	}
	if p.usesSettleMany() {
		return p.manyStatement(values, outcomes), p.readMany
	}

	write := &t.write[p.status][variant]
	if *write == nil {
		*write = settleQuery(t, p.status, skip)
	}

	n := len(p.at)
	ids, times := make([]string, n), make([]time.Time, n)
	retries, texts := make([]int64, n), make([]string, n)
	maxRetry, limit := t.maxRetry(), t.errorLimit()
	for k, i := range p.at {
		o := &outcomes[i]
		ids[k], times[k] = o.ID, o.At.Truncate(time.Microsecond)
		retries[k] = min(int64(o.RetryCount), maxRetry)
		texts[k] = errortext.Sanitize(o.Error, limit, t.ascii)
	}

	values["ids"], values["times"], values["retries"], values["texts"] = arrayLiteral(ids), times, retries, texts
	if t.Layout.State == store.StateNumbers && p.status == store.Failed {
		numbers := make([]string, n)
		for k, i := range p.at {
			numbers[k] = strconv.Itoa(t.Layout.FailedNumber(outcomes[i].Reason))
		}
		values["numbers"] = arrayLiteral(numbers)
	}
	p.bindReceipts(values, outcomes)

	return *write, p.readWritten
}

// bindReceipts sets the parameters for receipts, and reports whether there are any.
func (p *settlePart) bindReceipts(values map[string]any, outcomes []store.Outcome) bool {
	all := p.table.receipts(p.status)
	for i := range all {
		values[receiptName(i)] = p.receipts(i, outcomes)
	}
	return len(all) > 0
}

// receipts returns the values of a column for receipts, as an array literal.
func (p *settlePart) receipts(r int, outcomes []store.Outcome) string {
	record := &p.table.Layout.Record[r]
	column := p.table.MustColumn(record.Column).checked()
	clean := func(text string) string { return errortext.Sanitize(text, column.Length, p.table.ascii) }
	elements := make([]any, len(p.at))
	for k, i := range p.at {
		elements[k] = columns.ReceiptValue(record, &outcomes[i], &column, clean)
	}
	return nullableArrayLiteral(elements)
}

// maxRetry is the largest retry count that the column holds.
func (t *table) maxRetry() int64 {
	if name := t.Layout.Columns.RetryCount; name != "" {
		switch t.MustColumn(name).base {
		case pgtype.Int2OID:
			return math.MaxInt16
		case pgtype.Int4OID:
			return math.MaxInt32
		}
	}
	return math.MaxInt64
}

func (t *table) errorLimit() int {
	if name := t.Layout.Columns.Error; name != "" && t.Layout.State != store.StateNone {
		return t.MustColumn(name).limit
	}
	return 0
}

// readWritten is the resultReader of settleQuery.
func (p *settlePart) readWritten(row pgx.Row, _ []store.Outcome, results []store.SettleResult) (fenced bool, n int, err error) {
	var epoch *int64
	var written []int64
	if err := row.Scan(&epoch, &written); err != nil {
		return false, 0, err
	}
	for _, ord := range written {
		if i := p.at[ord-1]; results[i] != store.Written { // several rows may have the id
			results[i] = store.Written
			n++
		}
	}
	return epoch == nil, n, nil
}

// outboxPart is outcomes for one outbox, in their order.
type outboxPart struct {
	table *table
	at    []int // indexes in the call
}

// missed returns the part's outcomes that matched no row.
func (p *settlePart) missed(results []store.SettleResult) outboxPart {
	m := outboxPart{table: p.table}
	for _, i := range p.at {
		if results[i] != store.Written {
			m.at = append(m.at, i)
		}
	}
	return m
}

// explainMissed finds out, in a new snapshot, why outcomes matched no row. It returns the
// indexes of the outcomes still to write.
func (c *settling) explainMissed(ctx context.Context, missed []outboxPart) (retry []int, err error) {
	for _, m := range missed {
		t := m.table
		if t.rowStates == nil {
			t.rowStates = rowStatesQuery(t)
		}
		ids, txns := make([]string, len(m.at)), make([]int64, len(m.at))
		for k, i := range m.at {
			ids[k], txns[k] = c.outcomes[i].ID, int64(uint32(c.outcomes[i].Txn))
		}
		values := map[string]any{}
		values["ids"], values["txns"] = arrayLiteral(ids), txns
		rows, err := c.sess.conn.Query(ctx, t.rowStates.sql, t.rowStates.args(values)...)
		if err != nil {
			return nil, err
		}
		var ord int64
		var open *bool
		var early bool
		_, err = pgx.ForEachRow(rows, []any{&ord, &open, &early}, func() error {
			i := m.at[ord-1]
			switch {
			case early:
				c.results[i] = store.TooEarly
			case open == nil:
				c.results[i] = store.WasGone
			case *open:
				retry = append(retry, i)
			default:
				c.results[i] = store.WasSettled
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return retry, nil
}
