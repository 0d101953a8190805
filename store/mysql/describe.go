package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/finding"
)

// Describe describes a table for a proposal of its layout, on a session of its own. wanted
// returns the columns whose values are read too, from the constraints and from a sample. It
// changes nothing. The error is a *store.SetupError if there is no such table, or if the
// account may not see it.
func Describe(ctx context.Context, url, application string, o *store.Outbox, wanted func(*store.TableInfo) []string) (*store.TableInfo, error) {
	cfg, err := ParseURL(url, application)
	if err != nil {
		return nil, err
	}
	c, err := dial(ctx, cfg, "READ COMMITTED", readSettings())
	if err != nil {
		return nil, err
	}
	defer c.close()
	info, err := c.describeTable(ctx, o, wanted)
	if err != nil {
		return nil, fmt.Errorf("describe table: %w", Explain(err))
	}
	return info, nil
}

func (c *conn) describeTable(ctx context.Context, o *store.Outbox, wanted func(*store.TableInfo) []string) (*store.TableInfo, error) {
	t, err := readTable(ctx, c, o)
	if setup, ok := errors.AsType[*store.SetupError](err); ok {
		check := checker{conn: c}
		return nil, errors.Join(check.similarTables(ctx, o, setup), setup)
	}
	if err != nil {
		return nil, err
	}
	info := &store.TableInfo{
		Outbox: *o, Database: c.server.name(), FoldsCase: true, Inserted: t.Inserted, LogsGenerated: true,
		KeyStatement: func(name string) string { return uniqueIndex(o, name) },
	}
	for _, column := range t.Columns {
		ci := column.checked()
		ci.Object, ci.Bytes = column.family == familyJSON, column.family == familyBytes
		info.Columns = append(info.Columns, ci)
	}
	if err := c.readDetails(ctx, o, info); err != nil {
		return nil, err
	}
	values := finding.Describer{
		Allowed: func(ctx context.Context, of *store.ColumnInfo) ([]string, error) { return c.allowedValues(ctx, t, of) },
		Sample:  func(ctx context.Context, of *store.ColumnInfo) ([]string, error) { return c.sample(ctx, info, of) },
	}
	return info, values.ReadValues(ctx, info, wanted)
}

const findDetails = `
SELECT column_name, COALESCE(column_default, ''), extra LIKE '%DEFAULT_GENERATED%', COALESCE(generation_expression, ''), column_comment
FROM information_schema.columns WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ?`

const findKeys = `
SELECT i.column_name FROM information_schema.statistics i
WHERE i.table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND i.table_name = ? AND i.seq_in_index = 1
  AND i.non_unique = 0 AND i.sub_part IS NULL AND i.index_type = 'BTREE' AND i.column_name IS NOT NULL
  AND (? OR NOT EXISTS (SELECT 1 FROM information_schema.statistics k
    WHERE k.table_schema = i.table_schema AND k.table_name = i.table_name AND k.index_name = i.index_name AND k.seq_in_index = 2))
ORDER BY i.index_name = 'PRIMARY' DESC, i.index_name`

// readDetails reads the parts of the description that only proposals need.
func (c *conn) readDetails(ctx context.Context, o *store.Outbox, info *store.TableInfo) error {
	err := c.query(ctx, findDetails, []any{o.Schema, o.Table}, func(rows *sql.Rows) error {
		var name, value, expression, comment string
		var computed bool
		if err := rows.Scan(&name, &value, &computed, &expression, &comment); err != nil {
			return err
		}
		of, _ := info.Column(name)
		of.Expression, of.Comment = expression, comment
		switch {
		case c.server.mariadb: // it shows an expression
			of.Default = finding.Constant(value)
		case !computed:
			of.Default = value
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look up defaults of %s: %w", TableName(o), err)
	}
	var kind, engine string
	if err := c.row(ctx, findTable, []any{o.Schema, o.Table}, &kind, &engine, &info.Partitioned); err != nil {
		return fmt.Errorf("look up table %s: %w", TableName(o), err)
	}
	err = c.query(ctx, findKeys, []any{o.Schema, o.Table, info.Partitioned}, func(rows *sql.Rows) error {
		var name string
		err := rows.Scan(&name)
		if !slices.Contains(info.Keys, name) {
			info.Keys = append(info.Keys, name)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("look up indexes of %s: %w", TableName(o), err)
	}
	return nil
}

// allowedValues returns the values that the constraints of a column list and allow.
func (c *conn) allowedValues(ctx context.Context, t *table, of *store.ColumnInfo) ([]string, error) {
	list, err := c.constraints(ctx, t)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(k finding.Constraint) bool { return !strings.Contains(k.Expression, Ident(of.Name)) })
	return finding.ListedValues(list, func(expression string, values []any) ([]any, bool, error) {
		return c.refusedValues(ctx, t.MustColumn(of.Name), expression, values)
	})
}

// sample reads the values of a column in a sample of the rows.
func (c *conn) sample(ctx context.Context, info *store.TableInfo, of *store.ColumnInfo) (values []string, err error) {
	key := ""
	if len(info.Keys) > 0 {
		key = Ident(info.Keys[0])
	}
	limit := fmt.Sprintf("SET SESSION max_execution_time = %d", finding.SampleTimeout.Milliseconds())
	if c.server.mariadb {
		limit = fmt.Sprintf("SET SESSION max_statement_time = %g", finding.SampleTimeout.Seconds())
	}
	if _, err := c.sqlConn.ExecContext(ctx, limit); err != nil {
		return nil, err
	}
	query := finding.SampleQuery(TableName(&info.Outbox), Ident(of.Name), key, "CAST(%s AS CHAR)")
	err = c.query(ctx, query, nil, func(rows *sql.Rows) error {
		var value string
		err := rows.Scan(&value)
		values = append(values, value)
		return err
	})
	if refused, ok := errors.AsType[*mysql.MySQLError](err); ok {
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
			Time:    finding.Type{Words: "a DATETIME or TIMESTAMP", SQL: "DATETIME(6)"},
			Integer: finding.Type{Words: "an integer", SQL: "INT"},
			Long:    finding.Type{Words: "an integer of 8 bytes", SQL: "BIGINT"},
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
