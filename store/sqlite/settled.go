package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/sluicebox/sluicebox/store"
)

// ReadSettled implements store.Looker, on a connection of its own. What a trigger put
// into the log has committed: an absent row is gone.
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
		return nil, fmt.Errorf("look for settled rows: %w", Explain(err))
	}
	return settled, nil
}

// settled reports whether a row is settled or gone. A table without states tells
// nothing.
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
