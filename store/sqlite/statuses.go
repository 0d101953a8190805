package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

// ReadStatuses implements store.RowStatusReader, on its own connection. It reports a missing
// row as absent, because a row that a trigger logged was committed.
func (s *Store) ReadStatuses(ctx context.Context, rows []store.ClaimRow) ([]store.RowStatus, error) {
	parts, err := outboxes.Split(s.outboxes, rows)
	if err != nil {
		return nil, fmt.Errorf("read row statuses: %w", err)
	}
	states := make([]store.RowStatus, len(rows))
	err = s.readTx(ctx, func(ctx context.Context, conn *Conn) error {
		for _, p := range parts {
			if err := readStatusesOf(ctx, conn, p, rows, states); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read row statuses: %w", Explain(err))
	}
	return states, nil
}

// readStatusesOf reads the rows of one outbox.
func readStatusesOf(ctx context.Context, conn *Conn, p *outboxes.Part, rows []store.ClaimRow, states []store.RowStatus) error {
	if p.MarkAbsent(states) {
		return nil
	}
	t, err := describe(ctx, conn, p.Outbox)
	if err != nil {
		return err
	}

	read := stateQuery(t)
	for _, i := range p.Indexes {
		states[i] = store.RowStatus{State: store.RowAbsent}
		for _, key := range t.keys(rows[i].ID) {
			if states[i].State != store.RowAbsent {
				break
			}
			err := conn.Query(ctx, read.sql, read.args(&values{key: key, wants: p.WantsPayload(rows, i)}), func(row []driver.Value) error {
				states[i] = store.RowStatus{State: store.RowState(numberAt(row, 0)), Payload: BytesOf(row[1])}
				return StopIteration()
			})
			if err != nil {
				return err
			}
		}
	}

	p.CopyDuplicateStatuses(rows, states)
	return nil
}

// stateQuery builds the statement that reads the state of a row, and its payload if it is
// COMPLETED and requested. If several rows have the same id, an unsettled one counts.
func stateQuery(t *table) *query {
	b := &builder{}
	sql := fmt.Sprintf("SELECT CASE WHEN (%s) IS TRUE THEN %d WHEN %s IS TRUE THEN %d ELSE %d END AS state",
		t.delivered(b), store.RowCompleted, t.failed(b), store.RowFailed, store.RowUnsettled) +
		", CASE WHEN " + b.arg(func(v *values) any { return v.wants }) + " AND (" + t.delivered(b) + ") IS TRUE THEN " +
		PayloadOf(Ident(t.Layout.Columns.Payload)) + " END" +
		"\nFROM " + TableName(t.Outbox) + " WHERE " + Ident(t.Layout.Columns.ID) + " = " + b.key() +
		"\nORDER BY state LIMIT 1"
	return &query{sql, b.params}
}

// ReadSettled implements store.StatusReader, on its own connection. It reports an absent row
// as settled, because a row that a trigger logged was committed and must have been deleted.
func (s *Store) ReadSettled(ctx context.Context, rows []store.ClaimRow) ([]bool, error) {
	settled := make([]bool, len(rows))
	tables := map[string]*table{}
	err := s.readTx(ctx, func(ctx context.Context, conn *Conn) error {
		for i := range rows {
			t := tables[rows[i].Outbox]
			if t == nil {
				o, err := s.outbox(rows[i].Outbox)
				if err != nil {
					return err
				}
				if t, err = describe(ctx, conn, o); err != nil {
					return err
				}
				t.readRow = readRowQuery(t)
				tables[rows[i].Outbox] = t
			}
			var err error
			if settled[i], err = t.settled(ctx, conn, rows[i].ID); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read settled rows: %w", Explain(err))
	}
	return settled, nil
}

// settled reports whether a row is settled or deleted. It is false for a table without
// states.
func (t *table) settled(ctx context.Context, conn *Conn, id string) (bool, error) {
	if t.Layout.State == store.StateNone {
		return false, nil
	}
	for _, key := range t.keys(id) {
		found, open := false, false
		err := conn.Query(ctx, t.readRow.sql, t.readRow.args(&values{key: key}), func(row []driver.Value) error {
			found, open = true, row[0] == int64(1)
			return StopIteration()
		})
		if err != nil || found {
			return found && !open, err
		}
	}
	return true, nil
}
