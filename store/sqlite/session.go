package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/sessions"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// writerCache holds a transaction that touches many index pages, in KiB; the driver's
// allocator takes twice as much. Readers keep SQLite's default of 2 MiB, because a relay has
// five of them.
const writerCache = "cache_size=-16000"

// session is the store's writing connection.
type session struct {
	*sessions.Session
	path         string
	name, holder string // the key and the expected holder of the leader row

	conn   *Conn
	tables map[string]*table // outbox tables as read on conn, by name
}

func newSession(path, name, holder string, life *sessions.Lifetime) *session {
	s := &session{path: path, name: name, holder: holder}
	s.Session = sessions.New(life, s)
	return s
}

// do runs fn on the session's connection.
func (s *session) do(ctx context.Context, fn func(context.Context) error) error { return s.Do(ctx, fn) }

// Ready implements sessions.Link.
func (s *session) Ready(ctx context.Context) error {
	if s.conn != nil && s.conn.Replaced() != nil {
		s.Drop()
	}
	if s.conn != nil {
		return nil
	}
	conn, err := Dial(ctx, s.path)
	if err != nil {
		return err
	}
	if err := conn.pragma(ctx, writerCache); err != nil {
		conn.Close()
		return err
	}
	s.conn, s.tables = conn, map[string]*table{}
	return nil
}

// Survives implements sessions.Link.
func (s *session) Survives(err error) bool {
	var refused *store.RefusedError
	return errors.Is(err, store.ErrNotLeader) || ledger.IsAnswer(err) || IsLocked(err) ||
		resultCode(err) == codeConstraint || errors.As(err, &refused)
}

// Drop implements sessions.Link.
func (s *session) Drop() {
	if s.conn != nil {
		s.conn.Close()
		s.conn, s.tables = nil, nil
	}
}

// table returns the description of an outbox's table, which it reads on first use on this
// connection.
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

// checkEpoch returns store.ErrNotLeader unless the leader row has the epoch and this store
// as its holder.
func (s *session) checkEpoch(ctx context.Context, epoch store.Epoch) error {
	leads := false
	err := s.conn.Query(ctx, "SELECT epoch = ? AND holder = ? FROM sluicebox_leader WHERE name = ?", []any{int64(epoch), s.holder, s.name},
		func(row []driver.Value) error { leads = row[0] == int64(1); return nil })
	if err == nil && !leads {
		return store.ErrNotLeader
	}
	return err
}

// runAsLeader runs fn in a write transaction of the leader of an epoch. No other relay can
// raise the epoch while the transaction holds the write lock.
func (s *session) runAsLeader(ctx context.Context, epoch store.Epoch, d Durability, wait time.Duration, fn func(context.Context) error) error {
	return s.conn.write(ctx, d, wait, func(ctx context.Context) error {
		if err := s.checkEpoch(ctx, epoch); err != nil {
			return err
		}
		return fn(ctx)
	})
}
