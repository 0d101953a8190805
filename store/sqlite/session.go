package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lifetime"
)

// session is the store's writing connection, opened when it is needed and given
// up when a call on it fails. It serves one call at a time, in the order in
// which they came.
type session struct {
	path         string
	name, holder string // what the leader row is to say
	life         *lifetime.Lifetime
	turn         chan struct{} // holds a token while the session is free

	conn   *Conn
	tables map[string]*table // what conn knows of the outboxes, by name
}

func newSession(path, name, holder string, life *lifetime.Lifetime) *session {
	s := &session{path: path, name: name, holder: holder, life: life, turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	return s
}

// do runs fn on the session's connection.
func (s *session) do(ctx context.Context, fn func(context.Context) error) error {
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
	if s.conn != nil && s.conn.Replaced() != nil {
		s.drop()
	}
	if s.conn == nil {
		conn, err := Dial(ctx, s.path)
		if err != nil {
			return err
		}
		s.conn, s.tables = conn, map[string]*table{}
	}
	err := fn(ctx)
	if err != nil && !keepsSession(err) {
		s.drop()
	}
	return err
}

// keepsSession reports whether an error is an answer, and no sign of trouble
// with the session.
func keepsSession(err error) bool {
	var refused *store.RefusedError
	return errors.Is(err, store.ErrNotLeader) || errors.Is(err, store.ErrNoCheckpoint) || Locked(err) ||
		code(err) == codeConstraint || errors.As(err, &refused)
}

func (s *session) drop() {
	if s.conn != nil {
		s.conn.Close()
		s.conn, s.tables = nil, nil
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

// checkEpoch returns store.ErrNotLeader unless the leader row holds the epoch and
// this store took it.
func (s *session) checkEpoch(ctx context.Context, epoch store.Epoch) error {
	leads := false
	err := s.conn.Query(ctx, "SELECT l.epoch = ? AND l.holder = ? FROM sluicebox_leader AS l WHERE l.name = ?", []any{int64(epoch), s.holder, s.name},
		func(row []driver.Value) error { leads = row[0] == int64(1); return nil })
	if err == nil && !leads {
		return store.ErrNotLeader
	}
	return err
}

// lead runs fn in a write transaction of the leader of an epoch. With the write
// lock held no other relay can raise it.
func (s *session) lead(ctx context.Context, epoch store.Epoch, d Durability, wait time.Duration, fn func(context.Context) error) error {
	return s.conn.write(ctx, d, wait, func(ctx context.Context) error {
		if err := s.checkEpoch(ctx, epoch); err != nil {
			return err
		}
		return fn(ctx)
	})
}
