package mysql_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// asAccount creates an account without rights and returns the URL with it.
func asAccount(t *testing.T, admin, password string) (url, account string) {
	t.Helper()
	name := fmt.Sprintf("relay_%x", time.Now().UnixNano()&0xffffffffff)
	account = "'" + name + "'@'%'"
	servers.ExecMySQL(t, admin, "CREATE USER "+account+" IDENTIFIED BY '"+password+"'")
	t.Cleanup(func() {
		db := servers.OpenMySQL(t, admin)
		if _, err := db.Exec("DROP USER " + account); err != nil {
			t.Error(err)
		}
	})
	return strings.Replace(admin, "root@", name+":"+password+"@", 1), account
}

// TestLeastRights checks that Check requires exactly the rights that the relay needs,
// column by column, and that every statement it names runs as it is.
func TestLeastRights(t *testing.T) {
	eachFlavour(t, func(t *testing.T, admin string) {
		const password = "canary-9f3"
		servers.ExecMySQL(t, admin, flowTable, "ALTER TABLE outbox_events ADD kafka_offset BIGINT")
		box := flowBox()
		box.Layout.Record = []store.RecordColumn{{Receipt: "offset", Column: "kafka_offset", Max: math.MaxInt64}}
		url, account := asAccount(t, admin, password)
		_, err := openStore(t, strings.Replace(url, password, "wrong", 1), 0, box).AcquireLeadership(ctx(t))
		rigs.WantSetup(t, "a wrong password", err, "refused the login")
		_, err = openStore(t, url, 0, box).AcquireLeadership(ctx(t))
		rigs.WantSetup(t, "no right on the database", err, "is not accessible")
		database := ask[string](t, servers.OpenMySQL(t, admin), "SELECT DATABASE()")
		servers.ExecMySQL(t, admin, "GRANT SELECT (id) ON "+database+".outbox_events TO "+account)
		relay := openStore(t, url, 0, box)

		if may, err := relay.MayInstall(ctx(t)); err != nil || may {
			t.Errorf("MayInstall without CREATE: got %v, %v", may, err)
		}
		err = relay.Install(ctx(t))
		rigs.WantSetup(t, "install without CREATE", err, "GRANT SELECT, INSERT, UPDATE ON", "sluicebox_leader")
		if err := openStore(t, admin, 0, box).Install(ctx(t)); err != nil {
			t.Fatal(err)
		}

		grantAll(t, admin, relay.Check(ctx(t)), password) // those on the relay's tables are in Install's error
		for range 4 {
			var setup *store.SetupError
			if err = relay.Check(ctx(t)); !errors.As(err, &setup) {
				break
			}
			grantAll(t, admin, err, password)
		}
		if err != nil {
			t.Fatalf("with all named grants: %v", err)
		}

		r := &rig{url: url, db: servers.OpenMySQL(t, admin), store: relay}
		r.lead(t)
		r.insert(t, "1", "2", "3")
		r.claim(t, row("1"), row("2"))
		r.settle(t, outcome("1", store.Completed), outcome("2", store.Failed))
		item := store.Item{Ref: store.Ref{Outbox: "events", ID: "3"}, Kind: "EVENT", Seq: 5}
		f := store.DeadLetterFilter{Outbox: "events"}
		for what, err := range map[string]error{
			"checkpoint": relay.SaveCheckpoint(ctx(t), r.epoch, store.Checkpoint{Position: "p"}),
			"park":       relay.Spill(ctx(t), r.epoch, []store.Item{item}),
			"unpark":     relay.DeleteSpilled(ctx(t), r.epoch, []store.SpilledRef{{Ref: item.Ref, Seq: 5}}),
			"hold":       relay.Hold(ctx(t), r.epoch, store.Hold{Lane: item.Lane(), Kind: store.Paused, Since: time.Now()}),
			"settled":    second(relay.ReadSettled(ctx(t), []store.ClaimRow{row("1"), row("absent")})),
			"view":       second(relay.View(ctx(t), "")),
			"requeue":    second(relay.Requeue(ctx(t), r.epoch, f, 1)),
			"lock":       second(relay.Lock(ctx(t))),
			"examine":    second(relay.Diagnose(ctx(t))),
		} {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}

		for what, err := range rigs.Replay(ctx(t), relay, r.epoch, box.Name) {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}

		r.claim(t, row("2"))
		r.settle(t, outcome("2", store.Failed))
		_, err = relay.Discard(ctx(t), r.epoch, f, 1)
		rigs.WantSetup(t, "discard", err, "GRANT DELETE", " TO '")
	})
}

func second[T any](_ T, err error) error { return err }

// grantAll runs the GRANTs that an error names.
func grantAll(t *testing.T, admin string, err error, password string) {
	t.Helper()
	var setup *store.SetupError
	if !errors.As(err, &setup) {
		t.Fatalf("%v names no grants", err)
	}

	if strings.Contains(err.Error(), password) {
		t.Errorf("the password is in: %v", err)
	}
	for line := range strings.Lines(setup.Remedy) {
		if strings.HasPrefix(line, "GRANT ") {
			servers.ExecMySQL(t, admin, strings.TrimSuffix(strings.TrimSpace(line), ";"))
		}
	}
}

// TestInterrupted checks that a new session saves a checkpoint only if the server's
// commits survive a crash.
func TestInterrupted(t *testing.T) {
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			server := f.Start(t, nil)
			for _, c := range []struct {
				flush, sync string
				want        error
			}{{"1", "1", nil}, {"2", "1", store.ErrInterrupted}, {"1", "0", store.ErrInterrupted}} {
				server.Restart(map[string]string{"innodb-flush-log-at-trx-commit": c.flush, "sync-binlog": c.sync})
				r := newRig(t, server.Database(), flowTable, 0, flowBox())
				if err := r.store.SaveCheckpoint(ctx(t), r.epoch, store.Checkpoint{Position: "1"}); err != nil {
					t.Fatal(err)
				}
				server.Stop("immediate")
				server.Restart(nil)
				if err := r.store.SaveCheckpoint(ctx(t), r.epoch, store.Checkpoint{Position: "2"}); !errors.Is(err, c.want) {
					t.Errorf("innodb_flush_log_at_trx_commit = %s, sync_binlog = %s: %v, want %v", c.flush, c.sync, err, c.want)
				}
				r.lead(t)
				if err := r.store.SaveCheckpoint(ctx(t), r.epoch, store.Checkpoint{Position: "3"}); err != nil {
					t.Errorf("after another AcquireLeadership: %v", err)
				}
			}
		})
	}
}

// TestViewPosition checks that MariaDB reports the binlog position of a view and MySQL
// does not.
func TestViewPosition(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		r.insert(t, "1")
		view, err := r.store.View(ctx(t), "")
		if err != nil {
			t.Fatal(err)
		}
		defer view.Close()
		if strings.HasPrefix(url, "mysql:") {
			if view.Position() != "" {
				t.Errorf("MySQL: got position %q, want none", view.Position())
			}
			return
		}

		r.insert(t, "2")
		later, err := r.store.View(ctx(t), "")
		if err != nil {
			t.Fatal(err)
		}
		defer later.Close()
		if view.Position() == "" || later.Position() == view.Position() {
			t.Errorf("positions: got %q and %q", view.Position(), later.Position())
		}
	})
}

// TestReplica checks that a read-only server grants no lock, with a retryable error.
func TestReplica(t *testing.T) {
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			server := f.Start(t, nil)
			r := newRig(t, server.Database(), flowTable, 0, flowBox())
			r.exec(t, "SET GLOBAL read_only = ON")
			var setup *store.SetupError
			if lock, err := r.store.Lock(ctx(t)); err == nil || errors.As(err, &setup) {
				t.Errorf("a read-only server: %v, %v", lock, err)
			}

			found, err := r.store.Diagnose(ctx(t))
			if err != nil || store.CountFaults(found) != 1 {
				t.Errorf("Diagnose: got %+v, %v", found, err)
			}

			r.exec(t, "SET GLOBAL read_only = OFF")
			lock, err := r.store.Lock(ctx(t))
			if err != nil {
				t.Fatal(err)
			}
			lock.Release()
		})
	}
}

// TestScriptAgain checks that running the printed script again keeps the relay's records and
// rows.
func TestScriptAgain(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		want := store.Checkpoint{Origin: "o", Position: "p", Seq: 1}
		item := store.Item{Ref: store.Ref{Outbox: "events", ID: "1"}, Kind: "EVENT", Seq: 1}
		if err := errors.Join(r.store.SaveCheckpoint(ctx(t), r.epoch, want), r.store.Spill(ctx(t), r.epoch, []store.Item{item})); err != nil {
			t.Fatal(err)
		}
		servers.ExecMySQL(t, url, strings.Split(strings.TrimSpace(r.store.Script()), ";\n")...)
		if got, err := r.store.LoadCheckpoint(ctx(t)); !got.Equal(want) || err != nil {
			t.Errorf("checkpoint: got %+v, %v", got, err)
		}
		if n := ask[int](t, r.db, "SELECT COUNT(*) FROM sluicebox_spilled"); n != 1 {
			t.Errorf("got %d spilled rows", n)
		}
		if err := r.store.Check(ctx(t)); err != nil {
			t.Error(err)
		}
	})
}

// TestUnreleasedTables checks that tables of an unreleased version are not taken for current
// ones.
func TestUnreleasedTables(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		servers.ExecMySQL(t, url, flowTable, "CREATE TABLE sluicebox_meta (one TINYINT NOT NULL PRIMARY KEY, version INT NOT NULL)",
			"CREATE TABLE sluicebox_leader (name VARBINARY(40) NOT NULL PRIMARY KEY, epoch BIGINT NOT NULL)")
		for _, version := range []string{"1", "3"} {
			servers.ExecMySQL(t, url, "REPLACE INTO sluicebox_meta VALUES (1, "+version+")")
			st := openStore(t, url, 0, flowBox())
			rigs.WantSetup(t, "install", st.Install(ctx(t)), "sluicebox_record", "drop every table", "sluicebox init")
			rigs.WantSetup(t, "check", st.Check(ctx(t)), "sluicebox_record", "drop every table")
			if may, err := st.MayInstall(ctx(t)); err != nil || may {
				t.Errorf("MayInstall: got %t, %v", may, err)
			}
		}
	})
}

// TestNewerTables checks that the relay's tables of a newer program are not changed.
func TestNewerTables(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		r.exec(t, "UPDATE sluicebox_meta SET version = 99")
		rigs.WantSetup(t, "install", r.store.Install(ctx(t)), "version 99", "newer release")
		rigs.WantSetup(t, "check", r.store.Check(ctx(t)), "version 99", "newer release")
	})
}
