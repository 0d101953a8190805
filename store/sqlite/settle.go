package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/errortext"
)

// Settle implements store.Settler. It writes all outcomes of a call in one transaction, in
// their order. It removes NUL bytes and invalid UTF-8 from error texts, truncates them to
// 2000 characters, and truncates times to milliseconds.
func (s *Store) Settle(ctx context.Context, epoch store.Epoch, outcomes []store.Outcome) ([]store.SettleResult, error) {
	if len(outcomes) == 0 {
		return nil, nil
	}
	durability := Normal
	for i := range outcomes {
		o := &outcomes[i]
		if _, err := s.outboxes.FindValid(o.Outbox, o); err != nil {
			return nil, fmt.Errorf("settle: %w", err)
		}
		if o.ChangesRecords() {
			durability = Full
		}
	}

	results := make([]store.SettleResult, len(outcomes))
	err := s.writer.do(ctx, func(ctx context.Context) error {
		return s.writer.runAsLeader(ctx, epoch, durability, lockTimeout, func(ctx context.Context) (err error) {
			for i := range outcomes {
				if results[i], err = s.settle(ctx, &outcomes[i]); err != nil {
					return err
				}
			}
			return s.AfterSettle(ctx, s.writer.tx(), outcomes, results, s.failedInCall)
		})
	})
	if err != nil {
		return nil, fmt.Errorf("settle: %w", asRefused(err))
	}
	return results, nil
}

// failedInCall is a ledger.AreFailed in the call's transaction.
func (s *Store) failedInCall(ctx context.Context, rows []store.Ref) ([]bool, error) {
	return s.readFailed(ctx, s.writer.conn, rows, func(o *store.Outbox) (*table, error) { return s.writer.table(ctx, o) })
}

// areFailed is a ledger.AreFailed on its own connection.
func (s *Store) areFailed(ctx context.Context, rows []store.Ref) (failed []bool, err error) {
	err = s.readTx(ctx, func(ctx context.Context, conn *Conn) (err error) {
		tables := map[*store.Outbox]*table{}
		failed, err = s.readFailed(ctx, conn, rows, func(o *store.Outbox) (t *table, err error) {
			if t = tables[o]; t == nil {
				t, err = describe(ctx, conn, o)
				tables[o] = t
			}
			return t, err
		})
		return err
	})
	return failed, Explain(err)
}

// readFailed reports which rows are FAILED. If several rows have the same id, one FAILED row
// suffices.
func (s *Store) readFailed(ctx context.Context, conn *Conn, rows []store.Ref, tableOf func(*store.Outbox) (*table, error)) ([]bool, error) {
	failed := make([]bool, len(rows))
	for i := range rows {
		o := s.outboxes.Lookup(rows[i].Outbox)
		if o.Layout.State == store.StateNone {
			continue
		}
		t, err := tableOf(o)
		if err != nil {
			return nil, err
		}
		if t.isFailed == nil {
			t.isFailed = failedQuery(t)
		}
		for _, key := range t.keys(rows[i].ID) {
			err := conn.Query(ctx, t.isFailed.sql, t.isFailed.args(&values{key: key}), func([]driver.Value) error {
				failed[i] = true
				return StopIteration()
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return failed, nil
}

// failedQuery builds the statement that returns a row if the row of an id is FAILED.
func failedQuery(t *table) *query {
	b := &builder{}
	sql := "SELECT 1 FROM " + TableName(t.Outbox) + " WHERE " + Ident(t.Layout.Columns.ID) + " = " + b.key() + " AND " + t.state(b).Failed()
	return &query{sql, b.params}
}

// settle writes one outcome, in the call's transaction.
func (s *Store) settle(ctx context.Context, o *store.Outcome) (store.SettleResult, error) {
	t, err := s.writer.table(ctx, s.outboxes.Lookup(o.Outbox))
	if err != nil {
		return 0, err
	}
	if t.Layout.LogOnly() {
		return store.Written, nil // there is nothing to write; the epoch was checked
	}
	if t.write[o.Status] == nil {
		t.write[o.Status] = settleQuery(t, o.Status)
		t.readRow = readRowQuery(t)
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
		err := s.writer.conn.Query(ctx, t.readRow.sql, t.readRow.args(v), func(row []driver.Value) error {
			found, open = true, row[0] == int64(1)
			return StopIteration()
		})
		switch {
		case err != nil:
			return 0, err
		case open && q.sql != "":
			return 0, unchangedError(o.Ref)
		case open:
			return store.Written, nil
		case found:
			return store.WasSettled, nil
		}
	}
	return store.WasGone, nil
}

// settleQuery builds the statement that writes an outcome of a status. It is empty if the
// table has no column for it.
func settleQuery(t *table, to store.Status) *query {
	b := &builder{}
	verb := ""
	if to == store.Completed && t.Layout.DeleteDelivered {
		verb = "DELETE FROM " + TableName(t.Outbox)
	} else {
		set := t.assignments(b, to)
		if set == "" {
			return &query{}
		}
		verb = "UPDATE " + TableName(t.Outbox) + " SET " + set
	}
	sql := verb + "\nWHERE " + Ident(t.Layout.Columns.ID) + " = " + b.key() + " AND " + t.state(b).Unsettled()
	return &query{sql, b.params}
}

// assignments returns the SET list of an outcome. An outcome without an error keeps the
// row's text.
func (t *table) assignments(b *builder, to store.Status) string {
	return columns.SetList(t.Outcome(to), Ident, func(a columns.Assignment) string {
		bound := b.arg(t.outcomeValue(a))
		if a.Value == columns.Error {
			return "coalesce(nullif(" + bound + ", ''), " + Ident(a.Column) + ")"
		}
		return bound
	})
}

// outcomeValue returns the value that an outcome assigns to a column.
func (t *table) outcomeValue(a columns.Assignment) func(*values) any {
	switch a.Value {
	case columns.Time:
		col := t.MustColumn(a.Column)
		return func(v *values) any { return timeValue(col, v.at) }
	case columns.Retries:
		return func(v *values) any { return v.outcome.RetryCount }
	case columns.Receipt:
		return t.receipt(&t.Layout.Record[a.Record])
	case columns.Error: // a NUL would end the text in SQLite's functions
		return func(v *values) any { return errortext.Sanitize(v.outcome.Error, 0, false) }
	}
	return func(v *values) any { return columns.StoredOutcome(&t.Layout, v.outcome) }
}

// receipt returns the value that an outcome assigns to a column for receipts.
func (t *table) receipt(r *store.RecordColumn) func(*values) any {
	column := store.ColumnInfo{Integer: r.Max > 0 && t.MustColumn(r.Column).affinity != affinityText, Max: r.Max}
	clean := func(text string) string { return errortext.Sanitize(text, 0, false) }
	return func(v *values) any { return columns.ReceiptValue(r, v.outcome, &column, clean) }
}
