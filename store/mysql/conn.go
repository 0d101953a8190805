package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/sessions"
	"github.com/sluicebox/sluicebox/store/ledger"
)

const (
	// maxStatements is the maximum number of prepared statements per session.
	maxStatements = 200
	// maxDeadlockTries limits how often a transaction starts over after a deadlock.
	maxDeadlockTries = 5
)

// conn is one session of the server. Between two calls it has no open transaction.
type conn struct {
	pool    *sql.DB // holds this session only
	sqlConn *sql.Conn
	wire    *watchedConn
	server  server
	closed  chan struct{} // closed with the session

	statements map[string]*sql.Stmt
	tables     map[string]*table // cached descriptions of the outboxes' tables, by outbox name
	broken     bool              // the state of the session is unknown
}

// dial opens a session with the given settings, whose values are SQL.
func dial(ctx context.Context, cfg *mysql.Config, level string, settings map[string]string) (*conn, error) {
	clone, w := cfg.Clone(), &watchedConn{}
	clone.DialFunc = dialWatched(w)
	clone.Params = maps.Clone(settings)
	connector, err := mysql.NewConnector(clone)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.Addr, err)
	}

	c := &conn{pool: sql.OpenDB(connector), wire: w, closed: make(chan struct{}), statements: map[string]*sql.Stmt{}, tables: map[string]*table{}}
	c.pool.SetMaxOpenConns(1)
	if err := c.open(ctx, level); err != nil {
		c.close()
		return nil, fmt.Errorf("connect to %s: %w", cfg.Addr, Explain(err))
	}

	return c, nil
}

func (c *conn) open(ctx context.Context, level string) (err error) {
	if c.sqlConn, err = c.pool.Conn(ctx); err != nil {
		return err
	}
	if _, err = c.sqlConn.ExecContext(ctx, isolation(level)); err != nil {
		return err
	}

	if c.server, err = queryServer(ctx, c.sqlConn); err != nil {
		return err
	}
	if minVersion, tooOld := c.server.tooOld(); tooOld {
		return &store.SetupError{Problem: c.server.name() + " " + c.server.version + " is too old", Remedy: "use " + minVersion + " or later"}
	}

	return c.rollback(ctx)
}

// close ends the session. It takes at most store.CloseTimeout and must be called once.
func (c *conn) close() {
	close(c.closed)
	if c.wire.Conn != nil {
		_ = c.wire.SetDeadline(time.Now().Add(store.CloseTimeout)) // the session is closed either way
	}
	if c.sqlConn != nil {
		_ = c.sqlConn.Close()
	}
	_ = c.pool.Close()
}

// prepare returns a statement that stays prepared.
func (c *conn) prepare(ctx context.Context, text string) (*sql.Stmt, error) {
	if s, ok := c.statements[text]; ok {
		return s, nil
	}
	if len(c.statements) >= maxStatements {
		for old, s := range c.statements {
			_ = s.Close() // the server drops it with the session anyway
			delete(c.statements, old)
		}
	}

	s, err := c.sqlConn.PrepareContext(ctx, text)
	if err == nil {
		c.statements[text] = s
	}
	return s, err
}

// exec runs a statement and returns how many rows it matched.
func (c *conn) exec(ctx context.Context, text string, args ...any) (int64, error) {
	s, err := c.prepare(ctx, text)
	if err != nil {
		return 0, err
	}
	result, err := s.ExecContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// query runs a statement and calls read for each row.
func (c *conn) query(ctx context.Context, text string, args []any, read func(rows *sql.Rows) error) error {
	s, err := c.prepare(ctx, text)
	if err != nil {
		return err
	}

	rows, err := s.QueryContext(ctx, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // rows.Err returns its error
	for rows.Next() {
		if err := read(rows); err != nil {
			return err
		}
	}

	return rows.Err()
}

// row reads the single row of a statement. It returns sql.ErrNoRows if there is none.
func (c *conn) row(ctx context.Context, text string, args []any, into ...any) error {
	s, err := c.prepare(ctx, text)
	if err != nil {
		return err
	}
	return s.QueryRowContext(ctx, args...).Scan(into...)
}

// variable returns a global variable; "" if the server does not have it.
func (c *conn) variable(ctx context.Context, name string) (string, error) {
	var found, value string
	err := c.sqlConn.QueryRowContext(ctx, "SHOW GLOBAL VARIABLES LIKE '"+literal(name)+"'").Scan(&found, &value)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return value, err
}

// isOn reports whether a global variable is on; a variable that the server lacks is off.
func (c *conn) isOn(ctx context.Context, name string) (bool, error) {
	value, err := c.variable(ctx, name)
	return strings.EqualFold(value, "ON") || value == "1", err
}

// tx runs do in a transaction; every session has autocommit off. It starts over after a
// deadlock, which the server has rolled back.
func (c *conn) tx(ctx context.Context, do func() error) error {
	for try := 1; ; try++ {
		err := do()
		if err == nil {
			if _, err := c.sqlConn.ExecContext(ctx, "COMMIT"); err != nil {
				c.broken = true
				return &commitError{err}
			}
			return nil
		}
		if rollbackErr := c.rollback(ctx); rollbackErr != nil || code(err) != codeDeadlock || try == maxDeadlockTries {
			return err
		}
	}
}

func (c *conn) rollback(ctx context.Context) error {
	_, err := c.sqlConn.ExecContext(ctx, "ROLLBACK")
	if err != nil {
		c.broken = true
	}
	return err
}

// commitError means that it is unknown whether a transaction was committed.
type commitError struct{ err error }

func (e *commitError) Error() string { return "commit: " + e.err.Error() }

func (e *commitError) Unwrap() error { return e.err }

// table returns the description of an outbox's table. The first use in this session looks
// it up.
func (c *conn) table(ctx context.Context, o *store.Outbox) (*table, error) {
	if t, ok := c.tables[o.Name]; ok {
		return t, nil
	}
	t, err := describe(ctx, c, o)
	if err != nil {
		return nil, err
	}
	c.tables[o.Name] = t
	return t, nil
}

// tableAltered reports whether an outbox's table has other columns than this session
// knows. If so it drops the cached description, so that no row is reported gone because
// of an outdated one.
func (c *conn) tableAltered(ctx context.Context, o *store.Outbox) (bool, error) {
	known, ok := c.tables[o.Name]
	if !ok {
		return false, nil
	}
	now, err := readColumns(ctx, c, o)
	if err != nil || slices.Equal(now, known.Columns) {
		return false, err
	}
	delete(c.tables, o.Name)
	return true, nil
}

// keepAlive detects a silent host: TCP probes start after 5 s of silence, which is later
// than the lock expires, and the connection fails after 14 s.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 3 * time.Second, Count: 3}
}

// watchedConn is the network connection of a session.
type watchedConn struct {
	net.Conn

	mu       sync.Mutex
	buffered []byte // bytes received while watching
}

// dialWatched returns a dial function that stores its connection in w.
func dialWatched(w *watchedConn) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		dialer := net.Dialer{KeepAliveConfig: keepAlive()}
		conn, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		w.Conn = conn
		return w, nil
	}
}

// Read implements net.Conn.
func (w *watchedConn) Read(p []byte) (int, error) {
	w.mu.Lock()
	if len(w.buffered) > 0 {
		n := copy(p, w.buffered)
		w.buffered = w.buffered[n:]
		w.mu.Unlock()
		return n, nil
	}
	w.mu.Unlock()
	return w.Conn.Read(p)
}

// watch waits until the context ends, while no statement runs, and then returns nil. An
// idle session receives nothing but the server's notice that it ends, so any byte means
// that the session is over.
func (w *watchedConn) watch(ctx context.Context) error {
	unblocked := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = w.SetReadDeadline(time.Unix(1, 0)) // long past; fails only on a closed connection
		close(unblocked)
	})

	var b [1]byte
	n, err := w.Conn.Read(b[:])
	if !stop() {
		<-unblocked
	}

	if n > 0 {
		w.mu.Lock()
		w.buffered = append(w.buffered, b[:n]...)
		w.mu.Unlock()
		return errors.New("server ended the session")
	}

	if errors.Is(err, os.ErrDeadlineExceeded) {
		return w.SetReadDeadline(time.Time{})
	}
	return fmt.Errorf("server ended the session: %w", err)
}

// errConnDone is the error of a session that was closed during a call.
var errConnDone = sql.ErrConnDone

// link is the server session behind a sessions.Session: opened on demand, and dropped when
// a call on it fails. It serves one call at a time.
type link struct {
	*sessions.Session
	cfg      *mysql.Config
	settings map[string]string
	lifetime *sessions.Lifetime
	// keepAlive pings the session so that the server does not end it between calls.
	keepAlive bool
	check     func(context.Context, *conn) error // runs on each new session; may be nil

	conn   *conn
	unused bool         // conn has served no call yet
	id     atomic.Int64 // connection id of conn's session; 0 if there is none

	// Of the calls that use the session, and guarded by its token.
	noWaitUntil      time.Time // they wait for no row lock until then
	lookupFirstUntil time.Time // claims use the locking read until then
}

// rowLinks are the sessions for everything but leadership. They know no relay: statements name it.
type rowLinks struct {
	claims, operator, spill, replay, tables *link
	outcomes                                [2]*link
	settling                                *sessions.Pair // chooses one of outcomes
}

func newRowLinks(cfg *Config, life *sessions.Lifetime) (*rowLinks, error) {
	set := &rowLinks{}
	for _, to := range []struct {
		link         **link
		purpose      string
		wait         time.Duration
		hot, inBrief bool // hot: it runs scripts, again and again; inBrief: it waits for locked tables for a short time
	}{
		{&set.claims, "claims", claimWait, true, true},
		{&set.outcomes[0], "outcomes", outcomeWait, true, true},
		{&set.outcomes[1], "outcomes 2", outcomeWait, true, true},
		{&set.tables, "tables", outcomeWait, false, true},
		{&set.operator, "operator", lockWait, false, false},
		{&set.spill, "spilling", lockWait, false, false},
		{&set.replay, "replay", lockWait, false, false},
	} {
		l, err := openLink(cfg, to.purpose, to.wait, life)
		if err != nil {
			return nil, err
		}
		if to.hot {
			l.cfg.MultiStatements, l.cfg.InterpolateParams, l.keepAlive = true, true, true
		}
		if to.inBrief {
			l.settings["lock_wait_timeout"] = seconds(tableWait)
		}
		*to.link = l
	}
	second := set.outcomes[1]
	second.keepAlive = false // it is used while many outcomes wait
	set.settling = sessions.NewPair(life, func(ctx context.Context) error {
		return second.do(ctx, func(ctx context.Context, c *conn) error { return c.sqlConn.PingContext(ctx) })
	})
	return set, nil
}

func (r *rowLinks) all() []*link {
	return []*link{r.claims, r.outcomes[0], r.outcomes[1], r.operator, r.spill, r.replay, r.tables}
}

// openLink returns a session for a purpose, whose statements wait that long for a row lock.
func openLink(cfg *Config, purpose string, wait time.Duration, life *sessions.Lifetime) (*link, error) {
	url, err := sessionURL(cfg, purpose)
	if err != nil {
		return nil, err
	}
	return newLink(url, writeSettings(wait), life), nil
}

// sessionURL returns how to open a session for a purpose.
func sessionURL(cfg *Config, purpose string) (*mysql.Config, error) {
	url, err := ParseURL(cfg.URL, "sluicebox "+cfg.Name+" "+purpose)
	if err == nil {
		err = SetPassword(url, cfg.Password)
	}
	return url, err
}

// seat is a session as one of the stores that share it uses it.
type seat struct {
	*link
	life *sessions.Lifetime // of the store
}

// do runs fn on the session. It returns sessions.ErrClosed after the end of the store.
func (s seat) do(ctx context.Context, fn func(context.Context, *conn) error) error {
	if s.life == s.lifetime {
		return s.link.do(ctx, fn)
	}
	return s.life.Do(ctx, func(ctx context.Context) error { return s.link.do(ctx, fn) })
}

func newLink(cfg *mysql.Config, settings map[string]string, lt *sessions.Lifetime) *link {
	l := &link{cfg: cfg, settings: settings, lifetime: lt}
	l.Session = sessions.New(lt, l)
	return l
}

// do runs fn on the session. If the server had ended the session since the last call, for
// example because it was idle for store.MinLockLease, do runs fn once more on a new
// session. So it does after a run that was silent for that long. The server has rolled back
// anything that the first run did.
func (l *link) do(ctx context.Context, fn func(context.Context, *conn) error) error {
	return l.Do(ctx, func(ctx context.Context) error {
		fresh := l.unused
		l.unused = false
		err := fn(ctx, l.conn)
		if err == nil || fresh && !idledOut(err) || !sessionLost(err) || ctx.Err() != nil {
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

// Ready implements sessions.Link.
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

// Survives implements sessions.Link.
func (l *link) Survives(err error) bool {
	if l.conn == nil || l.conn.broken {
		return false
	}
	var refused *store.RefusedError
	var locked *store.LockedError
	return errors.As(asRefused(err), &refused) || errors.As(err, &locked) || errors.Is(err, store.ErrNotLeader) ||
		ledger.IsAnswer(err) || errors.Is(err, store.ErrInterrupted)
}

// Drop implements sessions.Link.
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
