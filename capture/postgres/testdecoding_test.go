package postgres

import (
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/capture/internal/logsource"
	"github.com/sluicebox/sluicebox/store"
)

// watchingAssembler reads a table box with an id, a quoted group, a JSON payload and a status.
func watchingAssembler(t *testing.T) *assembler {
	t.Helper()
	layout := store.FlowCatalyst()
	layout.Columns.Group, layout.Columns.Payload = "Group of", "doc"
	o := &store.Outbox{Name: "box", Table: "box", Layout: layout}
	tb := &watchedTable{oid: 7, name: `"public"."box"`, columns: map[string]int{}}
	columns, err := logsource.FindChangeColumns(o, func(name string) int {
		at, known := tb.columns[name]
		if !known {
			at = len(tb.columns)
			tb.columns[name] = at
		}
		return at
	}, fault.MissingColumnsError{}, `"`)
	if err != nil {
		t.Fatal(err)
	}
	tb.outboxes = append(tb.outboxes, columns)
	a := newAssembler(newTables(nil), nil, "relay", 3, 1<<20)
	a.watch = &watch{tables: map[uint32]*watchedTable{7: tb}, byName: map[string]*watchedTable{}, absent: map[string]time.Time{}, resolve: func(name string, _ time.Duration) (uint32, error) {
		if name == "public.box" || name == `public."box, old: y"` {
			return 7, nil
		}
		return 8, nil
	}}
	return a
}

func TestTextMessages(t *testing.T) {
	a := watchingAssembler(t)
	send := func(text string) (b capture.Batch) {
		t.Helper()
		b, _, err := a.message([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return b
	}
	var all []capture.Change
	a.at = 0x1_0000_00A0
	for _, text := range []string{
		"BEGIN 693",
		`table public.box: INSERT: id[text]:'a''b' "Group of"[character varying]:'g: "1" new-tuple:' doc[jsonb]:'{"x": "''"}' n[integer[]]:'{1,2}' status[text]:'PENDING' bits[bit]:B'101' ok[boolean]:true none[text]:null`,
		"table public.other: INSERT: id[bigint]:1",
		`table public.box: UPDATE: old-key: id[text]:'a''b' new-tuple: id[text]:'a''b' "Group of"[text]:null doc[jsonb]:unchanged-toast-datum status[text]:'PROCESSING'`,
		`table public."box, old: y": UPDATE: id[text]:'c' doc[jsonb]:null status[text]:unchanged-toast-datum`,
		"message: transactional: 1 prefix: p, sz: 3 content:abc",
		"table public.box: DELETE: id[text]:'a''b'",
		"table public.box: DELETE: (no-tuple-data)",
		"table public.other, public.box: TRUNCATE: restart_seqs cascade",
	} {
		all = append(all, send(text).Changes...)
	}
	if len(all) != 0 || !a.open {
		t.Fatalf("%d changes came before the commit, which has their time", len(all))
	}
	b := send("COMMIT 693 (at 2026-02-03 04:05:06.789+05:30)")
	if b.Position != "1/A0" || a.open {
		t.Errorf("the position is %q", b.Position)
	}
	at := time.Date(2026, 2, 2, 22, 35, 6, 789e6, time.UTC)
	lane := store.LaneKey{Outbox: "box"}
	want := []capture.Change{
		{Kind: capture.Inserted, ID: "a'b", Status: store.Pending, Lane: store.LaneKey{Outbox: "box", Group: store.GroupOf(`g: "1" new-tuple:`)}},
		{Kind: capture.Updated, ID: "a'b", Status: store.Processing, Lane: lane},
		{Kind: capture.Updated, ID: "c", Lane: lane},
		{Kind: capture.Deleted, ID: "a'b", Lane: lane},
		{Kind: capture.Deleted, Lane: lane},
		{Kind: capture.Truncated, Lane: lane},
	}
	if len(b.Changes) != len(want) {
		t.Fatalf("%d changes, want %d: %+v", len(b.Changes), len(want), b.Changes)
	}
	for i, got := range b.Changes {
		if !got.Committed.Equal(at) || got.Txn != 1 {
			t.Errorf("change %d is of transaction %d at %s", i, got.Txn, got.Committed)
		}
		got.Committed, got.Captured, got.Txn = time.Time{}, time.Time{}, 0
		if got != want[i] {
			t.Errorf("change %d is %+v, want %+v", i, got, want[i])
		}
	}
}

func TestTextMessagesMalformed(t *testing.T) {
	for _, text := range []string{
		"BEGIN", "COMMIT 1", "COMMIT 1 (at never)", "table public.box", "table public.box: INSERT", "table public.box: INSERT: id",
		"table public.box: INSERT: id[text", "table public.box: INSERT: id[text]:'a", "table public.box: UPDATE: old-key: id[text]:'a'", `table "box: INSERT: id[text]:'a'`,
	} {
		a := watchingAssembler(t)
		a.open = true
		if _, _, err := a.message([]byte(text)); err == nil {
			t.Errorf("%q gives no error", text)
		}
	}
}

func FuzzTextMessage(f *testing.F) {
	f.Add([]byte(`table public.box: UPDATE: old-key: id[text]:'a' new-tuple: id[text]:'a' "Group of"[text]:null`))
	f.Add([]byte("COMMIT 693 (at 2026-02-03 04:05:06.789+05)"))
	f.Fuzz(func(t *testing.T, text []byte) {
		a := watchingAssembler(t)
		a.open = true
		_, _, _ = a.message(text) // it must not panic
	})
}
