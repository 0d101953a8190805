package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/finding"
)

// Describe describes a table for a proposal of its layout, on a session of its own. wanted
// returns the columns whose values are read too, from the constraints and from a sample. It
// changes nothing. The error is a *store.SetupError if there is no such table, or if the role
// may not read it.
func Describe(ctx context.Context, url, application string, o *store.Outbox, wanted func(*store.TableInfo) []string) (*store.TableInfo, error) {
	cfg, err := ParseURL(url, application)
	if err != nil {
		return nil, err
	}
	conn, err := connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.CloseTimeout)
		defer cancel()
		_ = conn.Close(ctx) // the server may be gone
	}()
	// The functions that print expressions of the catalog lock the table like a SELECT.
	if _, err := conn.Exec(ctx, "SET lock_timeout = '"+DiagnoseLockTimeout+"'"); err != nil {
		return nil, fmt.Errorf("describe table: %w", Explain(err))
	}
	info, err := describeTable(ctx, conn, o, wanted)
	if IsLockTimeout(err) {
		return nil, &store.SetupError{Problem: "another session locks " + TableName(o), Remedy: LockersRemedy}
	}
	if err != nil {
		return nil, fmt.Errorf("describe table: %w", Explain(err))
	}
	return info, nil
}

func describeTable(ctx context.Context, conn *pgx.Conn, o *store.Outbox, wanted func(*store.TableInfo) []string) (*store.TableInfo, error) {
	t, err := readTable(ctx, conn, o)
	if setup, ok := errors.AsType[*store.SetupError](err); ok {
		return nil, otherTables(ctx, conn, o, setup)
	}
	if err != nil {
		return nil, err
	}
	if err := readable(ctx, conn, t); err != nil {
		return nil, err
	}

	info := &store.TableInfo{
		Outbox: *o, Database: "PostgreSQL", Inserted: t.Inserted, Partitioned: t.partitioned,
		KeyStatement: func(name string) string { return uniqueIndex(t, name) },
	}
	for _, c := range t.Columns {
		info.Columns = append(info.Columns, c.checked())
	}
	if err := readDetails(ctx, conn, t, info); err != nil {
		return nil, err
	}
	values := finding.Describer{
		Allowed: func(ctx context.Context, c *store.ColumnInfo) ([]string, error) {
			return allowedValues(ctx, conn, t, t.MustColumn(c.Name))
		},
		Sample: func(ctx context.Context, c *store.ColumnInfo) ([]string, error) { return sample(ctx, conn, info, c) },
	}
	return info, values.ReadValues(ctx, info, wanted)
}

// otherTables adds the tables that the role can see to the error about a missing one.
func otherTables(ctx context.Context, conn *pgx.Conn, o *store.Outbox, setup *store.SetupError) error {
	rows, err := conn.Query(ctx, `
SELECT pg_catalog.format('%s.%s', n.nspname, c.relname) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'sluicebox') AND n.nspname NOT LIKE 'pg\_%'
  AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
ORDER BY c.relname = $1 DESC, n.nspname = $2 DESC, c.relname LIKE '%outbox%' DESC, 1 LIMIT 5`, o.Table, o.Schema)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil && len(names) > 0 {
		setup.Problem += "; visible tables: " + strings.Join(names, ", ")
	}
	return errors.Join(err, setup)
}

// readable returns a *store.SetupError if the role may read no column of the table.
func readable(ctx context.Context, conn *pgx.Conn, t *table) error {
	var role string
	var may bool
	err := conn.QueryRow(ctx, "SELECT current_user::text, pg_catalog.has_any_column_privilege($1::oid, 'SELECT')", t.oid).Scan(&role, &may)
	if err != nil || may {
		return err
	}
	return &store.SetupError{
		Problem: fmt.Sprintf("%s lacks SELECT on %s", Ident(role), TableName(t.Outbox)),
		Remedy:  fmt.Sprintf("GRANT SELECT ON %s TO %s;", TableName(t.Outbox), Ident(role)),
	}
}

const findDetails = `
SELECT a.attname::text, coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid), ''), a.attgenerated <> '',
  coalesce(pg_catalog.col_description(a.attrelid, a.attnum), '')
FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped`

const findKeys = `
SELECT a.attname::text FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indrelid
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = $1 AND i.indisvalid AND i.indpred IS NULL AND i.indisunique AND (i.indnkeyatts = 1 OR c.relkind = 'p')
ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid`

// readDetails reads the parts of the description that only proposals need.
func readDetails(ctx context.Context, conn *pgx.Conn, t *table, info *store.TableInfo) error {
	rows, err := conn.Query(ctx, findDetails, t.oid)
	if err != nil {
		return err
	}
	var name, expression, comment string
	var generated bool
	_, err = pgx.ForEachRow(rows, []any{&name, &expression, &generated, &comment}, func() error {
		c, _ := info.Column(name)
		base := t.MustColumn(name).base
		c.Object, c.Bytes = base == pgtype.JSONOID || base == pgtype.JSONBOID, base == pgtype.ByteaOID
		if c.Comment = comment; generated {
			c.Expression = expression
		} else {
			c.Default = finding.Constant(expression)
		}
		return nil
	})
	if err != nil {
		return err
	}
	keys, err := conn.Query(ctx, findKeys, t.oid)
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(keys, pgx.RowTo[string])
	for _, key := range all {
		if !slices.Contains(info.Keys, key) {
			info.Keys = append(info.Keys, key)
		}
	}
	return err
}

// allowedValues returns the values that the constraints of a column list and allow.
func allowedValues(ctx context.Context, conn *pgx.Conn, t *table, c column) ([]string, error) {
	list, err := columnConstraints(ctx, conn, t, c)
	if err != nil {
		return nil, err
	}
	return finding.ListedValues(list, func(expression string, values []any) ([]any, bool, error) {
		return refusedValues(ctx, conn, c, expression, values)
	})
}

// sample reads the values of a column in a sample of the rows.
func sample(ctx context.Context, conn *pgx.Conn, info *store.TableInfo, c *store.ColumnInfo) (values []string, err error) {
	key := ""
	if len(info.Keys) > 0 {
		key = Ident(info.Keys[0])
	}
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL statement_timeout = %d", finding.SampleTimeout.Milliseconds())); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, finding.SampleQuery(TableName(&info.Outbox), Ident(c.Name), key, "%s::text"))
		if err == nil {
			values, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		return err
	})
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return nil, errors.New(refused.Message)
	}
	return values, err
}
