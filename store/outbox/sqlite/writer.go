// Package sqlite writes rows of others into SQLite. A service writes in its own transaction, by
// WriteSQL of package outbox.
package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"

	"modernc.org/sqlite"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/outbox"
	"github.com/sluicebox/sluicebox/store/outbox/internal/tables"
	relay "github.com/sluicebox/sluicebox/store/sqlite"
)

// NewWriter returns a writer for the file of a URL; see ParseURL of store/sqlite. It opens no
// connection. The writer waits 10 s for the write lock of the file.
func NewWriter(raw string) (outbox.Writer, error) {
	path, err := relay.ParseURL(raw)
	if err != nil {
		return nil, err
	}
	return tables.NewWriter(&tables.Server{
		Dialect: outbox.SQLite(),
		Open: func() (*sql.DB, error) {
			path, err := filepath.Abs(path)
			if err != nil {
				return nil, err
			}
			uri := url.URL{Scheme: "file", Path: filepath.ToSlash(path)}
			connector, err := sqlite.NewConnector(uri.String() + "?mode=rw&_dqs=0&_txlock=immediate&_pragma=busy_timeout(10000)" +
				"&_pragma=synchronous(FULL)&_pragma=fullfsync(1)")
			if err != nil {
				return nil, err
			}
			db := sql.OpenDB(connector)
			db.SetMaxOpenConns(1) // there is one write lock
			return db, nil
		},
		MaxRows:    1, // a statement costs no round trip
		OnConflict: " ON CONFLICT (%s) DO NOTHING",
		Mine:       "0",
		Columns: func(o *store.Outbox) (string, []any) {
			return "SELECT name, type, dflt_value, 3 FROM pragma_table_info(?)", []any{o.Table}
		},
		Text:     "CAST(%s AS TEXT)",
		Same:     func(column, _, placeholder string) string { return column + " IS " + placeholder + " COLLATE BINARY" },
		SameAs:   func(column, expression string) string { return column + " IS (" + expression + ") COLLATE BINARY" },
		Classify: classify,
	}), nil
}

// classify returns an error as batch.Attempt does.
func classify(o *store.Outbox, err error) error {
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return err
	}
	switch e.Code() & 0xff { // the primary code, https://www.sqlite.org/rescode.html
	case 18, 19, 20: // too big, constraint, mismatch
		return &outbox.RowError{Problem: e.Error(), Remedy: "send values that the table takes", Err: err}
	case 1:
		return &store.SetupError{
			Problem: fmt.Sprintf("table %s: %v", o.Table, e),
			Remedy:  fmt.Sprintf("create the table with the columns of layout %s and a unique index on %s", o.Layout.Name, o.Layout.Columns.ID),
		}
	}
	return relay.Explain(err)
}
