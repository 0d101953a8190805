package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

const raiseEpoch = "UPDATE sluicebox.leader SET epoch = epoch + 1 WHERE name = 'rig'"

// withoutLockTimeout makes claims wait for locked rows without a limit.
func withoutLockTimeout(url string) string { return url + "&lock_timeout=0" }

// TestLockedRow: a locked row does not stop the others, and is claimed when it is free.
func TestLockedRow(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		r.insert(t, "1", "2", "3", "4")
		tx := r.begin(t, "SELECT 1 FROM outbox_events WHERE id = '2' FOR UPDATE")
		want := []store.ClaimResult{store.Claimed, store.NotYetVisible, store.Claimed, store.Gone}
		for round := range 3 { // the first round meets the lock, the others skip it
			for i, a := range r.claim(t, row("1"), row("2"), row("3"), row("none")) {
				if a.Result != want[i] {
					t.Errorf("round %d: row %d is %s", round, i, a.Result)
				}
			}
		}
		lead := r.begin(t, raiseEpoch)
		claim := r.claimLater(t, row("4"))
		r.waitBlocked(t, 1)
		end(t, lead, true)
		if a := <-claim; !errors.Is(a.Err, store.ErrNotLeader) {
			t.Errorf("old leader's claim that skips locked rows: got %v, error %v", a.Value, a.Err)
		}
		if got := r.status(t, "4"); got != "PENDING" {
			t.Errorf("row 4 is %s", got)
		}
		r.epoch++
		end(t, tx, true)
		if got := r.claim(t, row("2"))[0].Result; got != store.Claimed {
			t.Errorf("formerly locked row: got %s", got)
		}
	})
}

// TestWritesWaitForEpoch: writes of the old epoch that meet a pending AcquireLeadership
// are refused when it commits, and succeed when it does not.
func TestWritesWaitForEpoch(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, withoutLockTimeout(url), flowTable, 0, flowBox)
		r.insert(t, "1", "2")
		r.claim(t, row("2"))
		for _, commit := range []bool{false, true} {
			lead := r.begin(t, raiseEpoch)
			claim := r.claimLater(t, row("1"))
			c := ctx(t)
			settle := rigs.Async(func() ([]store.SettleResult, error) {
				return r.store.Settle(c, r.epoch, []store.Outcome{outcome("2", store.Pending)})
			})
			save := rigs.Async(func() (int, error) {
				return 0, r.store.SaveCheckpoint(c, r.epoch, store.Checkpoint{Position: "p"})
			})
			r.waitBlocked(t, 3)
			end(t, lead, commit)
			a, s, p := <-claim, <-settle, <-save
			if commit {
				for name, err := range map[string]error{"claim": a.Err, "settle": s.Err, "save": p.Err} {
					if !errors.Is(err, store.ErrNotLeader) {
						t.Errorf("%s: %v", name, err)
					}
				}
				if got := r.status(t, "1"); got != "PENDING" {
					t.Errorf("row 1 is %s", got)
				}
				if got := r.status(t, "2"); got != "PROCESSING" {
					t.Errorf("row 2 is %s", got)
				}
				continue
			}
			if a.Err != nil || s.Err != nil || p.Err != nil {
				t.Fatal(a.Err, s.Err, p.Err)
			}
			if a.Value[0].Result != store.Claimed || s.Value[0] != store.Written {
				t.Errorf("claim: %s, settle: %d", a.Value[0].Result, s.Value[0])
			}
			r.exec(t, "UPDATE outbox_events SET status = CASE id WHEN '1' THEN 'PENDING' ELSE 'PROCESSING' END")
		}
	})
}

// TestRowChangedUnderClaim: however another session changes a row while the claim waits
// for it, the row is claimed or requested again, never dropped.
func TestRowChangedUnderClaim(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, withoutLockTimeout(url), flowTable, 0, flowBox)
		for _, c := range []struct {
			id, change  string
			commit      bool
			first, then store.ClaimResult
		}{
			{"completed", "UPDATE outbox_events SET status = 'COMPLETED' WHERE id = $1", true, store.NotYetVisible, store.AlreadySettled},
			{"failed", "UPDATE outbox_events SET status = 'FAILED' WHERE id = $1", true, store.NotYetVisible, store.AlreadySettled},
			{"deleted", "DELETE FROM outbox_events WHERE id = $1", true, store.NotYetVisible, store.Gone},
			{"taken", "UPDATE outbox_events SET status = 'PROCESSING' WHERE id = $1", true, store.Claimed, store.Claimed},
			{"edited", "UPDATE outbox_events SET payload = 'new' WHERE id = $1", true, store.Claimed, store.Claimed},
			{"rolled back", "DELETE FROM outbox_events WHERE id = $1", false, store.Claimed, store.Claimed},
			{"rolled back 2", "UPDATE outbox_events SET status = 'FAILED' WHERE id = $1", false, store.Claimed, store.Claimed},
		} {
			r.insert(t, c.id, "o"+c.id[1:])
			tx := r.begin(t, c.change, c.id)
			ask := []store.ClaimRow{row("o" + c.id[1:]), row(c.id)}
			ask[1].WantPayload = true
			claim := r.claimLater(t, ask...)
			r.waitBlocked(t, 1)
			end(t, tx, c.commit)
			a := <-claim
			if a.Err != nil {
				t.Fatal(a.Err)
			}
			if a.Value[0].Result != store.Claimed || a.Value[1].Result != c.first {
				t.Errorf("%s: got %s, and %s for the other row", c.id, a.Value[1].Result, a.Value[0].Result)
			}
			if c.id == "edited" && string(a.Value[1].Payload) != "new" {
				t.Errorf("got payload %q, want the claimed one", a.Value[1].Payload)
			}
			if then := r.claim(t, ask...)[1].Result; then != c.then {
				t.Errorf("%s, claimed again: got %s", c.id, then)
			}
		}
	})
}

// TestRowChangedUnderTakeover is the same with a takeover timeout: another program's
// claim that commits first is respected.
func TestRowChangedUnderTakeover(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, withoutLockTimeout(url), flowTable, time.Hour, flowBox)
		r.insert(t, "1")
		tx := r.begin(t, "UPDATE outbox_events SET status = 'PROCESSING', processed_at = now()")
		claim := r.claimLater(t, row("1"))
		r.waitBlocked(t, 1)
		end(t, tx, true)
		if a := <-claim; a.Err != nil || a.Value[0].Result != store.NotYetVisible {
			t.Errorf("first claim: got %v, error %v", a.Value, a.Err)
		}
		if got := r.claim(t, row("1"))[0].Result; got != store.Held {
			t.Errorf("claimed again: got %s", got)
		}
	})
}

// TestRowChangedUnderSettle: an outcome reports a row that was settled or deleted
// meanwhile, and is written to a row that was only touched.
func TestRowChangedUnderSettle(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, withoutLockTimeout(url), flowTable, 0, flowBox)
		for id, c := range map[string]struct {
			change string
			want   store.SettleResult
		}{
			"settled": {"UPDATE outbox_events SET status = 'FAILED' WHERE id = $1", store.WasSettled},
			"deleted": {"DELETE FROM outbox_events WHERE id = $1", store.WasGone},
			"touched": {"UPDATE outbox_events SET payload = 'new' WHERE id = $1", store.Written},
		} {
			r.insert(t, id)
			r.claim(t, row(id))
			tx := r.begin(t, c.change, id)
			cx := ctx(t)
			settle := rigs.Async(func() ([]store.SettleResult, error) {
				return r.store.Settle(cx, r.epoch, []store.Outcome{outcome(id, store.Completed)})
			})
			r.waitBlocked(t, 1)
			end(t, tx, true)
			if s := <-settle; s.Err != nil || s.Value[0] != c.want {
				t.Errorf("%s: %v, %v", id, s.Value, s.Err)
			}
		}
	})
}

// TestCommitBehindSnapshot: a row whose transaction commits after the claim took its
// snapshot and before it looked is requested again.
func TestCommitBehindSnapshot(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, withoutLockTimeout(url), flowTable, 0, flowBox)
		insert := r.begin(t, insertFlow, []string{"1"})
		xid := xidOf(t, insert)
		ask := row("1")
		ask.Txn = store.Txn(uint32(xid))
		if got := r.claim(t, ask)[0].Result; got != store.NotYetVisible {
			t.Fatalf("before the commit: got %s", got)
		}
		lead := r.begin(t, raiseEpoch) // delays the claim after its snapshot
		claim := r.claimLater(t, ask)
		r.waitBlocked(t, 1)
		end(t, insert, true)
		end(t, lead, false)
		if a := <-claim; a.Err != nil || a.Value[0].Result != store.NotYetVisible {
			t.Errorf("committed after the snapshot: got %v, error %v", a.Value, a.Err)
		}
		if got := r.claim(t, ask)[0].Result; got != store.Claimed {
			t.Errorf("claimed again: got %s", got)
		}
		// A transaction that wrote nothing here, long visible: the row is gone.
		ask.ID = "2"
		if got := r.claim(t, ask)[0].Result; got != store.Gone {
			t.Errorf("row absent from its visible transaction: got %s", got)
		}
		// A future transaction, as reported by a log ahead of the snapshot.
		ask.Txn = store.Txn(uint32(xid + 1_000_000))
		if got := r.claim(t, ask)[0].Result; got != store.NotYetVisible {
			t.Errorf("row of a later transaction: got %s", got)
		}
	})
}

// TestSubtransaction: the log reports the top-level transaction of a row inserted after a
// savepoint.
func TestSubtransaction(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, withoutLockTimeout(url), flowTable, 0, flowBox)
		tx := r.begin(t, "SAVEPOINT a")
		if _, err := tx.Exec(ctx(t), insertFlow, []string{"1"}); err != nil {
			t.Fatal(err)
		}
		ask := row("1")
		ask.Txn = store.Txn(uint32(xidOf(t, tx)))
		if got := r.claim(t, ask)[0].Result; got != store.NotYetVisible {
			t.Errorf("open: %s", got)
		}
		end(t, tx, true)
		if got := r.claim(t, ask)[0].Result; got != store.Claimed {
			t.Errorf("committed: %s", got)
		}
	})
}

// TestAheadOfVisibility claims rows of many short transactions before they commit, as a
// log that is ahead of statement snapshots does. Every row is claimed in the end, and
// none counts as gone.
func TestAheadOfVisibility(t *testing.T) {
	const writers, each = 4, 250
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		rows := make(chan store.ClaimRow, writers*each)
		errs := make(chan error, writers)
		for w := range writers {
			conn, c := servers.Connect(t, url), ctx(t)
			go func() { errs <- insertAhead(c, conn, fmt.Sprintf("w%d-", w), each, rows) }()
		}
		var waiting []store.ClaimRow
		claimed, early := 0, 0
		for claimed < writers*each {
			if len(waiting) == 0 {
				waiting = append(waiting, <-rows)
			}
			for more := true; more; {
				select {
				case row := <-rows:
					waiting = append(waiting, row)
				default:
					more = false
				}
			}
			asked := waiting
			waiting = nil
			for i, a := range r.claim(t, asked...) {
				switch a.Result {
				case store.Claimed:
					claimed++
				case store.NotYetVisible:
					early++
					waiting = append(waiting, asked[i])
				default:
					t.Fatalf("row %s is %s", asked[i].ID, a.Result)
				}
			}
		}
		for range writers {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%d claims came too early", early)
	})
}

// insertAhead inserts rows, one transaction each, and sends each before its commit.
func insertAhead(ctx context.Context, conn *pgx.Conn, prefix string, n int, rows chan<- store.ClaimRow) error {
	for i := range n {
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		ask := row(fmt.Sprint(prefix, i))
		if _, err := tx.Exec(ctx, insertFlow, []string{ask.ID}); err != nil {
			return err
		}
		var xid int64
		if err := tx.QueryRow(ctx, "SELECT pg_current_xact_id()::text::bigint").Scan(&xid); err != nil {
			return err
		}
		ask.Txn = store.Txn(uint32(xid))
		rows <- ask
		if err := tx.Commit(ctx); err != nil {
			return err
		}
	}
	return nil
}

func xidOf(t *testing.T, tx pgx.Tx) uint64 {
	t.Helper()
	var xid uint64
	if err := tx.QueryRow(ctx(t), "SELECT pg_current_xact_id()::text::bigint").Scan(&xid); err != nil {
		t.Fatal(err)
	}
	return xid
}
