package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/store"
)

// DiagnoseLockTimeout bounds the wait for a locked table during a diagnosis. Without a
// lock its queries return at once.
const DiagnoseLockTimeout = "1s"

// IsLockTimeout reports whether a lock was not acquired in time.
func IsLockTimeout(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "55P03" // lock_not_available
}

// LockersRemedy lists the sessions that hold a lock which blocks even readers of a table
// of the database, or wait for one.
const LockersRemedy = "-- shows the session; wait for it, or end it with pg_terminate_backend\n" +
	"SELECT l.relation::regclass, l.granted, a.pid, a.usename, a.application_name, a.state, a.xact_start, a.query " +
	"FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.mode = 'AccessExclusiveLock' AND l.locktype = 'relation' " +
	"AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) ORDER BY l.granted DESC, a.xact_start;"

// reportLocked reports a table lock, and its holder if the lock is on the table itself.
func (c *checker) reportLocked(ctx context.Context, t *table) error {
	const holder = `
SELECT format(', pid %s, user "%s", application "%s"', l.pid, a.usename, a.application_name)
FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.relation = $1 AND l.mode = 'AccessExclusiveLock' AND l.pid <> pg_catalog.pg_backend_pid()
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
ORDER BY l.granted DESC, l.pid LIMIT 1`
	var who string
	if err := c.conn.QueryRow(ctx, holder, t.oid).Scan(&who); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	c.Add(store.GradeAdvice, fmt.Sprintf("a session holds a lock on %s that blocks even reads%s: the relay waits for it", TableName(t.Outbox), who), LockersRemedy)
	return nil
}
