package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
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
	schema, err := schemaWithoutUsage(ctx, conn, o)
	if err != nil {
		return nil, err
	}
	if schema != "" {
		var role string
		if err := conn.QueryRow(ctx, "SELECT current_user::text").Scan(&role); err != nil {
			return nil, err
		}
		problem, remedy := noUsage(Ident(role), schema)
		return nil, &store.SetupError{Problem: problem, Remedy: remedy}
	}
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

// checked returns the table as the shared checks see it.
func (t *table) checked() *finding.Table {
	return &finding.Table{
		Outbox: t.Outbox, Name: TableName(t.Outbox),
		Column: func(name string) store.ColumnInfo { return t.MustColumn(name).checked() },
		Dialect: &finding.Dialect{
			Time:    finding.Type{Words: "a timestamp", SQL: "timestamptz"},
			Integer: finding.Type{Words: "an integer", SQL: "integer"},
			Long:    finding.Type{Words: "an integer of 8 bytes", SQL: "bigint"},
			Text:    finding.Type{Words: "a text", SQL: "text"},
			JSON:    finding.Type{Words: "JSON or a text for the group-path", SQL: "text"},
			Boolean: finding.Type{Words: "a boolean", SQL: "boolean"},
			Word:    finding.Type{Words: "a text or an enumeration", SQL: "text"},
			Retype:  t.retypeStatement, DropNotNull: t.nullStatement, ComparesTypes: true,
			Ident: ident, Literal: literal,
		},
	}
}

// categoryText is the category of text types, from the documentation of
// pg_type.typcategory.
const categoryText = "S"

// checked returns the column as the shared checks see it.
func (c column) checked() store.ColumnInfo {
	checked := store.ColumnInfo{
		Name: c.name, Type: c.full, NotNull: c.notNull, Enum: c.labels, Length: c.limit,
		Boolean: c.base == pgtype.BoolOID,
		Time:    c.base == pgtype.TimestampOID || c.base == pgtype.TimestamptzOID, Text: c.category == categoryText,
		JSON: c.category == categoryText || slices.Contains([]uint32{pgtype.JSONOID, pgtype.JSONBOID, pgtype.ByteaOID}, c.base),
	}
	checked.Max, checked.Integer = map[uint32]int64{pgtype.Int2OID: math.MaxInt16, pgtype.Int4OID: math.MaxInt32, pgtype.Int8OID: math.MaxInt64}[c.base]
	checked.Min = -checked.Max - 1
	return checked
}

// retypeStatement returns the statement that changes a column's type.
func (t *table) retypeStatement(name, typ string) string {
	return fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %[2]s TYPE %[3]s USING %[2]s::%[3]s;", TableName(t.Outbox), Ident(name), typ)
}

// nullStatement returns the statement that makes a column nullable.
func (t *table) nullStatement(name string) string {
	return fmt.Sprintf("ALTER TABLE %s ALTER %s DROP NOT NULL;", TableName(t.Outbox), Ident(name))
}

// constraintTimeout bounds the evaluation of a constraint, because it may call any
// function.
const constraintTimeout = "1s"

// statusConstraints checks that the constraints of the status column allow the values
// that the relay writes. Constraints that include other columns are skipped, because they
// depend on the row.
func (c *checker) statusConstraints(ctx context.Context, t *table) error {
	values := columns.WrittenStatuses(&t.Layout)
	if len(values) == 0 {
		return nil
	}

	status := t.MustColumn(t.Layout.Columns.Status)
	list, err := columnConstraints(ctx, c.conn, t, status)
	if err != nil {
		return err
	}

	for _, k := range list {
		refused, _, err := refusedValues(ctx, c.conn, status, k.Expression, values)
		if err != nil {
			return err
		}
		c.AddRefused(t.checked(), k, refused)
	}
	return nil
}

// columnConstraints returns the enforced constraints that include only one column.
func columnConstraints(ctx context.Context, conn *pgx.Conn, t *table, of column) ([]finding.Constraint, error) {
	// NOT ENFORCED constraints exist since version 18.
	rows, err := conn.Query(ctx, `
SELECT k.conname::text, pg_catalog.pg_get_expr(k.conbin, k.conrelid), false FROM pg_catalog.pg_constraint k
WHERE k.conrelid = $1 AND k.contype = 'c' AND k.conkey = ARRAY[$2::int2]
  AND coalesce((to_jsonb(k) ->> 'conenforced')::bool, true) ORDER BY k.conname`, t.oid, of.num)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[finding.Constraint])
}

// refusedValues lists the values for which an expression on a column is false. evaluated is
// false if the server cannot evaluate the expression, which then refuses nothing.
func refusedValues(ctx context.Context, conn *pgx.Conn, of column, expression string, values []any) (refused []any, evaluated bool, err error) {
	sql := fmt.Sprintf("SELECT coalesce((%s), true) FROM (SELECT $1::%s AS %s) AS o", expression, of.typ, Ident(of.name))
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL statement_timeout = '"+constraintTimeout+"'"); err != nil {
			return err
		}
		for _, v := range values {
			var allowed bool
			if err := tx.QueryRow(ctx, sql, fmt.Sprint(v)).Scan(&allowed); err != nil {
				return err
			}
			if !allowed {
				refused = append(refused, v)
			}
		}
		return nil
	})
	if errors.As(err, new(*pgconn.PgError)) && !conn.IsClosed() {
		return nil, false, nil
	}
	return refused, true, err
}
