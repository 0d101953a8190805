package mysql_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// kill ends all sessions of the database except those of the test's own pool.
func (r *rig) kill(t *testing.T) (n int) {
	t.Helper()
	own := map[int64]bool{}
	conn, err := r.db.Conn(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	var id int64

	if err := conn.QueryRowContext(ctx(t), "SELECT CONNECTION_ID()").Scan(&id); err != nil {
		t.Fatal(err)
	}
	own[id] = true
	list, err := sessionsOf(t, conn)
	for isUnreadable(err) { // another test's statement, which is short
		list, err = sessionsOf(t, conn)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range list {
		if own[id] {
			continue
		}
		if _, err := conn.ExecContext(ctx(t), fmt.Sprintf("KILL %d", id)); err != nil {
			t.Logf("KILL %d, of %v: %v", id, list, err)
			continue
		}
		n++
	}

	return n
}

// errConvert is ER_CANNOT_CONVERT_STRING: the column info of a processlist is utf8mb3, which
// has no character beyond the basic plane.
const errConvert = 3854

// isUnreadable reports whether a processlist could not be read because of another session's
// statement.
func isUnreadable(err error) bool {
	var unprintable *driver.MySQLError
	return errors.As(err, &unprintable) && unprintable.Number == errConvert
}

// sessionsOf returns the ids of the sessions in the connection's database.
func sessionsOf(t *testing.T, conn *sql.Conn) (list []int64, err error) {
	rows, err := conn.QueryContext(ctx(t), "SELECT id FROM information_schema.processlist WHERE db = DATABASE()")
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		list = append(list, id)
	}
	return list, errors.Join(rows.Err(), rows.Close())
}

// TestKilledSessions checks that every call opens a new session if its own was ended.
func TestKilledSessions(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		r.db.SetMaxOpenConns(1)
		r.insert(t, "1", "2", "3")
		key := store.LaneKey{Outbox: "events", Kind: "EVENT"}
		for turn := range 3 {
			for what, call := range map[string]func() error{
				"claim": func() error {
					_, err := r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{row("1"), row("2")})
					return err
				},
				"settle": func() error {
					_, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{outcome("3", store.Pending)})
					return err
				},
				"checkpoint": func() error { return r.store.SaveCheckpoint(ctx(t), r.epoch, store.Checkpoint{Position: "p"}) },
				"hold": func() error {
					return r.store.Hold(ctx(t), r.epoch, store.Hold{Lane: key, Kind: store.Paused, Since: time.Now()})
				},
				"spilled lanes": func() error { return r.store.SpilledLanes(ctx(t), func(store.SpilledLane) {}) },
			} {
				if err := call(); err != nil {
					t.Errorf("%s, round %d: %v", what, turn, err)
				}
			}

			if n := r.kill(t); n < 5 {
				t.Errorf("round %d: %d sessions were ended, want 5 or more", turn, n)
			}
		}
	})
}

// TestLockOfKilledSession checks that Watch and Ping report the loss of the lock's
// session, that the store does not raise the epoch again, and that another store gets the
// lock.
func TestLockOfKilledSession(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		held, err := r.store.Lock(ctx(t))
		if err != nil {
			t.Fatal(err)
		}

		r.lead(t)
		watched := rigs.Async(func() (int, error) { return 0, held.Watch(ctx(t)) })
		r.kill(t)
		if a := <-watched; a.Err == nil {
			t.Error("Watch did not return")
		}

		if err := held.Ping(ctx(t)); err == nil {
			t.Error("Ping succeeded on a lost lock")
		}
		rival := openStore(t, url, 0, flowBox())
		lock, err := rival.Lock(ctx(t))
		for began := time.Now(); errors.As(err, new(*store.LockedError)) && time.Since(began) < rigs.CallTimeout; { // the server ends a session in steps
			lock, err = rival.Lock(ctx(t))
		}
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Release()

		if _, err := rival.AcquireLeadership(ctx(t)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.store.AcquireLeadership(ctx(t)); !errors.Is(err, store.ErrNotLeader) {
			t.Errorf("AcquireLeadership without the lock: got %v", err)
		}
	})
}

// TestLockBySilence checks that a lock that is not pinged expires after
// store.MinLockLease, and not earlier.
func TestLockBySilence(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		rival := openStore(t, url, 0, flowBox())
		held, err := r.store.Lock(ctx(t))
		if err != nil {
			t.Fatal(err)
		}

		pinged := time.Now()
		if err := held.Ping(ctx(t)); err != nil {
			t.Fatal(err)
		}

		for ; ; <-time.After(20 * time.Millisecond) {
			lock, err := rival.Lock(ctx(t))
			if err == nil {
				lock.Release()
				break
			}
			if !errors.As(err, new(*store.LockedError)) || time.Since(pinged) > 3*store.MinLockLease {
				t.Fatalf("after %s: %v", time.Since(pinged), err)
			}
		}

		if took := time.Since(pinged); took < store.MinLockLease || took > store.MinLockLease+5*time.Second {
			t.Errorf("the lock was free after %s", took)
		}
		if err := held.Ping(ctx(t)); err == nil {
			t.Error("Ping succeeded on an expired lock")
		}
	})
}

// TestFrozenWriter checks that the server ends a transaction that a relay left open, so
// that AcquireLeadership stops waiting.
func TestFrozenWriter(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		conn, err := r.db.Conn(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		for _, text := range []string{
			"SET SESSION wait_timeout = 4", "START TRANSACTION", "SELECT * FROM sluicebox_leader WHERE name = 'rig' LOCK IN SHARE MODE",
		} {
			if _, err := conn.ExecContext(ctx(t), text); err != nil {
				t.Fatal(err)
			}
		}

		began := time.Now()
		r.lead(t)
		if took := time.Since(began); took > store.MinLockLease+5*time.Second {
			t.Errorf("AcquireLeadership took %s", took)
		}
	})
}

// TestKeepAlive checks that sessions outlive a pause between calls. A busy machine may delay
// the keep-alive pings past the server's timeout, so the test may need more than one
// pause.
func TestKeepAlive(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		r.db.SetMaxOpenConns(1)
		r.insert(t, "1")
		r.claim(t, row("1"))
		sessions := func() (list string) {
			const query = "SELECT COALESCE(GROUP_CONCAT(id ORDER BY id), 'none') FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
			err := r.db.QueryRow(query).Scan(&list)
			for isUnreadable(err) {
				err = r.db.QueryRow(query).Scan(&list)
			}
			if err != nil {
				t.Fatal(err)
			}
			return list
		}

		for try := range 4 {
			before := sessions()
			<-time.After(store.MinLockLease + 3*time.Second) // the pause itself
			after := sessions()
			r.claim(t, row("1"))
			if after == before && after != "none" {
				return
			}
			t.Logf("try %d: the sessions were %s and are %s", try, before, after)
		}

		t.Error("sessions ended in every pause")
	})
}

// TestTLS checks that the server's certificate is verified and that errors name the
// problem.
func TestTLS(t *testing.T) {
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			server := f.Start(t, nil)
			ca := server.TLS()
			url := strings.TrimSuffix(server.Database(), "?tls=false")
			good := url + "?tls-ca=" + ca
			r := newRig(t, good, flowTable, 0, flowBox())
			r.insert(t, "1")
			if a := r.claim(t, row("1"))[0]; a.Result != store.Claimed {
				t.Errorf("with TLS: %s", a.Result)
			}
			_, err := openStore(t, url+"?tls=true", 0, flowBox()).AcquireLeadership(ctx(t))
			rigs.WantSetup(t, "an authority that nobody knows", err, "certificate", "tls-ca")
			_, err = openStore(t, good+"&tls-server-name=other.example", 0, flowBox()).AcquireLeadership(ctx(t))
			rigs.WantSetup(t, "another name", err, "certificate")
			if _, err := openStore(t, url+"?tls=skip-verify", 0, flowBox()).AcquireLeadership(ctx(t)); err != nil {
				t.Errorf("unverified: %v", err)
			}
		})
	}
}

// TestCommitsWait enables and disables semisynchronous replication of a running server. The
// store sees the change, also while a commit of its own waits for a replica that is missing.
func TestCommitsWait(t *testing.T) {
	t.Parallel()
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			server := f.Start(t, nil)
			r := newRig(t, server.Database(), flowTable, 0, flowBox())
			rigs.AwaitCommitsWait(t, r.store, "")
			name := "rpl_semi_sync_master_"
			if f == servers.MySQL {
				name = "rpl_semi_sync_source_"
				r.exec(t, "INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
			}
			rigs.AwaitCommitsWait(t, r.store, "") // the plugin alone makes no commit wait
			r.exec(t, "SET GLOBAL "+name+"timeout = 600000")
			r.exec(t, "SET GLOBAL "+name+"enabled = ON")
			rigs.CheckCommitsWait(t, r.store, name+"enabled = ON", func() int {
				return ask[int](t, r.db, "SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for semi-sync ACK%'")
			}, func() { r.exec(t, "SET GLOBAL "+name+"enabled = OFF") })
		})
	}
}

// A read leaves no transaction open, in which the table could not be altered.
func TestReadUntriedLeavesNoTransaction(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		r.insert(t, "1")
		conn, err := r.db.Conn(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		for range 2 { // the first one looks the table up
			if got, err := r.store.ReadUntried(ctx(t), []store.ClaimRow{fresh("1")}); err != nil || !got[0] {
				t.Fatalf("got %v, %v", got, err)
			}
			for _, statement := range []string{"SET SESSION lock_wait_timeout = 1", "ALTER TABLE outbox_events COMMENT 'altered'"} {
				if _, err := conn.ExecContext(ctx(t), statement); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// Stores beside one share its sessions, and each leads by itself. A store that closes ends its own calls only.
func TestStoresBesideShareSessions(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		r.insert(t, "1")
		const n, shared, own = 10, 4 * 6, 2 // of each store: control and the lock
		var locked *sql.Tx
		rigs.CheckBeside(t, r.store, n, "1",
			func() { locked = r.begin(t, "SELECT id FROM outbox_events WHERE id = '1' FOR UPDATE") },
			func() { r.waitForLock(t) },
			func() {
				if err := locked.Rollback(); err != nil {
					t.Fatal(err)
				}
			})
		sessions := rigs.QueryValue[int](t, r.db, "SELECT count(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE()")
		if most := n*own + own + shared + 2; sessions > most { // two of the test
			t.Errorf("%d stores have %d sessions, want %d at the most", n, sessions, most)
		}
	})
}
