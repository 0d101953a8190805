package mysql_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// lockRole locks the streaming role's account and ends its sessions.
func (d *database) lockRole(t *testing.T) (unlockRole func()) {
	t.Helper()
	d.exec(t, "ALTER USER '"+d.role+"'@'%' ACCOUNT LOCK")
	d.Disconnect(t)
	return func() { d.exec(t, "ALTER USER '"+d.role+"'@'%' ACCOUNT UNLOCK") }
}

func (d *database) reset() string {
	if d.flavour == servers.MariaDB {
		return "RESET MASTER"
	}
	return "RESET BINARY LOGS AND GTIDS"
}

// purge purges all files of the binlog except the last.
func (d *database) purge(t *testing.T) {
	t.Helper()
	flush := "FLUSH BINARY LOGS"
	d.exec(t, flush, "INSERT INTO unrelated VALUES (7)", flush)
	for end := time.Now().Add(30 * time.Second); ; {
		names := d.logs(t)
		d.exec(t, "PURGE BINARY LOGS TO '"+names[len(names)-1]+"'")
		if len(d.logs(t)) == 1 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the binlog still has the files %q", d.logs(t))
		}
		<-time.After(10 * time.Millisecond) // a stream that was ended keeps its file for a moment
	}
}

// logs returns the files of the binlog.
func (d *database) logs(t *testing.T) (names []string) {
	t.Helper()
	rows, err := d.db.QueryContext(t.Context(), "SHOW BINARY LOGS")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}

	var name string
	into := []any{&name}
	for range columns[1:] {
		into = append(into, new(string))
	}

	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}

	return names
}

func losses() map[string]func(t *testing.T, db capturetest.Database) {
	return map[string]func(t *testing.T, db capturetest.Database){
		"purged": func(t *testing.T, db capturetest.Database) {
			d := db.(*database)
			unlockRole := d.lockRole(t)
			d.Unrelated(t)
			d.purge(t)
			unlockRole()
		},
		"reset": func(t *testing.T, db capturetest.Database) {
			d := db.(*database)
			unlockRole := d.lockRole(t)
			d.exec(t, d.reset())
			unlockRole()
		},
		"a session without a row image": func(t *testing.T, db capturetest.Database) {
			d := db.(*database)
			servers.ExecMySQL(t, d.url, "SET SESSION binlog_row_image = MINIMAL; INSERT INTO outbox_events (id, payload, status) VALUES ('minimal', 'x', 'COMPLETED')")
		},
		"a session that logs statements": func(t *testing.T, db capturetest.Database) {
			d := db.(*database)
			servers.ExecMySQL(t, d.url, "SET SESSION binlog_format = STATEMENT; INSERT INTO outbox_events (id, payload, status) VALUES ('statement', 'x', 'COMPLETED')")
		},
		"a trigger under a session that logs statements":  withStatementFormat("INSERT INTO orders VALUES ('by a trigger')"),
		"an UPDATE whose trigger calls a procedure":       withStatementFormat("/* by a library */ UPDATE items SET id = 'by an update'"),
		"a function under a session that logs statements": withStatementFormat("SELECT place('by a function')"),
		"a view under a session that logs statements":     withStatementFormat("INSERT INTO events_to_come (id, payload, status) VALUES ('by a view', 'x', 'COMPLETED')"),
	}
}

// withStatementFormat makes a session write an outbox's row in ways that do not name its table.
func withStatementFormat(statement string) func(t *testing.T, db capturetest.Database) {
	return func(t *testing.T, db capturetest.Database) {
		d := db.(*database)
		const row = "INSERT INTO outbox_events (id, payload, status) VALUES (%s, 'x', 'COMPLETED')"
		d.exec(t, "CREATE TABLE orders (id varchar(64))", "CREATE TABLE items (id varchar(64))", "INSERT INTO items VALUES ('i')",
			"CREATE TRIGGER places AFTER INSERT ON orders FOR EACH ROW "+fmt.Sprintf(row, "NEW.id"),
			"CREATE PROCEDURE put(name varchar(64)) "+fmt.Sprintf(row, "name"),
			"CREATE TRIGGER puts AFTER UPDATE ON items FOR EACH ROW CALL put(NEW.id)",
			"CREATE FUNCTION place(name varchar(64)) RETURNS int DETERMINISTIC MODIFIES SQL DATA BEGIN "+fmt.Sprintf(row, "name")+"; RETURN 1; END",
			"CREATE VIEW events_to_come AS SELECT * FROM outbox_events")
		servers.ExecMySQL(t, d.url, "SET SESSION binlog_format = STATEMENT; "+statement)
	}
}

// TestStatementsOnOtherTables checks that a statement about other tables causes no loss if
// the account may see that none of their triggers writes an outbox. Otherwise it causes a
// loss with a remedy, but not again at once, because a session may run many such
// statements and each loss causes a snapshot.
func TestStatementsOnOtherTables(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		d := newDatabase(t, f, f.Database(t))
		d.exec(t, "CREATE TABLE notes (n varchar(64))", "CREATE TRIGGER harmless AFTER INSERT ON notes FOR EACH ROW INSERT INTO unrelated VALUES (1)")
		const elsewhere = "SET SESSION binlog_format = STATEMENT; INSERT INTO notes VALUES ('secret'); UPDATE notes SET n = 'secret'; DELETE FROM notes"
		fo, _, _ := follow(t, d, d.config(), store.Checkpoint{})
		servers.ExecMySQL(t, d.url, elsewhere)

		// Another database has tables of the same names, one of which writes the other.
		servers.ExecMySQL(t, f.Database(t), "CREATE TABLE outbox_events (n varchar(64))", "CREATE TABLE orders (n varchar(64))",
			"CREATE TRIGGER writes AFTER INSERT ON orders FOR EACH ROW INSERT INTO outbox_events VALUES (NEW.n)",
			"SET SESSION binlog_format = STATEMENT; INSERT INTO orders VALUES ('x'); INSERT INTO outbox_events VALUES ('y')")

		d.exec(t, insert("a"))
		fo.Rows(1)
		fo.Expect("a")
		fo.End()

		cfg := d.config()
		role := d.name + "b"
		client := "REPLICATION CLIENT"
		if f == servers.MariaDB {
			client = "BINLOG MONITOR"
		}

		cfg.URL = d.newRole(t, role, "GRANT SELECT, INSERT, UPDATE ON *.* TO '"+role+"'@'%'", "GRANT "+client+" ON *.* TO '"+role+"'@'%'")
		again, _, _ := follow(t, d, cfg, store.Checkpoint{Seq: 7}) // after a loss
		servers.ExecMySQL(t, d.url, elsewhere)
		d.exec(t, insert("b"))
		again.Rows(1)
		again.Expect("b")
		again.End()

		last, _, _ := follow(t, d, cfg, store.Checkpoint{})
		servers.ExecMySQL(t, d.url, elsewhere)
		var lost *capture.LostError
		if err := last.WaitEnd(); !errors.As(err, &lost) || !strings.Contains(lost.Reason, "GRANT TRIGGER") || !strings.Contains(lost.Reason, "(INSERT INTO notes VALUES …)") {
			t.Errorf("the run ended with %v", err)
		}
	})
}

func faults() []capturetest.Fault {
	return []capturetest.Fault{{
		Name: "role may not stream",
		Break: func(t *testing.T, db capturetest.Database) {
			d := db.(*database)
			d.exec(t, "REVOKE REPLICATION SLAVE ON *.* FROM '"+d.role+"'@'%'")
			d.Disconnect(t)
		},
		Fix: func(t *testing.T, db capturetest.Database) {
			d := db.(*database)
			d.exec(t, "GRANT REPLICATION SLAVE ON *.* TO '"+d.role+"'@'%'")
		},
		Remedy: "GRANT REPLICATION SLAVE ON *.* TO",
	}}
}

func TestLost(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		srv := f.Start(t, nil)
		capturetest.RunLost(t, capturetest.Harness{Losses: losses(), Faults: faults(), Setup: func(t *testing.T) capturetest.Database {
			return newDatabase(t, f, srv.Database())
		}})
	})
}

// opening opens a source of a database at a checkpoint and closes both.
func (d *database) opening(t *testing.T, at store.Checkpoint) (capture.OpenResult, error) {
	t.Helper()
	src := newSource(t, d.config())
	defer src.Close()
	o, err := src.Open(t.Context(), at, d.tables())
	if o.View != nil {
		o.View.Close()
	}
	return o, err
}

// TestCheckpointOfAnotherServer checks that a checkpoint of another server is rejected, even if
// both number their transactions alike, and so is one from before the server was
// restored.
func TestCheckpointOfAnotherServer(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		srv := f.Start(t, nil)
		d := newDatabase(t, f, srv.Database())
		first, err := d.opening(t, store.Checkpoint{})
		if err != nil {
			t.Fatal(err)
		}

		for i := range 5 {
			d.Begin(t, capturetest.Row{ID: string(rune('a' + i)), Payload: "x"})(true)
		}

		later, err := d.opening(t, store.Checkpoint{})
		if err != nil {
			t.Fatal(err)
		}

		same, err := d.opening(t, store.Checkpoint{Origin: later.Origin, Position: later.From})
		if err != nil || same.SnapshotReason != "" {
			t.Fatalf("at its own checkpoint: %v, %s", err, same.SnapshotReason)
		}

		// Another server's set differs, whatever its numbers are.
		other := f.Start(t, map[string]string{"server-id": "2"})
		o := newDatabase(t, f, other.Database())
		foreign, err := o.opening(t, store.Checkpoint{Origin: later.Origin, Position: later.From})
		if err != nil || !strings.Contains(foreign.SnapshotReason, "checkpoint belongs to") || foreign.Origin == later.Origin {
			t.Errorf("at the checkpoint of another server: %v, %+v", err, foreign)
		}

		t.Log(foreign.SnapshotReason)
		// Restored: the server is the same, and has yet to execute the transactions that
		// were read.
		d.exec(t, d.reset(), "INSERT INTO unrelated VALUES (1)")
		restored, err := d.opening(t, store.Checkpoint{Origin: later.Origin, Position: later.From})
		if err != nil || restored.SnapshotReason == "" {
			t.Errorf("at a checkpoint that the server has yet to reach: %v, %+v", err, restored)
		}

		t.Log(restored.SnapshotReason)
		// Afterwards other transactions have the same numbers.
		for range 100 {
			d.exec(t, "INSERT INTO unrelated VALUES (1)")
		}
		for _, at := range []store.Position{first.From, later.From} {
			restored, err := d.opening(t, store.Checkpoint{Origin: later.Origin, Position: at})
			if err != nil || restored.SnapshotReason == "" {
				t.Errorf("at checkpoint %s of the earlier log: %v, %+v", at, err, restored)
			}
			t.Log(restored.SnapshotReason)
		}
	})
}

// TestPurgedBeforeThePosition checks that a position stays valid while the log behind it
// exists, even if its file is gone.
func TestPurgedBeforeThePosition(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		d := newDatabase(t, f, f.Start(t, nil).Database())
		d.exec(t, "FLUSH BINARY LOGS", "INSERT INTO unrelated VALUES (1)")
		d.purge(t)
		src := newSource(t, d.config())
		defer src.Close()
		at := d.readOn(t, 1, "before") // also after a snapshot's marker
		o, err := src.Open(t.Context(), at, d.tables())
		if err != nil || o.SnapshotReason != "" {
			t.Fatal(err, o.SnapshotReason)
		}

		d.exec(t, "FLUSH BINARY LOGS", "PURGE BINARY LOGS BEFORE now() + INTERVAL 1 DAY")
		again, err := d.opening(t, store.Checkpoint{Origin: o.Origin, Position: o.From})
		if err != nil || again.SnapshotReason != "" {
			t.Fatalf("%v, %s", err, again.SnapshotReason)
		}

		d.Begin(t, capturetest.Row{ID: "after", Payload: "x"})(true)
		if err := src.Mark(t.Context(), "end"); err != nil {
			t.Fatal(err)
		}

		if items := upToMark(t, src, o.From); len(items) != 1 || items[0].ID != "after" {
			t.Errorf("got %+v", items)
		}
		if kept, err := src.Retained(t.Context()); err != nil || kept.Bytes <= 0 {
			t.Errorf("retained: got %+v, %v", kept, err)
		}
	})
}

// TestPreflight checks that one message reports all problems and that its statements fix
// them.
func TestPreflight(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		settings := map[string]string{"binlog-row-image": "MINIMAL", "binlog-format": "MIXED", "binlog-expire-logs-seconds": "3600"}
		want := []string{"binlog_row_image", "binlog_format", "binlog_expire_logs_seconds"}
		if f == servers.MySQL {
			settings["gtid-mode"], settings["enforce-gtid-consistency"], settings["binlog-row-value-options"] = "OFF", "OFF", "PARTIAL_JSON"
			want = append(want, "gtid_mode = ON", "binlog_row_value_options")
		}

		srv := f.Start(t, settings)
		d := newDatabase(t, f, srv.Database())
		_, err := d.opening(t, store.Checkpoint{})
		var no *capture.NoStreamError
		if !errors.As(err, &no) {
			t.Fatalf("%v, want a *capture.NoStreamError", err)
		}

		t.Log(no)
		for _, text := range want {
			if !strings.Contains(no.Error(), text) {
				t.Errorf("the error lacks %q", text)
			}
		}

		for _, line := range strings.Split(no.Error(), "\n") {
			if _, rest, ok := strings.Cut(line, "run `"); ok {
				script, _, _ := strings.Cut(rest, "`")
				for _, statement := range strings.Split(script, "; ") {
					d.exec(t, strings.TrimSuffix(statement, ";"))
				}
			}
		}

		if _, err := d.opening(t, store.Checkpoint{}); err != nil {
			t.Errorf("the statements were run: %v", err)
		}
	})
}

// TestNoBinlog checks that a server without a binlog has no stream until its binlog is
// turned on.
func TestNoBinlog(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		srv := f.Start(t, nil)
		d := newDatabase(t, f, srv.Database())
		src := newSource(t, d.config())
		defer src.Close()
		if err := ready(t, src); err != nil {
			t.Fatal(err)
		}

		srv.Restart(map[string]string{"skip-log-bin": ""})
		err := ready(t, src)
		var no *capture.NoStreamError
		if !errors.As(err, &no) || !strings.Contains(no.Error(), "log_bin") {
			t.Fatalf("%v, want a *capture.NoStreamError about log_bin", err)
		}

		if _, err := d.opening(t, store.Checkpoint{}); !errors.As(err, &no) {
			t.Errorf("%v, want a *capture.NoStreamError", err)
		}
		found, err := src.Diagnose(t.Context())
		if err != nil || store.CountFaults(found) == 0 {
			t.Errorf("%v, %+v", err, found)
		}

		srv.Restart(map[string]string{"skip-log-bin": "-"})
		if err := ready(t, src); err != nil {
			t.Errorf("not ready after the fix: %v", err)
		}
	})
}
