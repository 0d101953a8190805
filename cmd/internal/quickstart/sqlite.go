package quickstart

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"path/filepath"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/sluicebox/sluicebox/store/layouts"
)

// Times are text in the format of SQLite's own functions, which sorts by time.
const (
	sqliteNow         = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
	sqliteInsertOrder = "INSERT INTO orders " + orderColumns + " VALUES (?, ?, ?, " + sqliteNow + ")"
	sqliteInsertEvent = "INSERT INTO outbox_events " + eventColumns + " VALUES (?, 'EVENT', ?, ?, 'PENDING', " + sqliteNow + ")"
)

// sqliteDatabase is an SQLite database in the quickstart's folder. SQLite has one
// writer at a time, so the writers take turns on one connection. Only the relay
// competes with them for SQLite's own lock.
type sqliteDatabase struct {
	path string
	db   *sql.DB
}

// newSQLite prepares a database in a folder, without opening it.
func newSQLite(folder, name string) (*sqliteDatabase, databaseInfo) {
	path := filepath.Join(folder, "quickstart.db")
	u := url.URL{Scheme: "sqlite", Path: filepath.ToSlash(path)}
	return &sqliteDatabase{path: path}, databaseInfo{
		name: name, url: u.String(), table: "outbox_events",
		description:    "an SQLite file, " + path,
		inspectCommand: "sqlite3 " + shellWord(path) + " 'SELECT status, count(*), max(retry_count) FROM outbox_events GROUP BY status'",
	}
}

func (f *sqliteDatabase) setUp(ctx context.Context) (note string, err error) {
	// In WAL mode with synchronous=NORMAL a commit survives the end of the process.
	// Only a power failure can lose the last commits.
	source := url.URL{Scheme: "file", Path: filepath.ToSlash(f.path), RawQuery: url.Values{
		"_pragma": {"journal_mode(WAL)", "synchronous(NORMAL)", fmt.Sprintf("busy_timeout(%d)", callTimeout.Milliseconds())},
		"_txlock": {"immediate"},
	}.Encode()}
	if f.db, err = sql.Open("sqlite", source.String()); err != nil {
		return "", fmt.Errorf("open %s: %w", f.path, err)
	}
	f.db.SetMaxOpenConns(1)
	statements := tables(layouts.SQLite, "")
	for _, statement := range statements {
		if _, err := f.db.ExecContext(ctx, statement); err != nil {
			return "", fmt.Errorf("create tables in %s: %w", f.path, err)
		}
	}
	return "", nil
}

// session returns a session on the shared connection, which stays open until cleanUp.
func (f *sqliteDatabase) session(context.Context) (session, error) {
	return &sqlSession{conn: f.db, order: sqliteInsertOrder, event: sqliteInsertEvent, release: func() {}}, nil
}

func (f *sqliteDatabase) countByStatus(ctx context.Context) (map[string]int, error) {
	return countStates(ctx, f.db, "outbox_events")
}

// isStreaming returns true: the relay's triggers write the log in the same file.
func (f *sqliteDatabase) isStreaming(context.Context) (bool, error) { return true, nil }

// cleanUp closes the database. The caller removes the file with its folder.
func (f *sqliteDatabase) cleanUp(context.Context, bool) error {
	if f.db == nil {
		return nil
	}
	if err := f.db.Close(); err != nil {
		return fmt.Errorf("close %s: %w", f.path, err)
	}
	return nil
}
