package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/store"
)

const (
	// raiseTimeout bounds one wait for writes of an earlier leader. A claim of the
	// largest batch takes a tenth of it.
	raiseTimeout = "250ms"
	// tryTimeout bounds all waits of one try: writers that share the row follow each other, and the server waits
	// for raiseTimeout for each.
	tryTimeout = "500ms"
	// leadTimeout bounds the total wait of AcquireLeadership.
	leadTimeout = 5 * time.Second
)

// AcquireLeadership implements store.Leadership. A write that an earlier leader has begun
// may finish. If it does not finish soon, for example because its relay is frozen, its
// session is terminated.
func (s *Store) AcquireLeadership(ctx context.Context) (store.Epoch, error) {
	var epoch store.Epoch
	err := s.control.do(ctx, func(ctx context.Context, sess *session) (err error) {
		if epoch, err = s.raiseEpoch(ctx, sess.conn); err == nil {
			s.leaderConn = sess.conn
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("acquire leadership: %w", explainOwn(err))
	}
	return epoch, nil
}

// raiseEpoch raises the epoch and terminates the sessions that block it.
func (s *Store) raiseEpoch(ctx context.Context, conn *pgx.Conn) (store.Epoch, error) {
	age := raiseTimeout
	for start := time.Now(); ; age = "0" {
		epoch, err := s.tryRaiseEpoch(ctx, conn)
		if !IsLockTimeout(err) && !isStatementTimeout(err) {
			return epoch, err
		}
		blockers, termErr := s.terminateBlockers(ctx, conn, age)
		if termErr != nil {
			return 0, termErr
		}
		if time.Since(start) > leadTimeout {
			return 0, s.blockedError(blockers, err)
		}
	}
}

func (s *Store) tryRaiseEpoch(ctx context.Context, conn *pgx.Conn) (epoch store.Epoch, err error) {
	// A store that holds the lock raises the epoch only while its session still has the
	// lock: a store that was frozen in between must not depose its successor. pg_locks
	// shows the key in two halves.
	const raise = `
INSERT INTO sluicebox.leader AS l (name, epoch, raised_at, holder)
SELECT $1, 1, now(), $2
WHERE $3::int = 0 OR EXISTS (SELECT FROM pg_catalog.pg_locks AS k JOIN pg_catalog.pg_database AS d ON d.oid = k.database
  WHERE k.pid = $3 AND k.granted AND k.locktype = 'advisory' AND d.datname = current_database()
    AND (k.classid::bigint << 32) | k.objid::bigint = $4::bigint AND k.objsubid = 1)
ON CONFLICT (name) DO UPDATE SET epoch = l.epoch + 1, raised_at = now(), holder = excluded.holder
RETURNING epoch`

	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '"+raiseTimeout+"'; SET LOCAL statement_timeout = '"+tryTimeout+"'"); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, raise, s.name, s.holder, int64(s.lockPID.Load()), lockKey(s.name)).Scan(&epoch); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "SET LOCAL statement_timeout = DEFAULT") // the commit may wait for a standby
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		err = fmt.Errorf("relay lock lost: %w", store.ErrNotLeader)
	}
	return epoch, err
}

// blocker is a server process that holds more than a read lock on the table leader.
type blocker struct {
	pid         uint32
	application string
	reason      string // reason it could not be terminated
}

// blockersQuery selects the blockers in this database with transactions of at least that age. Younger transactions
// than raiseTimeout may use the rows of other relays, for a moment. A role may not see their age.
func blockersQuery(age string) string {
	return `
FROM pg_catalog.pg_stat_activity AS a
WHERE a.datname = current_database() AND a.pid <> pg_catalog.pg_backend_pid()
  AND EXISTS (SELECT FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_database AS d ON d.oid = l.database
    WHERE l.pid = a.pid AND l.granted AND l.locktype = 'relation' AND l.mode <> 'AccessShareLock'
      AND d.datname = current_database() AND l.relation = 'sluicebox.leader'::regclass)
  AND (a.xact_start < statement_timestamp() - interval '` + age + `') IS NOT FALSE`
}

// terminateBlockers terminates the blockers that are sessions of another store of this
// relay, and returns all blockers.
func (s *Store) terminateBlockers(ctx context.Context, conn *pgx.Conn, age string) ([]blocker, error) {
	rows, err := conn.Query(ctx, "SELECT a.pid, coalesce(a.application_name, '')"+blockersQuery(age))
	if err != nil {
		return nil, err
	}

	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k blocker, err error) {
		return k, row.Scan(&k.pid, &k.application)
	})
	if err != nil {
		return nil, err
	}

	own := s.writerPIDs()
	for i := range list {
		k := &list[i]
		if !slices.Contains(s.applicationNames, k.application) || slices.Contains(own, k.pid) {
			continue
		}
		// The query runs again, because the pid may belong to another process by now.
		_, err := conn.Exec(ctx, "SELECT pg_catalog.pg_terminate_backend(a.pid)"+blockersQuery(age)+" AND a.pid = $1 AND a.application_name = $2", k.pid, k.application)
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "42501" { // insufficient_privilege
			k.reason = ", and the relay's role may not terminate it: " + pg.Message
		} else if err != nil {
			return nil, err
		}
	}

	return list, nil
}

// writerPIDs returns the server processes of the store's own writing sessions.
func (s *Store) writerPIDs() []uint32 {
	var list []uint32
	for _, sess := range s.sessions() {
		list = append(list, sess.pid.Load())
	}
	return list
}

// blockedError names the sessions that block the epoch, and the statement that ends them.
func (s *Store) blockedError(blockers []blocker, err error) error {
	if len(blockers) == 0 {
		return fmt.Errorf("row of relay %s in sluicebox.leader is locked, perhaps by a prepared transaction (see pg_locks): %w", s.name, err)
	}
	var who, run []string
	for _, k := range blockers {
		who = append(who, fmt.Sprintf("server process %d (%s) holds a lock on the row of relay %s in sluicebox.leader%s", k.pid, k.application, s.name, k.reason))
		run = append(run, fmt.Sprintf("SELECT pg_terminate_backend(%d);", k.pid))
	}
	return fmt.Errorf("%s; run as a role with that privilege: %s (%w)", strings.Join(who, "; "), strings.Join(run, " "), err)
}

// Leader implements store.Leadership.
func (s *Store) Leader(ctx context.Context) (store.Leader, error) {
	var l store.Leader
	err := s.control.do(ctx, func(ctx context.Context, sess *session) error {
		err := sess.conn.QueryRow(ctx, "SELECT epoch, holder, raised_at FROM sluicebox.leader WHERE name = $1", s.name).
			Scan(&l.Epoch, &l.Holder, &l.Since)
		if errors.Is(err, pgx.ErrNoRows) {
			return store.ErrNotLeader
		}
		return err
	})
	if err != nil {
		return store.Leader{}, fmt.Errorf("read leader: %w", explainOwn(err))
	}
	return l, nil
}

// standbysQuery reads the synchronous standbys. If there are any, a commit waits after it has
// written its WAL, and the walsender decodes that WAL at once. A writer may choose not to wait
// (synchronous_commit), which nobody else can see, so every list counts.
//
// Source: https://www.postgresql.org/docs/current/runtime-config-replication.html#GUC-SYNCHRONOUS-STANDBY-NAMES
const standbysQuery = "SELECT btrim(current_setting('synchronous_standby_names'))"

// CommitsWait implements store.CommitWaiter. It uses the session of AwaitTable, because the
// others may wait for the standby themselves.
func (s *Store) CommitsWait(ctx context.Context) (setting string, err error) {
	var names string
	err = s.tableWaitSession.do(ctx, func(ctx context.Context, sess *session) error {
		return sess.conn.QueryRow(ctx, standbysQuery).Scan(&names)
	})
	if err != nil {
		return "", fmt.Errorf("read synchronous_standby_names: %w", Explain(err))
	}
	if names != "" {
		setting = "synchronous_standby_names = '" + names + "'"
	}
	return setting, nil
}
