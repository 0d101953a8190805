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
	"github.com/sluicebox/sluicebox/store/internal/sessions"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// lockName returns the name of the relay's lock. User locks belong to the server, not to
// a database, so the name includes both. The hash keeps it clear of an application's
// locks and below the limit of 64 characters.
func lockName(database, relay string) string {
	hash := sha256.Sum256([]byte(database + "\x00" + relay))
	return "sluicebox leader " + hex.EncodeToString(hash[:20])
}

var errReplica = errors.New("server is read-only: a replica accepts no writes before it is promoted")

// checkOnePrimary returns a *store.SetupError if several servers accept writes, because
// neither the lock nor the leader row of one server excludes a relay on another.
func checkOnePrimary(ctx context.Context, c *conn) error {
	cluster, err := c.server.multiPrimary(ctx, c)
	if err != nil || cluster == "" {
		return errors.Join(err, c.rollback(ctx))
	}
	return &store.SetupError{Problem: "several servers accept writes, " + cluster + ": two relays could lead at the same time", Remedy: onePrimary}
}

// onePrimary is the remedy for a cluster with several primaries.
const onePrimary = "use a server with one primary: a single server, with or without replicas, or a group in single-primary mode"

// Lock implements store.Locker with GET_LOCK on a session of its own. The session stays
// open between tries, so each try costs one or two round trips; a session that the server
// ended is replaced at once. A read-only server is Unreachable: its locks are not the
// primary's.
func (s *Store) Lock(ctx context.Context) (store.Lock, error) {
	var acquired *lock
	err := s.lockSession.do(ctx, func(ctx context.Context, c *conn) (err error) {
		acquired, err = s.tryLock(ctx, c)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("acquire relay lock: %w", Explain(err))
	}
	return acquired, nil
}

// tryLock takes over the session if it gets the lock.
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

	// A ping must read current rows, leave no transaction open, and not wait long for an
	// ALTER TABLE.
	if _, err := c.sqlConn.ExecContext(ctx, "SET SESSION autocommit = 1, lock_wait_timeout = 1"); err != nil {
		s.lockSession.Drop() // releases the lock as well
		return nil, err
	}

	l := newLock(s.lockSession.detach(), s.name, s.lifetime, &s.lockSessionID)
	s.lockSessionID.Store(l.conn.server.session)
	if !s.lifetime.Add(l) {
		l.Release()
		return nil, sessions.ErrClosed
	}

	return l, nil
}

// readHolder returns the leader's holder string; "" if it is unknown, for example because
// the relay's tables do not exist or the account cannot read them.
func (s *Store) readHolder(ctx context.Context, c *conn) (holder string, err error) {
	err = c.tx(ctx, func() error {
		return c.row(ctx, "SELECT l.holder FROM "+ownPrefix+"leader AS l WHERE l.name = ?", []any{s.name}, &holder)
	})
	if errors.Is(err, sql.ErrNoRows) || code(err) != 0 && !sessionLost(err) {
		return "", nil
	}
	return holder, err
}

// lock is the server's lock and the session that holds it.
type lock struct {
	*sessions.Lock
	conn     *conn
	lifetime *sessions.Lifetime
	locker   *atomic.Int64 // the store's lockSessionID

	countQuery string // statement that reads the request counter
	requests   int64
}

func newLock(c *conn, name string, lt *sessions.Lifetime, locker *atomic.Int64) *lock {
	l := &lock{conn: c, lifetime: lt, locker: locker}
	// A parameter would cost a second round trip. A relay's name needs no escaping.
	l.countQuery = "SELECT r.version FROM " + records + " WHERE r.name = '" + name + "' AND r.kind = '" + ledger.RelayKind + "' AND r.record_key = '" + ledger.Requests + "'"
	l.Lock = sessions.NewLock(l)
	return l
}

// Ping implements store.Lock in one round trip.
func (l *lock) Ping(ctx context.Context) error {
	return l.Use(ctx, func(ctx context.Context) error {
		if err := l.ping(ctx); err != nil {
			return fmt.Errorf("ping relay lock: %w", err)
		}
		return nil
	})
}

// ping reads the request counter. Any reply counts, an error included: the server
// answered on the session that holds the lock.
func (l *lock) ping(ctx context.Context) error {
	var n int64
	err := l.conn.sqlConn.QueryRowContext(ctx, l.countQuery).Scan(&n)
	switch errCode := code(err); {
	case err == nil:
		l.requests = n
	case errors.Is(err, sql.ErrNoRows), errCode == codeNoTable, errCode == codeTableDenied, errCode == codeColumnDenied, errCode == codeDatabaseDenied:
		l.requests = 0
	case errCode == 0 || sessionLost(err):
		return err
	}
	return nil
}

// RequestCount implements store.Lock.
func (l *lock) RequestCount() int64 { return l.requests }

// Watch implements store.Lock. A server that ends a session closes the connection.
func (l *lock) Watch(ctx context.Context) error { return l.Use(ctx, l.conn.wire.watch) }

// Release implements store.Lock.
func (l *lock) Release() {
	l.Lock.Release()
	l.lifetime.Remove(l)
}

// Close releases the lock when the store is closed.
func (l *lock) Close() { l.Release() }

// Lost implements sessions.Holder: only a call can notice the loss.
func (l *lock) Lost() bool { return false }

// Unlock implements sessions.Holder.
func (l *lock) Unlock(ctx context.Context) {
	l.locker.CompareAndSwap(l.conn.server.session, 0)
	_, _ = l.conn.sqlConn.ExecContext(ctx, "DO RELEASE_ALL_LOCKS()") // the session is closed either way
}

// Drop implements sessions.Holder.
func (l *lock) Drop() { l.conn.close() }
