package postgres

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/errortext"
)

// settleTries bounds how often an outcome is written again because somebody
// changed its row under the statement and left it unsettled.
const settleTries = 5

// Settle implements store.Settler. It is one round trip and one transaction
// unless an outcome hits no row. Error texts lose NUL bytes and invalid UTF-8
// and are cut to 2000 characters, or to what the column holds. Times are cut to
// microseconds.
func (s *Store) Settle(ctx context.Context, epoch store.Epoch, outcomes []store.Outcome) ([]store.SettleResult, error) {
	if len(outcomes) == 0 {
		return nil, nil
	}
	results := make([]store.SettleResult, len(outcomes))
	todo := make([]int, len(outcomes))
	for i := range outcomes {
		todo[i] = i
		if _, err := s.outboxes.Check(outcomes[i].Outbox, &outcomes[i]); err != nil {
			return nil, fmt.Errorf("settle: %w", err)
		}
	}
	err := s.outcomes.do(ctx, func(ctx context.Context, sess *session) error {
		for range settleTries {
			missed, err := s.settleOnce(ctx, sess, epoch, outcomes, todo, results)
			if err != nil || len(missed) == 0 {
				return err
			}
			todo = missed
		}
		o := &outcomes[todo[0]]
		return &store.RefusedError{Err: fmt.Errorf("row %q of outbox %s is changed by somebody else again and again", o.ID, o.Outbox)}
	})
	if err != nil {
		return nil, fmt.Errorf("settle: %w", refusal(explainOwn(err)))
	}
	return results, nil
}

// settlePart is the outcomes of one status for one outbox, each id once.
type settlePart struct {
	settleKey
	table *table
	at    []int // the places in the call
}

type settleKey struct {
	turn   int // an id's second outcome is written in the second turn, and so on
	outbox string
	status store.Status
	when   time.Time // of rows that are COMPLETED by settleManyQuery, else zero
}

func (k *settleKey) hot() bool { return !k.when.IsZero() }

// settleOnce writes the outcomes at todo and returns those whose row was there
// and unsettled and was not written all the same.
func (s *Store) settleOnce(ctx context.Context, sess *session, epoch store.Epoch,
	outcomes []store.Outcome, todo []int, results []store.SettleResult,
) ([]int, error) {
	parts, durable, err := s.settleParts(ctx, sess, outcomes, todo)
	if err != nil {
		return nil, err
	}
	holds, err := s.partsOf(ctx, sess, outcomes, blocks)
	if err != nil {
		return nil, err
	}
	parked, err := s.partsOf(ctx, sess, outcomes, unparks)
	if err != nil {
		return nil, err
	}
	durable = durable || len(holds) > 0 || len(parked) > 0
	batch := &pgx.Batch{}
	if durable {
		begin(batch, "SET LOCAL synchronous_commit = on")
	}
	for _, p := range parts {
		p.queue(batch, s.fenced(epoch, p.table.values(s.name)), outcomes)
	}
	for _, p := range holds {
		p.queueBlock(batch, s.fenced(epoch, p.table.values(s.name)), outcomes)
	}
	for _, p := range parked {
		p.queueUnpark(batch, s.fenced(epoch, p.table.values(s.name)), outcomes)
	}
	if durable {
		commit(batch)
	}
	missed, err := readSettled(sess.conn.SendBatch(ctx, batch), parts, durable, outcomes, results)
	if err != nil || len(missed) == 0 {
		return nil, err
	}
	return readBack(ctx, sess.conn, missed, outcomes, results)
}

// settleParts sorts a call. Turns keep the order of several outcomes of one id;
// parts come in the order of their turns.
func (s *Store) settleParts(ctx context.Context, sess *session, outcomes []store.Outcome, todo []int) (parts []*settlePart, durable bool, err error) {
	byKey := map[settleKey]*settlePart{}
	turns := make(map[store.Ref]int, len(todo))
	var part *settlePart
	last := 0
	for _, i := range todo {
		o := &outcomes[i]
		t, err := sess.table(ctx, s.outboxes.Known(o.Outbox))
		if err != nil {
			return nil, false, err
		}
		key := settleKey{turn: turns[o.Ref], outbox: o.Outbox, status: o.Status}
		if o.Status == store.Completed && t.Layout.State != store.StateNone && t.knowsRows() {
			key.when = o.At.Truncate(time.Microsecond)
		}
		turns[o.Ref]++
		last = max(last, key.turn)
		durable = durable || o.Status == store.Failed
		if part == nil || part.settleKey != key { // most are like the one before
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
		return parts, durable, nil
	}
	ordered := make([]*settlePart, 0, len(parts))
	for turn := 0; turn <= last; turn++ {
		for _, p := range parts {
			if p.turn == turn {
				ordered = append(ordered, p)
			}
		}
	}
	return ordered, durable, nil
}

// queue adds the part's statement to a batch.
func (p *settlePart) queue(batch *pgx.Batch, values map[string]any, outcomes []store.Outcome) {
	t := p.table
	if p.hot() {
		p.queueMany(batch, values, outcomes)
		return
	}
	if t.write[p.status] == nil {
		t.write[p.status] = settleQuery(t, p.status)
	}
	n := len(p.at)
	ids, times := make([]string, n), make([]time.Time, n)
	retries, texts := make([]int64, n), make([]string, n)
	most, limit := t.maxRetry(), t.errorLimit()
	for k, i := range p.at {
		o := &outcomes[i]
		ids[k], times[k] = o.ID, o.At.Truncate(time.Microsecond)
		retries[k] = min(int64(o.RetryCount), most)
		texts[k] = errortext.Fit(o.Error, limit, t.ascii)
	}
	values["ids"], values["times"], values["retries"], values["texts"] = arrayLiteral(ids), times, retries, texts
	values["id texts"] = ids
	if t.Layout.State == store.StateNumbers && p.status == store.Failed {
		numbers := make([]string, n)
		for k, i := range p.at {
			numbers[k] = strconv.Itoa(t.Layout.FailedNumber(outcomes[i].Reason))
		}
		values["numbers"] = arrayLiteral(numbers)
	}
	batch.Queue(t.write[p.status].sql, t.write[p.status].args(values)...)
}

// maxRetry is the largest count that the column holds.
func (t *table) maxRetry() int64 {
	if name := t.Layout.Columns.RetryCount; name != "" {
		switch t.col(name).base {
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
		return t.col(name).limit
	}
	return 0
}

// readSettled reads the answers of a batch and returns the places of the
// outcomes that hit no row.
func readSettled(batch pgx.BatchResults, parts []*settlePart, durable bool, outcomes []store.Outcome, results []store.SettleResult) (missed []outboxPart, err error) {
	defer finish(batch, &err)
	if durable {
		if err := begun(batch); err != nil {
			return nil, err
		}
	}
	fenced := false
	for _, p := range parts {
		read := p.readWritten
		if p.hot() {
			read = p.readMany
		}
		passed, written, err := read(batch.QueryRow(), outcomes, results)
		if err != nil {
			return nil, err
		}
		fenced = fenced || passed
		if written < len(p.at) {
			missed = append(missed, p.missed(results))
		}
	}
	if fenced {
		return nil, store.ErrNotLeader
	}
	return missed, nil
}

// readWritten reads the answer of settleQuery, and counts what was written. fenced
// says that the epoch has passed.
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

// outboxPart is some outcomes for one outbox, in their order.
type outboxPart struct {
	table *table
	at    []int // the places in the call
}

// partsOf sorts those outcomes of a call by outbox that which chooses.
func (s *Store) partsOf(ctx context.Context, sess *session, outcomes []store.Outcome, which func(*store.Outcome) bool) ([]*outboxPart, error) {
	var parts []*outboxPart
	byName := map[string]*outboxPart{}
	for i := range outcomes {
		o := &outcomes[i]
		if !which(o) {
			continue
		}
		if byName[o.Outbox] == nil {
			t, err := sess.table(ctx, s.outboxes.Known(o.Outbox))
			if err != nil {
				return nil, err
			}
			byName[o.Outbox] = &outboxPart{table: t}
			parts = append(parts, byName[o.Outbox])
		}
		byName[o.Outbox].at = append(byName[o.Outbox].at, i)
	}
	return parts, nil
}

// missed returns the part's outcomes that hit no row.
func (p *settlePart) missed(results []store.SettleResult) outboxPart {
	m := outboxPart{table: p.table}
	for _, i := range p.at {
		if results[i] != store.Written {
			m.at = append(m.at, i)
		}
	}
	return m
}

// readBack tells why outcomes hit no row, with a new snapshot, and returns the
// places of those that have yet to be written.
func readBack(ctx context.Context, conn *pgx.Conn, missed []outboxPart, outcomes []store.Outcome, results []store.SettleResult) (again []int, err error) {
	for _, m := range missed {
		t := m.table
		if t.look == nil {
			t.look = lookQuery(t)
		}
		ids, txns := make([]string, len(m.at)), make([]int64, len(m.at))
		for k, i := range m.at {
			ids[k], txns[k] = outcomes[i].ID, int64(uint32(outcomes[i].Txn))
		}
		values := t.values("")
		values["ids"], values["txns"] = arrayLiteral(ids), txns
		rows, err := conn.Query(ctx, t.look.sql, t.look.args(values)...)
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
				results[i] = store.TooEarly
			case open == nil:
				results[i] = store.WasGone
			case *open:
				again = append(again, i)
			default:
				results[i] = store.WasSettled
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return again, nil
}
