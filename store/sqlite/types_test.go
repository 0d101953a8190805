package sqlite_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
)

// TestIDTypes: a view, a claim and an outcome agree on the text of an id, for every declared
// type and every type of value.
func TestIDTypes(t *testing.T) {
	for _, c := range []struct {
		declared string
		values   []string // in SQL
		want     []string // ordered by rowid
	}{
		{"INTEGER PRIMARY KEY", []string{"1", "9223372036854775807", "-5", "'0042'"}, []string{"-5", "1", "42", "9223372036854775807"}},
		{"BIGINT UNIQUE", []string{"1", "'two'", "x'00ff'"}, []string{"1", "two", "x'00ff'"}},
		{"TEXT PRIMARY KEY", []string{"'1'", "'01'", "2", "''", "'a b''c'", "'x''zz'", "x'616263'", "'ü☃'"},
			[]string{"1", "01", "2", "", "a b'c", "x'zz", "x'616263'", "ü☃"}},
		{"VARCHAR(26) PRIMARY KEY COLLATE NOCASE", []string{"'Ab'"}, []string{"Ab"}},
		{"BLOB PRIMARY KEY", []string{"x'0102'", "'text'", "7"}, []string{"x'0102'", "text", "7"}},
		{"NOT NULL UNIQUE", []string{"x''", "'7'", "8", "'x''0a'''"}, []string{"x''", "7", "8", "x'0a'"}},
		{"NUMERIC UNIQUE", []string{"12345678901234567", "'abc'"}, []string{"12345678901234567", "abc"}},
		{"UUID PRIMARY KEY", []string{"'0b7ae06e-6e2c-4f5c-8f5e-000000000001'", "'12'"}, []string{"0b7ae06e-6e2c-4f5c-8f5e-000000000001", "12"}},
	} {
		t.Run(c.declared, func(t *testing.T) {
			r := newRig(t, strings.Replace(flowTable, "id VARCHAR(13) PRIMARY KEY", "id "+c.declared, 1), 0, flowBox())
			for _, v := range c.values {
				r.exec(t, "INSERT INTO outbox_events (id, payload, created_at) VALUES ("+v+", quote("+v+"), 0)")
			}
			got := r.unsettled(t, nil)
			if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", c.want) {
				t.Fatalf("the view shows %q, want %q", got, c.want)
			}
			if got := r.unsettled(t, c.want[1:]); fmt.Sprintf("%q", got) != fmt.Sprintf("%q", c.want[:1]) {
				t.Errorf("with the others held: %q", got)
			}
			for _, id := range c.want {
				if a := r.claim(t, row(id))[0]; a.Result != store.Claimed || len(a.Payload) == 0 {
					t.Errorf("row %q is %s with %q", id, a.Result, a.Payload)
				}
				r.checkLetter(t, id)
				r.checkSpilled(t, id)
				if got := r.settle(t, outcome(id, store.Completed))[0]; got != store.Written {
					t.Errorf("the outcome of row %q: %d", id, got)
				}
				if a := r.claim(t, row(id))[0]; a.Result != store.AlreadySettled {
					t.Errorf("row %q is %s after its outcome", id, a.Result)
				}
			}
			if left := r.unsettled(t, nil); len(left) > 0 {
				t.Errorf("%q are left", left)
			}
		})
	}
}

// checkLetter lets a row become FAILED and block its lane, finds it by its id, and requeues
// it.
func (r *rig) checkLetter(t *testing.T, id string) {
	t.Helper()
	o := outcome(id, store.Failed)
	o.Block = &store.Hold{Lane: store.LaneKey{Outbox: "events", Kind: "EVENT"}}
	r.settle(t, o)
	if holds, err := r.store.LoadHolds(ctx(t)); err != nil || len(holds) != 1 || holds[0].ID != id {
		t.Errorf("row %q: the holds are %+v, %v", id, holds, err)
	}
	f := store.DeadLetterFilter{Outbox: "events", IDs: []string{"none", id}}
	if letters, err := r.store.Failed(ctx(t), f, 9, true); err != nil || len(letters) != 1 || letters[0].ID != id || letters[0].PayloadSize != len(letters[0].Payload) {
		t.Errorf("row %q: the letters are %+v, %v", id, letters, err)
	}
	if items, err := r.store.Requeue(ctx(t), r.epoch, f, 9); err != nil || len(items) != 1 || items[0].ID != id {
		t.Errorf("row %q: requeued %+v, %v", id, items, err)
	}
	if holds := ask[int](t, r.db, "SELECT count(*) FROM sluicebox_record WHERE kind IN ('hold', 'block')"); holds != 0 {
		t.Errorf("row %q: %d holds are left", id, holds)
	}
	r.claim(t, row(id))
}

// checkSpilled spills a row, which views then exclude, and deletes it from the spilled rows.
func (r *rig) checkSpilled(t *testing.T, id string) {
	t.Helper()
	it := r.spillItem(id, "a", 1)
	r.spill(t, it)
	wantIDs(t, "spilled", r.spilled(t, it.Lane()), id)
	if shown := r.unsettled(t, nil); slices.Contains(shown, id) {
		t.Errorf("row %q is spilled, but the view shows it: %q", id, shown)
	}
	if err := r.store.DeleteSpilled(ctx(t), r.epoch, refsOf([]store.Item{it})); err != nil {
		t.Fatal(err)
	}
	if shown := r.unsettled(t, nil); !slices.Contains(shown, id) {
		t.Errorf("row %q is not spilled any more, but the view does not show it: %q", id, shown)
	}
}

func (r *rig) unsettled(t *testing.T, held []string) []string {
	t.Helper()
	v, err := r.store.View(ctx(t), "")
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	items, err := v.Unsettled(ctx(t), store.UnsettledQuery{Outbox: "events", Limit: 100, ExcludeIDs: held})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for i := range items {
		ids = append(ids, items[i].ID)
	}
	return ids
}

// TestNoID: a row without a valid id is not skipped silently.
func TestNoID(t *testing.T) {
	for _, id := range []string{"NULL", "1.5"} {
		r := newRig(t, strings.Replace(flowTable, "id VARCHAR(13) PRIMARY KEY", "id UNIQUE", 1), 0, flowBox())
		r.exec(t, "INSERT INTO outbox_events (id) VALUES ("+id+")")
		v, err := r.store.View(ctx(t), "")
		if err != nil {
			t.Fatal(err)
		}
		_, err = v.Unsettled(ctx(t), store.UnsettledQuery{Outbox: "events", Limit: 1, ExcludeIDs: []string{"x"}})
		v.Close()
		rigs.WantSetup(t, "a view of "+id, err, "NULL or a REAL")
	}
}

func TestPayloadTypes(t *testing.T) {
	r := newRig(t, strings.Replace(flowTable, "payload TEXT NOT NULL DEFAULT '{}'", "payload DATETIME", 1), 0, flowBox())
	for id, c := range map[string]struct{ value, want string }{
		"text": {`'{"a":1}'`, `{"a":1}`}, "blob": {"x'00ff10'", "\x00\xff\x10"}, "number": {"12", "12"}, "null": {"NULL", ""},
		"time": {"'2024-02-29 12:00:00'", "2024-02-29 12:00:00"}, "empty": {"''", ""}, "nul": {"'a' || char(0) || 'b'", "a\x00b"},
	} {
		r.exec(t, "INSERT INTO outbox_events (id, payload) VALUES (?, "+c.value+")", id)
		if a := r.claim(t, row(id))[0]; a.Result != store.Claimed || string(a.Payload) != c.want {
			t.Errorf("%s: %s with %q", id, a.Result, a.Payload)
		}
	}
}

// TestTimeFormats: claims of processors that write other time formats are respected.
func TestTimeFormats(t *testing.T) {
	for _, declared := range []string{"TIMESTAMP", "INTEGER", "TEXT", ""} {
		r := newRig(t, strings.Replace(flowTable, "processed_at TIMESTAMP", "processed_at "+declared, 1), time.Hour, flowBox())
		for i, now := range []string{
			"datetime('now')", "strftime('%Y-%m-%d %H:%M:%f', 'now')", "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
			"strftime('%Y-%m-%dT%H:%M:%S', 'now', '+2 hours') || '+02:00'", "CAST(strftime('%s', 'now') AS INTEGER)",
			"CAST(strftime('%s', 'now') AS INTEGER) * 1000",
		} {
			id := fmt.Sprint("held", i)
			r.exec(t, "INSERT INTO outbox_events (id, status, processed_at) VALUES (?, 'PROCESSING', "+now+")", id)
			a := r.claim(t, row(id))[0]
			if until := time.Until(a.Until); a.Result != store.Held || until < 59*time.Minute || until > time.Hour {
				t.Errorf("%s, claimed at %s: %s for %s", declared, now, a.Result, until)
			}
		}
		for i, odd := range []string{"NULL", "''", "'soon'", "x'00'"} {
			id := fmt.Sprint("free", i)
			r.exec(t, "INSERT INTO outbox_events (id, status, processed_at) VALUES (?, 'PROCESSING', "+odd+")", id)
			if a := r.claim(t, row(id))[0]; a.Result != store.Claimed {
				t.Errorf("%s, claimed at %s: %s", declared, odd, a.Result)
			}
		}
		// SQLite's functions read the times that the relay writes.
		read := "datetime(processed_at)"
		if declared == "INTEGER" {
			read = "datetime(processed_at / 1000, 'unixepoch')"
		}
		written := ask[string](t, r.db, "SELECT "+read+" FROM outbox_events WHERE id = 'free0'")
		if at, err := time.Parse(time.DateTime, written); err != nil || time.Since(at) > time.Minute {
			t.Errorf("%s: written as %s", declared, written)
		}
	}
}

// TestTables: tables of all sorts.
func TestTables(t *testing.T) {
	for name, ddl := range map[string]string{
		"strict": strings.Replace(strings.Replace(strings.NewReplacer("VARCHAR(13)", "TEXT", "VARCHAR(20)", "TEXT", "VARCHAR(255)", "TEXT", "TIMESTAMP N", "ANY N", "processed_at TIMESTAMP", "processed_at INTEGER").
			Replace(flowTable), "\n);", "\n) STRICT;", 1), "CURRENT_ANY", "CURRENT_TIMESTAMP", 1),
		"without rowid": strings.Replace(flowTable, "\n);", "\n) WITHOUT ROWID;", 1),
		"capitals":      strings.ToUpper(strings.ReplaceAll(strings.ReplaceAll(flowTable, "'{}'", "'{}'"), "'PENDING'", "'PENDING'")),
		"utf-16":        "PRAGMA encoding = 'UTF-16le';" + flowTable,
	} {
		t.Run(name, func(t *testing.T) {
			r := &rig{path: t.TempDir() + "/fresh.db"}
			r.db = openSQL(t, r.path)
			r.db.SetMaxOpenConns(1)
			r.exec(t, ddl)
			r.store = openStore(t, r.path, "rig", 0, flowBox())
			if err := r.store.Install(ctx(t)); err != nil {
				t.Fatal(err)
			}
			if err := r.store.Check(ctx(t)); err != nil {
				t.Fatal(err)
			}
			var err error
			if r.epoch, err = r.store.AcquireLeadership(ctx(t)); err != nil {
				t.Fatal(err)
			}
			r.exec(t, "INSERT INTO outbox_events (id, payload) VALUES ('ü', 'Grüße ☃')")
			if a := r.claim(t, row("ü"))[0]; a.Result != store.Claimed || string(a.Payload) != "Grüße ☃" {
				t.Errorf("%s with %q", a.Result, a.Payload)
			}
			if got := r.unsettled(t, nil); len(got) != 1 || got[0] != "ü" {
				t.Errorf("the view shows %q", got)
			}
			r.checkSpilled(t, "ü")
			if got := r.settle(t, outcome("ü", store.Failed))[0]; got != store.Written {
				t.Errorf("the outcome: %d", got)
			}
		})
	}
}

// TestRefused: a table that refuses one row makes the whole call fail, and none of its rows
// is written.
func TestRefused(t *testing.T) {
	for name, ddl := range map[string]string{
		"check":  strings.Replace(flowTable, "error_message TEXT", "error_message TEXT CHECK (id <> 'bad' OR status = 'PENDING')", 1),
		"raise":  flowTable + "CREATE TRIGGER t BEFORE UPDATE ON outbox_events WHEN OLD.id = 'bad' BEGIN SELECT RAISE(ABORT, 'not this one'); END;",
		"ignore": flowTable + "CREATE TRIGGER t BEFORE UPDATE ON outbox_events WHEN OLD.id = 'bad' BEGIN SELECT RAISE(IGNORE); END;",
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, ddl, 0, flowBox())
			r.exec(t, "INSERT INTO outbox_events (id) VALUES ('good'), ('bad')")
			var refused *store.RefusedError
			_, err := r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{row("good"), row("bad")})
			if !asRefused(err, &refused) {
				t.Fatalf("the claim: %v", err)
			}
			if status := ask[string](t, r.db, "SELECT status FROM outbox_events WHERE id = 'good'"); status != "PENDING" {
				t.Errorf("the other row is %s", status)
			}
			_, err = r.store.Settle(ctx(t), r.epoch, []store.Outcome{outcome("good", store.Completed), outcome("bad", store.Completed)})
			if !asRefused(err, &refused) {
				t.Fatalf("the outcome: %v", err)
			}
			if a := r.claim(t, row("good"))[0]; a.Result != store.Claimed {
				t.Errorf("the other row alone is %s", a.Result)
			}
		})
	}
}
