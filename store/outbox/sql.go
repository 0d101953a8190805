package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/store"
)

// Dialect is the SQL of one kind of database.
type Dialect struct {
	// Ident quotes an identifier, and Placeholder returns that of the nth parameter, from 1.
	Ident       func(name string) string
	Placeholder func(n int) string
	// Absent is the value of a column that other rows of the statement have.
	Absent string
	// Bind converts a value of a Field to a parameter.
	Bind func(value any) any

	returning bool
}

// Postgres is the dialect of PostgreSQL. A time is a text in UTC, which columns with and without
// a time zone take.
func Postgres() *Dialect {
	return &Dialect{
		Ident: quote(`"`), Placeholder: func(n int) string { return "$" + strconv.Itoa(n) }, Absent: "DEFAULT", returning: true,
		Bind: func(value any) any {
			if at, ok := value.(time.Time); ok {
				return at.UTC().Format("2006-01-02 15:04:05.999999Z07:00")
			}
			return value
		},
	}
}

// MySQL is the dialect of MySQL and MariaDB. The driver converts a time to the zone of its
// parameter loc, which is UTC by default and must be that of the session.
func MySQL() *Dialect {
	return &Dialect{Ident: quote("`"), Placeholder: questionMark, Absent: "DEFAULT", Bind: bindText}
}

// SQLite is the dialect of SQLite. A time is a text in UTC, as its function strftime writes it.
func SQLite() *Dialect {
	return &Dialect{Ident: quote(`"`), Placeholder: questionMark, Absent: "NULL", Bind: func(value any) any {
		if at, ok := value.(time.Time); ok {
			return at.UTC().Format("2006-01-02 15:04:05.000")
		}
		return bindText(value)
	}}
}

func questionMark(int) string { return "?" }

func quote(mark string) func(string) string {
	return func(name string) string { return mark + strings.ReplaceAll(name, mark, mark+mark) + mark }
}

// bindText binds a payload as a text, because a column of type JSON takes no bytes.
func bindText(value any) any {
	if payload, ok := value.([]byte); ok && utf8.Valid(payload) {
		return string(payload)
	}
	return value
}

// Table returns the quoted name of an outbox's table.
func (d *Dialect) Table(o *store.Outbox) string {
	if o.Schema == "" {
		return d.Ident(o.Table)
	}
	return d.Ident(o.Schema) + "." + d.Ident(o.Table)
}

// Statement is a statement with its parameters.
type Statement struct {
	SQL  strings.Builder
	Args []any
	*Dialect
}

// Arg binds a value and returns its placeholder.
func (s *Statement) Arg(value any) string {
	s.Args = append(s.Args, s.Bind(value))
	return s.Placeholder(len(s.Args))
}

// Insert returns the statement that inserts rows, in their order.
func (d *Dialect) Insert(o *store.Outbox, rows ...[]Field) *Statement {
	var names []string
	for _, fields := range rows {
		for i := range fields {
			if !slices.Contains(names, fields[i].Column) {
				names = append(names, fields[i].Column)
			}
		}
	}
	s := &Statement{Dialect: d}
	s.SQL.WriteString("INSERT INTO " + d.Table(o) + " (")
	for i, name := range names {
		s.SQL.WriteString(separator(i, ", ") + d.Ident(name))
	}
	s.SQL.WriteString(") VALUES ")
	for r, fields := range rows {
		s.SQL.WriteString(separator(r, ", ") + "(")
		for i, name := range names {
			s.SQL.WriteString(separator(i, ", ") + s.value(fields, name))
		}
		s.SQL.WriteString(")")
	}
	return s
}

// separator returns what stands before the ith part of a list.
func separator(i int, text string) string {
	if i == 0 {
		return ""
	}
	return text
}

// value returns the value of a column in a row.
func (s *Statement) value(fields []Field, name string) string {
	i := slices.IndexFunc(fields, func(f Field) bool { return f.Column == name })
	switch {
	case i < 0:
		return s.Absent
	case fields[i].Value == Transaction{}:
		return "pg_current_xact_id()"
	}
	return s.Arg(fields[i].Value)
}

// Insert returns the statement that inserts a row, with its parameters, for drivers that have no
// package here. id is the row's id, "" if the database makes it. Run it in the transaction that
// changes the data which the row reports. An outbox of messages has the statement that writes one.
func (o *Outbox) Insert(ctx context.Context, d *Dialect, row Row) (query string, args []any, id string, err error) {
	if err := o.Complete(ctx, &row); err != nil {
		return "", nil, "", o.refuse(err)
	}
	fields, err := o.Fields(&row)
	if err != nil {
		return "", nil, "", o.refuse(err)
	}
	if o.of.MessagePrefix != "" {
		content, err := o.message(fields)
		if err != nil {
			return "", nil, "", o.refuse(err)
		}
		return "SELECT pg_logical_emit_message(true, $1, $2::text)", []any{o.of.MessagePrefix, content}, row.ID, nil
	}
	s := d.Insert(&o.of, fields)
	return s.SQL.String(), s.Args, row.ID, nil
}

// refuse says which outbox refuses a row.
func (o *Outbox) refuse(err error) error {
	return fmt.Errorf("write into outbox %s: %w", o.of.Name, err)
}

// WriteSQL writes rows in a transaction, in their order, and returns their ids. A row of a
// transaction that is rolled back was never there. After an error, roll back.
//
// PostgreSQL, MySQL, MariaDB and SQLite have it; with pgx, call Write of store/outbox/postgres.
func (o *Outbox) WriteSQL(ctx context.Context, tx *sql.Tx, d *Dialect, rows ...Row) ([]string, error) {
	ids := make([]string, len(rows))
	for i := range rows {
		query, args, id, err := o.Insert(ctx, d, rows[i])
		if err != nil {
			return nil, err
		}
		for k := range args {
			if payload, ok := args[k].([]byte); ok && d.returning && !o.binary {
				args[k] = string(payload)
			}
		}
		switch {
		case id != "" || o.layout.NewID != store.IDDatabase || o.of.MessagePrefix != "":
			_, err = tx.ExecContext(ctx, query, args...)
		case d.returning:
			err = tx.QueryRowContext(ctx, query+o.Returning(d), args...).Scan(&id)
		default:
			id, err = lastID(tx.ExecContext(ctx, query, args...))
		}
		if err != nil {
			return nil, o.refuse(err)
		}
		ids[i] = id
	}
	return ids, nil
}

// Returning is the end of a statement of Insert that returns the id that PostgreSQL makes.
func (o *Outbox) Returning(d *Dialect) string {
	return " RETURNING " + d.Ident(o.layout.Columns.ID) + "::text"
}

// lastID returns the id that MySQL or SQLite has made.
func lastID(result sql.Result, err error) (string, error) {
	if err != nil {
		return "", err
	}
	id, err := result.LastInsertId()
	return strconv.FormatInt(id, 10), err
}
