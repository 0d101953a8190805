package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/sessions"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// lockSettings are the settings of the session that holds the lock. The server ends the
// session, and with it the lock, after store.MinLockLease without a statement, so a
// frozen or disconnected relay does not keep others from leading. lock_timeout keeps a
// ping from waiting for a locked table, because that would cost the leadership.
func lockSettings() map[string]string {
	return map[string]string{
		"idle_session_timeout": strconv.FormatInt(store.MinLockLease.Milliseconds(), 10) + "ms",
		"lock_timeout":         "250ms",
	}
}

// lockKey returns the key of a relay's advisory lock. It is a hash of a text that only
// relays hash, so an application's own keys do not collide with it.
func lockKey(name string) int64 {
	hash := sha256.Sum256([]byte("sluicebox leader\x00" + name))
	return int64(binary.BigEndian.Uint64(hash[:8]))
}

var errInRecovery = errors.New("server is in recovery: a standby accepts no writes before its promotion")

// Lock implements store.Locker by an advisory lock on a session of its own. The session
// stays open between attempts, so that each attempt costs one or two round trips. If the
// server ended the session meanwhile, Lock opens a new one at once. A server in recovery
// is Unreachable: its locks are not the primary's.
func (s *Store) Lock(ctx context.Context) (store.Lock, error) {
	var acquired *lock
	var ended bool // the server closed the connection between two attempts
	try := func(ctx context.Context, sess *session) (err error) {
		conn, kept := sess.conn, sess.conn == s.candidate
		s.candidate = conn
		acquired, err = s.tryLock(ctx, sess)
		ended = err != nil && kept && conn.IsClosed()
		return err
	}

	err := s.lockSession.do(ctx, try)
	if ended {
		err = s.lockSession.do(ctx, try)
	}
	if err != nil {
		return nil, fmt.Errorf("acquire relay lock: %w", Explain(err))
	}
	return acquired, nil
}

// tryLock takes over the session's connection if it gets the lock.
func (s *Store) tryLock(ctx context.Context, sess *session) (*lock, error) {
	const try = `
SELECT pg_catalog.pg_is_in_recovery(), CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_try_advisory_lock($1) ELSE false END`
	var inRecovery, acquired bool
	if err := sess.conn.QueryRow(ctx, try, lockKey(s.name)).Scan(&inRecovery, &acquired); err != nil {
		return nil, err
	}

	switch {
	case inRecovery:
		return nil, errInRecovery
	case !acquired:
		holder, err := s.readHolder(ctx, sess.conn)
		if err != nil {
			return nil, err
		}
		return nil, &store.LockedError{Holder: holder}
	}

	l := newLock(sess.conn, s.name, s.lifetime, &s.lockPID)
	if !s.lifetime.Add(l) {
		return nil, sessions.ErrClosed
	}

	s.lockPID.Store(sess.detach().PgConn().PID())
	return l, nil
}

// readHolder returns the holder in the leader row. It returns "" if there is no row, or
// if this program or role cannot read it; other calls report that.
func (s *Store) readHolder(ctx context.Context, conn *pgx.Conn) (holder string, err error) {
	err = conn.QueryRow(ctx, "SELECT holder FROM sluicebox.leader WHERE name = $1", s.name).Scan(&holder)
	var pg *pgconn.PgError
	if errors.Is(err, pgx.ErrNoRows) || errors.As(err, &pg) && !conn.IsClosed() {
		return "", nil
	}
	return holder, err
}

// lock is an advisory lock and the session that holds it.
type lock struct {
	*sessions.Lock
	conn     *pgx.Conn
	lifetime *sessions.Lifetime
	locker   *atomic.Uint32 // the store's lockPID

	countQuery      string // reads the number of requests
	requests        int64
	countUnreadable bool // the table of requests is missing or unreadable
}

func newLock(conn *pgx.Conn, name string, life *sessions.Lifetime, locker *atomic.Uint32) *lock {
	l := &lock{conn: conn, lifetime: life, locker: locker}
	// The simple protocol takes no parameters, and a relay's name needs no quoting.
	l.countQuery = "SELECT (SELECT version FROM sluicebox.record WHERE name = '" + name + "' AND kind = '" + ledger.RelayKind + "' AND key = '" + ledger.Requests + "')"
	l.Lock = sessions.NewLock(l)
	return l
}

// Ping implements store.Lock with one round trip.
func (l *lock) Ping(ctx context.Context) error {
	return l.Use(ctx, func(ctx context.Context) error {
		if err := l.ping(ctx); err != nil {
			return fmt.Errorf("ping relay lock: %w", err)
		}
		return nil
	})
}

// countReadableQuery checks whether the role may read the table of requests. Reading it
// anyway would write an error to the server's log every second.
const countReadableQuery = `SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'sluicebox' AND c.relname = 'record'`

// ping reads the number of requests. Any response of the server proves that the session
// that holds the lock is alive.
func (l *lock) ping(ctx context.Context) error {
	sql := l.countQuery
	if l.countUnreadable {
		sql = countReadableQuery
	}

	text, err := l.queryText(ctx, sql)
	var pgErr *pgconn.PgError
	switch {
	case err == nil && l.countUnreadable:
		l.countUnreadable = text != "t"
	case err == nil:
		l.requests, _ = strconv.ParseInt(text, 10, 64) // "" is none
	case !errors.As(err, &pgErr) || l.conn.IsClosed():
		return err
	case pgErr.Code == "42P01" || pgErr.Code == "3F000" || pgErr.Code == "42501": // undefined_table, invalid_schema_name, insufficient_privilege
		l.requests, l.countUnreadable = 0, true
	}

	return nil
}

// queryText runs a statement and returns its single value, "" if there is none.
func (l *lock) queryText(ctx context.Context, statement string) (value string, err error) {
	results, err := l.conn.PgConn().Exec(ctx, statement).ReadAll()
	if err == nil && len(results) > 0 && len(results[0].Rows) > 0 {
		value = string(results[0].Rows[0][0])
	}
	return value, err
}

// RequestCount implements store.Lock.
func (l *lock) RequestCount() int64 { return l.requests }

// Watch implements store.Lock. It relies on the server to announce the end of a session.
func (l *lock) Watch(ctx context.Context) error {
	return l.Use(ctx, func(ctx context.Context) error {
		for {
			_, err := l.conn.WaitForNotification(ctx)
			switch {
			case err == nil: // the relay listens on no channel
			case ctx.Err() != nil && !l.conn.IsClosed():
				return nil
			default:
				return fmt.Errorf("relay lock session lost: %w", err)
			}
		}
	})
}

// Release implements store.Lock. It returns when the connection is closed, or after
// store.CloseTimeout if the server does not respond.
func (l *lock) Release() {
	l.Lock.Release()
	select {
	case <-l.conn.PgConn().CleanupDone():
	case <-time.After(store.CloseTimeout):
	}
	l.lifetime.Remove(l)
}

// Close is Release, called when the store closes.
func (l *lock) Close() { l.Release() }

// Lost implements sessions.Holder.
func (l *lock) Lost() bool { return l.conn.IsClosed() }

// Unlock implements sessions.Holder.
func (l *lock) Unlock(ctx context.Context) {
	l.locker.CompareAndSwap(l.conn.PgConn().PID(), 0)
	_, _ = l.conn.PgConn().Exec(ctx, "SELECT pg_catalog.pg_advisory_unlock_all()").ReadAll() // the session is dropped either way
}

// Drop implements sessions.Holder.
func (l *lock) Drop() { discard(l.lifetime, l.conn) }
