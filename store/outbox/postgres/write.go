// Package postgres writes outbox rows into PostgreSQL, with the driver pgx.
package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/outbox"
)

// Write writes rows in a transaction, in their order and in one round trip, and returns their
// ids. A row of a transaction that is rolled back was never there. After an error, roll back.
//
// An outbox with a MessagePrefix has no table: its rows are logical messages of the transaction.
// Their id is "" unless the layout names a column for it.
func Write(ctx context.Context, tx pgx.Tx, o *outbox.Outbox, rows ...outbox.Row) ([]string, error) {
	var batch pgx.Batch
	ids := make([]string, len(rows))
	for i := range rows {
		query, args, id, err := o.Insert(ctx, outbox.Postgres(), rows[i])
		if err != nil {
			return nil, err
		}
		assigned := id == "" && o.Outbox().Layout.NewID == store.IDDatabase && o.Outbox().MessagePrefix == ""
		if assigned {
			query += o.Returning(outbox.Postgres())
		}
		if ids[i] = id; assigned {
			batch.Queue(query, args...).QueryRow(func(row pgx.Row) error { return row.Scan(&ids[i]) })
		} else {
			batch.Queue(query, args...)
		}
	}
	if len(rows) == 0 {
		return nil, nil
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("write into outbox %s: %w", o.Outbox().Name, err)
	}
	return ids, nil
}
