package tables

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/outbox"
	"github.com/sluicebox/sluicebox/store/outbox/internal/batch"
)

// foundRow is the row of the table that has the id of the one to write.
type foundRow struct {
	exists, mine, same bool
	created            time.Time
}

// column describes a column of the table.
type column struct {
	typ     string
	initial sql.NullString // its default
	digits  sql.NullInt64  // of the fraction, of a time
}

// querier is a pool or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Comparisons of rows with those of their ids, by the database, which knows how it stores a value.

// find returns the rows of the table that have the ids of rows.
func (t *transaction) find(ctx context.Context, rows []batch.Row) ([]foundRow, error) {
	columns, err := t.describe(ctx, t.tx, t.o)
	if err != nil {
		return nil, err
	}
	all := make([]foundRow, len(rows))
	for _, s := range t.comparisons(rows, columns) {
		list, err := t.tx.QueryContext(ctx, s.SQL.String(), s.Args...)
		if err != nil {
			return nil, err
		}
		if err := readFound(list, all); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func readFound(list *sql.Rows, all []foundRow) error {
	defer func() { _ = list.Close() }()
	for list.Next() {
		var i int
		var f foundRow
		var created sql.NullString
		if err := list.Scan(&i, &created, &f.mine, &f.same); err != nil {
			return err
		}
		f.exists, f.created = true, outbox.ParseCreated(created.String)
		all[i] = f
	}
	return list.Err()
}

// comparisons returns the statements that compare rows: one for all, or with Typed one for all rows
// with values for the same columns.
func (t *transaction) comparisons(rows []batch.Row, columns map[string]column) []*outbox.Statement {
	var list []*outbox.Statement
	if !t.Typed {
		s := &outbox.Statement{Dialect: t.Dialect}
		for i := range rows {
			if i > 0 {
				s.SQL.WriteString(" UNION ALL ")
			}
			fields := content(rows[i].Fields)
			values := make([]string, len(fields))
			for k := range fields {
				values[k] = s.Arg(fields[k].Value)
			}
			s.SQL.WriteString(t.selects(fmt.Sprint(i), fields, values, columns) + " FROM " + t.Table(t.o) +
				" o WHERE " + t.column(t.o.Layout.Columns.ID) + " = " + s.Arg(rows[i].ID))
		}
		return append(list, s)
	}
	alike := map[string][]int{}
	var names []string
	for i := range rows {
		name := ""
		for _, f := range content(rows[i].Fields) {
			name += t.Ident(f.Column)
		}
		if alike[name] == nil {
			names = append(names, name)
		}
		alike[name] = append(alike[name], i)
	}
	for _, name := range names {
		list = append(list, t.join(rows, alike[name], columns))
	}
	return list
}

// join compares the rows at some indexes, which have values for the same columns. Planning a join
// with a list costs less than planning a query for each row.
func (t *transaction) join(rows []batch.Row, at []int, columns map[string]column) *outbox.Statement {
	s := &outbox.Statement{Dialect: t.Dialect}
	fields := content(rows[at[0]].Fields)
	values := make([]string, len(fields))
	id := ""
	for k := range fields {
		if values[k] = fmt.Sprintf("v.c%d", k); fields[k].Column == t.o.Layout.Columns.ID {
			id = values[k]
		}
	}
	s.SQL.WriteString(t.selects("v.n", fields, values, columns) + " FROM (VALUES ")
	for k, i := range at {
		if k > 0 {
			s.SQL.WriteString(", ")
		}
		fmt.Fprintf(&s.SQL, "(%d", i)
		for _, f := range content(rows[i].Fields) {
			s.SQL.WriteString(", " + s.Arg(f.Value) + "::" + columns[f.Column].typ)
		}
		s.SQL.WriteString(")")
	}
	s.SQL.WriteString(") v (n")
	for k := range fields {
		fmt.Fprintf(&s.SQL, ", c%d", k)
	}
	s.SQL.WriteString(") JOIN " + t.Table(t.o) + " o ON " + t.column(t.o.Layout.Columns.ID) + " = " + id)
	return s
}

// content returns the fields that a repeated row must have too.
func content(fields []outbox.Field) (list []outbox.Field) {
	for i := range fields {
		if fields[i].Content() {
			list = append(list, fields[i])
		}
	}
	return list
}

// column returns a reference to a column of the outbox, which is o in every comparison.
func (t *transaction) column(name string) string { return "o." + t.Ident(name) }

// selects returns the columns that compare a row with values for some fields.
func (t *transaction) selects(n string, fields []outbox.Field, values []string, columns map[string]column) string {
	created := "NULL"
	if names := outbox.TimeColumns(&t.o.Layout); len(names) > 0 {
		created = fmt.Sprintf(t.Text, t.column(names[0]))
	}
	var same []string
	given := map[string]bool{}
	for k := range fields {
		name := fields[k].Column
		given[name] = true
		same = append(same, t.Same(t.column(name), columns[name].typ, values[k]))
	}
	for _, name := range outbox.ContentColumns(&t.o.Layout) {
		switch initial := columns[name].initial; {
		case given[name]:
		case !initial.Valid:
			same = append(same, t.column(name)+" IS NULL")
		case !strings.Contains(initial.String, "("): // a function has another value now
			same = append(same, t.SameAs(t.column(name), initial.String))
		}
	}
	return fmt.Sprintf("SELECT %s, %s, %s, %s", n, created, t.Mine, strings.Join(same, " AND "))
}

// describe returns the columns of the table by their names.
func (s *Server) describe(ctx context.Context, in querier, o *store.Outbox) (map[string]column, error) {
	query, args := s.Columns(o)
	list, err := in.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = list.Close() }()
	columns := map[string]column{}
	for list.Next() {
		var name string
		var c column
		if err := list.Scan(&name, &c.typ, &c.initial, &c.digits); err != nil {
			return nil, err
		}
		columns[name] = c
	}
	return columns, list.Err()
}
