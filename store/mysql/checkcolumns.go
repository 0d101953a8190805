package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

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
			Time:    finding.Type{Words: "a DATETIME or TIMESTAMP", SQL: "DATETIME(6)"},
			Integer: finding.Type{Words: "an integer", SQL: "INT"},
			Text:    finding.Type{Words: "a text", SQL: "TEXT"},
			JSON:    finding.Type{Words: "JSON or a text for the group-path", SQL: "LONGTEXT"},
			Boolean: finding.Type{Words: "a BOOLEAN", SQL: "BOOLEAN"},
			Word:    finding.Type{Words: "a text or an ENUM", SQL: "VARCHAR(255)"},
			Retype:  t.retypeStatement, DropNotNull: t.nullStatement, RetypesEnums: true,
			Ident: func(name string) string { return Ident(name) }, Literal: func(text string) string { return "'" + literal(text) + "'" },
		},
	}
}

// checked returns the column as the shared checks see it.
func (c column) checked() store.ColumnInfo {
	labels := c.labels()
	return store.ColumnInfo{
		Name: c.name, Type: c.full, NotNull: c.notNull, Enum: labels, Length: c.limit, Min: c.minInteger(), Max: c.maxInteger(),
		Time: c.family == familyTime, Integer: c.family == familyInteger, Boolean: c.family == familyInteger || c.typ == "bit",
		Text: c.family == familyText && len(labels) == 0 && c.typ != "set",
		JSON: slices.Contains([]family{familyText, familyBytes, familyJSON}, c.family),
	}
}

// retypeStatement returns the statement that changes a column's type.
func (t *table) retypeStatement(name, typ string) string {
	if t.MustColumn(name).notNull {
		typ += " NOT NULL"
	}
	return fmt.Sprintf("ALTER TABLE %s MODIFY COLUMN %s %s;", TableName(t.Outbox), Ident(name), typ)
}

// nullStatement returns the statement that makes a column nullable.
func (t *table) nullStatement(name string) string {
	return fmt.Sprintf("ALTER TABLE %s MODIFY COLUMN %s %s NULL;", TableName(t.Outbox), Ident(name), t.MustColumn(name).full)
}

// types checks that the columns can hold the values that the relay writes.
func (c *checker) types(t *table) {
	id := t.id()
	if !slices.Contains([]family{familyText, familyBytes, familyInteger, familyDecimal, familyUUID}, id.family) || len(id.labels()) > 0 || id.typ == "set" {
		c.AddFault(fmt.Sprintf("id column %s of %s has type %s, whose text is not exact", id.name, TableName(t.Outbox), id.full),
			"use another column as the id: text, bytes, an integer or a decimal")
	}
	c.AddTypes(t.checked())
}

// statusConstraints checks that the constraints of the status column allow the values
// that the relay writes. It skips constraints that also name other columns, because they
// depend on the row.
func (c *checker) statusConstraints(ctx context.Context, t *table) error {
	values := columns.WrittenStatuses(&t.Layout)
	if len(values) == 0 {
		return nil
	}

	list, err := c.conn.constraints(ctx, t)
	if err != nil {
		return err
	}

	for _, k := range list {
		refused, _, err := c.conn.refusedValues(ctx, t.MustColumn(t.Layout.Columns.Status), k.Expression, values)
		if err != nil {
			return err
		}
		c.AddRefused(t.checked(), k, refused)
	}
	return nil
}

// constraints returns the enforced CHECK constraints of a table.
func (c *conn) constraints(ctx context.Context, t *table) (list []finding.Constraint, err error) {
	err = c.query(ctx, c.server.findChecks(), []any{t.Schema, t.Table}, func(rows *sql.Rows) error {
		var k finding.Constraint
		err := rows.Scan(&k.Name, &k.Expression, &k.Unnamed)
		k.Expression = c.server.expression(k.Expression)
		list = append(list, k)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look up constraints of %s: %w", TableName(t.Outbox), err)
	}
	return list, nil
}

// refusedValues returns the values for which an expression on a column alone is false.
// evaluated is false if the server cannot evaluate the expression, which then refuses nothing.
func (c *conn) refusedValues(ctx context.Context, of column, expression string, values []any) (refused []any, evaluated bool, err error) {
	value := "CAST(? AS SIGNED)"
	if of.family == familyText {
		value = "CONVERT(CAST(? AS CHAR) USING " + of.charset + ") COLLATE " + of.collation
	}

	query := fmt.Sprintf("SELECT COALESCE((%s), TRUE) FROM (SELECT %s AS %s) AS o", expression, value, Ident(of.name))
	for _, v := range values {
		var allowed bool
		err := c.row(ctx, query, []any{v}, &allowed)
		if code(err) != 0 {
			return nil, false, nil
		}
		if err != nil {
			return nil, false, err
		}
		if !allowed {
			refused = append(refused, v)
		}
	}
	return refused, true, nil
}
