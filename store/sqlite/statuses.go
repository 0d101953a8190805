package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

// ReadSettled implements store.StatusReader, on its own connection.
func (s *Store) ReadSettled(ctx context.Context, rows []store.ClaimRow) ([]bool, error) {
	states, err := s.readStates(ctx, rows)
	if err != nil {
		return nil, fmt.Errorf("read settled rows: %w", Explain(err))
	}
	return outboxes.Settled(s.outboxes, rows, states), nil
}

// ReadStatuses implements store.RowStatusReader, on its own connection.
func (s *Store) ReadStatuses(ctx context.Context, rows []store.ClaimRow) ([]store.RowStatus, error) {
	states, err := s.readStates(ctx, rows)
	if err != nil {
		return nil, fmt.Errorf("read row statuses: %w", Explain(err))
	}
	return outboxes.Statuses(states), nil
}

// readStates reads the states of rows. A missing row is absent, because a row that a trigger
// logged was committed.
func (s *Store) readStates(ctx context.Context, rows []store.ClaimRow) ([]store.RowStatus, error) {
	parts, err := outboxes.Split(s.outboxes, rows)
	if err != nil {
		return nil, err
	}
	states := make([]store.RowStatus, len(rows))
	return states, s.readTx(ctx, func(ctx context.Context, conn *Conn) error {
		for _, p := range parts {
			if err := readStatusesOf(ctx, conn, p, rows, states); err != nil {
				return err
			}
		}
		return nil
	})
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
			err := conn.Query(ctx, read.sql, read.args(&values{key: key, wants: p.WantsPayload(rows, i)}), func(row []driver.Value) (err error) {
				states[i] = store.RowStatus{State: store.RowState(numberAt(row, 0)), Payload: BytesOf(row[1])}
				if states[i].Attributes, err = ReadAttributes(&t.Layout, row[2]); err != nil {
					return err
				}
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

// ReadUntried implements store.UntriedReader. It needs no write lock.
func (s *Store) ReadUntried(ctx context.Context, rows []store.ClaimRow) ([]bool, error) {
	parts, err := outboxes.Split(s.outboxes, rows)
	if err != nil {
		return nil, fmt.Errorf("read untried rows: %w", err)
	}
	untried := make([]bool, len(rows))
	err = s.writer.do(ctx, func(ctx context.Context) error {
		for _, p := range parts {
			t, err := s.writer.table(ctx, p.Outbox)
			if err != nil {
				return err
			}
			if !t.Layout.WritesClaims() {
				continue
			}
			if t.readRow == nil {
				t.readRow = readRowQuery(t)
			}
			for _, i := range p.Indexes {
				if untried[i], err = s.writer.isUntried(ctx, t, rows[i].ID); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read untried rows: %w", Explain(err))
	}
	return untried, nil
}

// isUntried reports whether a row with the id is to be delivered and has no retry.
func (s *session) isUntried(ctx context.Context, t *table, id string) (untried bool, err error) {
	for _, key := range t.keys(id) {
		err := s.conn.Query(ctx, t.readRow.sql, t.readRow.args(&values{key: key}), func(row []driver.Value) error {
			untried = untried || row[0] == int64(1) && numberAt(row, 1) == 0
			return StopIteration()
		})
		if err != nil {
			return false, err
		}
	}
	return untried, nil
}

// stateQuery builds the statement that reads the state of a row, and its content if it is
// COMPLETED and requested. If several rows have the same id, an unsettled one counts.
func stateQuery(t *table) *query {
	b := &builder{}
	sql := "SELECT " + t.state(b).RowState() + " AS state"
	for _, content := range []string{t.payload(), t.attributes()} {
		sql += ", CASE WHEN " + b.arg(func(v *values) any { return v.wants }) + " AND " + t.state(b).Delivered() + " IS TRUE THEN " + content + " END"
	}
	sql += "\nFROM " + TableName(t.Outbox) + " WHERE " + Ident(t.Layout.Columns.ID) + " = " + b.key() +
		"\nORDER BY state LIMIT 1"
	return &query{sql, b.params}
}
