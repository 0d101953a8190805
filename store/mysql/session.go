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

// errConnDone is what a session says that was closed under a call.
var errConnDone = sql.ErrConnDone

// link is the session of the server that a call uses, opened when it is needed and
// given up when a call on it fails. It serves one call at a time.
type link struct {
	*session.Session
	cfg      *mysql.Config
	settings map[string]string
	lifetime *lifetime.Lifetime
	// keepAlive keeps the session from being ended by the server while no call comes.
	keepAlive bool
	check     func(context.Context, *conn) error // what to ask of a new session; may be nil

	conn   *conn
	unused bool         // conn has served no call yet
	id     atomic.Int64 // of conn's session, 0 without one

	noWaitUntil time.Time // calls wait for no row until then; their turn guards it
}

func newLink(cfg *mysql.Config, settings map[string]string, life *lifetime.Lifetime) *link {
	l := &link{cfg: cfg, settings: settings, lifetime: life}
	l.Session = session.New(life, l)
	return l
}

// do runs fn on the session. Where the server had ended it meanwhile, as it does
// with one that says nothing for store.MinLockLease, fn runs once more, on a new one:
// what it did before, if anything, was taken back.
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
	if l.conn != nil && l.conn.broken { // its call has ended well all the same
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

// detach hands the session over to the caller, who is to close it.
func (l *link) detach() *conn {
	c := l.conn
	l.conn = nil
	l.id.Store(0)
	return c
}

// keepAliveInterval is how often a session is asked for nothing, so that the server does
// not end it. It is well below silence.
const keepAliveInterval = 1500 * time.Millisecond

// runKeepAlive wakes a session until it is given up. One that serves a call just then
// needs no waking.
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
	ctx, stop := context.WithTimeout(ctx, closeTimeout)
	defer stop()
	if err := c.sqlConn.PingContext(ctx); err != nil {
		l.Drop()
	}
}
