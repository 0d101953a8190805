package sqlite_test

import (
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
)

const customTable = `CREATE TABLE "Out Box" (
  "Id" INTEGER PRIMARY KEY, "order" TEXT, "Body" TEXT, sent DATETIME, gone INTEGER,
  required DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP, exact REAL, made DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP)`

// customBox is an outbox with a custom layout: the state in timestamps and the group in the
// payload.
func customBox(change func(*store.Layout)) store.Outbox {
	l := store.Layout{
		Name:      "custom",
		Columns:   store.Columns{ID: "Id", Kind: "order", Group: "Body", Payload: "Body", Delivered: "sent", Failed: "gone"},
		State:     store.StateTimestamps,
		OrderBy:   []string{"made"},
		GroupPath: []string{"customer", "id"},
	}
	if change != nil {
		change(&l)
	}
	return store.Outbox{Name: "events", Table: "Out Box", Layout: l}
}

// TestGroupPathOfAPayload: the payload is a text or a BLOB, as the service wrote it.
func TestGroupPathOfAPayload(t *testing.T) {
	r := newRig(t, customTable, 0, customBox(nil))
	want := []store.Group{store.GroupOf("c-1"), store.GroupOf("12345678901234567890"), store.GroupOf("b"), {}, {}, store.GroupOf("")}
	r.exec(t, `INSERT INTO "Out Box" ("Id", "order", "Body") VALUES
  (1, 'k', '{"customer":{"id":"c-1"}}'), (2, 'k', '{"customer": {"id": 12345678901234567890}}'),
  (3, 'k', CAST('{"customer":{"id":"b"}}' AS BLOB)), (4, 'k', '{}'), (5, 'k', NULL), (6, 'k', 'no JSON')`)
	view, err := r.store.View(ctx(t), "")
	if err != nil {
		t.Fatal(err)
	}
	items, err := view.Unsettled(ctx(t), store.UnsettledQuery{Outbox: "events", Limit: 20, MaxPayload: 1})
	view.Close()
	if err != nil || len(items) != len(want) {
		t.Fatalf("%d rows, %v", len(items), err)
	}
	for i, it := range items {
		if it.Group != want[i] || it.Kind != "k" {
			t.Errorf("row %s of kind %q is in group %#v, want %#v", it.ID, it.Kind, it.Group, want[i])
		}
		if got := r.claim(t, row(it.ID))[0].Result; got != store.Claimed {
			t.Errorf("row %s is %s", it.ID, got)
		}
	}
	r.settle(t, outcome("1", store.Completed), outcome("2", store.Failed))
	if got := ask[string](t, r.db, `SELECT group_concat((sent IS NOT NULL) || (gone IS NOT NULL), ' ') FROM (SELECT * FROM "Out Box" ORDER BY "Id")`); got != "10 01 00 00 00 00" {
		t.Errorf("delivered and failed: %s", got)
	}
}

// TestCheckOfCustomLayouts: an error about a layout that does not fit names the table, the
// column and the key.
func TestCheckOfCustomLayouts(t *testing.T) {
	r := newRig(t, customTable, 0, customBox(nil))
	for _, c := range []struct {
		name   string
		change func(*store.Layout)
		want   []string
	}{
		{"missing columns", func(l *store.Layout) { l.Columns.Error = "wy"; l.OrderBy = []string{"created"} },
			[]string{`"Out Box" has no column created (order-by), wy (columns.error), which layout custom names; its columns are Id, order, Body`}},
		{"a mistyped column", func(l *store.Layout) { l.Columns.Error = "exct" },
			[]string{`"Out Box" has no column exct (columns.error; did you mean exact?), which layout custom names`, "in layout custom, name exact in columns.error"}},
		{"a time that is never NULL", func(l *store.Layout) { l.Columns.Failed = "required" },
			[]string{`column required (columns.failed) of "Out Box" is NOT NULL`, "without NOT NULL"}},
		{"a time in a fraction", func(l *store.Layout) { l.Columns.Delivered = "exact" },
			[]string{`column exact (columns.delivered) of "Out Box" is declared as REAL`}},
	} {
		rigs.WantSetup(t, c.name, openStore(t, r.path, "rig", 0, customBox(c.change)).Check(ctx(t)), c.want...)
	}
}

// TestBlockOfASharedID: a block lasts as long as one of the rows with its id is FAILED.
func TestBlockOfASharedID(t *testing.T) {
	r := newRig(t, `CREATE TABLE outbox_events (id, type TEXT, message_group TEXT, payload TEXT, status TEXT DEFAULT 'PENDING',
  retry_count INT NOT NULL DEFAULT 0, created_at TIMESTAMP, processed_at TIMESTAMP, error_message TEXT); CREATE INDEX by_id ON outbox_events (id)`, 0, flowBox())
	r.exec(t, `INSERT INTO outbox_events (id, type, message_group, payload) VALUES
  ('1', 'EVENT', 'text', '{}'), (1, 'EVENT', 'text', '{}'), ('a', 'EVENT', 'twice', '{}')`)
	for _, c := range []struct{ id, group, other string }{{"1", "text", "typeof(id) = 'text'"}, {"a", "twice", "rowid = 4"}} {
		if c.id == "a" {
			r.exec(t, "UPDATE outbox_events SET status = 'FAILED' WHERE id = 'a'; INSERT INTO outbox_events (id, type, payload) VALUES ('a', 'EVENT', '{}')")
		} else {
			r.exec(t, "UPDATE outbox_events SET status = 'FAILED' WHERE typeof(id) = 'integer'")
		}
		o := outcome(c.id, store.Failed)
		o.Block = &store.Hold{Lane: store.LaneKey{Outbox: "events", Kind: "EVENT", Group: store.GroupOf(c.group)}}
		r.settle(t, o)
		r.exec(t, "UPDATE outbox_events SET status = 'PENDING' WHERE "+c.other)
		want := func(what string, n int) {
			t.Helper()
			holds, err := r.store.LoadHolds(ctx(t))
			if err != nil || len(holds) != n {
				t.Errorf("id %s, %s: %d holds, %v; want %d", c.id, what, len(holds), err, n)
			}
		}
		want("one row is FAILED", 1)
		r.exec(t, "UPDATE outbox_events SET status = 'COMPLETED'")
		want("none is FAILED", 0)
	}
}
