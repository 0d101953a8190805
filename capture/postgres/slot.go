package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

const plugin = "pgoutput"

// slot is the relay's slot as it is.
type slot struct {
	exists    bool
	active    bool
	pid       int
	holder    string // application name and address of the session that holds it
	lost      string // why the log is not to be had from it; "" if it is
	confirmed pglogrepl.LSN
}

// Columns differ between versions: invalidation_reason is there since 17,
// conflicting since 16.
const slotSQL = `
SELECT s.plugin::text, s.slot_type::text, s.database::text, current_database()::text, s.active, coalesce(s.active_pid, 0),
	coalesce(a.application_name, ''), coalesce(host(a.client_addr), ''),
	CASE WHEN to_jsonb(s) ->> 'invalidation_reason' IS NOT NULL THEN to_jsonb(s) ->> 'invalidation_reason'
		WHEN s.wal_status = 'lost' THEN 'wal_removed'
		WHEN to_jsonb(s) ->> 'conflicting' = 'true' THEN 'conflicting' ELSE '' END,
	coalesce(s.confirmed_flush_lsn::text, '')
FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = $1`

// findSlot reads the slot's state. A slot of the relay's name that is not the
// relay's is a *store.SetupError.
func (s *Source) findSlot(ctx context.Context, conn *pgx.Conn) (slot, error) {
	var sl slot
	var plug, kind, database, current, application, address, confirmed *string
	err := conn.QueryRow(ctx, slotSQL, s.cfg.Name).Scan(&plug, &kind, &database, &current, &sl.active, &sl.pid,
		&application, &address, &sl.lost, &confirmed)
	if errors.Is(err, pgx.ErrNoRows) {
		return sl, nil
	}
	if err != nil {
		return sl, fmt.Errorf("look for slot %s: %w", s.cfg.Name, pgstore.Explain(err))
	}
	sl.exists = true
	if plug == nil || database == nil || *plug != plugin || *database != *current {
		return sl, noStream(
			fmt.Sprintf("replication slot %s is another program's: %s, plugin %s, database %s", s.cfg.Name, *kind, text(plug), text(database)),
			"give the relay another name, or, if nobody needs the slot, run `SELECT pg_drop_replication_slot('"+s.cfg.Name+"');`")
	}
	sl.holder = fmt.Sprintf("application %q, address %s", text(application), text(address))
	sl.confirmed, err = parseLSN(store.Position(*confirmed)) // coalesced, never NULL
	return sl, err
}

func text(p *string) string {
	if p == nil || *p == "" {
		return "(none)"
	}
	return *p
}

const (
	// activeWait is how long a slot may stay in use: the server notices the
	// death of a relay only when it next writes to it.
	activeWait = 10 * time.Second
	activePoll = 100 * time.Millisecond
)

// freeSlot waits until no session holds the slot.
func (s *Source) freeSlot(ctx context.Context, conn *pgx.Conn) (slot, error) {
	deadline := time.Now().Add(activeWait)
	tick := time.NewTicker(activePoll)
	defer tick.Stop()
	for {
		sl, err := s.findSlot(ctx, conn)
		if err != nil || !sl.active {
			return sl, err
		}
		if time.Now().After(deadline) {
			return sl, &store.SetupError{
				Problem: fmt.Sprintf("replication slot %s is held by another session: pid %d, %s", s.cfg.Name, sl.pid, sl.holder),
				Remedy:  "another relay of this name runs: stop it, give this one another name, or, if it hangs, run `SELECT pg_terminate_backend(" + fmt.Sprint(sl.pid) + ");`",
			}
		}
		if s.cfg.TakeOver {
			// Refused for the session of a role that this one may not end; then
			// waiting is all that is left.
			if _, err := conn.Exec(ctx, "SELECT pg_terminate_backend($1)", sl.pid); err != nil && conn.IsClosed() {
				return sl, fmt.Errorf("end the session that holds slot %s: %w", s.cfg.Name, err)
			}
		}
		select {
		case <-ctx.Done():
			return sl, ctx.Err()
		case <-tick.C:
		}
	}
}

// makeSlot makes the slot on a replication session, which from then on holds the
// snapshot that matches it, until its next command.
func (s *Source) makeSlot(ctx context.Context, conn *pgconn.PgConn, version int) (pglogrepl.CreateReplicationSlotResult, error) {
	action := "EXPORT_SNAPSHOT"
	if version >= 170000 {
		action = "(SNAPSHOT 'export', FAILOVER true)" // so that it survives the promotion of a standby
	}
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	var blockers string
	gone := make(chan struct{})
	watch := make(chan struct{})
	go func() {
		defer close(watch)
		timer := time.NewTimer(s.cfg.SlotTimeout)
		defer timer.Stop()
		select {
		case <-timer.C:
			blockers = s.blockers(ctx, conn.PID())
			cancel()
		case <-gone:
		}
	}()
	res, err := pglogrepl.CreateReplicationSlot(bounded, conn, s.cfg.Name, plugin,
		pglogrepl.CreateReplicationSlotOptions{SnapshotAction: action})
	close(gone)
	<-watch
	switch {
	case err == nil:
		return res, nil
	case blockers != "":
		return res, fmt.Errorf("making slot %s did not end within %s: it waits for every transaction that was open before; %s",
			s.cfg.Name, s.cfg.SlotTimeout, blockers)
	}
	return res, fmt.Errorf("make slot %s: %w", s.cfg.Name, s.explainStream(err))
}

// The server waits for one transaction after the other, so the one it waits for
// need not be the oldest. Ages are visible to the role's own sessions and to
// members of pg_read_all_stats.
const blockersSQL = `
SELECT l.pid, coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8,
	coalesce(a.usename::text, ''), coalesce(a.application_name, '')
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid IS DISTINCT FROM $1
ORDER BY a.xact_start NULLS LAST, (l.pid = ANY (pg_blocking_pids($1))) DESC LIMIT 1`

// blockers names the oldest open transaction for an operator.
func (s *Source) blockers(ctx context.Context, walsender uint32) string {
	var line string
	err := s.control.do(ctx, func(conn *pgx.Conn) error {
		var pid *int
		var age float64
		var user, application string
		if err := conn.QueryRow(ctx, blockersSQL, int(walsender)).Scan(&pid, &age, &user, &application); err != nil {
			return err
		}
		if pid == nil {
			line = "the oldest is a prepared one (SELECT * FROM pg_prepared_xacts)"
			return nil
		}
		line = fmt.Sprintf("the oldest is that of pid %d (user %q, application %q), open for %s: SELECT pg_terminate_backend(%d) ends it",
			*pid, user, application, time.Duration(age*float64(time.Second)).Round(time.Second), *pid)
		return nil
	})
	if err != nil {
		return "which one could not be found out: " + err.Error()
	}
	return line
}
