package postgres

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// wal builds messages of pgoutput.
type wal struct{ b []byte }

func (w *wal) u8(v byte) *wal      { w.b = append(w.b, v); return w }
func (w *wal) u16(v uint16) *wal   { w.b = binary.BigEndian.AppendUint16(w.b, v); return w }
func (w *wal) u32(v uint32) *wal   { w.b = binary.BigEndian.AppendUint32(w.b, v); return w }
func (w *wal) u64(v uint64) *wal   { w.b = binary.BigEndian.AppendUint64(w.b, v); return w }
func (w *wal) text(v string) *wal  { w.b = append(append(w.b, v...), 0); return w }
func (w *wal) bytes(v []byte) *wal { w.u32(uint32(len(v))); w.b = append(w.b, v...); return w }

func begin(commit uint64, xid uint32) []byte {
	return (&wal{}).u8('B').u64(commit).u64(1_000_000).u32(xid).b
}

func commitAt(at, end uint64) []byte {
	return (&wal{}).u8('C').u8(0).u64(at).u64(end).u64(1_000_000).b
}

func relationOf(oid uint32, schema, name string, columns ...column) []byte {
	w := (&wal{}).u8('R').u32(oid).text(schema).text(name).u8('d').u16(uint16(len(columns)))
	for _, c := range columns {
		w.u8(0).text(c.name).u32(c.typeOID).u32(0xffffffff)
	}
	return w.b
}

func typeOf(oid uint32, schema, name string) []byte {
	return (&wal{}).u8('Y').u32(oid).text(schema).text(name).b
}

const null = "\x00NULL"

func insertOf(oid uint32, values ...string) []byte {
	w := (&wal{}).u8('I').u32(oid).u8('N').u16(uint16(len(values)))
	for _, v := range values {
		if v == null {
			w.u8('n')
		} else {
			w.u8('t').bytes([]byte(v))
		}
	}
	return w.b
}

func messageOf(transactional bool, prefix, content string) []byte {
	w := (&wal{}).u8('M')
	if transactional {
		w.u8(1)
	} else {
		w.u8(0)
	}
	return w.u64(7).text(prefix).bytes([]byte(content)).b
}

var (
	textOID = uint32(25)
	events  = []column{{name: "id", typeOID: textOID}, {name: "payload", typeOID: textOID}, {name: "message_group", typeOID: textOID}, {name: "retry_count", typeOID: 23}}
)

func testAssembler(outboxes ...store.Outbox) *assembler {
	if outboxes == nil {
		outboxes = []store.Outbox{{Name: "shop", Table: "events", Layout: store.FlowCatalyst(), Kind: "EVENT"}}
	}
	tb := &table{oid: 10, schema: "public", name: "events"}
	for i := range outboxes {
		tb.outboxes = append(tb.outboxes, &outboxes[i])
	}
	return newAssembler(newTables([]*table{tb}), nil, "relay", 3, 1<<20)
}

// feed feeds messages and returns the batches.
func feed(t *testing.T, a *assembler, messages ...[]byte) []capture.Batch {
	t.Helper()
	var list []capture.Batch
	for i, m := range messages {
		b, ready, err := a.message(m)
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		clear(m) // as if the read buffer were reused
		if ready {
			list = append(list, b)
		}
	}
	return list
}

func TestAssemble(t *testing.T) {
	a := testAssembler()
	got := feed(t, a,
		begin(0x100, 7), relationOf(10, "public", "events", events...),
		insertOf(10, "a", `{"x":1}`, "g", "2"), insertOf(10, "b", null, null, null), insertOf(10, "c", "", "", "0"),
		messageOf(true, "relay.mark", "m1"), messageOf(true, "other", "x"), messageOf(false, "relay.mark", "x"),
		insertOf(10, "d", "p", "g", "0"), commitAt(0x100, 0x130),
		messageOf(false, "relay.heartbeat", ""),
		begin(0x200, 8), commitAt(0x200, 0x230))
	if len(got) != 3 {
		t.Fatalf("%d batches, want a part, an end and an empty transaction", len(got))
	}
	part, end, empty := got[0], got[1], got[2]
	if part.Position != "" || len(part.Items) != 3 || len(part.Marks) != 0 {
		t.Errorf("the part is %+v", part)
	}
	if end.Position != "0/130" || len(end.Items) != 1 || len(end.Marks) != 1 || end.Marks[0] != "m1" {
		t.Errorf("the end is %+v", end)
	}
	if empty.Position != "0/230" || len(empty.Items) != 0 {
		t.Errorf("the empty transaction is %+v", empty)
	}
	first := part.Items[0]
	if first.ID != "a" || first.Outbox != "shop" || first.Kind != "EVENT" || first.Group != store.GroupOf("g") ||
		string(first.Payload) != `{"x":1}` || first.PayloadSize != 7 || first.RetryCount != 2 || first.Txn != 7 ||
		!first.Committed.Equal(time.Date(2000, 1, 1, 0, 0, 1, 0, time.UTC)) {
		t.Errorf("the first row is %+v", first)
	}
	second := part.Items[1]
	if second.Group.Valid || second.Payload == nil || len(second.Payload) != 0 || second.RetryCount != 0 {
		t.Errorf("NULL came as %+v", second)
	}
	if third := part.Items[2]; !third.Group.Valid || third.Group.Name != "" {
		t.Errorf("an empty group came as %+v", third)
	}
}

func TestAssembleSkips(t *testing.T) {
	a := testAssembler()
	a.after, a.until = 0x200, 0x400
	got := feed(t, a,
		begin(0x100, 7), relationOf(10, "public", "events", events...), relationOf(11, "public", "other", column{name: "n", typeOID: 23}),
		insertOf(10, "old", "p", "g", "0"), messageOf(true, "relay.mark", "old"), commitAt(0x100, 0x200),
		begin(0x200, 8), insertOf(11, "1"), insertOf(10, "new", "p", "g", "0"), commitAt(0x200, 0x230),
		begin(0x400, 9))
	if len(got) != 1 || len(got[0].Items) != 1 || got[0].Items[0].ID != "new" {
		t.Errorf("batches %+v", got)
	}
	if !a.reachedEnd {
		t.Error("the end was not detected")
	}
}

// TestAssembleFansOut: each of several outboxes over one table gets its own item.
func TestAssembleFansOut(t *testing.T) {
	layout := store.FlowCatalyst()
	layout.Columns.Kind = "message_group"
	a := testAssembler(
		store.Outbox{Name: "one", Table: "events", Layout: store.FlowCatalyst(), Kind: "EVENT"},
		store.Outbox{Name: "two", Table: "events", Layout: layout})
	got := feed(t, a, begin(0x100, 7), relationOf(10, "public", "events", events...),
		insertOf(10, "a", "p", "KIND", "0"), commitAt(0x100, 0x130))
	items := got[0].Items
	if len(items) != 2 || items[0].Outbox != "one" || items[1].Outbox != "two" || items[1].Kind != "KIND" {
		t.Fatalf("items %+v", items)
	}
	items[0].Payload[0] = 'X'
	if string(items[1].Payload) != "p" {
		t.Error("two items share a payload")
	}
}

// TestAssembleBounds: the bounds of a batch apply to the copies that several outboxes
// over one table have of a row.
func TestAssembleBounds(t *testing.T) {
	for _, c := range []struct {
		name            string
		outboxes        int
		maxRows, maxLen int
		want            []int // rows of the batches
	}{
		{"rows", 1, 3, 1 << 20, []int{3, 2}},
		{"rows, two outboxes", 2, 5, 1 << 20, []int{4, 4, 2}},
		{"rows, more outboxes than rows", 3, 2, 1 << 20, []int{3, 3, 3, 3, 3}},
		{"bytes", 1, 100, 2100, []int{2, 2, 1}},
		{"bytes, two outboxes", 2, 100, 4200, []int{4, 4, 2}},
		{"bytes, a row that is too large", 1, 100, 10, []int{1, 1, 1, 1, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var outboxes []store.Outbox
			for i := range c.outboxes {
				outboxes = append(outboxes, store.Outbox{Name: string(rune('a' + i)), Table: "events", Layout: store.FlowCatalyst(), Kind: "EVENT"})
			}
			a := testAssembler(outboxes...)
			a.tx.MaxRows, a.tx.MaxBytes = c.maxRows, c.maxLen
			messages := [][]byte{begin(0x100, 7), relationOf(10, "public", "events", events...)}
			for i := range 5 {
				messages = append(messages, insertOf(10, string(rune('a'+i)), strings.Repeat("x", 1000), null, "0"))
			}
			var got []int
			for _, b := range feed(t, a, append(messages, commitAt(0x100, 0x130))...) {
				got = append(got, len(b.Items))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("batches of %v rows, want %v", got, c.want)
			}
		})
	}
}

func TestAssembleBytea(t *testing.T) {
	for name, oid := range map[string]uint32{"bytea": byteaOID, "a domain": 70000} {
		a := testAssembler()
		columns := append([]column{{name: "id", typeOID: textOID}, {name: "payload", typeOID: oid}}, events[2:]...)
		raw := []byte{0, 1, 0xff, '\\', 'x'}
		got := feed(t, a, begin(0x100, 7), typeOf(70000, "", "bytea"), typeOf(70001, "my", "bytea"), relationOf(10, "public", "events", columns...),
			insertOf(10, "a", `\x`+hex.EncodeToString(raw), null, "0"), insertOf(10, "b", `\x`, null, "0"), commitAt(0x100, 0x130))
		items := got[0].Items
		if !bytes.Equal(items[0].Payload, raw) || items[0].PayloadSize != 5 || len(items[1].Payload) != 0 {
			t.Errorf("%s came as %x", name, items[0].Payload)
		}
	}
}

// TestAssembleGroupPath: the group is inside JSON, in a column of its own or in the
// payload.
func TestAssembleGroupPath(t *testing.T) {
	layout := store.FlowCatalyst()
	layout.GroupPath = []string{"customer", "id"}
	ofPayload := layout
	ofPayload.Columns.Group = "payload"
	for _, c := range []struct {
		name    string
		layout  store.Layout
		payload uint32
		row     []string
		want    store.Group
	}{
		{"a column", layout, textOID, []string{"a", "p", `{"customer":{"id":7.0}}`, "0"}, store.GroupOf("7.0")},
		{"NULL", layout, textOID, []string{"a", "p", null, "0"}, store.Group{}},
		{"no key", layout, textOID, []string{"a", "p", "{}", "0"}, store.Group{}},
		{"no JSON", layout, textOID, []string{"a", "p", "g", "0"}, store.GroupOf("")},
		{"the payload", ofPayload, 3802, []string{"a", `{"customer": {"id": "x"}}`, "g", "0"}, store.GroupOf("x")},
		{"a payload in bytes", ofPayload, byteaOID, []string{"a", `\x` + hex.EncodeToString([]byte(`{"customer":{"id":"x"}}`)), "g", "0"}, store.GroupOf("x")},
		{"no payload in bytes", ofPayload, byteaOID, []string{"a", null, "g", "0"}, store.Group{}},
	} {
		a := testAssembler(store.Outbox{Name: "shop", Table: "events", Layout: c.layout, Kind: "EVENT"})
		columns := append([]column{{name: "id", typeOID: textOID}, {name: "payload", typeOID: c.payload}}, events[2:]...)
		got := feed(t, a, begin(0x100, 7), relationOf(10, "public", "events", columns...), insertOf(10, c.row...), commitAt(0x100, 0x130))
		if it := got[0].Items[0]; it.ID != "a" || it.Group != c.want {
			t.Errorf("%s: row %q is in group %#v, want %#v", c.name, it.ID, it.Group, c.want)
		}
	}
}

// TestAssembleFollowsTheTable: a table keeps its outbox under another name, and if it is
// recreated under its own name; after a change of columns its rows are still found.
func TestAssembleFollowsTheTable(t *testing.T) {
	a := testAssembler()
	got := feed(t, a, begin(0x100, 7),
		relationOf(10, "public", "before_the_rename", events...), insertOf(10, "a", "p", null, "0"),
		relationOf(99, "public", "events", events...), insertOf(99, "b", "p", null, "0"),
		relationOf(10, "public", "events", append([]column{{name: "extra", typeOID: 23}}, events...)...), insertOf(10, "1", "c", "p", null, "0"),
		commitAt(0x100, 0x130))
	var ids []string
	for _, it := range got[0].Items {
		ids = append(ids, it.ID)
	}
	if strings.Join(ids, "") != "abc" {
		t.Errorf("rows %q", ids)
	}
}

func TestAssembleErrors(t *testing.T) {
	rel := relationOf(10, "public", "events", events...)
	for name, c := range map[string]struct {
		messages [][]byte
		want     string
	}{
		"null id":           {[][]byte{begin(1, 1), rel, insertOf(10, null, "p", "g", "0")}, `public.events: row with NULL in its id column "id"`},
		"not a count":       {[][]byte{begin(1, 1), rel, insertOf(10, "a", "p", "g", "many")}, `row "a": "many" in column "retry_count"`},
		"missing column":    {[][]byte{begin(1, 1), relationOf(10, "public", "events", events[:1]...)}, `without column "message_group" and "payload"`},
		"fewer columns":     {[][]byte{begin(1, 1), rel, insertOf(10, "a", "p")}, "has 2 columns, its Relation message has 4"},
		"unknown relation":  {[][]byte{begin(1, 1), insertOf(10, "a")}, "without a Relation message"},
		"no transaction":    {[][]byte{rel, insertOf(10, "a", "p", "g", "0")}, "outside a transaction"},
		"two begins":        {[][]byte{begin(1, 1), begin(2, 2)}, "inside a transaction"},
		"commit alone":      {[][]byte{commitAt(1, 2)}, "outside a transaction"},
		"unknown message":   {[][]byte{{'?', 1, 2}}, "unknown message type '?'"},
		"stream start":      {[][]byte{{'S', 0, 0, 0, 1, 1}}, "unknown message type 'S'"},
		"empty":             {[][]byte{{}}, "empty message"},
		"too long":          {[][]byte{append(begin(1, 1), 0)}, "1 bytes too many"},
		"huge length":       {[][]byte{begin(1, 1), rel, {'I', 0, 0, 0, 10, 'N', 0, 1, 't', 0x7f, 0xff, 0xff, 0xff, 'x'}}, "ends too early"},
		"huge columns":      {[][]byte{{'R', 0, 0, 0, 1, 's', 0, 'n', 0, 'd', 0xff, 0xff}}, "ends too early"},
		"old tuple":         {[][]byte{begin(1, 1), rel, {'I', 0, 0, 0, 10, 'O', 0, 0}}, "tuple of kind 'O'"},
		"unchanged column":  {[][]byte{begin(1, 1), rel, {'I', 0, 0, 0, 10, 'N', 0, 1, 'u'}}, "of kind 'u'"},
		"bytea in disguise": {[][]byte{begin(1, 1), relationOf(10, "public", "events", column{name: "id", typeOID: 25}, column{name: "payload", typeOID: 17}, events[2], events[3]), insertOf(10, "a", "abc", "g", "0")}, `does not begin with \x`},
	} {
		t.Run(name, func(t *testing.T) {
			a := testAssembler()
			var err error
			for _, m := range c.messages {
				if _, _, err = a.message(m); err != nil {
					break
				}
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want %q in it", err, c.want)
			}
		})
	}
}

// TestDecodeAgrees compares with the protocol library where it parses the message too.
func TestDecodeAgrees(t *testing.T) {
	b := begin(0x16B374D848, 4_000_000_000)
	theirs, err := pglogrepl.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := parseBegin(b[1:])
	if err != nil {
		t.Fatal(err)
	}
	if m := theirs.(*pglogrepl.BeginMessage); m.FinalLSN != ours.commit || m.Xid != ours.xid || !m.CommitTime.Equal(ours.committed) {
		t.Errorf("Begin: %+v and %+v", m, ours)
	}
	c := commitAt(3, 9)
	theirs, err = pglogrepl.Parse(c)
	if err != nil {
		t.Fatal(err)
	}
	if end, err := parseCommit(c[1:]); err != nil || theirs.(*pglogrepl.CommitMessage).TransactionEndLSN != end {
		t.Errorf("Commit: %+v and %s, %v", theirs, end, err)
	}
	r := relationOf(10, "public", "events", events...)
	theirs, err = pglogrepl.Parse(r)
	if err != nil {
		t.Fatal(err)
	}
	rel, err := parseRelation(r[1:])
	if m := theirs.(*pglogrepl.RelationMessage); err != nil || m.RelationID != rel.oid || m.Namespace != rel.schema ||
		m.RelationName != rel.name || len(m.Columns) != len(rel.columns) || m.Columns[3].Name != rel.columns[3].name ||
		m.Columns[3].DataType != rel.columns[3].typeOID {
		t.Errorf("Relation: %+v and %+v, %v", m, rel, err)
	}
}

// FuzzAssemble feeds any sequence of messages, each preceded by its length. Nothing may
// panic, and no batch may violate the requirements of Resume.
func FuzzAssemble(f *testing.F) {
	pack := func(messages ...[]byte) []byte {
		w := &wal{}
		for _, m := range messages {
			w.bytes(m)
		}
		return w.b
	}
	rel := relationOf(10, "public", "events", events...)
	f.Add(pack(begin(1, 1), rel, insertOf(10, "a", "p", "g", "0"), insertOf(10, "b", null, null, null), messageOf(true, "relay.mark", "m"), commitAt(1, 2)))
	f.Add(pack(rel, begin(1, 1), insertOf(10, "a", `\x00`, "g", "x")))
	f.Add(pack([]byte("O\x00\x00\x00\x00\x00\x00\x00\x01origin\x00"), []byte("Y\x00\x00\x00\x01s\x00n\x00"), []byte("T"), []byte("U"), []byte("D")))
	f.Add([]byte{0, 0, 0, 2, 'I', 'N'})
	f.Fuzz(func(t *testing.T, data []byte) {
		a := testAssembler()
		inParts := false // the current transaction was returned in part
		for len(data) >= 4 {
			n := min(int(binary.BigEndian.Uint32(data)), len(data)-4)
			b, ready, err := a.message(data[4 : 4+n])
			if err != nil {
				return
			}
			if ready {
				if inParts = inParts || b.Position == ""; inParts && len(b.Items) == 0 {
					t.Fatal("a part was returned without a following row")
				}
				inParts = b.Position == ""
			}
			data = data[4+n:]
		}
	})
}

func TestParseLSN(t *testing.T) {
	for text, want := range map[store.Position]pglogrepl.LSN{"": 0, "0/0": 0, "16/B374D848": 0x16B374D848, "FFFFFFFF/FFFFFFFF": 1<<64 - 1} {
		if got, err := parseLSN(text); err != nil || got != want {
			t.Errorf("%q is %s, %v", text, got, err)
		}
		if text != "" && formatLSN(want) != text {
			t.Errorf("%q: got %q after formatting", text, formatLSN(want))
		}
	}
	for _, text := range []store.Position{"/", "1/", "/1", "1/2/3", "x/1", "100000000/0", "-1/2", "16", "gtid:1-2"} {
		if got, err := parseLSN(text); err == nil {
			t.Errorf("%q was accepted as %s", text, got)
		}
	}
}
