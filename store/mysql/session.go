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
	life     *lifetime.Lifetime
	// awake keeps the session from being ended by the server while no call comes.
	awake bool
	check func(context.Context, *conn) error // what to ask of a new session; may be nil

	conn  *conn
	fresh bool         // conn has served no call yet
	id    atomic.Int64 // of conn's session, 0 without one

	hurryUntil time.Time // calls wait for no row until then; their turn guards it
}

func newLink(cfg *mysql.Config, settings map[string]string, life *lifetime.Lifetime) *link {
	l := &link{cfg: cfg, settings: settings, life: life}
	l.Session = session.New(life, l)
	return l
}

// do runs fn on the session. Where the server had ended it meanwhile, as it does
// with one that says nothing for store.LockHold, fn runs once more, on a new one:
// what it did before, if anything, was taken back.
func (l *link) do(ctx context.Context, fn func(context.Context, *conn) error) error {
	return l.Do(ctx, func(ctx context.Context) error {
		fresh := l.fresh
		l.fresh = false
		err := fn(ctx, l.conn)
		if err == nil || fresh || !lost(err) || ctx.Err() != nil {
			return err
		}
		l.Drop()
		if err := l.Ready(ctx); err != nil {
			return err
		}
		l.fresh = false
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
	l.conn, l.fresh = c, true
	l.id.Store(c.server.session)
	if l.awake {
		l.life.Go(func() { l.keepAwake(c) })
	}
	return nil
}

// Keeps implements session.Link.
func (l *link) Keeps(err error) bool {
	if l.conn == nil || l.conn.broken {
		return false
	}
	var refused *store.RefusedError
	var locked *store.LockedError
	return errors.As(refusal(err), &refused) || errors.As(err, &locked) || errors.Is(err, store.ErrNotLeader) ||
		errors.Is(err, store.ErrNoCheckpoint) || errors.Is(err, store.ErrInterrupted)
}

// Drop implements session.Link.
func (l *link) Drop() {
	if l.conn != nil {
		l.take().close()
	}
}

// take hands the session over to the caller, who is to close it.
func (l *link) take() *conn {
	c := l.conn
	l.conn = nil
	l.id.Store(0)
	return c
}

// wakeEvery is how often a session is asked for nothing, so that the server does
// not end it. It is well below silence.
const wakeEvery = 1500 * time.Millisecond

// keepAwake wakes a session until it is given up. One that serves a call just then
// needs no waking.
func (l *link) keepAwake(c *conn) {
	tick := time.NewTicker(wakeEvery)
	defer tick.Stop()
	for {
		select {
		case <-c.gone:
			return
		case <-tick.C:
			l.IfFree(func() { l.wake(c) })
		}
	}
}

func (l *link) wake(c *conn) {
	if l.conn != c {
		return
	}
	ctx, cancel := l.life.Bind(context.Background())
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, goodbye)
	defer stop()
	if err := c.on.PingContext(ctx); err != nil {
		l.Drop()
	}
}
