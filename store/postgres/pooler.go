package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/store"
)

const (
	// secondConnTimeout bounds the use of the second connection: a pooler lets it
	// wait where all its own are taken.
	secondConnTimeout = 5 * time.Second
	// directRemedy is also the way out where a pooler refuses a connection.
	directRemedy = "give the URL of the database itself, which is another port or another host, " +
		"such as port 5432 where the pooler listens on 6432"
)

// refusedByPooler returns what a pooler has against a session of the relay's; ""
// if the error is none of a pooler's.
func refusedByPooler(pg *pgconn.PgError) string {
	switch {
	case pg.Code == "08P01" && strings.HasPrefix(pg.Message, "unsupported startup parameter"):
		return pg.Message // pgbouncer; a server knows them all, and has another code for others
	case pg.Code == "42601" && strings.Contains(pg.Message, "IDENTIFY_SYSTEM"):
		return "it passes over the parameter that asks for a replication session"
	}
	return ""
}

// checkDirect returns a *store.SetupError if a connection leads to a pooler that
// hands its server sessions out by transaction or by statement. A proxy that
// keeps one session for each connection is as good as none. The first test is one
// round trip: a session that the server itself opened bears the number by which
// it may be cancelled. The proof takes a second connection; where that cannot be
// had, nothing is proven and nil returned.
func (s *Store) checkDirect(ctx context.Context, conn *pgx.Conn) error {
	pid, err := queryTextOn(ctx, conn.PgConn(), "SELECT pg_backend_pid()")
	if err != nil {
		return fmt.Errorf("ask which session serves the connection: %w", err)
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
		Problem: fmt.Sprintf("a connection pooler by transaction stands between the relay and the database (%s:%d): "+
			"its lock and its prepared statements need sessions of their own", conn.Config().Host, conn.Config().Port),
		Remedy: directRemedy,
	}
}

// sharesServerSession reports whether two connections that are open at once were served by one
// session, or one of them by two.
func (s *Store) sharesServerSession(ctx, second context.Context, conns [2]*pgconn.PgConn) (bool, error) {
	// The number alone is not enough: two servers may each have one of it.
	const session = "SELECT pg_backend_pid() || ' since ' || extract(epoch FROM pg_postmaster_start_time())"
	// One is asked twice first, so that a pooler is seen that hands its sessions out
	// in turn, and never long in the same order, so that one is that has two.
	turns := []int{0, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1, 1}
	var served [2]string
	for _, who := range turns {
		asking := ctx
		if who == 1 {
			asking = second
		}
		by, err := queryTextOn(asking, conns[who], session)
		switch {
		case err != nil && who == 1:
			return false, ctx.Err() // nothing is proven
		case err != nil:
			return false, fmt.Errorf("ask which session serves the connection: %w", err)
		case served[who] != "" && by != served[who], by == served[1-who]:
			return true, nil
		}
		served[who] = by
	}
	return false, nil
}

// queryTextOn reads one value without a prepared statement, which a pooler may lose.
func queryTextOn(ctx context.Context, conn *pgconn.PgConn, sql string) (string, error) {
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return "", Explain(err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != 1 {
		return "", fmt.Errorf("the answer to %q has another form", sql)
	}
	return string(results[0].Rows[0][0]), nil
}
