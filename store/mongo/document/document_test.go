package document

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
)

func raw(t testing.TB, v any) bson.RawValue {
	t.Helper()
	return doc(t, bson.E{Key: "v", Value: v}).Lookup("v")
}

func doc(t testing.TB, fields ...bson.E) bson.Raw {
	t.Helper()
	d, err := bson.Marshal(bson.D(fields))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

var (
	oid       = bson.ObjectID{0x50, 0x7f, 0x1f, 0x77, 0xbc, 0xf8, 0x6c, 0xd7, 0x99, 0x43, 0x90, 0x11}
	uuidValue = bson.Binary{Subtype: 4, Data: []byte{0x12, 0x3e, 0x45, 0x67, 0xe8, 0x9b, 0x12, 0xd3, 0xa4, 0x56, 0x42, 0x66, 0x14, 0x17, 0x40, 0x00}}
	instant   = time.Date(2026, 2, 3, 4, 5, 6, 789_000_000, time.UTC)
)

func TestPlainJSON(t *testing.T) {
	decimal, _ := bson.ParseDecimal128("12345678901234567890.10")
	for _, c := range []struct {
		value any
		want  string
	}{
		{bson.D{{Key: "b", Value: 1}, {Key: "a", Value: bson.D{}}, {Key: "b", Value: 2}}, `{"b":1,"a":{},"b":2}`},
		{bson.A{}, `[]`}, {bson.A{1, bson.A{nil}}, `[1,[null]]`},
		{"a\"\\\n\r\t\x00\x1f<>&\u2028ü", `"a\"\\\n\r\t\u0000\u001f<>&` + "\u2028ü\""},
		{int64(math.MinInt64), "-9223372036854775808"}, {int32(5), "5"},
		{1.0, "1"}, {0.1, "0.1"}, {1e21, "1e+21"}, {5e-324, "5e-324"}, {math.NaN(), "null"}, {math.Inf(-1), "null"},
		{decimal, `"12345678901234567890.10"`}, {instant, `"2026-02-03T04:05:06.789Z"`}, {bson.DateTime(math.MaxInt64), "9223372036854775807"},
		{oid, `"507f1f77bcf86cd799439011"`}, {uuidValue, `"123e4567-e89b-12d3-a456-426614174000"`}, {bson.Binary{Data: []byte{0xff}}, `"/w=="`},
		{true, "true"}, {nil, "null"}, {bson.Undefined{}, "null"}, {bson.Timestamp{T: 7, I: 8}, `{"t":7,"i":8}`},
		{bson.Regex{Pattern: "a/b", Options: "i"}, `"/a/b/i"`}, {bson.JavaScript("f()"), `"f()"`}, {bson.Symbol("s"), `"s"`},
		{bson.CodeWithScope{Code: "f()", Scope: bson.D{}}, `"f()"`}, {bson.MinKey{}, `"MinKey"`}, {bson.MaxKey{}, `"MaxKey"`},
		{bson.DBPointer{DB: "d", Pointer: oid}, `"507f1f77bcf86cd799439011"`},
	} {
		got := string(AppendJSON([]byte("x"), raw(t, c.value)))
		if got != "x"+c.want || !json.Valid([]byte(got[1:])) {
			t.Errorf("%v: %s, want %s", c.value, got, c.want)
		}
	}
	bad := raw(t, "a\xffb\xc3")
	if got := string(AppendJSON(nil, bad)); got != "\"a\uFFFDb\uFFFD\"" {
		t.Errorf("bad UTF-8: %q", got)
	}
}

// Texts of ids lead back to their values, and to no value of another text.
func TestIDs(t *testing.T) {
	values := []any{
		oid, uuidValue, "507f1f77bcf86cd799439012", "123e4567-e89b-12d3-a456-426614174001", "", "5", int32(6), int64(-7), 8.0, math.Copysign(0, -1), int64(math.MaxInt64),
		"0x0a", bson.Binary{Data: []byte{0x0b}}, bson.Binary{Subtype: 3, Data: uuidValue.Data}, bson.Binary{Subtype: 5, Data: uuidValue.Data}, bson.Binary{Data: []byte{}},
		"+5", "05", "5.0", "1e3", "507F1F77BCF86CD799439011", "{123e4567-e89b-12d3-a456-426614174000}", "0X0A", "0x0A", "0x0", "☃", -1 << 62 * 1.0,
	}
	for _, v := range values {
		text, err := ID(raw(t, v))
		if err != nil {
			t.Errorf("%v: %v", v, err)
			continue
		}
		found := false
		for _, back := range IDs(text) {
			again, err := ID(raw(t, back))
			if err != nil || again != text {
				t.Errorf("%q stands for %v, whose text is %q, %v", text, back, again, err)
			}
			found = found || sameValue(t, back, v)
		}
		if !found {
			t.Errorf("%v has the text %q, which stands for %v", v, text, IDs(text))
		}
	}
	decimal, _ := bson.ParseDecimal128("5")
	for _, v := range []any{nil, bson.Undefined{}, 1.5, math.NaN(), 1e300, float64(1 << 63), decimal, true, instant, bson.D{}, bson.A{}, bson.Binary{Subtype: 4, Data: []byte{1}}, bson.Binary{Subtype: 128, Data: []byte{1}}} {
		if text, err := ID(raw(t, v)); err == nil {
			t.Errorf("%v is an id with the text %q", v, text)
		}
	}
	if _, err := ID(bson.RawValue{}); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("no id: %v", err)
	}
}

// sameValue reports whether the server treats two values as equal.
func sameValue(t *testing.T, a, b any) bool {
	x, y := raw(t, a), raw(t, b)
	if x.IsNumber() && y.IsNumber() {
		n, _ := x.AsInt64OK()
		m, _ := y.AsInt64OK()
		return n == m
	}
	return x.Equal(y)
}

func FuzzIDs(f *testing.F) {
	for _, s := range []string{"", "5", "-5", "0x0a", "507f1f77bcf86cd799439011", "123e4567-e89b-12d3-a456-426614174000"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, v := range IDs(text) {
			if got, err := ID(raw(t, v)); err != nil || got != text {
				t.Errorf("%q stands for %v, whose text is %q, %v", text, v, got, err)
			}
		}
	})
}

func TestItem(t *testing.T) {
	o := &store.Outbox{Name: "events", Kind: "EVENT", Layout: store.Layout{Columns: store.Columns{
		ID: "_id", Group: "meta.group", Payload: "payload", RetryCount: "tries",
	}}}
	r := New(o)
	whole := doc(t, bson.E{Key: "_id", Value: oid}, bson.E{Key: "meta", Value: bson.D{{Key: "group", Value: 5}}},
		bson.E{Key: "payload", Value: bson.D{{Key: "a", Value: 1}}}, bson.E{Key: "tries", Value: 2.0})
	it, err := r.Head(whole)
	want := store.Item{Ref: store.Ref{Outbox: "events", ID: oid.Hex()}, Kind: "EVENT", Group: store.GroupOf("5"), RetryCount: 2}
	if err != nil || fmt.Sprint(it) != fmt.Sprint(want) {
		t.Errorf("%+v, %v; want %+v", it, err, want)
	}
	for value, group := range map[any]store.Group{
		nil: {}, "": store.GroupOf(""), "x": store.GroupOf("x"), true: store.GroupOf("true"), 1.5: store.GroupOf("1.5"), "\"q\"": store.GroupOf("\"q\""),
		bson.Symbol("a\"b"): store.GroupOf("a\"b"), instant: store.GroupOf("2026-02-03T04:05:06.789Z"),
	} {
		d := doc(t, bson.E{Key: "_id", Value: 1}, bson.E{Key: "meta", Value: bson.D{{Key: "group", Value: value}}})
		if it, err := r.Head(d); err != nil || it.Group != group {
			t.Errorf("group %v is %v, %v", value, it.Group, err)
		}
	}
	for _, meta := range []any{nil, "text", bson.A{bson.D{{Key: "group", Value: "x"}}}} {
		if it, _ := r.Head(doc(t, bson.E{Key: "_id", Value: 1}, bson.E{Key: "meta", Value: meta})); it.Group.Valid {
			t.Errorf("behind %v the group is %v", meta, it.Group)
		}
	}
	if it, err := r.Head(doc(t, bson.E{Key: "payload", Value: ""})); err == nil || !strings.Contains(err.Error(), "_id") {
		t.Errorf("without an id: %+v, %v", it, err)
	}
	if got := ProjectedFields([]string{"a.b", "", "a", "a.b.c", "ab", "a"}); !slices.Equal(got, []string{"a", "ab"}) {
		t.Errorf("projected are %q", got)
	}
}

// The group is found in a JSON payload, whether it is text or a subdocument.
func TestGroupInPayload(t *testing.T) {
	r := New(&store.Outbox{Layout: store.Layout{Columns: store.Columns{ID: "_id", Group: "payload", Payload: "payload"}, GroupPath: []string{"customer", "id"}}})
	for _, payload := range []any{`{"customer": {"id": 12}}`, bson.D{{Key: "customer", Value: bson.D{{Key: "id", Value: int64(12)}}}}} {
		if it, err := r.Head(doc(t, bson.E{Key: "_id", Value: 1}, bson.E{Key: "payload", Value: payload})); err != nil || it.Group != store.GroupOf("12") {
			t.Errorf("%v: %v, %v", payload, it.Group, err)
		}
	}
}

func TestTime(t *testing.T) {
	for _, v := range []any{instant, "2026-02-03T04:05:06.789Z", "2026-02-03T05:05:06.789+01:00", "2026-02-03T04:05:06.789", "2026-02-03 04:05:06.789"} {
		if at := Time(raw(t, v)); !at.Equal(instant) || at.Location() != time.UTC {
			t.Errorf("%v is read as %s", v, at)
		}
	}
	for _, v := range []any{nil, "", "yesterday", 5, true} {
		if at := Time(raw(t, v)); !at.IsZero() {
			t.Errorf("%v is read as %s", v, at)
		}
	}
	if text := FormatTime(instant.In(time.FixedZone("far", 3600))); text != "2026-02-03T04:05:06.789Z" {
		t.Error(text)
	}
}
