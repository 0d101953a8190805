// Package mysql writes rows of others into MySQL and MariaDB. A service writes in its own
// transaction, by WriteSQL of package outbox.
package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/store"
	relay "github.com/sluicebox/sluicebox/store/mysql"
	"github.com/sluicebox/sluicebox/store/outbox"
	"github.com/sluicebox/sluicebox/store/outbox/internal/batch"
	"github.com/sluicebox/sluicebox/store/outbox/internal/tables"
)

// NewWriter returns a writer for the database of a URL; see ParseURL of store/mysql. It opens no
// connection. application names its sessions on the server.
//
// A commit is durable if innodb_flush_log_at_trx_commit is 1, the default.
func NewWriter(url, application string) (outbox.Writer, error) {
	cfg, err := relay.ParseURL(url, application)
	if err != nil {
		return nil, err
	}
	cfg.ClientFoundRows = false
	cfg.InterpolateParams = true // one round trip
	cfg.Params = map[string]string{
		"sql_mode":  "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
		"time_zone": "'+00:00'",
		// A row of the same id in an open transaction of a service is waited for this long, in seconds.
		"innodb_lock_wait_timeout": "2",
	}
	if err := cfg.Apply(mysql.Charset("utf8mb4", "utf8mb4_bin")); err != nil {
		return nil, err
	}
	return tables.NewWriter(&tables.Server{
		Dialect: outbox.MySQL(),
		Open: func() (*sql.DB, error) {
			connector, err := mysql.NewConnector(cfg)
			if err != nil {
				return nil, err
			}
			db := sql.OpenDB(connector)
			db.SetMaxOpenConns(maxSessions)
			db.SetMaxIdleConns(maxSessions)
			return db, nil
		},
		Options: &sql.TxOptions{Isolation: sql.LevelReadCommitted},
		MaxRows: maxRows, MaxBytes: maxBytes,
		// INSERT IGNORE would also cut texts, and ON DUPLICATE KEY hides other unique indexes.
		Duplicate: func(err error) bool { return code(err) == 1062 },
		Shared:    shared,
		Lock:      lock,
		Unlock:    unlock,
		Mine:      "0",
		Columns:   describe,
		Text:      "CAST(%s AS CHAR)",
		Same:      same,
		SameAs:    func(column, _ string) string { return column + " <=> DEFAULT(" + column + ")" },
		Classify:  classify,
	}), nil
}

const (
	maxRows = 500
	// maxBytes bounds the payloads of a statement: MariaDB takes 16 MiB (max_allowed_packet) by
	// default, and a statement may have a backslash for each byte.
	maxBytes = 4 << 20
	// maxSessions bounds the sessions: outboxes are written at the same time.
	maxSessions = 4
)

// shared reports whether no unique index is on the id alone, as in a table that is partitioned by
// another column.
func shared(ctx context.Context, db *sql.DB, o *store.Outbox) (is bool, err error) {
	err = db.QueryRowContext(ctx, `SELECT NOT EXISTS (
	SELECT 1 FROM information_schema.statistics WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ? AND non_unique = 0
	GROUP BY index_name HAVING COUNT(*) = 1 AND MAX(column_name) = ? AND MAX(sub_part) IS NULL)`, schema(o), o.Table, o.Layout.Columns.ID).Scan(&is)
	return is, err
}

const (
	// lockName is the name of the lock of a table's writers. A name has at most 64 characters.
	lockName = "SHA2(CONCAT('sluicebox rows ', COALESCE(?, DATABASE()), '.', ?), 224)"
	// lockWait bounds the wait for other writers, in seconds.
	lockWait = 10
)

// lock ends the writes of other writers until unlock.
func lock(ctx context.Context, tx *sql.Tx, o *store.Outbox) error {
	var got sql.NullBool
	if err := tx.QueryRowContext(ctx, "SELECT GET_LOCK("+lockName+", ?)", schema(o), o.Table, lockWait).Scan(&got); err != nil {
		return err
	}
	if !got.Bool {
		return fmt.Errorf("lock the writers of %s: another writer takes longer than %d s", relay.TableName(o), lockWait)
	}
	return nil
}

func unlock(ctx context.Context, c *sql.Conn, o *store.Outbox) error {
	ctx, cancel := context.WithTimeout(ctx, lockWait*time.Second)
	defer cancel()
	_, err := c.ExecContext(ctx, "DO RELEASE_LOCK("+lockName+")", schema(o), o.Table)
	return err
}

// schema is the outbox's, NULL for that of the session.
func schema(o *store.Outbox) any {
	if o.Schema == "" {
		return nil
	}
	return o.Schema
}

// describe returns the type json for JSON of MySQL only. In MariaDB such a column is a text. The
// default is a parenthesis for an expression, which DEFAULT(column) does not compute.
func describe(o *store.Outbox) (query string, args []any) {
	return `SELECT column_name, CONCAT(data_type, IF(column_type LIKE '%unsigned%', ' unsigned', '')), IF(extra LIKE '%DEFAULT_GENERATED%', '(', IF(column_default IS NULL OR column_default = 'NULL', NULL, '')), datetime_precision
FROM information_schema.columns WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?`, []any{schema(o), o.Table}
}

// same compares a value as a column of the type stores it. Texts are compared by their bytes,
// whatever the column's collation.
func same(column, typ, placeholder string) string {
	bytes := func(text string) string { return "CAST(CONVERT(" + text + " USING utf8mb4) AS BINARY)" }
	unsigned := strings.HasSuffix(typ, " unsigned")
	switch typ = strings.TrimSuffix(typ, " unsigned"); typ {
	case "json":
		return bytes("CAST("+column+" AS CHAR)") + " <=> " + bytes("CAST(CAST("+placeholder+" AS JSON) AS CHAR)")
	case "tinyint", "smallint", "mediumint", "int", "bigint":
		if unsigned {
			return column + " <=> CAST(" + placeholder + " AS UNSIGNED)"
		}
		return column + " <=> CAST(" + placeholder + " AS SIGNED)"
	case "char":
		return bytes(column) + " <=> " + bytes("TRIM(TRAILING ' ' FROM "+placeholder+")")
	case "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set":
		return bytes(column) + " <=> " + bytes(placeholder)
	case "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob":
		return column + " <=> CAST(" + placeholder + " AS BINARY)"
	}
	return column + " <=> " + placeholder
}

// code returns the number of a server error, 0 for any other.
func code(err error) uint16 {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return e.Number
	}
	return 0
}

// classify returns an error as batch.Attempt does.
func classify(o *store.Outbox, err error) error {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	if !ok {
		return relay.Explain(err)
	}
	refused := func(remedy string) error { return &outbox.RowError{Problem: e.Message, Remedy: remedy, Err: err} }
	switch e.Number {
	case 1213, 1205: // deadlock; timeout for a row lock
		return fmt.Errorf("%w: %w", batch.ErrAgain, err)
	case 1142, 1143: // table or column denied
		return &store.SetupError{Problem: e.Message, Remedy: fmt.Sprintf("GRANT SELECT, INSERT ON %s TO the account of the URL;", relay.TableName(o))}
	case 1146, 1054: // no such table, column
		return &store.SetupError{Problem: e.Message, Remedy: "create it, or name another in layout " + o.Layout.Name}
	case 1048, 1364: // NULL, or no default
		return refused("give the row a value, or the column a default")
	case 1406, 1153: // data too long, packet too large
		return refused("shorten the value, or widen the column (max_allowed_packet for a whole row)")
	case 1366, 1264, 1265, 1292, 3140, 3141, 4025, 3819: // values of another type or charset, and constraints
		return refused("send a value of the column's type")
	}
	if slices.Contains([]string{"22", "23", "44", "45"}, string(e.SQLState[:2])) {
		return refused("")
	}
	return relay.Explain(err)
}
