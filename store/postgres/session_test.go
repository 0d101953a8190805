package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

var origin = time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)

// TestLostSessions: after its sessions were ended the store works again, at the latest
// with the second call of each kind.
func TestLostSessions(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		r.insert(t, "1")
		r.claim(t, row("1"))
		if _, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{outcome("1", store.Pending)}); err != nil {
			t.Fatal(err)
		}
		it := spilledRow("1", 1)
		if err := r.store.Spill(ctx(t), r.epoch, []store.Item{it}); err != nil {
			t.Fatal(err)
		}
		const kill = `
SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'sluicebox rig %'`
		if n := ask[int](t, r.conn, kill); n != 4 {
			t.Errorf("got %d sessions, want 4", n)
		}
		for name, call := range map[string]func() error{
			"claim": func() error {
				_, err := r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{row("1")})
				return err
			},
			"settle": func() error {
				_, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{outcome("1", store.Pending)})
				return err
			},
			"read spilled rows": func() error {
				_, err := r.store.ReadSpilled(ctx(t), []store.SpilledRange{laneOf(it)}, 1)
				return err
			},
			"lead": func() (err error) {
				r.epoch, err = r.store.AcquireLeadership(ctx(t))
				return err
			},
		} {
			first := call()
			if first != nil && !postgres.Unreachable(first) {
				t.Errorf("%s: %v does not count as unreachable", name, first)
			}
			if err := call(); err != nil {
				t.Errorf("%s, second call: %v", name, err)
			}
		}
		if err := r.store.SaveCheckpoint(ctx(t), r.epoch, store.Checkpoint{}); err != nil {
			t.Errorf("save: %v", err)
		}
	})
}

// TestLostIdleSessions: a session that the server ended in a pause costs no call.
func TestLostIdleSessions(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		r.insert(t, "1")
		r.claim(t, row("1"))
		const kill = `
SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'sluicebox rig %'`
		if n := ask[int](t, r.conn, kill); n == 0 {
			t.Fatal("no session was ended")
		}
		r.store.Idle()
		if _, err := r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{row("1")}); err != nil {
			t.Errorf("claim: %v", err)
		}
		if _, err := r.store.Leader(ctx(t)); err != nil {
			t.Errorf("leader: %v", err)
		}
	})
}

// TestIdleTimeout: the sessions that have nothing to do are closed, except the one that the leader's records
// need, and each call opens its own again.
func TestIdleTimeout(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		servers.Exec(t, url, flowTable)
		st, err := postgres.New(postgres.Config{URL: url, Name: "rig", Outboxes: []store.Outbox{flowBox}, IdleTimeout: 100 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(st.Close)
		r := &rig{url: url, conn: servers.Connect(t, url), store: st}
		r.install(t)
		r.insert(t, "1")
		it := spilledRow("1", 1)
		for range 2 {
			r.claim(t, row("1"))
			if _, err := st.Settle(ctx(t), r.epoch, []store.Outcome{outcome("1", store.Pending)}); err != nil {
				t.Fatal(err)
			}
			if err := st.Spill(ctx(t), r.epoch, []store.Item{it}); err != nil {
				t.Fatal(err)
			}
			const open = "SELECT coalesce(string_agg(application_name, ', '), '') FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'sluicebox rig %'"
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				left := ask[string](t, r.conn, open)
				if left == "sluicebox rig control" {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("the sessions are %s after a minute, want that of the records", left)
				}
			}
		}
	})
}

// TestCancelledCall: a cancelled call leaves no statement running on the server, and the
// store keeps working.
func TestCancelledCall(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, withoutLockTimeout(url), flowTable, 0, flowBox)
		r.insert(t, "1")
		tx := r.begin(t, "SELECT 1 FROM outbox_events FOR UPDATE")
		short, cancel := context.WithCancel(ctx(t))
		claim := rigs.Async(func() ([]store.ClaimAnswer, error) {
			return r.store.Claim(short, r.epoch, time.Now(), []store.ClaimRow{row("1")})
		})
		r.waitBlocked(t, 1)
		// A claim does not block the other sessions.
		if _, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{outcome("none", store.Completed)}); err != nil {
			t.Error(err)
		}
		if err := r.store.SaveCheckpoint(ctx(t), r.epoch, store.Checkpoint{}); err != nil {
			t.Error(err)
		}
		// A second claim waits its turn, at most as long as its context.
		turn, giveUp := context.WithCancel(ctx(t))
		giveUp()
		if _, err := r.store.Claim(turn, r.epoch, time.Now(), []store.ClaimRow{row("1")}); !errors.Is(err, context.Canceled) {
			t.Errorf("claim with an expired context: got error %v", err)
		}
		cancel()
		if a := <-claim; !errors.Is(a.Err, context.Canceled) {
			t.Errorf("cancelled claim: got %v, error %v", a.Value, a.Err)
		}
		r.waitBlocked(t, 0)
		end(t, tx, true)
		if got := r.claim(t, row("1"))[0].Result; got != store.Claimed {
			t.Errorf("after it: got %s", got)
		}
	})
}

// TestCloseEndsCalls: Close does not wait for a call that waits for a lock.
func TestCloseEndsCalls(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, withoutLockTimeout(url), flowTable, 0, flowBox)
		r.insert(t, "1")
		r.begin(t, "SELECT 1 FROM outbox_events FOR UPDATE")
		claim := r.claimLater(t, row("1"))
		r.waitBlocked(t, 1)
		view, err := r.store.View(ctx(t), "")
		if err != nil {
			t.Fatal(err)
		}
		r.store.Close()
		if a := <-claim; a.Err == nil {
			t.Errorf("got claim answers %v", a.Value)
		}
		if _, err := view.Unsettled(ctx(t), store.UnsettledQuery{Outbox: "events", Limit: 1}); err == nil {
			t.Error("a view outlives its store")
		}
		view.Close()
	})
}

// TestSnapshotByName: a view of an exported snapshot shows the exporter's rows.
func TestSnapshotByName(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		r.insert(t, "before")
		tx := r.begin(t, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
		var name string
		if err := tx.QueryRow(ctx(t), "SELECT pg_export_snapshot()").Scan(&name); err != nil {
			t.Fatal(err)
		}
		r.insert(t, "after")
		view, err := r.store.View(ctx(t), name)
		if err != nil {
			t.Fatal(err)
		}
		defer view.Close()
		items, err := view.Unsettled(ctx(t), store.UnsettledQuery{Outbox: "events", Limit: 9})
		if err != nil || len(items) != 1 || items[0].ID != "before" {
			t.Errorf("got view %v, error %v", items, err)
		}
		for _, bad := range []string{"'; DROP TABLE outbox_events; --", "x", "00000003-0000001B-1'", " "} {
			if _, err := r.store.View(ctx(t), bad); err == nil || !strings.Contains(err.Error(), "invalid snapshot name") {
				t.Errorf("snapshot %q: got error %v", bad, err)
			}
		}
		if _, err := r.store.View(ctx(t), "0FFFFFFF-0FFFFFFF-1"); err == nil {
			t.Error("View accepted a snapshot that does not exist")
		}
	})
}

// TestRefusedLogin: errors that a retry cannot fix are reported as setup errors.
func TestRefusedLogin(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		st := openStore(t, withDatabase(t, url, "no_such_database"), 0, flowBox)
		_, err := st.AcquireLeadership(ctx(t))
		var setup *store.SetupError
		if !errors.As(err, &setup) || !strings.Contains(err.Error(), "no_such_database") {
			t.Errorf("%v", err)
		}
	})
}

// TestCrash: durable writes survive a crash of a server that flushes its WAL by itself as
// rarely as possible.
func TestCrash(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts servers")
	}
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			srv := servers.Start(t, version, map[string]string{
				"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "checkpoint_timeout": "1h", "autovacuum": "off",
			})
			r := newRig(t, srv.URL, flowTable, 0, flowBox)
			r.insert(t, "claimed", "failed", "late")
			crash := func() {
				srv.Stop("immediate")
				srv.Restart(nil)
				r.conn = servers.Connect(t, srv.URL)
			}
			// FAILED by itself.
			if _, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{outcome("failed", store.Failed)}); err != nil {
				t.Fatal(err)
			}
			crash()
			if got := r.status(t, "failed"); got != "FAILED" {
				t.Errorf("a failed row is %s after a crash", got)
			}
			// Writes before the crash may be lost, so that leadership saves no
			// checkpoint.
			r.retryClaim(t, row("claimed"))
			if err := r.retrySave(t, store.Checkpoint{Position: "o"}); !errors.Is(err, store.ErrInterrupted) {
				t.Fatalf("a save after a crash: %v", err)
			}
			var err error
			if r.epoch, err = r.store.AcquireLeadership(ctx(t)); err != nil {
				t.Fatal(err)
			}
			// The checkpoint, and all writes before it.
			r.claim(t, row("claimed"))
			if err := r.store.SaveCheckpoint(ctx(t), r.epoch, store.Checkpoint{Position: "p"}); err != nil {
				t.Fatal(err)
			}
			// A claim alone is asynchronous: a crash may undo it.
			if _, err := r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{row("late")}); err != nil {
				t.Fatal(err)
			}
			crash()
			if got := r.status(t, "claimed"); got != "PROCESSING" {
				t.Errorf("a claim before the checkpoint is %s after a crash", got)
			}
			if got := r.status(t, "late"); got != "PENDING" {
				t.Errorf("a claim is %s after a crash: it was committed synchronously, but need not be", got)
			}
			if got := ask[string](t, r.conn, "SELECT body->>'position' FROM sluicebox.record WHERE key = 'checkpoint'"); got != "p" {
				t.Errorf("the checkpoint is %q", got)
			}
		})
	}
}

// retryClaim and retrySave call twice, because the first call after a crash finds the old
// session broken.
func (r *rig) retryClaim(t *testing.T, rows ...store.ClaimRow) {
	t.Helper()
	if _, err := r.store.Claim(ctx(t), r.epoch, time.Now(), rows); err != nil {
		r.claim(t, rows...)
	}
}

func (r *rig) retrySave(t *testing.T, cp store.Checkpoint) error {
	if err := r.store.SaveCheckpoint(ctx(t), r.epoch, cp); err == nil {
		return nil
	}
	return r.store.SaveCheckpoint(ctx(t), r.epoch, cp)
}

// Stores beside one share its sessions, and each leads by itself. A store that closes ends its own calls only.
func TestStoresBesideShareSessions(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		r.insert(t, "1")
		const n = 10
		var locked pgx.Tx
		rigs.CheckBeside(t, r.store, n, "1",
			func() { locked = r.begin(t, "SELECT FROM outbox_events WHERE id = '1' FOR UPDATE") },
			func() { r.waitBlocked(t, 1) }, func() { end(t, locked, false) })
		open := func(purpose string) int {
			return ask[int](t, r.conn, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'sluicebox rig% "+purpose+"'")
		}
		if claims, outcomes, control := open("claims"), open("outcomes"), open("control"); claims > 4 || outcomes > 4 || control < n {
			t.Errorf("%d stores have %d sessions for claims, %d for outcomes, %d for leadership", n, claims, outcomes, control)
		}
	})
}
