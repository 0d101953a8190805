package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// leadTimeout limits one AcquireLeadership. The server ends the session of a relay that
// freezes in the middle of a write after store.MinLockLease.
const leadTimeout = 2 * store.MinLockLease

// AcquireLeadership implements store.Leadership. It waits for open writes of an earlier
// leader; the server ends those of a relay that is frozen.
func (s *Store) AcquireLeadership(ctx context.Context) (store.Epoch, error) {
	var epoch store.Epoch
	err := s.control.do(ctx, func(ctx context.Context, c *conn) (err error) {
		if epoch, err = s.raiseEpoch(ctx, c); err == nil {
			s.leaderConn = c
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("acquire leadership: %w", Explain(err))
	}
	return epoch, nil
}

// raiseEpoch raises the epoch. Each try waits up to raiseTimeout for the leader row.
func (s *Store) raiseEpoch(ctx context.Context, c *conn) (store.Epoch, error) {
	for start := time.Now(); ; {
		epoch, err := s.tryRaiseEpoch(ctx, c)
		switch {
		case !isLockTimeout(err):
			return epoch, err
		case time.Since(start) > leadTimeout:
			return 0, fmt.Errorf("another session keeps the row of relay %s in %sleader locked; find it with "+
				"SELECT trx_mysql_thread_id, trx_started FROM information_schema.innodb_trx; and end the session by KILL: %w", s.name, ownPrefix, err)
		}
	}
}

func (s *Store) tryRaiseEpoch(ctx context.Context, c *conn) (epoch store.Epoch, err error) {
	// A store that holds the lock raises the epoch only while its session still has it: a
	// relay that was frozen in between must not depose its successor.
	const raise = "INSERT INTO " + ownPrefix + `leader (name, epoch, raised_at, holder)
SELECT ?, 1, UTC_TIMESTAMP(6), ? FROM DUAL WHERE ? = 0 OR IS_USED_LOCK(?) = ?
ON DUPLICATE KEY UPDATE epoch = epoch + 1, raised_at = UTC_TIMESTAMP(6), holder = ?`

	const raised = "SELECT l.epoch, ? = 0 OR COALESCE(IS_USED_LOCK(?), 0) = ? FROM " + ownPrefix + "leader AS l WHERE l.name = ?"
	lockSession, lock := s.lockSessionID.Load(), lockName(c.server.database, s.name)
	err = c.tx(ctx, func() error {
		n, err := c.exec(ctx, raise, s.name, s.holder, lockSession, lock, lockSession, s.holder)
		if err != nil {
			return err
		}
		held := n > 0
		if held {
			err = c.row(ctx, raised, []any{lockSession, lock, lockSession, s.name}, &epoch, &held)
		}
		if err == nil && !held {
			err = fmt.Errorf("relay lock lost: %w", store.ErrNotLeader)
		}
		return err
	})

	return epoch, err
}

// Leader implements store.Leadership.
func (s *Store) Leader(ctx context.Context) (store.Leader, error) {
	const read = "SELECT l.epoch, l.holder, l.raised_at FROM " + ownPrefix + "leader AS l WHERE l.name = ?"
	var l store.Leader
	err := s.control.do(ctx, func(ctx context.Context, c *conn) error {
		return c.tx(ctx, func() error {
			var since string
			err := c.row(ctx, read, []any{s.name}, &l.Epoch, &l.Holder, &since)
			if errors.Is(err, sql.ErrNoRows) {
				return store.ErrNotLeader
			}
			l.Since, _ = readTime(since) // the relay wrote it, so it is valid
			return err
		})
	})
	if err != nil {
		return store.Leader{}, fmt.Errorf("read leader: %w", Explain(err))
	}

	return l, nil
}

// keepsCommits reports whether every write that finished since AcquireLeadership is durable.
//
// If innodb_flush_log_at_trx_commit is 1, and sync_binlog is 1 where there is a binlog,
// every commit survives a crash. Then it is enough that the server is still the same.
//
// With other settings a crash loses the newest commits. The session that acquired
// leadership proves by its existence that the server has not crashed since. A later crash
// loses the checkpoint before it loses any commit that the checkpoint covers.
//
// c is the session for control.
func (s *Store) keepsCommits(c *conn) bool {
	led := s.leaderConn
	return led == nil || led == c || c.server.durable && led.server.identity == c.server.identity
}

// semiSyncVariables are on if commits wait for a replica. The first belongs to MySQL's
// plugin since 8.0.26, the second to the plugin before and to MariaDB. A server without a
// plugin has no variable.
//
// A commit then waits after it has written the binlog, so a reader of the binlog gets its
// rows at once. Both wait points count:
//
//   - AFTER_SYNC, MySQL's default: the row becomes visible after the acknowledgement.
//   - AFTER_COMMIT, MariaDB's default: the row is visible before it. But the commit of a claim
//     waits too, and a replica acknowledges the binlog in order. So a claimed row is safe.
//
// After rpl_semi_sync_source_timeout commits no longer wait. The variables stay on, because
// the server resumes waiting once a replica has caught up.
//
// Sources: https://dev.mysql.com/doc/refman/8.4/en/replication-semisync.html,
// https://mariadb.com/kb/en/semisynchronous-replication/
func semiSyncVariables() []string {
	return []string{"rpl_semi_sync_source_enabled", "rpl_semi_sync_master_enabled"}
}

// CommitsWait implements store.CommitWaiter. It uses the session of AwaitTable, because the
// others may wait for the replica themselves. A replication group does not count: its members
// agree on a transaction before it is in the binlog.
func (s *Store) CommitsWait(ctx context.Context) (setting string, err error) {
	err = s.tableWaitSession.do(ctx, func(ctx context.Context, c *conn) error {
		for _, name := range semiSyncVariables() {
			on, err := c.isOn(ctx, name)
			if err != nil {
				return fmt.Errorf("read %s: %w", name, Explain(err))
			}
			if on {
				setting = name + " = ON"
			}
		}
		return nil
	})
	return setting, err
}
