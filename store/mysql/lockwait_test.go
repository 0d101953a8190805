package mysql_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestInsertsMeetNoLocks checks that concurrent inserts of an application and the relay's
// claims and outcomes never wait for each other.
func TestInsertsMeetNoLocks(t *testing.T) {
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			// A server of its own, because it counts the lock waits of all its sessions.
			r := newRig(t, f.Start(t, nil).Database(), flowTable, 0, flowBox())
			const writers, each = 4, 300
			var inserted sync.WaitGroup
			ids := make(chan string, writers*each)
			began := time.Now()
			var worst time.Duration
			var mu sync.Mutex
			for w := range writers {
				inserted.Go(func() {
					for i := range each {
						id := fmt.Sprintf("%03d-%d-%d", (i*7919)%1000, w, i)
						at := time.Now()
						if _, err := r.db.Exec("INSERT INTO outbox_events (id, payload) VALUES (?, '{}')", id); err != nil {
							t.Errorf("insert: %v", err)
							return
						}
						mu.Lock()
						worst = max(worst, time.Since(at))
						mu.Unlock()
						ids <- id
					}
				})
			}

			go func() { inserted.Wait(); close(ids) }()
			const waits = "Innodb_row_lock_waits"
			before := globalStatus(t, r, waits)
			n := 0
			for id := range ids {
				rows := []store.ClaimRow{fresh(id)}
				for len(ids) > 0 && len(rows) < 50 {
					rows = append(rows, fresh(<-ids))
				}

				there := len(rows)
				if n%2 == 0 {
					rows = append(rows, fresh("absent "+id[:3])) // a gap
				}

				var outcomes []store.Outcome
				for i, a := range r.claim(t, rows...) {
					if i < there && a.Result != store.Claimed {
						t.Fatalf("row %s is %s", rows[i].ID, a.Result)
					}
					if a.Result == store.Claimed {
						outcomes = append(outcomes, outcome(rows[i].ID, store.Completed))
					}
				}

				r.settle(t, outcomes...)
				n += len(outcomes)
			}

			t.Logf("%d rows in %s, the slowest insert took %s", n, time.Since(began), worst)
			if waited := globalStatus(t, r, waits) - before; waited != 0 {
				t.Errorf("%d statements waited for a lock, want 0", waited)
			}

			if n != writers*each {
				t.Errorf("settled %d rows, want %d", n, writers*each)
			}
		})
	}
}

// TestInsertIntoGaps checks that inserts between and after the rows of an open claim do
// not wait. The claim stays open because it waits for a row.
func TestInsertIntoGaps(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		r.insert(t, "10", "20", "30", "40")
		held := r.begin(t, "UPDATE outbox_events SET payload = '1' WHERE id = '40'")
		claimed := rigs.Async(func() ([]store.ClaimAnswer, error) {
			return r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{row("10"), row("15"), row("20"), row("40"), row("99")})
		})

		r.waitForLock(t)
		conn, err := r.db.Conn(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := conn.ExecContext(ctx(t), "SET SESSION innodb_lock_wait_timeout = 1"); err != nil {
			t.Fatal(err)
		}

		for _, id := range []string{"05", "11", "15", "25", "35", "41", "99"} {
			if _, err := conn.ExecContext(ctx(t), "INSERT INTO outbox_events (id, payload) VALUES (?, '{}')", id); err != nil {
				t.Errorf("insert of %s during a claim: %v", id, err)
			}
		}

		if err := held.Commit(); err != nil {
			t.Fatal(err)
		}
		a := <-claimed
		if a.Err != nil {
			t.Fatal(a.Err)
		}

		for i, id := range []string{"10", "", "20", "40"} {
			if id != "" && a.Value[i].Result != store.Claimed {
				t.Errorf("row %s is %s", id, a.Value[i].Result)
			}
		}
	})
}

// readingLockWaits is held between reads of innodb_trx: the servers refresh that table only
// if nobody has read it for 0.1 s, so tests that read in turns would keep it old.
var readingLockWaits sync.Mutex

// waitForLock returns when a session on the test's database waits for a row.
func (r *rig) waitForLock(t *testing.T) {
	t.Helper()
	for c := ctx(t); !r.seesLockWait(t); {
		if c.Err() != nil {
			t.Fatal("no session waits for a lock")
		}
	}
}

// seesLockWait lets the servers refresh innodb_trx and reads it.
func (r *rig) seesLockWait(t *testing.T) bool {
	t.Helper()
	const waiting = `
SELECT COUNT(*) FROM information_schema.innodb_trx AS x JOIN information_schema.processlist AS p ON p.id = x.trx_mysql_thread_id
WHERE x.trx_state = 'LOCK WAIT' AND p.db = DATABASE()`

	readingLockWaits.Lock()
	defer readingLockWaits.Unlock()
	time.Sleep(150 * time.Millisecond)
	var n int
	if err := r.db.QueryRow(waiting).Scan(&n); err != nil && !isUnreadable(err) {
		t.Fatal(err)
	}
	return n > 0
}

func globalStatus(t *testing.T, r *rig, name string) int {
	t.Helper()
	var is string
	var value int
	if err := r.db.QueryRow("SHOW GLOBAL STATUS LIKE '"+name+"'").Scan(&is, &value); err != nil {
		t.Fatal(err)
	}
	return value
}

// TestClaimOfOpenInsert checks that a claim waits for the transaction that inserts its
// row, and then finds the row or reports it gone.
func TestClaimOfOpenInsert(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		for i, commit := range []bool{true, false, true, false} {
			id := fmt.Sprint("row ", i)
			ask := fresh(id)
			ask.WantPayload = i > 1
			tx := r.begin(t, "INSERT INTO outbox_events (id, payload) VALUES (?, 'here')", id)
			claimed := rigs.Async(func() ([]store.ClaimAnswer, error) {
				return r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{ask})
			})

			r.waitForLock(t)
			end, want := tx.Commit, store.Claimed
			if !commit {
				end, want = tx.Rollback, store.Gone
			}

			if err := end(); err != nil {
				t.Fatal(err)
			}
			if a := <-claimed; a.Err != nil || a.Value[0].Result != want {
				t.Errorf("commit %v: %+v, %v", commit, a.Value, a.Err)
			}
		}
	})
}

// TestClaimPastLockedRow checks that a locked row is reported not yet visible and the
// other rows of the call are claimed. The claims that follow do not wait.
func TestClaimPastLockedRow(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		var rows []store.ClaimRow
		for i := range 100 {
			id := fmt.Sprint(1000 + i)
			r.insert(t, id)
			rows = append(rows, fresh(id))
		}

		tx := r.begin(t, "SELECT * FROM outbox_events WHERE id IN ('1007', '1063') FOR UPDATE")
		for turn := range 2 {
			began := time.Now()
			for i, a := range r.claim(t, rows...) {
				want := store.Claimed
				if i == 7 || i == 63 {
					want = store.NotYetVisible
				}
				if a.Result != want {
					t.Errorf("round %d: row %s: got %s", turn, rows[i].ID, a.Result)
				}
			}
			if took := time.Since(began); turn > 0 && took > 1900*time.Millisecond {
				t.Errorf("claim with a locked row took %s", took)
			}
		}

		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		for _, a := range r.claim(t, rows...) {
			if a.Result != store.Claimed {
				t.Errorf("without locks: got %s", a.Result)
			}
		}
	})
}

// TestLookupDuringInsert checks that the row of an open transaction is not reported gone.
func TestLookupDuringInsert(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		r.insert(t, "1")
		r.begin(t, "INSERT INTO outbox_events (id, payload) VALUES ('2', '{}')")
		settled, err := r.store.ReadSettled(ctx(t), []store.ClaimRow{row("1"), row("2"), row("3")})
		if err != nil || settled[0] || settled[1] || !settled[2] {
			t.Errorf("%v, %v", settled, err)
		}
	})
}

// TestLockedTable checks that a lock on the whole table delays a claim by a few seconds,
// whatever the number of rows, and that no row is reported gone.
func TestLockedTable(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		var rows []store.ClaimRow
		for i := range 50 {
			rows = append(rows, row(fmt.Sprint(i)))
		}

		r.insert(t, "7")
		conn, err := r.db.Conn(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := conn.ExecContext(ctx(t), "LOCK TABLES outbox_events WRITE"); err != nil {
			t.Fatal(err)
		}

		began := time.Now()
		for i, a := range r.claim(t, rows...) {
			if a.Result != store.TableLocked {
				t.Errorf("row %d is %s", i, a.Result)
			}
		}

		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("the claim took %s", took)
		}
		if _, err := conn.ExecContext(ctx(t), "UNLOCK TABLES"); err != nil {
			t.Fatal(err)
		}

		if a := r.claim(t, row("7"))[0]; a.Result != store.Claimed {
			t.Errorf("after the lock: got %s", a.Result)
		}
	})
}
