package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// control is one ordinary session, opened on first use and kept. Its statements run one
// at a time; a statement waits for its turn as long as its context allows.
type control struct {
	config *pgx.ConnConfig
	sem    chan struct{} // has one token
	conn   *pgx.Conn
}

func newControl(config *pgx.ConnConfig) *control {
	c := &control{config: config, sem: make(chan struct{}, 1)}
	c.sem <- struct{}{}
	return c
}

// do calls fn with the session.
func (c *control) do(ctx context.Context, fn func(*pgx.Conn) error) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.sem:
	}
	defer func() { c.sem <- struct{}{} }()
	if c.conn == nil || c.conn.IsClosed() {
		conn, err := pgx.ConnectConfig(ctx, c.config)
		if err != nil {
			return fmt.Errorf("connect to %s: %w", c.config.Host, pgstore.ExplainConnect(c.config, err))
		}
		c.conn = conn
	}

	err := fn(c.conn)
	if c.conn.IsClosed() {
		c.drop()
	}
	return err
}

// exec runs a statement that may safely run twice.
func (c *control) exec(ctx context.Context, sql string, args ...any) error {
	return c.retryOnce(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql, args...)
		return err
	})
}

// retryOnce runs an fn that may safely run twice. If the kept session turns out to be
// lost, it calls fn again on a new one.
func (c *control) retryOnce(ctx context.Context, fn func(*pgx.Conn) error) error {
	run := func(conn *pgx.Conn) error {
		err := fn(conn)
		if err != nil && conn.IsClosed() {
			err = &sessionLostError{err}
		}
		return err
	}
	err := c.do(ctx, run)
	if _, lost := err.(*sessionLostError); lost && ctx.Err() == nil {
		err = c.do(ctx, run)
	}
	return err
}

type sessionLostError struct{ err error }

func (e *sessionLostError) Error() string { return e.err.Error() }
func (e *sessionLostError) Unwrap() error { return e.err }

// close closes the session after its current statement.
func (c *control) close() {
	<-c.sem
	defer func() { c.sem <- struct{}{} }()
	if c.conn != nil {
		c.drop()
	}
}

func (c *control) drop() {
	closeSession(c.conn.PgConn())
	c.conn = nil
}

// closeSession closes a session and waits for its cleanup. The driver cleans up a lost
// session in a goroutine.
func closeSession(conn *pgconn.PgConn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), store.CloseTimeout)
	defer cancel()
	done := conn.CleanupDone()
	_ = conn.Close(ctx) // the session is dropped either way
	select {
	case <-done:
	case <-ctx.Done():
	}
}
