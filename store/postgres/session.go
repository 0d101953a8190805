package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/sessions"
	"github.com/sluicebox/sluicebox/store/ledger"
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

	used       time.Time // when the last call ended
	skipLocked time.Time // calls skip locked rows until then

	turns map[store.Ref]int // reused by each call of Settle
}

// trustedIdle is for how long a connection may be unused before a call tests it. A server that restarted meanwhile has
// ended it, and a failed call would cost its caller a backoff. The test is one round trip.
// It is longer than the usual poll-interval.
const trustedIdle = 2 * time.Second

func newSession(cfg *pgx.ConnConfig, life *sessions.Lifetime) *session {
	s := &session{cfg: cfg, lifetime: life, turns: map[store.Ref]int{}}
	s.Session = sessions.New(life, s)
	return s
}

// openSession returns a session that opens its connection when a call needs it.
func openSession(cfg Config, purpose string, settings map[string]string, life *sessions.Lifetime) (*session, error) {
	conn, err := sessionConfig(cfg, purpose, settings)
	if err != nil {
		return nil, err
	}
	return newSession(conn, life), nil
}

// applicationName is the name of the session on the server.
func (s *session) applicationName() string { return s.cfg.RuntimeParams["application_name"] }

// seat is a session as one of the stores that share it uses it.
type seat struct {
	*session
	life *sessions.Lifetime // of the store
}

// do runs fn on the session's connection. It returns sessions.ErrClosed after the end of the store.
func (s seat) do(ctx context.Context, fn func(context.Context, *session) error) error {
	if s.life == s.lifetime {
		return s.session.do(ctx, fn)
	}
	return s.life.Do(ctx, func(ctx context.Context) error { return s.session.do(ctx, fn) })
}

// rowSessions are the sessions for everything but leadership. They know no relay: statements name it.
type rowSessions struct {
	claims, operator, spill, replay, tables *session
	outcomes                                [2]*session
	settling                                *sessions.Pair // chooses one of outcomes
}

func newRowSessions(cfg Config, life *sessions.Lifetime) (*rowSessions, error) {
	set := &rowSessions{}
	for _, to := range []struct {
		session  **session
		purpose  string
		settings map[string]string
	}{
		{&set.claims, "claims", rowSettings("250ms")},
		{&set.outcomes[0], "outcomes", rowSettings("250ms")},
		{&set.outcomes[1], "outcomes 2", rowSettings("250ms")},
		{&set.tables, "tables", rowSettings(awaitTimeout)},
		{&set.operator, "operator", operatorSettings()},
		{&set.spill, "spilling", spillSettings()},
		{&set.replay, "replay", spillSettings()},
	} {
		var err error
		if *to.session, err = openSession(cfg, to.purpose, to.settings, life); err != nil {
			return nil, err
		}
		(*to.session).CloseIdle(cfg.IdleTimeout)
	}
	second := set.outcomes[1]
	set.settling = sessions.NewPair(life, func(ctx context.Context) error {
		return second.do(ctx, func(ctx context.Context, sess *session) error { return sess.conn.Ping(ctx) })
	})
	return set, nil
}

func (r *rowSessions) all() []*session {
	return []*session{r.claims, r.outcomes[0], r.outcomes[1], r.operator, r.spill, r.replay, r.tables}
}

// do runs fn on the session's connection.
func (s *session) do(ctx context.Context, fn func(context.Context, *session) error) error {
	return s.Do(ctx, func(ctx context.Context) error {
		defer func() { s.used = time.Now() }()
		return fn(ctx, s)
	})
}

// Ready implements sessions.Link.
func (s *session) Ready(ctx context.Context) error {
	idle := time.Since(s.used)
	if s.conn != nil {
		if idle < trustedIdle || s.conn.Ping(ctx) == nil {
			return nil
		}
		s.Drop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
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
	if s.conn.IsClosed() || s.conn.PgConn().TxStatus() != 'I' {
		return false
	}
	// The server has rolled a refused statement back and is ready for the next one.
	var refused *store.RefusedError
	var locked *store.LockedError
	return errors.As(asRefused(err), &refused) || errors.As(err, &locked) ||
		errors.Is(err, store.ErrNotLeader) || errors.Is(err, store.ErrInterrupted) || ledger.IsAnswer(err)
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

// readRest reads the rest of a batch, the commit included.
func readRest(results pgx.BatchResults, err *error) {
	if closing := results.Close(); *err == nil {
		*err = closing
	}
}

const (
	// secondConnTimeout bounds the use of the second connection, because a pooler makes
	// it wait while all of its server sessions are in use.
	secondConnTimeout = 5 * time.Second
	// directRemedy is also the remedy if a pooler refuses a connection.
	directRemedy = "use the URL of the database itself, which has another port or another host, " +
		"for example port 5432 if the pooler listens on 6432"
)

// refusedByPooler returns a pooler's objection to one of the relay's sessions; "" if the
// error does not come from a pooler.
func refusedByPooler(pg *pgconn.PgError) string {
	switch {
	case pg.Code == "08P01" && strings.HasPrefix(pg.Message, "unsupported startup parameter"):
		return pg.Message // pgbouncer; a server knows all of them and reports unknown ones with another code
	case pg.Code == "42601" && strings.Contains(pg.Message, "IDENTIFY_SYSTEM"):
		return "it ignores the parameter that requests a replication session"
	}
	return ""
}

// checkDirect returns a *store.SetupError if a connection leads to a pooler that shares
// server sessions by transaction or by statement. A proxy that keeps one server session
// per connection is fine.
//
// The first test is one round trip: on a direct connection pg_backend_pid is the pid of
// the connection's cancel key. The proof needs a second connection. If that cannot be
// opened, nothing is proven and checkDirect returns nil.
func (s *Store) checkDirect(ctx context.Context, conn *pgx.Conn) error {
	pid, err := queryTextOn(ctx, conn.PgConn(), "SELECT pg_backend_pid()")
	if err != nil {
		return fmt.Errorf("identify server session: %w", err)
	}
	if pid == strconv.FormatUint(uint64(conn.PgConn().PID()), 10) {
		return nil
	}

	bounded, cancel := context.WithTimeout(ctx, secondConnTimeout)
	defer cancel()
	second, err := connect(bounded, conn.Config())
	if err != nil {
		return ctx.Err()
	}
	defer discard(s.lifetime, second)
	shared, err := s.sharesServerSession(ctx, bounded, [2]*pgconn.PgConn{conn.PgConn(), second.PgConn()})
	if err != nil || !shared {
		return err
	}
	return &store.SetupError{
		Problem: fmt.Sprintf("transaction pooler between the relay and the database (%s:%d): "+
			"the relay's lock and prepared statements need server sessions of their own", conn.Config().Host, conn.Config().Port),
		Remedy: directRemedy,
	}
}

// sharesServerSession reports whether one server session served two connections that are
// open at once, or two served one connection.
func (s *Store) sharesServerSession(ctx, second context.Context, conns [2]*pgconn.PgConn) (bool, error) {
	// The pid alone is not enough, because two servers may each have a process with it.
	const session = "SELECT pg_backend_pid() || ' since ' || extract(epoch FROM pg_postmaster_start_time())"
	// The first connection is used twice at the start, to detect a pooler that assigns
	// sessions in turn. Later the order varies, to detect one that has two sessions.
	order := []int{0, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1, 1}
	var served [2]string
	for _, i := range order {
		queryCtx := ctx
		if i == 1 {
			queryCtx = second
		}
		server, err := queryTextOn(queryCtx, conns[i], session)
		switch {
		case err != nil && i == 1:
			return false, ctx.Err() // nothing is proven
		case err != nil:
			return false, fmt.Errorf("identify server session: %w", err)
		case served[i] != "" && server != served[i], server == served[1-i]:
			return true, nil
		}
		served[i] = server
	}

	return false, nil
}

// queryTextOn reads one value without a prepared statement, because a pooler may lose
// that.
func queryTextOn(ctx context.Context, conn *pgconn.PgConn, sql string) (string, error) {
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return "", Explain(err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != 1 {
		return "", fmt.Errorf("unexpected result of %q", sql)
	}
	return string(results[0].Rows[0][0]), nil
}
