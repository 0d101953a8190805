package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/store"
)

// Settle implements store.Settler. All outcomes of a call are written in one
// transaction, in their order. Error texts lose NUL bytes and invalid UTF-8 and
// are cut to 2000 characters. Times are cut to milliseconds.
func (s *Store) Settle(ctx context.Context, epoch store.Epoch, outcomes []store.Outcome) ([]store.SettleResult, error) {
	if len(outcomes) == 0 {
		return nil, nil
	}
	durability := Normal
	for i := range outcomes {
		o := &outcomes[i]
		box, err := s.outbox(o.Outbox)
		if err == nil {
			err = o.Validate(box)
		}
		if err != nil {
			return nil, fmt.Errorf("settle: %w", err)
		}
		if o.Status == store.Failed || unparks(o) {
			durability = Full
		}
	}
	results := make([]store.SettleResult, len(outcomes))
	err := s.writer.do(ctx, func(ctx context.Context) error {
		return s.writer.lead(ctx, epoch, durability, patience, func(ctx context.Context) (err error) {
			for i := range outcomes {
				if results[i], err = s.settle(ctx, &outcomes[i]); err != nil {
					return err
				}
				if err := s.afterSettled(ctx, &outcomes[i], results[i]); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("settle: %w", refusal(err))
	}
	return results, nil
}

// unparks reports whether an outcome takes its row out of the parked ones.
func unparks(o *store.Outcome) bool { return o.Parked != 0 && o.Status.Settled() }

// afterSettled does what goes with an outcome, in the call's transaction.
func (s *Store) afterSettled(ctx context.Context, o *store.Outcome, result store.SettleResult) error {
	if unparks(o) {
		if err := s.unpark(ctx, store.ParkedRef{Ref: o.Ref, Seq: o.Parked}); err != nil {
			return err
		}
	}
	if o.Status != store.Failed {
		return nil
	}
	return s.afterFailed(ctx, o, result)
}

// afterFailed records the hold that a failure asks for. What the row blocked when
// it was FAILED before, and somebody set it back by other means than the relay's,
// is forgotten.
func (s *Store) afterFailed(ctx context.Context, o *store.Outcome, result store.SettleResult) error {
	if result == store.Written && s.outboxes[o.Outbox].Layout.State != store.StateNone {
		if err := s.forget(ctx, o.Ref); err != nil {
			return err
		}
	}
	if o.Block == nil {
		return nil
	}
	return s.block(ctx, o)
}

// settle writes one outcome, in the call's transaction.
func (s *Store) settle(ctx context.Context, o *store.Outcome) (store.SettleResult, error) {
	t, err := s.writer.table(ctx, s.outboxes[o.Outbox])
	if err != nil {
		return 0, err
	}
	if t.Layout.State == store.StateNone {
		return store.Written, nil // the fence is all there is to it
	}
	if t.write[o.Status] == nil {
		t.write[o.Status] = settleQuery(t, o.Status)
		t.look = lookQuery(t)
	}
	q := t.write[o.Status]
	v := &values{at: o.At.Truncate(time.Millisecond), outcome: o}
	for _, v.key = range t.keys(o.ID) {
		if q.sql != "" {
			n, err := s.writer.conn.Exec(ctx, q.sql, q.args(v)...)
			if err != nil || n > 0 {
				return store.Written, err
			}
		}
		found, open := false, false
		err := s.writer.conn.Query(ctx, t.look.sql, t.look.args(v), func(row []driver.Value) error {
			found, open = true, row[0] == int64(1)
			return Enough()
		})
		switch {
		case err != nil:
			return 0, err
		case open && q.sql != "":
			return 0, unmoved(o.Ref)
		case open:
			return store.Written, nil
		case found:
			return store.WasSettled, nil
		}
	}
	return store.WasGone, nil
}

// settleQuery makes the statement that writes an outcome of a status. It is empty
// where the table has no column for anything of it.
func settleQuery(t *table, to store.Status) *query {
	b := &builder{}
	verb := ""
	if to == store.Completed && t.Layout.DeleteDelivered {
		verb = "DELETE FROM " + TableName(t.Outbox)
	} else {
		set := t.assignments(b, to)
		if len(set) == 0 {
			return &query{}
		}
		verb = "UPDATE " + TableName(t.Outbox) + " SET " + strings.Join(set, ", ")
	}
	sql := verb + "\nWHERE " + Ident(t.Layout.Columns.ID) + " = " + b.key() + " AND " + t.unsettled(b)
	return &query{sql, b.params}
}

// assignments says what an outcome changes in a row.
func (t *table) assignments(b *builder, to store.Status) []string {
	c := &t.Layout.Columns
	var set []string
	assign := func(name string, param func(column) func(*values) any) {
		if name != "" {
			set = append(set, Ident(name)+" = "+b.arg(param(t.col(name))))
		}
	}
	at := func(to column) func(*values) any {
		return func(v *values) any { return timeValue(to, v.at) }
	}
	switch {
	case t.Layout.State != store.StateTimestamps:
		assign(c.Status, func(column) func(*values) any { return t.statusValue })
	case to == store.Completed:
		assign(c.Delivered, at)
	case to == store.Failed:
		assign(c.Failed, at)
	}
	if to.Settled() {
		if c.Settled != "" {
			assign(c.Settled, at)
		} else {
			assign(c.Claimed, at)
		}
	}
	if to != store.Completed {
		assign(c.RetryCount, func(column) func(*values) any {
			return func(v *values) any { return v.outcome.RetryCount }
		})
		if c.Error != "" { // keeps the row's text where an outcome brings none
			text := b.arg(func(v *values) any { return errorText(v.outcome.Error) })
			set = append(set, Ident(c.Error)+" = coalesce(nullif("+text+", ''), "+Ident(c.Error)+")")
		}
	}
	return set
}

func (t *table) statusValue(v *values) any {
	l := &t.Layout
	switch {
	case l.State == store.StateWords:
		return l.Words[v.outcome.Status]
	case v.outcome.Status == store.Failed:
		return l.FailedNumber(v.outcome.Reason)
	}
	return l.Numbers[v.outcome.Status]
}

// maxErrorText is the most characters of an error that are written into a row:
// enough for a status line and the start of an answer.
const maxErrorText = 2000

// errorText makes a text fit to be stored: no NUL, at which SQLite's own
// functions would end it, and valid UTF-8.
func errorText(text string) string {
	// A character has at most 4 bytes: what lies behind them is cut off anyway.
	// Three spare bytes keep the character at the cut whole.
	if most := 4*maxErrorText + utf8.UTFMax - 1; len(text) > most && strings.IndexByte(text[:most], 0) < 0 {
		text = text[:most]
	}
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "\uFFFD")
	n := 0
	for i := range text {
		if n == maxErrorText {
			return text[:i]
		}
		n++
	}
	return text
}
