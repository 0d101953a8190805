package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/finding"
)

// Describe describes a table for a proposal of its layout, on a connection of its own. wanted
// returns the columns whose values are read too, from the constraints and from a sample. It
// changes nothing. The error is a *store.SetupError if there is no such table.
func Describe(ctx context.Context, url, _ string, o *store.Outbox, wanted func(*store.TableInfo) []string) (*store.TableInfo, error) {
	path, err := ParseURL(url)
	if err != nil {
		return nil, err
	}
	conn, err := DialAsIs(ctx, path)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var info *store.TableInfo
	err = conn.Read(ctx, func(ctx context.Context) (err error) {
		info, err = describeTable(ctx, conn, o, wanted)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("describe table: %w", Explain(err))
	}
	return info, nil
}

func describeTable(ctx context.Context, conn *Conn, o *store.Outbox, wanted func(*store.TableInfo) []string) (*store.TableInfo, error) {
	t, err := readTable(ctx, conn, o)
	if setup, ok := errors.AsType[*store.SetupError](err); ok {
		return nil, errors.Join(otherTables(ctx, conn, setup), setup)
	}
	if err != nil {
		return nil, err
	}
	info := &store.TableInfo{
		Outbox: *o, Database: "SQLite", FoldsCase: true, Inserted: t.Inserted, LogsGenerated: true,
		KeyStatement: func(name string) string { return uniqueIndex(o, name) },
	}
	for _, c := range t.Columns {
		info.Columns = append(info.Columns, c.info())
	}
	if err := readDetails(ctx, conn, info); err != nil {
		return nil, err
	}
	var create string
	err = conn.Query(ctx, "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE", []any{o.Table}, func(row []driver.Value) error {
		create, _ = textOf(row[0])
		return nil
	})
	if err != nil {
		return nil, err
	}
	values := finding.Describer{
		Allowed: func(ctx context.Context, c *store.ColumnInfo) ([]string, error) {
			return finding.ListedValues(constraints(create), func(expression string, values []any) ([]any, bool, error) {
				return refusedValues(ctx, conn, c, expression, values)
			})
		},
		Sample: func(ctx context.Context, c *store.ColumnInfo) ([]string, error) { return sample(ctx, conn, info, c) },
	}
	return info, values.ReadValues(ctx, info, wanted)
}

// info returns the column as proposals see it. A column takes values of any type, so its
// declaration says only what the services mean.
func (c column) info() store.ColumnInfo {
	declared := strings.ToUpper(c.declared)
	is := func(word string) bool { return strings.Contains(declared, word) }
	boolean, object := is("BOOL"), is("JSON")
	return store.ColumnInfo{
		Name: c.name, Type: c.declared, NotNull: c.notNull, Object: object, Boolean: boolean,
		Time: c.affinity != affinityReal && !boolean && !object, Integer: c.affinity == affinityInteger,
		Text: c.affinity == affinityText, Bytes: c.affinity == affinityBlob && declared != "",
		JSON: object || c.affinity == affinityText || c.affinity == affinityBlob,
	}
}

// otherTables adds the tables of the file to the error about a missing one.
func otherTables(ctx context.Context, conn *Conn, setup *store.SetupError) error {
	var names []string
	err := conn.Query(ctx, `SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\'
  AND name NOT LIKE 'sluicebox\_%' ESCAPE '\' ORDER BY name LIKE '%outbox%' DESC, name LIMIT 5`, nil, func(row []driver.Value) error {
		name, _ := textOf(row[0])
		names = append(names, name)
		return nil
	})
	if len(names) > 0 {
		setup.Problem += "; tables: " + strings.Join(names, ", ")
	}
	return err
}

// readDetails reads the parts of the description that only proposals need.
func readDetails(ctx context.Context, conn *Conn, info *store.TableInfo) error {
	var primary []string
	err := conn.Query(ctx, "SELECT name, dflt_value, pk, hidden FROM pragma_table_xinfo(?)", []any{info.Table}, func(row []driver.Value) error {
		name, _ := textOf(row[0])
		value, _ := textOf(row[1])
		c, _ := info.Column(name)
		c.Default = finding.Constant(value)
		if row[2] != int64(0) {
			primary = append(primary, name)
		}
		if row[3] != int64(0) {
			c.Expression = "generated"
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(primary) == 1 {
		info.Keys = primary
	}
	return conn.Query(ctx, `
SELECT x.name FROM pragma_index_list(?1) AS l JOIN pragma_index_info(l.name) AS x
WHERE l."unique" AND l.partial = 0 AND x.name IS NOT NULL AND (SELECT count(*) FROM pragma_index_info(l.name)) = 1
ORDER BY l.seq DESC`, []any{info.Table}, func(row []driver.Value) error {
		name, _ := textOf(row[0])
		if !slices.Contains(info.Keys, name) {
			info.Keys = append(info.Keys, name)
		}
		return nil
	})
}

// constraints returns the CHECK constraints in the statement that created a table.
func constraints(create string) (list []finding.Constraint) {
	for rest := create; ; {
		_, after, found := cutFold(rest, "CHECK")
		if !found {
			return list
		}
		rest = after
		body := strings.TrimSpace(after)
		if !strings.HasPrefix(body, "(") {
			continue
		}
		if end := closing(body); end > 0 {
			list = append(list, finding.Constraint{Expression: body[1:end]})
		}
	}
}

func cutFold(text, word string) (before, after string, found bool) {
	i := strings.Index(strings.ToUpper(text), word) // of the same length in ASCII
	if i < 0 || i+len(word) > len(text) {
		return text, "", false
	}
	return text[:i], text[i+len(word):], true
}

// closing returns the index of the bracket that closes the first one of a text, outside quotes.
func closing(text string) int {
	depth, quote := 0, byte(0)
	for i := range len(text) {
		switch c := text[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"' || c == '`':
			quote = c
		case c == '(':
			depth++
		case c == ')':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// refusedValues returns the values for which an expression on a column alone is false.
// evaluated is false if the expression names another column, or cannot be evaluated.
func refusedValues(ctx context.Context, conn *Conn, of *store.ColumnInfo, expression string, values []any) (refused []any, evaluated bool, err error) {
	as := "?"
	if of.Integer {
		as = "CAST(? AS INTEGER)"
	}
	query := fmt.Sprintf("SELECT coalesce((%s), 1) FROM (SELECT %s AS %s) AS o", expression, as, Ident(of.Name))
	for _, v := range values {
		allowed := false
		err := conn.Query(ctx, query, []any{v}, func(row []driver.Value) error { allowed = row[0] != int64(0); return nil })
		if err != nil {
			return nil, false, ctx.Err()
		}
		if !allowed {
			refused = append(refused, v)
		}
	}
	return refused, true, nil
}

// sample reads the values of a column in a sample of the rows.
func sample(ctx context.Context, conn *Conn, info *store.TableInfo, of *store.ColumnInfo) (values []string, err error) {
	key := info.Inserted
	if len(info.Keys) > 0 {
		key = Ident(info.Keys[0])
	}
	ctx, cancel := context.WithTimeout(ctx, finding.SampleTimeout)
	defer cancel()
	query := finding.SampleQuery(TableName(&info.Outbox), Ident(of.Name), key, "CAST(%s AS TEXT)")
	err = conn.Query(ctx, query, nil, func(row []driver.Value) error {
		text, _ := textOf(row[0])
		values = append(values, text)
		return nil
	})
	return values, err
}
