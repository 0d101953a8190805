package postgres

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lifetime"
	sessions "github.com/sluicebox/sluicebox/store/internal/session"
)

// closeTimeout bounds the farewell to a server that may be gone.
const closeTimeout = time.Second

// discard closes a connection. One whose call was cut short goes on closing by
// itself, since it also cancels its statement; Close waits for it.
func discard(life *lifetime.Lifetime, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // it is given up either way
	done := conn.PgConn().CleanupDone()
	select {
	case <-done:
	default:
		life.Go(func() { <-done })
	}
}

// session is the connection of a session.Session.
type session struct {
	*sessions.Session
	cfg      *pgx.ConnConfig
	lifetime *lifetime.Lifetime

	check func(context.Context, *pgx.Conn) error // what to ask of a new connection; may be nil

	conn   *pgx.Conn
	pid    atomic.Uint32     // of conn's server process, 0 without one
	tables map[string]*table // what conn knows of the outboxes, by name

	skipLocked time.Time // calls pass over locked rows until then
}

func newSession(cfg *pgx.ConnConfig, life *lifetime.Lifetime) *session {
	s := &session{cfg: cfg, lifetime: life}
	s.Session = sessions.New(life, s)
	return s
}

// do runs fn on the session's connection.
func (s *session) do(ctx context.Context, fn func(context.Context, *session) error) error {
	return s.Do(ctx, func(ctx context.Context) error { return fn(ctx, s) })
}

// Ready implements session.Link.
func (s *session) Ready(ctx context.Context) error {
	if s.conn != nil {
		return nil
	}
	conn, err := connect(ctx, s.cfg)
	if err != nil {
		return err
	}
	if s.check != nil {
		if err := s.check(ctx, conn); err != nil {
			discard(s.lifetime, conn)
			return err
		}
	}
	s.conn, s.tables = conn, map[string]*table{}
	s.pid.Store(conn.PgConn().PID())
	return nil
}

// detach hands the session's connection over to the caller, who is to close it.
func (s *session) detach() *pgx.Conn {
	conn := s.conn
	s.conn, s.tables = nil, nil
	s.pid.Store(0)
	return conn
}

// Survives implements session.Link.
func (s *session) Survives(err error) bool {
	var refused *store.RefusedError
	if errors.As(asRefused(err), &refused) {
		// It has taken the statement back and waits for the next.
		return !s.conn.IsClosed() && s.conn.PgConn().TxStatus() == 'I'
	}
	var locked *store.LockedError
	return errors.As(err, &locked) || errors.Is(err, store.ErrNotLeader) || errors.Is(err, store.ErrNoCheckpoint) ||
		errors.Is(err, store.ErrInterrupted) || errors.Is(err, store.ErrNoJob)
}

// Drop implements session.Link.
func (s *session) Drop() {
	if s.conn != nil {
		discard(s.lifetime, s.detach())
	}
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

// readBegin reads the answers to begin.
func readBegin(results pgx.BatchResults) error {
	for range 2 {
		if _, err := results.Exec(); err != nil {
			return err
		}
	}
	return nil
}

// readRest reads what is left of a batch, the commit too.
func readRest(results pgx.BatchResults, err *error) {
	if closing := results.Close(); *err == nil {
		*err = closing
	}
}
