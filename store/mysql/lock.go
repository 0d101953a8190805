package mysql

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lifetime"
	"github.com/sluicebox/sluicebox/store/internal/sessionlock"
)

// lockName is the name of a relay's lock, which is the server's and not the
// database's. An application that makes up names of its own will not meet it. It may
// have 64 characters.
func lockName(database, relay string) string {
	hash := sha256.Sum256([]byte(database + "\x00" + relay))
	return "sluicebox leader " + hex.EncodeToString(hash[:20])
}

var errReplica = errors.New("the server is read-only: a replica takes no writes before it is promoted")

// checkOnePrimary returns a *store.SetupError if several servers take writes: the lock
// of one of them keeps nobody else out, nor does its leader row.
func checkOnePrimary(ctx context.Context, c *conn) error {
	what, err := c.server.multiPrimary(ctx, c)
	if err != nil || what == "" {
		return errors.Join(err, c.rollback(ctx))
	}
	return &store.SetupError{Problem: "the server is one of several that take writes, " + what + ": two relays could lead at a time", Remedy: onePrimary}
}

// onePrimary is the way out of a cluster.
const onePrimary = "use a server with one primary: a single one, with replicas or not, or a group in single-primary mode"

// Lock implements store.Locker, by GET_LOCK of a session of its own. That session
// stays open between tries, so that each costs a round trip or two; one that the
// server has ended meanwhile is replaced at once. A read-only server is Unreachable:
// its locks are not those of the primary.
func (s *Store) Lock(ctx context.Context) (store.Lock, error) {
	var taken *lock
	err := s.lockSession.do(ctx, func(ctx context.Context, c *conn) (err error) {
		taken, err = s.tryLock(ctx, c)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("take the relay's lock: %w", Explain(err))
	}
	return taken, nil
}

// tryLock takes the session over if it gets the lock.
func (s *Store) tryLock(ctx context.Context, c *conn) (*lock, error) {
	const try = "SELECT @@global.read_only, IF(@@global.read_only, 0, GET_LOCK(?, 0))"
	var readOnly bool
	var got sql.NullBool
	if err := c.row(ctx, try, []any{lockName(c.server.database, s.name)}, &readOnly, &got); err != nil {
		return nil, err
	}
	if err := c.rollback(ctx); err != nil {
		return nil, err
	}
	switch {
	case readOnly:
		return nil, errReplica
	case !got.Bool:
		holder, err := s.readHolder(ctx, c)
		if err != nil {
			return nil, err
		}
		return nil, &store.LockedError{Holder: holder}
	}
	// A ping reads a table: of now, without a transaction that stays open, and
	// without waiting long for one that somebody alters.
	if _, err := c.sqlConn.ExecContext(ctx, "SET SESSION autocommit = 1, lock_wait_timeout = 1"); err != nil {
		s.lockSession.Drop() // and the lock with it
		return nil, err
	}
	l := newLock(s.lockSession.detach(), s.name, s.lifetime, &s.lockSessionID)
	s.lockSessionID.Store(l.conn.server.session)
	if !s.lifetime.Add(l) {
		l.Release()
		return nil, lifetime.ErrClosed
	}
	return l, nil
}

// readHolder returns what the leader calls itself, "" if nobody knows: the own tables
// may not be there, or not for this account.
func (s *Store) readHolder(ctx context.Context, c *conn) (holder string, err error) {
	err = c.tx(ctx, func() error {
		return c.row(ctx, "SELECT l.holder FROM "+ownPrefix+"leader AS l WHERE l.name = ?", []any{s.name}, &holder)
	})
	if errors.Is(err, sql.ErrNoRows) || code(err) != 0 && !sessionLost(err) {
		return "", nil
	}
	return holder, err
}

// lock is the server's lock, and the session that holds it.
type lock struct {
	*sessionlock.Lock
	conn     *conn
	lifetime *lifetime.Lifetime
	locker   *atomic.Int64 // the store's

	countQuery string // the statement that reads how many wishes there are
	requests   int64
}

func newLock(c *conn, name string, life *lifetime.Lifetime, locker *atomic.Int64) *lock {
	l := &lock{conn: c, lifetime: life, locker: locker}
	// With a parameter it would be two round trips; a relay's name needs no care.
	l.countQuery = "SELECT n FROM " + ownPrefix + "wish WHERE name = '" + name + "'"
	l.Lock = sessionlock.New(l)
	return l
}

// Ping implements store.Lock, by one round trip.
func (l *lock) Ping(ctx context.Context) error {
	return l.Use(ctx, func(ctx context.Context) error {
		if err := l.ping(ctx); err != nil {
			return fmt.Errorf("ping the relay's lock: %w", err)
		}
		return nil
	})
}

// ping reads how many wishes there are. Whatever the server says to that, it has
// answered on the session that holds the lock.
func (l *lock) ping(ctx context.Context) error {
	var n int64
	err := l.conn.sqlConn.QueryRowContext(ctx, l.countQuery).Scan(&n)
	switch said := code(err); {
	case err == nil:
		l.requests = n
	case errors.Is(err, sql.ErrNoRows), said == codeNoTable, said == codeTableDenied, said == codeColumnDenied, said == codeDatabaseDenied:
		l.requests = 0
	case said == 0 || sessionLost(err):
		return err
	}
	return nil
}

// RequestCount implements store.Lock.
func (l *lock) RequestCount() int64 { return l.requests }

// Watch implements store.Lock: a server that ends a session hangs up.
func (l *lock) Watch(ctx context.Context) error { return l.Use(ctx, l.conn.wire.watch) }

// Release implements store.Lock.
func (l *lock) Release() {
	l.Lock.Release()
	l.lifetime.Remove(l)
}

// Close is Release, at the end of the store.
func (l *lock) Close() { l.Release() }

// Lost implements sessionlock.Session: only a call finds it out.
func (l *lock) Lost() bool { return false }

// Unlock implements sessionlock.Session.
func (l *lock) Unlock(ctx context.Context) {
	l.locker.CompareAndSwap(l.conn.server.session, 0)
	_, _ = l.conn.sqlConn.ExecContext(ctx, "DO RELEASE_ALL_LOCKS()") // the session is given up either way
}

// Drop implements sessionlock.Session.
func (l *lock) Drop() { l.conn.close() }
