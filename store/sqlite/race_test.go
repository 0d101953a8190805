package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/sqlite"
)

// TestWriteLockHeldByService: while a service holds the write lock, claims answer NotYetVisible, an old leader
// gets ErrNotLeader, and a view can be read.
func TestWriteLockHeldByService(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	r.exec(t, "INSERT INTO outbox_events (id) VALUES ('1')")
	old := r.epoch
	rival := openStore(t, r.path, "rig", 0, flowBox())
	var err error
	if r.epoch, err = rival.AcquireLeadership(ctx(t)); err != nil {
		t.Fatal(err)
	}
	r.store = rival
	tx, err := r.db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if a := r.claim(t, row("1"))[0]; a.Result != store.NotYetVisible {
		t.Errorf("the row is %s", a.Result)
	}
	if waited := time.Since(began); waited < 200*time.Millisecond || waited > 5*time.Second {
		t.Errorf("the claim waited %s", waited)
	}
	if _, err := r.store.Claim(ctx(t), old, time.Now(), []store.ClaimRow{row("1")}); !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("the old leader: %v", err)
	}
	if got := r.unsettled(t, nil); len(got) != 1 {
		t.Errorf("the view shows %q", got)
	}
	if _, err := r.store.LoadCheckpoint(ctx(t)); !errors.Is(err, store.ErrNoCheckpoint) {
		t.Error(err)
	}
	short, cancel := context.WithTimeout(ctx(t), 50*time.Millisecond)
	defer cancel()
	if _, err := r.store.Settle(short, r.epoch, []store.Outcome{outcome("1", store.Completed)}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an outcome: %v", err)
	}
	settled := make(chan error, 1)
	go func() {
		_, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{outcome("1", store.Completed)})
		settled <- err
	}()
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-settled; err != nil {
		t.Errorf("an outcome that waited: %v", err)
	}
}

func TestUnreachable(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	r.exec(t, "PRAGMA busy_timeout = 0")
	tx, err := r.db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }() // nothing was written
	path, conn := r.path, (*sqlite.Conn)(nil)
	if conn, err = sqlite.Dial(ctx(t), path); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = conn.Exec(ctx(t), "BEGIN IMMEDIATE")
	if !sqlite.IsLocked(err) || !sqlite.Unreachable(err) {
		t.Errorf("a locked database: %v", err)
	}
	for _, err := range []error{nil, context.Canceled, store.ErrNotLeader, &store.SetupError{Problem: "x"}, errors.New("x")} {
		if sqlite.Unreachable(err) {
			t.Errorf("%v counts as unreachable", err)
		}
	}
}

// TestReplaced: a store detects that another file has replaced its own.
func TestReplaced(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	r.exec(t, "INSERT INTO outbox_events (id) VALUES ('1')")
	other := newRig(t, flowTable, 0, flowBox())
	other.exec(t, "INSERT INTO outbox_events (id) VALUES ('2')")
	other.store.Close()
	other.exec(t, "PRAGMA wal_checkpoint(TRUNCATE)")
	if err := other.db.Close(); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(r.path + suffix); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(other.path, r.path); err != nil {
		t.Fatal(err)
	}
	// The two files happen to have the same epoch.
	if a, err := r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{row("2")}); !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("a claim in a file that the store never led: %v, %v", a, err)
	}
	var err error
	if r.epoch, err = r.store.AcquireLeadership(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if a := r.claim(t, row("1"), row("2")); a[0].Result != store.Gone || a[1].Result != store.Claimed {
		t.Errorf("rows of the new file: %s, %s", a[0].Result, a[1].Result)
	}
}

// TestServicesInsertDuringClaims: services insert while claims and outcomes run; every row is COMPLETED
// exactly once.
func TestServicesInsertDuringClaims(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	const services, each = 3, 60
	var work sync.WaitGroup
	ids := make(chan string, services*each)
	for s := range services {
		work.Go(func() {
			for i := range each {
				id := fmt.Sprintf("%d-%d", s, i)
				if _, err := r.db.Exec("INSERT INTO outbox_events (id) VALUES (?)", id); err != nil {
					t.Error(err)
				}
				ids <- id
			}
		})
	}
	go func() { work.Wait(); close(ids) }()
	var relays sync.WaitGroup
	for range 3 {
		relays.Go(func() {
			for id := range ids {
				for {
					answers, err := r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{row(id)})
					if err != nil {
						t.Error(err)
						return
					}
					if answers[0].Result == store.NotYetVisible {
						continue
					}
					if answers[0].Result != store.Claimed {
						t.Errorf("row %s is %s", id, answers[0].Result)
					}
					break
				}
				if results, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{outcome(id, store.Completed)}); err != nil || results[0] != store.Written {
					t.Errorf("row %s: %v, %v", id, results, err)
				}
			}
		})
	}
	relays.Wait()
	if n := ask[int](t, r.db, "SELECT count(*) FROM outbox_events WHERE status = 'COMPLETED'"); n != services*each {
		t.Errorf("%d rows are COMPLETED, want %d", n, services*each)
	}
}

// TestLookupUsesIndex: an index serves the lookup of rows, in a table of any size.
func TestLookupUsesIndex(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	r.exec(t, `WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 50000)
		INSERT INTO outbox_events (id) SELECT i FROM c`)
	var claims []store.ClaimRow
	for i := range 500 {
		claims = append(claims, row(fmt.Sprint(i*7)))
	}
	began := time.Now()
	r.claim(t, claims...)
	if took := time.Since(began); took > 2*time.Second { // a scan for each of them would read 500 times 50 000 rows
		t.Errorf("500 rows of 50 000 were claimed in %s", took)
	}
}
