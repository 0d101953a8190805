package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

// ReadStatuses implements store.ReplayReader, on its own connection. It reports a missing
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
				states[i] = store.RowStatus{State: store.RowState(numberAt(row, 0)), Payload: bytesOf(row[1])}
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
