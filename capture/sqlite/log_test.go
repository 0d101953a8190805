package sqlite_test

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
)

// TestLostLog: a run detects that rows were removed from the log, or could have been. The
// next Open takes a snapshot, also at a checkpoint that was valid.
func TestLostLog(t *testing.T) {
	const remake = `ALTER TABLE outbox_events RENAME TO old; ` + createTable + `; INSERT INTO outbox_events SELECT * FROM old; DROP TABLE old`
	for name, break_ := range map[string]string{
		"trigger dropped": `DROP TRIGGER "sluicebox_log_relay-shop"`,
		"table recreated": "DROP TABLE outbox_events; " + createTable,
		"table rebuilt":   remake,
		// The trigger then refuses every insert, so drop the triggers first.
		"log dropped":        "INSERT INTO outbox_events (id) VALUES ('unseen'); DROP TABLE sluicebox_log_relay",
		"registry emptied":   "DELETE FROM sluicebox_log; CREATE TABLE changed (x)",
		"counter set back":   "DELETE FROM sluicebox_log_relay; DELETE FROM sqlite_sequence",
		"everything dropped": `DROP TRIGGER "sluicebox_log_relay-shop"; DROP TABLE sluicebox_log_relay; DROP TABLE sluicebox_log`,
	} {
		t.Run(name, func(t *testing.T) {
			d := newDatabase(t)
			// A connection that found a trigger's table missing does not check again before
			// it has run another statement.
			d.db.SetMaxIdleConns(-1)
			r, o := read(t, d, d.config(), store.Checkpoint{})
			d.commit(t, capturetest.Row{ID: "1"}, capturetest.Row{ID: "2"})
			r.rows("1", "2")
			d.exec(t, break_)
			if name != "log dropped" {
				d.exec(t, "INSERT INTO outbox_events (id) VALUES ('unseen')")
			}
			var lost *capture.LostError
			if err := r.fails(); !errors.As(err, &lost) {
				t.Fatalf("the run ended with %v", err)
			}
			t.Log(lost)
			src := newSource(t, d.config())
			tables := &capturetest.Tables{Viewer: d.views}
			again, err := src.Open(t.Context(), store.Checkpoint{Origin: o.Origin, Position: r.last}, tables)
			if err != nil {
				t.Fatal(err)
			}
			if again.View == nil || again.SnapshotReason == "" || tables.Cleared != 1 {
				t.Fatalf("the log is taken up again: %+v", again)
			}
			t.Log(again.SnapshotReason)
			items, err := again.View.Unsettled(t.Context(), store.UnsettledQuery{Outbox: "shop", Limit: 10})
			again.View.Close()
			if err != nil || len(items) == 0 || items[len(items)-1].ID != "unseen" {
				t.Fatalf("the view shows %v, %v", items, err)
			}
			next := run(t, src, again.From)
			d.commit(t, capturetest.Row{ID: "3"})
			next.rows("3")
		})
	}
}

// TestPublish: Publish repairs the log after an operator broke it. The next Open still
// detects that rows may be missing.
func TestPublish(t *testing.T) {
	d := newDatabase(t)
	src := newSource(t, d.config())
	defer src.Close()
	if err := src.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := src.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := open(t, d, src, store.Checkpoint{})
	if first.Discard != nil {
		t.Error("Open gives up what Publish made")
	}
	d.commit(t, capturetest.Row{ID: "1"})
	at := store.Checkpoint{Origin: first.Origin, Position: "1"}
	if o := open(t, d, src, at); o.View != nil {
		t.Fatalf("the log is there: %+v", o)
	}
	d.exec(t, `DROP TRIGGER "sluicebox_log_relay-shop"`)
	d.exec(t, "INSERT INTO outbox_events (id) VALUES ('unseen')")
	if err := src.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if o := open(t, d, src, at); o.View == nil {
		t.Fatalf("a gap is passed over: %+v", o)
	}
}

// TestScript: the script creates the same objects as Publish, in any version of SQLite.
func TestScript(t *testing.T) {
	d := newDatabase(t)
	src := newSource(t, d.config())
	defer src.Close()
	if shell, err := exec.LookPath("sqlite3"); err == nil {
		cmd := exec.Command(shell, d.path)
		cmd.Stdin = strings.NewReader(src.Script())
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Fatalf("%v: %s", err, out)
		}
	} else {
		d.exec(t, src.Script())
	}
	o := open(t, d, src, store.Checkpoint{})
	if o.Discard != nil {
		t.Error("Open made something all the same")
	}
	r := run(t, src, o.From)
	d.commit(t, capturetest.Row{ID: "1"})
	r.rows("1")
}

// TestTwoRelaysHaveSeparateLogs: two relays over one table have separate logs, and their settings do not
// affect each other.
func TestTwoRelaysHaveSeparateLogs(t *testing.T) {
	d := newDatabase(t)
	one, _ := read(t, d, d.config(), store.Checkpoint{})
	cfg := d.config()
	cfg.Name = "relay_two"
	other := newSource(t, cfg)
	views, err := sqlitestore.New(sqlitestore.Config{URL: d.url(), Name: "relay_two", Outboxes: outboxes("shop")})
	if err != nil {
		t.Fatal(err)
	}
	defer views.Close()
	o, err := other.Open(t.Context(), store.Checkpoint{}, &capturetest.Tables{Viewer: views})
	if err != nil {
		t.Fatal(err)
	}
	o.View.Close()
	two := run(t, other, o.From)
	d.commit(t, capturetest.Row{ID: "1"}, capturetest.Row{ID: "2"})
	one.rows("1", "2")
	two.rows("1", "2")
	one.src.Acknowledge("2")
	eventually(t, "the first relay's log is deleted", func() bool {
		return ask[int](t, d, "SELECT count(*) FROM sluicebox_log_relay") == 0
	})
	if n := ask[int](t, d, "SELECT count(*) FROM sluicebox_log_relay_two"); n != 2 {
		t.Errorf("%d rows are left of the other relay's log", n)
	}
	// A view of one relay has no position in the log of the other.
	if v, err := d.views.View(t.Context(), ""); err != nil || v.Position() != "2" {
		t.Errorf("position %v, %v", v.Position(), err)
	} else {
		v.Close()
	}
}
