package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/postgres"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// openTransaction opens a transaction that has written.
func openTransaction(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn := servers.Connect(t, url)
	if _, err := conn.Exec(t.Context(), "BEGIN; INSERT INTO unrelated VALUES (1)", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	return conn
}

func expectNoSlot(t *testing.T, d *database) {
	t.Helper()
	var n int
	if err := servers.Connect(t, d.url).QueryRow(t.Context(), "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", d.name).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d slots are left, %v", n, err)
	}
}

// TestOldTransaction: creating a slot does not wait for an old transaction. The error
// names the transaction, also for a role that may not see its age, and nothing is left
// behind.
func TestOldTransaction(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		srv := servers.Start(t, version, map[string]string{"max_prepared_transactions": "2"})
		d := privateDatabase(t, srv)
		lowly := d.newRole(t, "app", "REPLICATION")
		script(publish, "GRANT SELECT ON outbox_events TO "+lowly)(t, d)
		for _, role := range []string{"", lowly} {
			t.Run("role "+role, func(t *testing.T) {
				d.role = role
				old := openTransaction(t, d.url)
				src := newSource(t, d.config())
				defer src.Close()
				if err := src.Ready(t.Context()); err != nil {
					t.Errorf("a young transaction blocks the slot: %v", err)
				}
				// The first call waits until the transaction is old, the second does not
				// wait.
				for i, most := range []time.Duration{20 * time.Second, 10 * time.Second} {
					began := time.Now()
					_, err := src.Open(t.Context(), store.Checkpoint{}, d.tables())
					if took := time.Since(began); took > most {
						t.Errorf("attempt %d took %s", i, took)
					}
					expectOld(t, err, old)
					expectText(t, err, "new slot needed, because there is no checkpoint yet: ")
					expectNoSlot(t, d)
				}
				expectOld(t, src.Ready(t.Context()), old)
				if _, err := old.Exec(t.Context(), "COMMIT"); err != nil {
					t.Fatal(err)
				}
				if err := src.Ready(t.Context()); err != nil {
					t.Error(err)
				}
				run(t, d, d.config(), store.Checkpoint{}).close()
				if err := src.DropSlot(t.Context()); err != nil {
					t.Error(err)
				}
				expectNoSlot(t, d)
			})
		}
		t.Run("prepared", func(t *testing.T) {
			d.role = ""
			servers.Exec(t, d.url, "BEGIN; INSERT INTO unrelated VALUES (1); PREPARE TRANSACTION 'left over'")
			err := openErr(t, d, d.config(), store.Checkpoint{})
			expectText(t, err, `the prepared transaction "left over", open since`, "ROLLBACK PREPARED")
			servers.Exec(t, d.url, "ROLLBACK PREPARED 'left over'")
			run(t, d, d.config(), store.Checkpoint{})
		})
	})
}

func expectOld(t *testing.T, err error, old *pgx.Conn) {
	t.Helper()
	var e *postgres.OldTransactionError
	if !errors.As(err, &e) || !errors.As(err, new(*capture.NoStreamError)) || !errors.As(err, new(*store.SetupError)) {
		t.Fatalf("got %v, want an *OldTransactionError", err)
	}
	if e.PID != int(old.PgConn().PID()) || e.Age < 2*time.Second || e.Age > time.Minute {
		t.Errorf("pid %d and age %s are reported", e.PID, e.Age)
	}
	expectText(t, err, fmt.Sprintf("waits for the transaction of pid %d, open since ", e.PID), `user "postgres"`, "pg_terminate_backend")
}

// TestShortTransactions: slot creation waits for short transactions, also if one is
// always open.
func TestShortTransactions(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := privateDatabase(t, servers.Start(t, version, nil))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		for range 2 {
			conn := servers.Connect(t, d.url)
			go func() {
				var err error
				for ctx.Err() == nil && err == nil {
					_, err = conn.Exec(context.Background(), "BEGIN; INSERT INTO unrelated VALUES (1); SELECT pg_sleep(0.4 + random() * 0.3); COMMIT", pgx.QueryExecModeSimpleProtocol)
				}
				ended <- err
			}()
		}
		run(t, d, d.config(), store.Checkpoint{})
		stop()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestNoSlotWithoutView: if the view of the tables cannot be opened, no slot remains that
// would retain WAL.
func TestNoSlotWithoutView(t *testing.T) {
	d := newDatabase(t, servers.Database(t, servers.Versions()[0]))
	src := newSource(t, d.config())
	defer src.Close()
	broken := errors.New("no view")
	if _, err := src.Open(t.Context(), store.Checkpoint{}, noViews{broken}); !errors.Is(err, broken) {
		t.Errorf("Open ended with %v", err)
	}
	expectNoSlot(t, d)
}

type noViews struct{ err error }

func (v noViews) View(context.Context, string) (store.View, error)         { return nil, v.err }
func (noViews) ClearCheckpoint(context.Context) error                      { return nil }
func (noViews) Keep(context.Context, store.Checkpoint, []store.Item) error { return nil }

// TestShutdown: no state of the source delays a fast shutdown of the server.
func TestShutdown(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		for name, busy := range map[string]func(t *testing.T, d *database) (end func()){
			"opening":              openInLoop,
			"a slot is being made": waitForTransaction,
			"opened":               openOnly,
			"attending":            blockMonitor,
		} {
			t.Run(name, func(t *testing.T) {
				srv := servers.Start(t, version, nil)
				end := busy(t, privateDatabase(t, srv))
				took := srv.Stop("fast")
				t.Logf("the shutdown took %s", took)
				if took > quickTimeout {
					t.Errorf("the shutdown took %s", took)
				}
				end()
			})
		}
	})
}

// openInLoop opens a source in a loop.
func openInLoop(t *testing.T, d *database) func() {
	first, done := make(chan struct{}), make(chan error, 1)
	go func() {
		src := newSource(t, d.config())
		defer src.Close()
		var err error
		for i := 0; err == nil; i++ {
			var o capture.OpenResult
			if o, err = src.Open(context.Background(), store.Checkpoint{}, d.tables()); err == nil {
				o.View.Close()
			}
			if i == 0 {
				close(first)
			}
		}
		done <- err
	}()
	<-first
	return func() {
		if err := <-done; errors.As(err, new(*store.SetupError)) {
			t.Errorf("the shutdown is reported as a setup error: %v", err)
		}
	}
}

// waitForTransaction lets a source wait for a transaction.
func waitForTransaction(t *testing.T, d *database) func() {
	openTransaction(t, d.url)
	src := newSource(t, d.config())
	done := make(chan error, 1)
	go func() {
		_, err := src.Open(context.Background(), store.Checkpoint{}, d.tables())
		done <- err
	}()
	conn := servers.Connect(t, d.url)
	for made, began := false, time.Now(); !made; <-time.After(10 * time.Millisecond) {
		if time.Since(began) > testTimeout {
			t.Fatal("no slot creation started")
		}
		if err := conn.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)", d.name).Scan(&made); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		if err := <-done; err == nil || errors.As(err, new(*store.SetupError)) {
			t.Errorf("Open ended with %v", err)
		}
		src.Close()
	}
}

// openOnly leaves a source between Open and Run.
func openOnly(t *testing.T, d *database) func() {
	src := newSource(t, d.config())
	capturetest.OpenWithoutCheckpoint(t, src, d.tables())
	return src.Close
}

// blockMonitor makes the monitoring session wait for a lock.
func blockMonitor(t *testing.T, d *database) func() {
	cfg := d.config()
	cfg.HeartbeatInterval = 100 * time.Millisecond
	f := follow(t, d, cfg, store.Checkpoint{})
	servers.Exec(t, d.url, insert("a"))
	f.expect("a")
	lock := servers.Connect(t, d.url)
	if _, err := lock.Exec(t.Context(), "BEGIN; LOCK TABLE pg_publication IN ACCESS EXCLUSIVE MODE", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	for waits, began := false, time.Now(); !waits; <-time.After(10 * time.Millisecond) {
		if time.Since(began) > testTimeout {
			t.Fatal("nothing waits for the lock")
		}
		err := lock.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = $1)", "sluicebox "+d.name+" control").Scan(&waits)
		if err != nil {
			t.Fatal(err)
		}
	}
	return func() {}
}
