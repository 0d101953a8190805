package inbox

import (
	"context"
	"database/sql"
	"errors"

	"github.com/go-sql-driver/mysql"
)

// duplicateEntry is the error of MySQL and MariaDB for a key that is there (ER_DUP_ENTRY). The
// transaction goes on after it.
const duplicateEntry = 1062

// ReceiveMySQL is Receive on MySQL and MariaDB.
func ReceiveMySQL(ctx context.Context, db *sql.DB, kind, id string, apply func(tx *sql.Tx) error) (first bool, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	_, err = tx.ExecContext(ctx, "INSERT INTO inbox (kind, id) VALUES (?, ?)", kind, id)
	if refused, ok := errors.AsType[*mysql.MySQLError](err); ok && refused.Number == duplicateEntry {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := apply(tx); err != nil {
		return false, err
	}
	return true, tx.Commit()
}
