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
	// raiseWait is how long Lead waits at a time for writes of an earlier leader:
	// a claim of the largest batch takes a tenth of it.
	raiseWait = "250ms"
	// leadPatience bounds the waiting of one Lead.
	leadPatience = 5 * time.Second
)

// Lead implements store.Leadership. A write of an earlier leader that has begun
// may end first. One that does not end soon, because its relay is frozen in the
// middle of it, say, is ended together with its session.
func (s *Store) Lead(ctx context.Context) (store.Epoch, error) {
	var epoch store.Epoch
	err := s.control.do(ctx, func(ctx context.Context, sess *session) (err error) {
		if epoch, err = s.raise(ctx, sess.conn); err == nil {
			s.led = sess.conn
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("take the lead: %w", explainOwn(err))
	}
	return epoch, nil
}

// raise raises the epoch and ends whoever keeps it from that.
func (s *Store) raise(ctx context.Context, conn *pgx.Conn) (store.Epoch, error) {
	for began := time.Now(); ; {
		epoch, err := s.raiseOnce(ctx, conn)
		if !LockedOut(err) {
			return epoch, err
		}
		keepers, failed := s.endKeepers(ctx, conn)
		if failed != nil {
			return 0, failed
		}
		if time.Since(began) > leadPatience {
			return 0, s.kept(keepers, err)
		}
	}
}

func (s *Store) raiseOnce(ctx context.Context, conn *pgx.Conn) (epoch store.Epoch, err error) {
	// A store that took the lock raises only while its session has it still: one
	// that was frozen in between must not depose its successor. The lock's key is in
	// two halves there.
	const raise = `
INSERT INTO sluicebox.leader AS l (name, epoch, raised_at, holder)
SELECT $1, 1, now(), $2
WHERE $3::int = 0 OR EXISTS (SELECT FROM pg_catalog.pg_locks AS k JOIN pg_catalog.pg_database AS d ON d.oid = k.database
  WHERE k.pid = $3 AND k.granted AND k.locktype = 'advisory' AND d.datname = current_database()
    AND (k.classid::bigint << 32) | k.objid::bigint = $4::bigint AND k.objsubid = 1)
ON CONFLICT (name) DO UPDATE SET epoch = l.epoch + 1, raised_at = now(), holder = excluded.holder
RETURNING epoch`
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '"+raiseWait+"'"); err != nil {
			return err
		}
		return tx.QueryRow(ctx, raise, s.name, s.holder, int64(s.locker.Load()), lockKey(s.name)).Scan(&epoch)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		err = fmt.Errorf("the relay's lock is lost: %w", store.ErrNotLeader)
	}
	return epoch, err
}

// keeper is a server process that has the table leader locked for more than to
// read it.
type keeper struct {
	pid         uint32
	application string
	why         string // it could not be ended
}

// fromKeepers chooses the keepers in this database.
const fromKeepers = `
FROM pg_catalog.pg_stat_activity AS a
WHERE a.datname = current_database() AND a.pid <> pg_catalog.pg_backend_pid()
  AND EXISTS (SELECT FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_database AS d ON d.oid = l.database
    WHERE l.pid = a.pid AND l.granted AND l.locktype = 'relation' AND l.mode <> 'AccessShareLock'
      AND d.datname = current_database() AND l.relation = 'sluicebox.leader'::regclass)`

// endKeepers ends those keepers that are sessions of another store of this relay,
// and returns all that it found.
func (s *Store) endKeepers(ctx context.Context, conn *pgx.Conn) ([]keeper, error) {
	rows, err := conn.Query(ctx, "SELECT a.pid, coalesce(a.application_name, '')"+fromKeepers)
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k keeper, err error) {
		return k, row.Scan(&k.pid, &k.application)
	})
	if err != nil {
		return nil, err
	}
	own := s.pids()
	for i := range list {
		k := &list[i]
		if !slices.Contains(s.applications, k.application) || slices.Contains(own, k.pid) {
			continue
		}
		// Asked again: its number may be another's by now.
		_, err := conn.Exec(ctx, "SELECT pg_catalog.pg_terminate_backend(a.pid)"+fromKeepers+" AND a.pid = $1 AND a.application_name = $2", k.pid, k.application)
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "42501" { // insufficient_privilege
			k.why = ", and the relay's role may not end it: " + pg.Message
		} else if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// pids are the server processes of the store's own sessions that write.
func (s *Store) pids() []uint32 {
	var list []uint32
	for _, sess := range s.sessions() {
		list = append(list, sess.pid.Load())
	}
	return list
}

// kept says who keeps the store from leading, and what to run.
func (s *Store) kept(keepers []keeper, err error) error {
	if len(keepers) == 0 {
		return fmt.Errorf("somebody keeps the row of relay %s in sluicebox.leader locked, perhaps a prepared transaction (see pg_locks): %w", s.name, err)
	}
	var who, run []string
	for _, k := range keepers {
		who = append(who, fmt.Sprintf("process %d (%s) of the server keeps the row of relay %s in sluicebox.leader locked%s", k.pid, k.application, s.name, k.why))
		run = append(run, fmt.Sprintf("SELECT pg_terminate_backend(%d);", k.pid))
	}
	return fmt.Errorf("%s; as a role that may, run: %s (%w)", strings.Join(who, "; "), strings.Join(run, " "), err)
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
		return store.Leader{}, fmt.Errorf("read who leads: %w", explainOwn(err))
	}
	return l, nil
}
