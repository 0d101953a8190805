package bench

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
)

// sqlDatabase is the part of PostgreSQL, MySQL and MariaDB that differs only in its words.
type sqlDatabase struct {
	name, url string
	table     *outboxTable
	session   *demodb.SQL
	dial      func(ctx context.Context, url string) (*demodb.SQL, error)
	words     sqlWords
}

// sqlWords are formats and texts of a database's SQL.
type sqlWords struct {
	id      string // of row n, from the number of digits
	group   string // of row n, from the first group and the number of groups
	payload string // of row n, from its head and its id
	now     string
	one     string // a query that returns the parameter as n
}

// openTable opens a session of a new database and creates its outbox.
func (d *sqlDatabase) openTable(ctx context.Context, statements []string) (err error) {
	if d.session, err = d.dial(ctx, d.url); err != nil {
		return err
	}
	for _, statement := range statements {
		if _, err := d.session.ExecContext(ctx, statement); err != nil {
			d.close()
			return err
		}
	}
	return nil
}

func (d *sqlDatabase) close() { d.session.Close() }

// insert returns the statement that writes the rows whose numbers n come from a query, in
// its order. Its first parameter is the padding of the payloads.
func (d *sqlDatabase) insert(r *rowSpan, from string) string {
	columns, values := "", ""
	if r.completed {
		columns, values = ", processed_at", ", "+d.words.now
	}
	id := fmt.Sprintf(d.words.id, idDigits)
	return fmt.Sprintf("INSERT INTO %s (id, type, message_group, payload, status, created_at%s)\nSELECT %s, 'EVENT', %s, %s, %s, %s%s FROM %s",
		d.table.name, columns, id, r.group(d.words.group), fmt.Sprintf(d.words.payload, payloadHead, id), r.status(d.table), d.words.now, values, from)
}

// sqlWriter is a session that writes rows.
type sqlWriter struct {
	session *demodb.SQL
	insert  *sql.Stmt
	padding string
}

func (d *sqlDatabase) writer(ctx context.Context, r *rowSpan) (rowWriter, error) {
	session, err := d.dial(ctx, d.url)
	if err != nil {
		return nil, err
	}
	w := &sqlWriter{session: session, padding: r.padding}
	if w.insert, err = session.PrepareContext(ctx, d.insert(r, d.words.one)); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *sqlWriter) write(ctx context.Context, n int) error {
	_, err := w.insert.ExecContext(ctx, w.padding, n)
	return err
}

func (w *sqlWriter) close() { w.session.Close() }

// statistics runs a query whose rows are a text about a statement, and the statement.
func (d *sqlDatabase) statistics(ctx context.Context, query string, args ...any) (string, error) {
	var text strings.Builder
	var about string
	var statement sql.NullString
	err := demodb.Each(ctx, d.session, query, args, []any{&about, &statement}, func() {
		fmt.Fprintf(&text, "%s\n%s\n\n", about, statement.String)
	})
	return text.String(), err
}
