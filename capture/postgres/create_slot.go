package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// OldTransactionError means that a slot cannot be created now, because the server would
// wait for a transaction that has been open for longer than Config.SlotTimeout. It
// unwraps to a *capture.NoStreamError, so callers that do not distinguish it poll the
// tables. A retry succeeds once the transaction has ended.
type OldTransactionError struct {
	capture.NoStreamError
	// PID is the server process of the transaction; 0 is a prepared transaction.
	PID int
	// Age is how long it has been open, as far as the role may see it.
	Age time.Duration

	description string // the transaction with its age and session
}

// Unwrap makes the error a *capture.NoStreamError.
func (e *OldTransactionError) Unwrap() error { return &e.NoStreamError }

const (
	// maxCreateSteps limits the creation of a slot in multiples of SlotTimeout, even if
	// no single transaction is old. The server creates a slot in two steps, each of which
	// waits for the transactions open at its start; new transactions can add one more
	// wait.
	maxCreateSteps = 5
	// guardInterval is the interval between checks for old transactions.
	guardInterval = 200 * time.Millisecond
	// undoTimeout bounds the removal of an unfinished slot.
	undoTimeout = 3 * time.Second
)

// createOwn creates a slot of the relay on a replication session, which keeps the matching
// snapshot until its next command. The server waits for every open transaction with an
// id. If one of them is old, createOwnSlot gives up and removes the unfinished slot.
func (s *slots) createOwn(ctx context.Context, conn *pgconn.PgConn, name string, version int) (pglogrepl.CreateReplicationSlotResult, error) {
	var none pglogrepl.CreateReplicationSlotResult
	action := "EXPORT_SNAPSHOT"
	if version >= 170000 {
		action = "(SNAPSHOT 'export', FAILOVER true)" // so that it survives the promotion of a standby
	}
	res, cancelled, err := s.create(ctx, conn, name, plugin, pglogrepl.CreateReplicationSlotOptions{SnapshotAction: action})
	if cancelled {
		return none, errors.Join(err, s.dropUnfinished(ctx, conn, name))
	}
	return res, err
}

// create creates a slot of an output plugin on a replication session. cancelled means that the creation had
// begun and the session was cancelled because of an old transaction.
func (s *slots) create(ctx context.Context, conn *pgconn.PgConn, name, output string, opts pglogrepl.CreateReplicationSlotOptions) (
	res pglogrepl.CreateReplicationSlotResult, cancelled bool, err error,
) {
	if err := s.oldest.check(ctx); err != nil {
		return res, false, err
	}

	bounded, cancel := context.WithCancelCause(ctx)
	var guard sync.WaitGroup
	guard.Go(func() { s.oldest.watch(bounded, cancel) })
	created, err := pglogrepl.CreateReplicationSlot(bounded, conn, name, output, opts)
	cause := context.Cause(bounded)
	cancel(nil)
	guard.Wait()
	switch {
	case err == nil:
		return created, false, nil
	case cause != nil && ctx.Err() == nil:
		return res, true, cause
	}

	return res, false, fmt.Errorf("create slot %s: %w", name, s.explainConnect(err))
}

// watch cancels the creation of a slot once it waits for an old transaction.
func (o *oldestTransaction) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(min(guardInterval, o.cfg.SlotTimeout))
	defer tick.Stop()
	for start := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := o.check(ctx)
		if took := time.Since(start); err == nil && took > maxCreateSteps*o.cfg.SlotTimeout {
			err = fault.NoStream(fmt.Sprintf("replication slot %s was not created within %s: there are always open transactions that write", o.cfg.Name, took.Round(time.Millisecond)),
				"find the longest ones (SELECT * FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start)")
		}
		var old *capture.NoStreamError
		if errors.As(err, &old) {
			cancel(err)
			return
		}
	}
}

// dropUnfinished removes a slot whose creation was cancelled. The server drops it on
// the driver's cancel request, unless the creation had just finished.
func (s *slots) dropUnfinished(ctx context.Context, conn *pgconn.PgConn, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	pid := int(conn.PID())
	closeSession(conn)
	tick := time.NewTicker(slotPollInterval)
	defer tick.Stop()
	for {
		var sl slot
		err := s.control.retryOnce(ctx, func(conn *pgx.Conn) (err error) {
			if sl, err = s.query(ctx, conn, name); err == nil && sl.active && sl.pid == pid && sl.terminable {
				_, err = conn.Exec(ctx, "SELECT pg_terminate_backend($1)", pid)
			}
			return err
		})
		switch {
		case err != nil:
			return fmt.Errorf("drop unfinished slot %s: %w", name, err)
		case !sl.exists:
			return nil
		case !sl.active:
			return s.dropIdle(ctx, name)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("drop unfinished slot %s: pid %d still holds it", name, sl.pid)
		case <-tick.C:
		}
	}
}

// oldestTransaction finds the oldest transaction for which the creation of a slot would
// wait. It remembers when that one was first seen, because roles outside pg_read_all_stats
// cannot see its age.
type oldestTransaction struct {
	cfg     *Config
	control *control

	mu    sync.Mutex
	xid   string
	since time.Time
}

// age returns the minimum age of a transaction.
func (o *oldestTransaction) age(xid string, known *float64) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if xid != o.xid {
		o.xid, o.since = xid, time.Now()
	}
	seen := time.Since(o.since)
	if known == nil {
		return seen
	}
	return max(seen, time.Duration(*known*float64(time.Second)))
}

// oldestSQL finds the transaction with the oldest id, in all databases. Transactions
// without an id have written nothing, and slot creation does not wait for them.
const oldestSQL = `
SELECT l.transactionid::text, coalesce(l.pid, 0), coalesce(a.usename::text, ''), coalesce(a.application_name, ''),
	extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))::float8,
	extract(epoch FROM clock_timestamp() - a.query_start)::float8, coalesce(p.gid, '')
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid LEFT JOIN pg_prepared_xacts p ON p.transaction = l.transactionid
WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
ORDER BY age(l.transactionid) DESC LIMIT 1`

// check returns an *OldTransactionError if slot creation would have to
// wait too long for an open transaction.
func (o *oldestTransaction) check(ctx context.Context) error {
	return o.control.retryOnce(ctx, func(conn *pgx.Conn) error {
		old, err := o.find(ctx, conn)
		if err != nil || old == nil || old.Age < o.cfg.SlotTimeout {
			return err
		}
		return old
	})
}

// find returns the oldest transaction that has written, nil if there is
// none.
func (o *oldestTransaction) find(ctx context.Context, conn *pgx.Conn) (*OldTransactionError, error) {
	var xid, user, application, gid string
	var pid int
	var open, query *float64
	err := conn.QueryRow(ctx, oldestSQL).Scan(&xid, &pid, &user, &application, &open, &query, &gid)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find old transactions: %w", pgstore.Explain(err))
	}

	old := &OldTransactionError{PID: pid, Age: o.age(xid, open)}
	since := fmt.Sprintf("open since %s, for %s", time.Now().Add(-old.Age).UTC().Format(time.RFC3339), old.Age.Round(100*time.Millisecond))
	if pid == 0 {
		old.description = fmt.Sprintf("the prepared transaction %q, %s", gid, since)
		old.Remedy = "commit it or roll it back, in its database: `ROLLBACK PREPARED '…';` (SELECT * FROM pg_prepared_xacts)"
	} else {
		old.description = fmt.Sprintf("the transaction of pid %d, %s (user %q, application %q, its query began %s)", pid, since, user, application, formatAgo(query))
		old.Remedy = fmt.Sprintf("the relay retries until it has ended; `SELECT pg_terminate_backend(%d);` ends it", pid)
	}
	old.Problem = fmt.Sprintf("replication slot %s waits for %s", o.cfg.Name, old.description)
	return old, nil
}

func formatAgo(seconds *float64) string {
	if seconds == nil {
		return "at a time hidden from the role (GRANT pg_read_all_stats)"
	}
	return time.Duration(*seconds*float64(time.Second)).Round(100*time.Millisecond).String() + " ago"
}
