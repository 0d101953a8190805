package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/sluicebox/sluicebox/store"
)

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
