// Package inbox is the receiver's half of an outbox, in Go: it drops a message that arrives again,
// in the receiver's own transaction. It is meant to be copied; see README.md.
package inbox

import (
	"context"
	"database/sql"
)

// Receive calls apply for a message that arrives for the first time, in the transaction that records
// its id. A copy that arrives meanwhile waits for that transaction. Acknowledge the message if err is
// nil, whether it was the first or not.
func Receive(ctx context.Context, db *sql.DB, kind, id string, apply func(tx *sql.Tx) error) (first bool, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	result, err := tx.ExecContext(ctx, "INSERT INTO inbox (kind, id) VALUES ($1, $2) ON CONFLICT DO NOTHING", kind, id)
	if err != nil {
		return false, err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return false, err
	}
	if err := apply(tx); err != nil {
		return false, err
	}
	return true, tx.Commit()
}
