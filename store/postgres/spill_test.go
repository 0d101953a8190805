package postgres_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func spilledRow(id string, seq store.Seq) store.Item {
	return store.Item{Ref: store.Ref{Outbox: "events", ID: id}, Kind: "EVENT", Group: store.GroupOf("g"), Seq: seq, PayloadSize: 2}
}

func laneOf(it store.Item) store.SpilledRange {
	return store.SpilledRange{Outbox: it.Outbox, Lane: it.Lane().Hash()}
}

func (r *rig) spill(t *testing.T, items ...store.Item) {
	t.Helper()
	if err := r.store.Spill(ctx(t), r.epoch, items); err != nil {
		t.Fatal(err)
	}
}

// spilled returns the spilled ids, in the order of their seq.
func (r *rig) spilled(t *testing.T) string {
	t.Helper()
	return ask[string](t, r.conn, "SELECT coalesce(string_agg(convert_from(id, 'UTF8'), ' ' ORDER BY n), '') FROM sluicebox.queue WHERE name = 'rig'")
}

func spilledOutcome(id string, status store.Status, seq store.Seq) store.Outcome {
	o := outcome(id, status)
	o.SpilledSeq = seq
	return o
}

// TestSpilledRowsOfAnotherRelay: two relays on one outbox do not read, delete or exclude
// each other's spilled rows.
func TestSpilledRowsOfAnotherRelay(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		r.insert(t, "1", "2")
		other, err := postgres.New(postgres.Config{URL: url, Name: "other", Outboxes: []store.Outbox{flowBox}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(other.Close)
		epoch, err := other.AcquireLeadership(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		it := spilledRow("1", 7)
		r.spill(t, it)
		lanes := 0
		err = other.SpilledLanes(ctx(t), func(store.SpilledLane) { lanes++ })
		lists, err2 := other.ReadSpilled(ctx(t), []store.SpilledRange{laneOf(it)}, 9)
		n, err3 := other.DeleteSpilledAfter(ctx(t), epoch, store.Checkpoint{Seq: 0})
		err4 := other.DeleteSpilled(ctx(t), epoch, []store.SpilledRef{{Ref: it.Ref, Seq: it.Seq}})
		_, err5 := other.Settle(ctx(t), epoch, []store.Outcome{spilledOutcome("1", store.Completed, 7)})
		if err := errors.Join(err, err2, err3, err4, err5); err != nil || lanes != 0 || len(lists[0]) != 0 || n != 0 {
			t.Errorf("got %d lanes, rows %v, %d deleted, error %v", lanes, lists, n, err)
		}
		if got := r.spilled(t); got != "1" {
			t.Errorf("got spilled rows %q", got)
		}
		twin := spilledRow("2", 7)
		if err := other.Spill(ctx(t), epoch, []store.Item{twin}); err != nil {
			t.Error(err)
		}
		if got := unsettledIDs(t, r.store); !slices.Equal(got, []string{"2"}) {
			t.Errorf("got view %q", got)
		}
		if got := unsettledIDs(t, other); len(got) != 0 {
			t.Errorf("other relay: got view %q", got)
		}
	})
}

// TestSpilledRowChangedUnderSettle: another session changes the row of an outcome while
// the outcome waits for it. The spilled row is deleted, and a lane blocked if the row is
// FAILED, by the row's final state.
func TestSpilledRowChangedUnderSettle(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, withoutLockTimeout(url), flowTable, 0, flowBox)
		for id, c := range map[string]struct {
			change string
			want   store.SettleResult
		}{
			"settled":  {"UPDATE outbox_events SET status = 'FAILED' WHERE id = $1", store.WasSettled},
			"deleted":  {"DELETE FROM outbox_events WHERE id = $1", store.WasGone},
			"touched":  {"UPDATE outbox_events SET payload = 'new' WHERE id = $1", store.Written},
			"replaced": {replaceFlow, store.Written},
		} {
			for _, status := range []store.Status{store.Completed, store.Failed} {
				id := fmt.Sprintf("%s %d", id, status)
				r.insert(t, id)
				r.claim(t, row(id))
				r.spill(t, spilledRow(id, 5))
				tx := r.begin(t, c.change, id)
				cx := ctx(t)
				settle := rigs.Async(func() ([]store.SettleResult, error) {
					o := spilledOutcome(id, status, 5)
					if status == store.Failed {
						o.Block = &store.Hold{Lane: store.LaneKey{Outbox: "events", Kind: "EVENT", Group: store.GroupOf(id)}}
					}
					return r.store.Settle(cx, r.epoch, []store.Outcome{o})
				})
				r.waitBlocked(t, 1)
				end(t, tx, true)
				if s := <-settle; s.Err != nil || s.Value[0] != c.want {
					t.Errorf("%s: %v, %v", id, s.Value, s.Err)
				}
				if got := r.spilled(t); got != "" {
					t.Errorf("%s: got spilled rows %q", id, got)
				}
				holds, err := r.store.LoadHolds(ctx(t))
				blocks := slices.ContainsFunc(holds, func(h store.Hold) bool { return h.ID == id })
				if err != nil || blocks != (status == store.Failed && c.want != store.WasGone) {
					t.Errorf("%s: blocks its lane: %t, %v", id, blocks, err)
				}
			}
		}
	})
}

// replaceFlow replaces a row by another with the same id: an outcome that waits for the
// old one matches no row, and the new one is unsettled.
const replaceFlow = `
WITH old AS (DELETE FROM outbox_events WHERE id = $1 RETURNING *)
INSERT INTO outbox_events SELECT * FROM old`

// TestUnsettledRowStaysSpilled: as long as a row cannot be written, it stays spilled.
func TestUnsettledRowStaysSpilled(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		r.insert(t, "1", "2")
		// The trigger silently drops writes of row 1.
		r.exec(t, `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`)
		r.exec(t, `CREATE TRIGGER keep BEFORE UPDATE ON outbox_events FOR EACH ROW WHEN (old.id = '1') EXECUTE FUNCTION keep()`)
		r.spill(t, spilledRow("1", 1), spilledRow("2", 2))
		var refused *store.RefusedError
		_, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{spilledOutcome("1", store.Completed, 1), spilledOutcome("2", store.Completed, 2)})
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), `"1"`) {
			t.Fatalf("outcome that is never written: got error %v", err)
		}
		if got := r.spilled(t); got != "1 2" || r.status(t, "2") != "PENDING" {
			t.Errorf("a refused call wrote: got spilled rows %q, row 2 is %s", got, r.status(t, "2"))
		}
		if _, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{spilledOutcome("2", store.Completed, 2)}); err != nil {
			t.Fatal(err)
		}
		if got := r.spilled(t); got != "1" || r.status(t, "2") != "COMPLETED" {
			t.Errorf("got spilled rows %q, row 2 is %s", got, r.status(t, "2"))
		}
		r.exec(t, "DROP TRIGGER keep ON outbox_events")
		if _, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{spilledOutcome("1", store.Completed, 1), spilledOutcome("2", store.Completed, 2)}); err != nil {
			t.Fatal(err)
		}
		if got := r.spilled(t); got != "" {
			t.Errorf("got spilled rows %q", got)
		}
	})
}

// TestSpillWaitsForEpoch: a former leader's spills and deletions during a pending
// AcquireLeadership are refused when that commits.
func TestSpillWaitsForEpoch(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, withoutLockTimeout(url), flowTable, 0, flowBox)
		first := spilledRow("1", 1)
		r.spill(t, first)
		c := ctx(t)
		for what, call := range map[string]func() error{
			"spill":            func() error { return r.store.Spill(c, r.epoch, []store.Item{spilledRow("2", 2)}) },
			"delete":           func() error { return r.store.DeleteSpilled(c, r.epoch, []store.SpilledRef{{Ref: first.Ref, Seq: 1}}) },
			"delete after seq": func() error { _, err := r.store.DeleteSpilledAfter(c, r.epoch, store.Checkpoint{Seq: 0}); return err },
		} {
			lead := r.begin(t, raiseEpoch)
			wait := rigs.Async(func() (int, error) { return 0, call() })
			r.waitBlocked(t, 1)
			end(t, lead, true)
			if a := <-wait; !errors.Is(a.Err, store.ErrNotLeader) {
				t.Errorf("%s: %v", what, a.Err)
			}
			if got := r.spilled(t); got != "1" {
				t.Errorf("%s: got spilled rows %q", what, got)
			}
			r.epoch++
		}
	})
}

// TestSpillBlocksNoOtherCall: claims, outcomes and the checkpoint do not wait for rows that
// are being spilled.
func TestSpillBlocksNoOtherCall(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, withoutLockTimeout(url), flowTable, 0, flowBox)
		r.insert(t, "1")
		r.spill(t, spilledRow("1", 1))
		tx := r.begin(t, "DELETE FROM sluicebox.queue")
		c := ctx(t)
		park := rigs.Async(func() (int, error) { return 0, r.store.Spill(c, r.epoch, []store.Item{spilledRow("1", 1)}) })
		r.waitBlocked(t, 1)
		r.claim(t, row("1"))
		_, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{spilledOutcome("1", store.Completed, 9)})
		if err := errors.Join(err, r.store.SaveCheckpoint(ctx(t), r.epoch, store.Checkpoint{})); err != nil {
			t.Error(err)
		}
		end(t, tx, true)
		if a := <-park; a.Err != nil {
			t.Error(a.Err)
		}
		if got := r.spilled(t); got != "1" {
			t.Errorf("got spilled rows %q", got)
		}
	})
}

// TestSpilledTxn: the full number of an open transaction is stored, that of a visible one
// is not, and visibility is right for a transaction more than 2^31 behind. It does not matter
// how many rows are spilled with them.
func TestSpilledTxn(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		for _, others := range []int{0, 1000} {
			testSpilledTxn(t, url, others)
		}
	})
}

func testSpilledTxn(t *testing.T, url string, others int) {
	r := newRig(t, url, "DROP TABLE IF EXISTS outbox_events;"+flowTable, 0, flowBox)
	r.exec(t, "DELETE FROM sluicebox.queue")
	committed := r.begin(t, insertFlow, []string{"2"})
	earlier := xidOf(t, committed)
	end(t, committed, true)
	tx := r.begin(t, insertFlow, []string{"1"})
	xid := xidOf(t, tx)
	open, seen := spilledRow("1", 1), spilledRow("2", 2)
	open.Txn, seen.Txn = store.Txn(uint32(xid)), store.Txn(uint32(earlier))
	rows := []store.Item{open, seen}
	for i := range others {
		other := spilledRow(fmt.Sprint("other ", i), store.Seq(3+i))
		other.Group, other.Txn = store.GroupOf("other"), seen.Txn
		rows = append(rows, other)
	}
	r.spill(t, rows...)
	end(t, tx, true)
	if got := ask[uint64](t, r.conn, "SELECT xid FROM sluicebox.queue WHERE id = '1'"); got != xid {
		t.Errorf("open transaction: got xid %d, want %d", got, xid)
	}
	if got := ask[uint64](t, r.conn, "SELECT max(xid) FROM sluicebox.queue WHERE id <> '1'"); got != 0 {
		t.Errorf("visible transaction: got xid %d, want 0", got)
	}
	const later = 3 << 31 // as if the server had come that far when the row was spilled
	r.exec(t, "UPDATE sluicebox.queue SET xid = xid + $1 WHERE id = '1'", int64(later))
	lists, err := r.store.ReadSpilled(ctx(t), []store.SpilledRange{laneOf(open)}, 9)
	if err != nil || len(lists[0]) != 2 || lists[0][0].Txn != store.Txn(uint32(xid+later)) || lists[0][1].Txn != 0 {
		t.Errorf("read back: %+v, %v", lists, err)
	}
}

// fillSpilled spills that many rows, in lanes of that many each.
const fillSpilled = `
INSERT INTO sluicebox.queue (queue, name, outbox, lane, n, id, kind, xid, retry_count, payload_size)
SELECT '', 'rig', 'events', substr(sha256(int8send(i / $2::bigint)), 1, 20), i, convert_to('filler ' || i, 'UTF8'), 'EVENT', 0, 0, 0 FROM generate_series(100, 99 + $1::bigint) i`

// TestDeleteManySpilledRows deletes more rows than one statement does.
func TestDeleteManySpilledRows(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		r.spill(t, spilledRow("1", 1))
		r.exec(t, fillSpilled, 50_000, 100)
		started := time.Now()
		if n, err := r.store.DeleteSpilledAfter(ctx(t), r.epoch, store.Checkpoint{Seq: 1}); err != nil || n != 50_000 {
			t.Errorf("deleted %d rows, error %v", n, err)
		}
		t.Logf("50000 rows deleted in %s", time.Since(started))
		if got := r.spilled(t); got != "1" {
			t.Errorf("got spilled rows %q", got)
		}
	})
}

// TestSpillSurvivesCrash: rows that were spilled, deleted or settled from the table stay
// so after a crash of the server.
func TestSpillSurvivesCrash(t *testing.T) {
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
			r.insert(t, "1", "2", "3", "4")
			crash := func(what, want string) {
				t.Helper()
				srv.Stop("immediate")
				srv.Restart(nil)
				r.conn = servers.Connect(t, srv.URL)
				if got := r.spilled(t); got != want {
					t.Errorf("%s: got spilled rows %q after a crash, want %q", what, got, want)
				}
				_ = r.store.SpilledLanes(ctx(t), func(store.SpilledLane) {}) // the old session is broken
				_, _ = r.store.Settle(ctx(t), r.epoch, []store.Outcome{outcome("none", store.Completed)})
			}
			r.spill(t, spilledRow("1", 1), spilledRow("2", 2), spilledRow("3", 3), spilledRow("4", 4))
			crash("spill", "1 2 3 4")
			if err := r.store.DeleteSpilled(ctx(t), r.epoch, []store.SpilledRef{{Ref: store.Ref{Outbox: "events", ID: "1"}, Seq: 1}}); err != nil {
				t.Fatal(err)
			}
			crash("delete", "2 3 4")
			if _, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{spilledOutcome("2", store.Completed, 2)}); err != nil {
				t.Fatal(err)
			}
			crash("settle", "3 4")
			if got := r.status(t, "2"); got != "COMPLETED" {
				t.Errorf("the row no longer spilled: got %s", got)
			}
			if n, err := r.store.DeleteSpilledAfter(ctx(t), r.epoch, store.Checkpoint{Seq: 3}); err != nil || n != 1 {
				t.Fatal(n, err)
			}
			crash("delete after seq", "3")
		})
	}
}
