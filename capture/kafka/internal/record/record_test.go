package record

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// samples are records of each kind.
func samples() []Record {
	at := time.UnixMicro(1_770_000_000_000_123)
	return []Record{
		{Kind: Leader, Epoch: 7, Partitions: 64, AckedEpoch: 5, Acked: 1 << 40},
		{Kind: Gap, Epoch: 7, Number: 1},
		{Kind: Idle, Epoch: 7, Number: 2, After: "0/16B3748"},
		{Kind: Mark, Epoch: 7, Number: 3, After: "0/16B3748", End: "0/16B3700", Token: "sweep-1", Time: at},
		{Kind: End, Epoch: 7, Number: 4, After: "0/16B3748", End: "0/16B3800"},
		{Kind: Row, Epoch: 7, Number: 1 << 40, After: "0/16B3748", Index: 3, End: "0/16B3800", Item: store.Item{
			Ref: store.Ref{Outbox: "shop", ID: "a"}, Kind: "EVENT", Group: store.GroupOf("g"), Payload: []byte("{}"), PayloadSize: 2,
			Attributes: store.Attributes{{Name: "type", Value: "OrderPaid"}}, RetryCount: 2, Txn: 9, Committed: at,
		}},
		{Kind: Row, Item: store.Item{Group: store.GroupOf(""), Payload: []byte{}, Attributes: store.Attributes{}}},
		{Kind: Row, Item: store.Item{PayloadSize: 5 << 20}},
		{Kind: Part, Epoch: 7, Number: 9, First: true, Data: []byte{}},
	}
}

// A record is read as it was written, and no part of one is read at all.
func TestRecords(t *testing.T) {
	for _, r := range samples() {
		b := r.Append(nil)
		got, err := Parse(b)
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("got %+v, %v\nwant %+v", got, err, r)
		}
		for n := range b {
			if _, err := Parse(b[:n]); err == nil {
				t.Errorf("%d of %d bytes of a record of kind %d were accepted", n, len(b), r.Kind)
			}
		}
	}
}

// A Part ends where its record ends. The row that its parts make is parsed as a whole.
func TestParts(t *testing.T) {
	row := samples()[5]
	row.Item.Group = store.GroupOf(strings.Repeat("g", 1000))
	s := NewSplitter(7, 1, row.After)
	s.MaxBytes = 400
	var got []Record
	batch := capture.Batch{Position: row.End, Items: []store.Item{row.Item}}
	if err := s.Split(&batch, func(_ int, r *Record) error { got = append(got, *r); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(got) < 3 {
		t.Fatalf("got %d records, want the parts of a row of over 1000 bytes", len(got))
	}
	c := NewCursor(Place{Epoch: 7, Done: row.After})
	for i := range got {
		text := got[i].Append(nil)
		if len(text) > s.MaxBytes {
			t.Errorf("part %d has %d bytes, want at most %d", i, len(text), s.MaxBytes)
		}
		r, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		before := c.Whole
		fresh, err := c.Take(&r, int64(i), comparePositions)
		switch last := i == len(got)-1; {
		case err != nil:
			t.Fatal(err)
		case !last && (fresh || c.Whole != before):
			t.Errorf("part %d of %d: fresh %v, and the place to begin at moved from %+v to %+v", i, len(got), fresh, before, c.Whole)
		case last && (!fresh || !reflect.DeepEqual(r.Item, row.Item) || c.Whole.Offset != int64(len(got)) || c.Whole.Done != row.End):
			t.Errorf("the last part: fresh %v, place %+v, row %+v, want %+v", fresh, c.Whole, r.Item, row.Item)
		}
	}
}

// FuzzParse: no input crashes the parser, and what it accepts is written the same way.
func FuzzParse(f *testing.F) {
	for _, r := range samples() {
		f.Add(r.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Parse(b)
		if err != nil {
			return
		}
		again, err := Parse(r.Append(nil))
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("%x: got %+v, %v, want %+v", b, again, err, r)
		}
		if !bytes.Equal(again.Append(nil), r.Append(nil)) {
			t.Errorf("%x: two forms", b)
		}
	})
}

func TestPlaces(t *testing.T) {
	for _, p := range []Place{{}, {Offset: 1 << 50, Epoch: 3, Number: 9, Index: 2, Done: "mysql-bin.000001:4/5"}} {
		if got, err := ParsePlace(p.Position()); err != nil || got != p {
			t.Errorf("got %+v, %v, want %+v", got, err, p)
		}
	}
	for _, bad := range []store.Position{"", "0/16B3748", "-1/0/0/0/", "a/b/c/d/e"} {
		if p, err := ParsePlace(bad); err == nil {
			t.Errorf("%q was read as %+v", bad, p)
		}
	}
}

// BenchmarkRow writes and reads a row with a payload of 1 KiB.
func BenchmarkRow(b *testing.B) {
	r := samples()[5]
	r.Item.Payload, r.Item.PayloadSize = make([]byte, 1<<10), 1<<10
	var text []byte
	b.ReportAllocs()
	for b.Loop() {
		text = r.Append(text[:0])
		if _, err := Parse(text); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSplit makes records of transactions of one row.
func BenchmarkSplit(b *testing.B) {
	row := samples()[5]
	s := NewSplitter(7, 64, row.After)
	batch := capture.Batch{Position: row.End, Items: []store.Item{row.Item}}
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Split(&batch, func(int, *Record) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
