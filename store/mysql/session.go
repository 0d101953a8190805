package mysql

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lifetime"
	"github.com/sluicebox/sluicebox/store/internal/session"
)

// errConnDone is the error of a session that was closed during a call.
var errConnDone = sql.ErrConnDone

// link is the server session behind a session.Session: opened on demand, and dropped when
// a call on it fails. It serves one call at a time.
type link struct {
	*session.Session
	cfg      *mysql.Config
	settings map[string]string
	lifetime *lifetime.Lifetime
	// keepAlive pings the session so that the server does not end it between calls.
	keepAlive bool
	check     func(context.Context, *conn) error // runs on each new session; may be nil

	conn   *conn
	unused bool         // conn has served no call yet
	id     atomic.Int64 // connection id of conn's session; 0 if there is none

	noWaitUntil time.Time // calls wait for no row lock until then; guarded by the session's token
}

func newLink(cfg *mysql.Config, settings map[string]string, lt *lifetime.Lifetime) *link {
	l := &link{cfg: cfg, settings: settings, lifetime: lt}
	l.Session = session.New(lt, l)
	return l
}

// do runs fn on the session. If the server had ended the session since the last call, for
// example because it was idle for store.MinLockLease, do runs fn once more on a new
// session. The server has rolled back anything that the first run did.
func (l *link) do(ctx context.Context, fn func(context.Context, *conn) error) error {
	return l.Do(ctx, func(ctx context.Context) error {
		fresh := l.unused
		l.unused = false
		err := fn(ctx, l.conn)
		if err == nil || fresh || !sessionLost(err) || ctx.Err() != nil {
			return err
		}
		l.Drop()
		if err := l.Ready(ctx); err != nil {
			return err
		}
		l.unused = false
		return fn(ctx, l.conn)
	})
}

// Ready implements session.Link.
func (l *link) Ready(ctx context.Context) error {
	if l.conn != nil && l.conn.broken { // its call may have succeeded nevertheless
		l.Drop()
	}
	if l.conn != nil {
		return nil
	}

	c, err := dial(ctx, l.cfg, "READ COMMITTED", l.settings)
	if err != nil {
		return err
	}

	if l.check != nil {
		if err := l.check(ctx, c); err != nil {
			c.close()
			return err
		}
	}

	l.conn, l.unused = c, true
	l.id.Store(c.server.session)
	if l.keepAlive {
		l.lifetime.Go(func() { l.runKeepAlive(c) })
	}

	return nil
}

// Survives implements session.Link.
func (l *link) Survives(err error) bool {
	if l.conn == nil || l.conn.broken {
		return false
	}
	var refused *store.RefusedError
	var locked *store.LockedError
	return errors.As(asRefused(err), &refused) || errors.As(err, &locked) || errors.Is(err, store.ErrNotLeader) ||
		errors.Is(err, store.ErrNoCheckpoint) || errors.Is(err, store.ErrInterrupted)
}

// Drop implements session.Link.
func (l *link) Drop() {
	if l.conn != nil {
		l.detach().close()
	}
}

// detach hands the session over to the caller, who must close it.
func (l *link) detach() *conn {
	c := l.conn
	l.conn = nil
	l.id.Store(0)
	return c
}

// keepAliveInterval is how often an idle session is pinged, so that the server does not
// end it. It is well below store.MinLockLease.
const keepAliveInterval = 1500 * time.Millisecond

// pingTimeout bounds the ping of an idle session.
const pingTimeout = time.Second

// runKeepAlive pings a session until it is closed. It skips a session that is serving a
// call.
func (l *link) runKeepAlive(c *conn) {
	tick := time.NewTicker(keepAliveInterval)
	defer tick.Stop()
	for {
		select {
		case <-c.closed:
			return
		case <-tick.C:
			l.TryDo(func() { l.ping(c) })
		}
	}
}

func (l *link) ping(c *conn) {
	if l.conn != c {
		return
	}
	ctx, cancel := l.lifetime.Bind(context.Background())
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, pingTimeout)
	defer stop()
	if err := c.sqlConn.PingContext(ctx); err != nil {
		l.Drop()
	}
}
