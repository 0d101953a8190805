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
	// closeTimeout bounds the farewell to a server that may be gone.
	closeTimeout = time.Second
	// maxStatements is the most statements that a session keeps prepared.
	maxStatements = 200
	// maxDeadlockTries bounds how often a transaction begins anew after a deadlock.
	maxDeadlockTries = 5
)

// conn is one session of the server. It is in no transaction between two calls.
type conn struct {
	pool    *sql.DB // of this one session
	sqlConn *sql.Conn
	wire    *watchedConn
	server  server
	closed  chan struct{} // closed with the session

	statements map[string]*sql.Stmt
	tables     map[string]*table // what is known of the outboxes, by name
	broken     bool              // nobody knows what state it is in
}

// dial opens a session with settings, which are values in SQL.
func dial(ctx context.Context, cfg *mysql.Config, level string, settings map[string]string) (*conn, error) {
	own, w := cfg.Clone(), &watchedConn{}
	own.DialFunc = dialWatched(w)
	own.Params = maps.Clone(settings)
	connector, err := mysql.NewConnector(own)
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
	if least, old := c.server.tooOld(); old {
		return &store.SetupError{Problem: c.server.name() + " " + c.server.version + " is too old", Remedy: "use " + least + " or later"}
	}
	return c.rollback(ctx)
}

// close ends the session, once. It takes a second at most.
func (c *conn) close() {
	close(c.closed)
	if c.wire.Conn != nil {
		_ = c.wire.SetDeadline(time.Now().Add(closeTimeout)) // it is given up either way
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
			_ = s.Close() // the server forgets it with the session too
			delete(c.statements, old)
		}
	}
	s, err := c.sqlConn.PrepareContext(ctx, text)
	if err == nil {
		c.statements[text] = s
	}
	return s, err
}

// exec runs a statement and tells how many rows it found.
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

// query runs a statement and gives each row to read, which scans it.
func (c *conn) query(ctx context.Context, text string, args []any, read func(rows *sql.Rows) error) error {
	s, err := c.prepare(ctx, text)
	if err != nil {
		return err
	}
	rows, err := s.QueryContext(ctx, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // its error is that of rows.Err
	for rows.Next() {
		if err := read(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// row reads the one row of a statement; sql.ErrNoRows says that there is none.
func (c *conn) row(ctx context.Context, text string, args []any, into ...any) error {
	s, err := c.prepare(ctx, text)
	if err != nil {
		return err
	}
	return s.QueryRowContext(ctx, args...).Scan(into...)
}

// variable returns a global variable, "" if the server has none of the name.
func (c *conn) variable(ctx context.Context, name string) (string, error) {
	var is, value string
	err := c.sqlConn.QueryRowContext(ctx, "SHOW GLOBAL VARIABLES LIKE '"+literal(name)+"'").Scan(&is, &value)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return value, err
}

// tx runs do in a transaction: every session has autocommit off. One that met a
// deadlock, which the server has taken back, begins anew.
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
		if taken := c.rollback(ctx); taken != nil || code(err) != codeDeadlock || try == maxDeadlockTries {
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

// commitError says that nobody knows whether a transaction was committed.
type commitError struct{ err error }

func (e *commitError) Error() string { return "commit: " + e.err.Error() }

func (e *commitError) Unwrap() error { return e.err }

// table returns what is known of an outbox's table, looking it up at the first use
// in this session.
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

// tableAltered reports whether the columns of an outbox's table are others than this session
// knows, and forgets them then: no row is called gone by what a table was before.
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
