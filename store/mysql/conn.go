package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/store"
)

const (
	// maxStatements is the maximum number of prepared statements per session.
	maxStatements = 200
	// maxDeadlockTries limits how often a transaction starts over after a deadlock.
	maxDeadlockTries = 5
)

// conn is one session of the server. Between two calls it has no open transaction.
type conn struct {
	pool    *sql.DB // holds this session only
	sqlConn *sql.Conn
	wire    *watchedConn
	server  server
	closed  chan struct{} // closed with the session

	statements map[string]*sql.Stmt
	tables     map[string]*table // cached descriptions of the outboxes' tables, by outbox name
	broken     bool              // the state of the session is unknown
}

// dial opens a session with the given settings, whose values are SQL.
func dial(ctx context.Context, cfg *mysql.Config, level string, settings map[string]string) (*conn, error) {
	clone, w := cfg.Clone(), &watchedConn{}
	clone.DialFunc = dialWatched(w)
	clone.Params = maps.Clone(settings)
	connector, err := mysql.NewConnector(clone)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.Addr, err)
	}

	c := &conn{pool: sql.OpenDB(connector), wire: w, closed: make(chan struct{}), statements: map[string]*sql.Stmt{}, tables: map[string]*table{}}
	c.pool.SetMaxOpenConns(1)
	if err := c.open(ctx, level); err != nil {
		c.close()
		return nil, fmt.Errorf("connect to %s: %w", cfg.Addr, Explain(err))
	}

	return c, nil
}

func (c *conn) open(ctx context.Context, level string) (err error) {
	if c.sqlConn, err = c.pool.Conn(ctx); err != nil {
		return err
	}
	if _, err = c.sqlConn.ExecContext(ctx, isolation(level)); err != nil {
		return err
	}

	if c.server, err = queryServer(ctx, c.sqlConn); err != nil {
		return err
	}
	if minVersion, tooOld := c.server.tooOld(); tooOld {
		return &store.SetupError{Problem: c.server.name() + " " + c.server.version + " is too old", Remedy: "use " + minVersion + " or later"}
	}

	return c.rollback(ctx)
}

// close ends the session. It takes at most store.CloseTimeout and must be called once.
func (c *conn) close() {
	close(c.closed)
	if c.wire.Conn != nil {
		_ = c.wire.SetDeadline(time.Now().Add(store.CloseTimeout)) // the session is closed either way
	}
	if c.sqlConn != nil {
		_ = c.sqlConn.Close()
	}
	_ = c.pool.Close()
}

// prepare returns a statement that stays prepared.
func (c *conn) prepare(ctx context.Context, text string) (*sql.Stmt, error) {
	if s, ok := c.statements[text]; ok {
		return s, nil
	}
	if len(c.statements) >= maxStatements {
		for old, s := range c.statements {
			_ = s.Close() // the server drops it with the session anyway
			delete(c.statements, old)
		}
	}

	s, err := c.sqlConn.PrepareContext(ctx, text)
	if err == nil {
		c.statements[text] = s
	}
	return s, err
}

// exec runs a statement and returns how many rows it matched.
func (c *conn) exec(ctx context.Context, text string, args ...any) (int64, error) {
	s, err := c.prepare(ctx, text)
	if err != nil {
		return 0, err
	}
	result, err := s.ExecContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// query runs a statement and calls read for each row.
func (c *conn) query(ctx context.Context, text string, args []any, read func(rows *sql.Rows) error) error {
	s, err := c.prepare(ctx, text)
	if err != nil {
		return err
	}

	rows, err := s.QueryContext(ctx, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // rows.Err returns its error
	for rows.Next() {
		if err := read(rows); err != nil {
			return err
		}
	}

	return rows.Err()
}

// row reads the single row of a statement. It returns sql.ErrNoRows if there is none.
func (c *conn) row(ctx context.Context, text string, args []any, into ...any) error {
	s, err := c.prepare(ctx, text)
	if err != nil {
		return err
	}
	return s.QueryRowContext(ctx, args...).Scan(into...)
}

// variable returns a global variable; "" if the server does not have it.
func (c *conn) variable(ctx context.Context, name string) (string, error) {
	var found, value string
	err := c.sqlConn.QueryRowContext(ctx, "SHOW GLOBAL VARIABLES LIKE '"+literal(name)+"'").Scan(&found, &value)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return value, err
}

// tx runs do in a transaction; every session has autocommit off. It starts over after a
// deadlock, which the server has rolled back.
func (c *conn) tx(ctx context.Context, do func() error) error {
	for try := 1; ; try++ {
		err := do()
		if err == nil {
			if _, err := c.sqlConn.ExecContext(ctx, "COMMIT"); err != nil {
				c.broken = true
				return &commitError{err}
			}
			return nil
		}
		if rollbackErr := c.rollback(ctx); rollbackErr != nil || code(err) != codeDeadlock || try == maxDeadlockTries {
			return err
		}
	}
}

func (c *conn) rollback(ctx context.Context) error {
	_, err := c.sqlConn.ExecContext(ctx, "ROLLBACK")
	if err != nil {
		c.broken = true
	}
	return err
}

// commitError means that it is unknown whether a transaction was committed.
type commitError struct{ err error }

func (e *commitError) Error() string { return "commit: " + e.err.Error() }

func (e *commitError) Unwrap() error { return e.err }

// table returns the description of an outbox's table. The first use in this session looks
// it up.
func (c *conn) table(ctx context.Context, o *store.Outbox) (*table, error) {
	if t, ok := c.tables[o.Name]; ok {
		return t, nil
	}
	t, err := describe(ctx, c, o)
	if err != nil {
		return nil, err
	}
	c.tables[o.Name] = t
	return t, nil
}

// tableAltered reports whether an outbox's table has other columns than this session
// knows. If so it drops the cached description, so that no row is reported gone because
// of an outdated one.
func (c *conn) tableAltered(ctx context.Context, o *store.Outbox) (bool, error) {
	known, ok := c.tables[o.Name]
	if !ok {
		return false, nil
	}
	now, err := readColumns(ctx, c, o)
	if err != nil || slices.Equal(now, known.columns) {
		return false, err
	}
	delete(c.tables, o.Name)
	return true, nil
}
