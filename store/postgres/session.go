package postgres

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lifetime"
)

// goodbye bounds the farewell to a server that may be gone.
const goodbye = time.Second

// discard closes a connection. One whose call was cut short goes on closing by
// itself, since it also cancels its statement; Close waits for it.
func discard(life *lifetime.Lifetime, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	_ = conn.Close(ctx) // it is given up either way
	done := conn.PgConn().CleanupDone()
	select {
	case <-done:
	default:
		life.Go(func() { <-done })
	}
}

// session is one connection, opened when it is needed and given up when a call
// on it fails. It serves one call at a time.
type session struct {
	cfg  *pgx.ConnConfig
	life *lifetime.Lifetime
	turn chan struct{} // holds a token while the session is free

	check func(context.Context, *pgx.Conn) error // what to ask of a new connection; may be nil

	conn   *pgx.Conn
	pid    atomic.Uint32     // of conn's server process, 0 without one
	tables map[string]*table // what conn knows of the outboxes, by name

	skipLocked time.Time // claims pass over locked rows until then
}

func newSession(cfg *pgx.ConnConfig, life *lifetime.Lifetime) *session {
	s := &session{cfg: cfg, life: life, turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	return s
}

// do runs fn on the session's connection.
func (s *session) do(ctx context.Context, fn func(context.Context, *session) error) error {
	if s.life.Ended() {
		return lifetime.ErrClosed
	}
	ctx, cancel := s.life.Bind(ctx)
	defer cancel()
	select {
	case <-s.turn:
		defer func() { s.turn <- struct{}{} }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if s.life.Ended() { // both were ready
		return lifetime.ErrClosed
	}
	if s.conn == nil {
		if err := s.open(ctx); err != nil {
			return err
		}
	}
	err := fn(ctx, s)
	if err != nil && !s.keeps(err) {
		s.drop()
	}
	return err
}

func (s *session) open(ctx context.Context) error {
	conn, err := connect(ctx, s.cfg)
	if err != nil {
		return err
	}
	if s.check != nil {
		if err := s.check(ctx, conn); err != nil {
			discard(s.life, conn)
			return err
		}
	}
	s.conn, s.tables = conn, map[string]*table{}
	s.pid.Store(conn.PgConn().PID())
	return nil
}

// take hands the session's connection over to the caller, who is to close it.
func (s *session) take() *pgx.Conn {
	conn := s.conn
	s.conn, s.tables = nil, nil
	s.pid.Store(0)
	return conn
}

// keeps reports whether an error is an answer, and no sign of trouble with the
// session.
func (s *session) keeps(err error) bool {
	var refused *store.RefusedError
	if errors.As(refusal(err), &refused) {
		// It has taken the statement back and waits for the next.
		return !s.conn.IsClosed() && s.conn.PgConn().TxStatus() == 'I'
	}
	var locked *store.LockedError
	return errors.As(err, &locked) || errors.Is(err, store.ErrNotLeader) || errors.Is(err, store.ErrNoCheckpoint) ||
		errors.Is(err, store.ErrInterrupted)
}

func (s *session) drop() {
	if s.conn != nil {
		discard(s.life, s.take())
	}
}

// close waits for the call that uses the session, if any, and ends it for good.
func (s *session) close() {
	<-s.turn
	s.drop()
	s.turn <- struct{}{}
}

// table returns what is known of an outbox's table, looking it up at the first
// use on this connection.
func (s *session) table(ctx context.Context, o *store.Outbox) (*table, error) {
	if t, ok := s.tables[o.Name]; ok {
		return t, nil
	}
	t, err := describe(ctx, s.conn, o)
	if err != nil {
		return nil, err
	}
	s.tables[o.Name] = t
	return t, nil
}

// A batch is one transaction: the server commits at its end. One that changes a
// setting for itself says so in words.

func begin(batch *pgx.Batch, setting string) {
	batch.Queue("BEGIN")
	batch.Queue(setting)
}

func commit(batch *pgx.Batch) { batch.Queue("COMMIT") }

// begun reads the answers to begin.
func begun(results pgx.BatchResults) error {
	for range 2 {
		if _, err := results.Exec(); err != nil {
			return err
		}
	}
	return nil
}

// finish reads what is left of a batch, the commit too.
func finish(results pgx.BatchResults, err *error) {
	if closing := results.Close(); *err == nil {
		*err = closing
	}
}
