package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// control is one ordinary session, opened when it is needed and kept. Its
// statements run one at a time and wait for each other no longer than their
// context allows.
type control struct {
	config *pgx.ConnConfig
	sem    chan struct{} // holds one token
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

// exec runs a statement whose effect may come twice.
func (c *control) exec(ctx context.Context, sql string, args ...any) error {
	return c.retryOnce(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql, args...)
		return err
	})
}

// retryOnce does what may be done twice: if a session that was kept turns out to be
// lost, fn is called again with a new one.
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

// closeTimeout bounds the goodbye to a server that may not be there.
const closeTimeout = 2 * time.Second

// close ends the session once the statement that uses it has ended.
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

// closeSession ends a session and waits until it is taken down: one that was
// lost is taken down by a goroutine of the driver.
func closeSession(conn *pgconn.PgConn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	done := conn.CleanupDone()
	_ = conn.Close(ctx) // nothing hangs on the goodbye
	select {
	case <-done:
	case <-ctx.Done():
	}
}
