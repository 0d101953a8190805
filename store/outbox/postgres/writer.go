package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/outbox"
	"github.com/sluicebox/sluicebox/store/outbox/internal/batch"
	"github.com/sluicebox/sluicebox/store/outbox/internal/tables"
	"github.com/sluicebox/sluicebox/store/postgres"
)

// NewWriter returns a writer for the database of a URL; see ParseURL of store/postgres. It opens
// no connection. application names its sessions on the server.
func NewWriter(url, application string) (outbox.Writer, error) {
	cfg, err := postgres.ParseURL(url, application)
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{
		"synchronous_commit": "on", // durable when it returns
		"timezone":           "UTC",
		"datestyle":          "ISO",
	} {
		cfg.RuntimeParams[name] = value
	}
	cfg.StatementCacheCapacity = maxStatements
	host := cfg
	return tables.NewWriter(&tables.Server{
		Dialect: outbox.Postgres(),
		Open: func() (*sql.DB, error) {
			db := stdlib.OpenDB(*cfg)
			db.SetMaxOpenConns(maxSessions)
			db.SetMaxIdleConns(maxSessions)
			return db, nil
		},
		Options:    &sql.TxOptions{Isolation: sql.LevelReadCommitted},
		MaxRows:    maxRows,
		MaxBytes:   maxBytes,
		OnConflict: " ON CONFLICT (%s) DO NOTHING",
		Shared:     shared,
		Lock:       lock,
		Mine:       "o.xmin = pg_current_xact_id()::xid",
		Columns:    describe,
		Text:       "%s::text",
		Typed:      true,
		Same:       func(column, _, value string) string { return same(column, value) },
		SameAs:     same,
		Classify: func(o *store.Outbox, err error) error {
			if errors.As(err, new(*pgconn.ConnectError)) {
				return fmt.Errorf("connect to %s: %w", host.Host, postgres.ExplainConnect(host, err))
			}
			return classify(o, err)
		},
	}), nil
}

const (
	// maxRows keeps the parameters of a statement below 65536, with up to 100 columns.
	maxRows = 500
	// maxBytes bounds the memory of a statement.
	maxBytes = 16 << 20
	// maxSessions bounds the sessions: outboxes are written at the same time.
	maxSessions = 4
	// maxStatements bounds the prepared statements of a session. Each number of rows has one.
	maxStatements = 32
)

// shared reports whether a table is partitioned by another column than its id, because its unique
// indexes then have that column too.
func shared(ctx context.Context, db *sql.DB, o *store.Outbox) (is bool, err error) {
	err = db.QueryRowContext(ctx, `SELECT c.relkind = 'p' AND NOT EXISTS (
	SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
	WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indnkeyatts = 1 AND a.attname = $2)
FROM pg_class c WHERE c.oid = to_regclass($1)`, postgres.TableName(o), o.Layout.Columns.ID).Scan(&is)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil // the INSERT reports it
	}
	return is, err
}

// lockClass is the first key of the advisory locks of writers, "slui" in ASCII. The second one is the table's.
const lockClass = 0x736c7569

// lock ends the writes of other writers until the transaction ends. A session whose program is cut
// off would keep the lock, so it may be idle for 30 s only.
func lock(ctx context.Context, tx *sql.Tx, o *store.Outbox) error {
	_, err := tx.ExecContext(ctx, `SELECT set_config('idle_in_transaction_session_timeout', '30s', true), pg_advisory_xact_lock($1, $2::regclass::oid::int)`,
		lockClass, postgres.TableName(o))
	return err
}

// same compares the texts of two values of the column's type, because json has no equality, and
// that of jsonb takes 1 for 1.0.
func same(column, value string) string {
	return column + `::text COLLATE "C" IS NOT DISTINCT FROM (` + value + `)::text COLLATE "C"`
}

// describe returns types without a length, because a cast to varchar(3) would cut a text.
func describe(o *store.Outbox) (query string, args []any) {
	return `SELECT attname, format_type(atttypid, -1), pg_get_expr(adbin, adrelid),
	CASE WHEN atttypid IN ('timestamp'::regtype, 'timestamptz'::regtype) THEN COALESCE(NULLIF(atttypmod, -1), 6) END
FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped`, []any{postgres.TableName(o)}
}

// classify returns an error as batch.Attempt does.
func classify(o *store.Outbox, err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	switch {
	case pg.Code == "42P10": // no index for ON CONFLICT
		return &store.SetupError{
			Problem: fmt.Sprintf("table %s has no unique index on %s alone, so a repeated id is not found", postgres.TableName(o), o.Layout.Columns.ID),
			Remedy:  fmt.Sprintf("CREATE UNIQUE INDEX CONCURRENTLY ON %s (%s);", postgres.TableName(o), postgres.Ident(o.Layout.Columns.ID)),
		}
	case pg.Code == "42501":
		return &store.SetupError{Problem: pg.Message, Remedy: fmt.Sprintf("GRANT SELECT, INSERT ON %s TO the role of the URL;", postgres.TableName(o))}
	case slices.Contains([]string{"42P01", "42703", "42804", "3F000"}, pg.Code): // no such table, column, type, schema
		return &store.SetupError{Problem: pg.Message, Remedy: "create it, or name another in layout " + o.Layout.Name}
	case slices.Contains([]string{"40P01", "40001"}, pg.Code): // deadlock, serialization failure
		return fmt.Errorf("%w: %w", batch.ErrAgain, err)
	case slices.Contains([]string{"22", "23", "44", "54", "P0"}, pg.Code[:min(2, len(pg.Code))]):
		return refused(pg)
	}
	return postgres.Explain(err)
}

// refused returns the server's refusal of a row.
func refused(pg *pgconn.PgError) *outbox.RowError {
	e := &outbox.RowError{Problem: pg.Message, Err: pg}
	switch pg.Code {
	case "23502": // not_null_violation
		e.Remedy = "give the row a value for column " + pg.ColumnName + ", or the column a default"
	case "22001": // string_data_right_truncation
		e.Remedy = "shorten the value, or widen the column"
	case "22021", "22P05": // character_not_in_repertoire, untranslatable_character
		e.Remedy = "send UTF-8 without U+0000, or make the column bytea"
	case "22P02", "22P03": // invalid_text_representation, for example of JSON
		e.Remedy = "send a value of the column's type"
	}
	return e
}
