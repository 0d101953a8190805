package servers

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	waitTimeout = time.Minute
	waitPoll    = 50 * time.Millisecond
)

// Standby creates and starts a streaming standby of a running private server. When it
// returns, the standby has replayed all earlier writes of the primary. Settings override
// the primary's current settings. From version 17 on the standby can have failover slots,
// see SyncSlot. It ends with the test.
func Standby(tb testing.TB, primary *Server, settings map[string]string) *Server {
	tb.Helper()
	s := newServer(tb, primary.version, maps.Clone(primary.settings))
	s.config, s.hba, s.primary = primary.config, primary.hba, primary
	s.settings["hot_standby_feedback"] = "on" // required by failover slots
	maps.Copy(s.settings, settings)
	// The slot retains the WAL that the standby still needs, even while it is down.
	slot := "standby_" + strings.ToLower(filepath.Base(s.base)[len(tempDirPrefix):])
	cmd := s.program("pg_basebackup", "-D", s.Dir, "-d", primary.URL, "-R", "-C", "-S", slot, "--checkpoint=fast", "--no-sync")
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("pg_basebackup: %v\n%s", err, out)
	}

	s.start()
	s.CatchUp()
	return s
}

// CatchUp waits until a standby has replayed the current writes of its primary.
func (s *Server) CatchUp() {
	s.tb.Helper()
	var end string
	conn := Connect(s.tb, s.primary.URL)
	if err := conn.QueryRow(s.tb.Context(), "SELECT pg_current_wal_flush_lsn()::text").Scan(&end); err != nil {
		s.tb.Fatal(err)
	}
	closeConn(conn)
	s.await("replay what its primary wrote", "SELECT coalesce(pg_last_wal_replay_lsn() >= $1::text::pg_lsn, false)", end)
}

// SyncSlot waits until a standby of version 17 or later has the current state of a failover
// slot of its primary. The server synchronizes a slot only at a position whose WAL and
// transactions the standby has. So the slot's consumer must have acknowledged something
// written after the standby was created, and after pg_log_standby_snapshot() on the
// primary. The server's own worker is off by default and must stay off, because on an idle
// server it takes 20 s or more.
func (s *Server) SyncSlot(name string) {
	s.tb.Helper()
	var confirmed string
	conn := Connect(s.tb, s.primary.URL)
	err := conn.QueryRow(s.tb.Context(), "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1 AND failover", name).Scan(&confirmed)
	if err != nil {
		s.tb.Fatalf("failover slot %s on the primary: %v", name, err)
	}
	closeConn(conn)
	s.await("take slot "+name+" over", `SELECT pg_sync_replication_slots()::text IS NOT NULL AND EXISTS (SELECT FROM pg_replication_slots
		WHERE slot_name = $1 AND synced AND NOT temporary AND confirmed_flush_lsn >= $2::text::pg_lsn)`, name, confirmed)
}

// Promote promotes a standby, and returns when it accepts writes. Stop the old primary
// first.
func (s *Server) Promote() {
	s.tb.Helper()
	Exec(s.tb, s.URL, fmt.Sprintf("SELECT pg_promote(true, %d)", int(waitTimeout/time.Second)))
	s.await("take writes", "SELECT NOT pg_is_in_recovery()")
}

// await repeats a query until it returns true. It retries errors, because a standby cancels
// queries that conflict with replay.
func (s *Server) await(what, sql string, args ...any) {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(s.tb.Context(), waitTimeout)
	defer cancel()
	conn := Connect(s.tb, s.URL)
	defer closeConn(conn)
	tick := time.NewTicker(waitPoll)
	defer tick.Stop()
	for {
		rows, err := conn.Query(ctx, sql, args...)
		done := false
		if err == nil {
			done, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool])
		}
		if done {
			return
		}
		select {
		case <-ctx.Done():
			s.tb.Fatalf("the server does not %s: last error %v", what, err)
		case <-tick.C:
		}
	}
}
