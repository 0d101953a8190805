package postgres

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/sessions"
)

// discard closes a connection. If its call was cancelled, closing continues in the
// background, because it also cancels the statement; Close waits for it.
func discard(life *sessions.Lifetime, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), store.CloseTimeout)
	defer cancel()
	_ = conn.Close(ctx) // the connection is dropped either way
	done := conn.PgConn().CleanupDone()
	select {
	case <-done:
	default:
		life.Go(func() { <-done })
	}
}

// session is the connection of a sessions.Session.
type session struct {
	*sessions.Session
	cfg      *pgx.ConnConfig
	lifetime *sessions.Lifetime

	check func(context.Context, *pgx.Conn) error // verifies a new connection; may be nil

	conn   *pgx.Conn
	pid    atomic.Uint32     // conn's server process, 0 without conn
	tables map[string]*table // outbox tables as looked up on conn, by name

	skipLocked time.Time // calls skip locked rows until then
}

func newSession(cfg *pgx.ConnConfig, life *sessions.Lifetime) *session {
	s := &session{cfg: cfg, lifetime: life}
	s.Session = sessions.New(life, s)
	return s
}

// do runs fn on the session's connection.
func (s *session) do(ctx context.Context, fn func(context.Context, *session) error) error {
	return s.Do(ctx, func(ctx context.Context) error { return fn(ctx, s) })
}

// Ready implements sessions.Link.
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

// detach hands the session's connection over to the caller, who must close it.
func (s *session) detach() *pgx.Conn {
	conn := s.conn
	s.conn, s.tables = nil, nil
	s.pid.Store(0)
	return conn
}

// Survives implements sessions.Link.
func (s *session) Survives(err error) bool {
	var refused *store.RefusedError
	if errors.As(asRefused(err), &refused) {
		// The server has rolled the statement back and is ready for the next one.
		return !s.conn.IsClosed() && s.conn.PgConn().TxStatus() == 'I'
	}
	var locked *store.LockedError
	return errors.As(err, &locked) || errors.Is(err, store.ErrNotLeader) || errors.Is(err, store.ErrNoCheckpoint) ||
		errors.Is(err, store.ErrInterrupted) || errors.Is(err, store.ErrNoJob)
}

// Drop implements sessions.Link.
func (s *session) Drop() {
	if s.conn != nil {
		discard(s.lifetime, s.detach())
	}
}

// table returns an outbox's table. The first call on a connection looks it up.
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

// A batch is one transaction, which the server commits at the end of the batch. A batch
// that changes a setting for itself needs an explicit BEGIN and COMMIT.

func begin(batch *pgx.Batch, setting string) {
	batch.Queue("BEGIN")
	batch.Queue(setting)
}

func commit(batch *pgx.Batch) { batch.Queue("COMMIT") }

// readBegin reads the results of begin.
func readBegin(results pgx.BatchResults) error {
	for range 2 {
		if _, err := results.Exec(); err != nil {
			return err
		}
	}
	return nil
}

// readRest reads the rest of a batch, the commit included.
func readRest(results pgx.BatchResults, err *error) {
	if closing := results.Close(); *err == nil {
		*err = closing
	}
}
