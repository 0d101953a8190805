package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/finding"
)

// checked returns the table as the shared checks see it.
func (t *table) checked() *finding.Table {
	return &finding.Table{
		Outbox: t.Outbox, Name: TableName(t.Outbox),
		Column: func(name string) store.ColumnInfo { return t.MustColumn(name).checked() },
		Dialect: &finding.Dialect{
			Time:    finding.Type{Words: "a timestamp", SQL: "timestamptz"},
			Integer: finding.Type{Words: "an integer", SQL: "integer"},
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
