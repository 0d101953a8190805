package mongo_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// attributedBox has attributes, some in subdocuments, and a group over two fields.
func attributedBox() store.Outbox {
	return store.Outbox{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: store.Layout{
		Name:      store.CustomLayout,
		Columns:   store.Columns{ID: "_id", Group: "tenant", Payload: "body", Status: "state", Delivered: "sent"},
		GroupRest: []string{"of.part"},
		State:     store.StateWords,
		Words:     map[store.Status]string{store.Pending: "NEW", store.Processing: "SENDING", store.Completed: "SENT", store.Failed: "DEAD"},
		OrderBy:   []string{"createdAt"},
		Attributes: []store.AttributeColumn{
			{Column: "of.aggregate", Name: store.AttributeKind}, {Column: "body.class", Name: store.AttributeType},
			{Column: "at", Name: store.AttributeTime}, {Column: "of.trace", Name: "of.trace"}, {Column: "of.headers", Spread: true},
		},
	}}
}

// attributed is a pending document of it.
func attributed(id string, fields ...bson.E) bson.D {
	return append(bson.D{{Key: "_id", Value: id}, {Key: "state", Value: "NEW"}, {Key: "createdAt", Value: time.Unix(0, 0)}}, fields...)
}

// setAll returns a function that gives all documents a status.
func (r *rig) setAll(t *testing.T) func(store.Status) {
	return func(s store.Status) {
		t.Helper()
		state := bson.D{{Key: "$set", Value: bson.D{{Key: "state", Value: r.box.Layout.Words[s]}}}}
		if _, err := r.docs().UpdateMany(ctx(t), bson.D{}, state); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAttributes checks that every read of a document's payload brings the same attributes, and
// that a read without the payload brings none.
func TestAttributes(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), attributedBox())
	r.insert(t,
		attributed("1", bson.E{Key: "body", Value: bson.D{{Key: "class", Value: "Paid"}}}, bson.E{Key: "at", Value: "2026-02-03T05:05:06.5+01:00"},
			bson.E{Key: "of", Value: bson.D{
				{Key: "aggregate", Value: "Grüße"}, {Key: "trace", Value: bson.Undefined{}},
				{Key: "headers", Value: bson.D{{Key: "n", Value: 1}, {Key: "at", Value: time.UnixMilli(5)}, {Key: "none", Value: nil}, {Key: "in", Value: bson.D{{Key: "x", Value: "\x00"}}}}},
			}}),
		attributed("2", bson.E{Key: "body", Value: nil}, bson.E{Key: "at", Value: bson.Timestamp{T: 1770091506, I: 1}},
			bson.E{Key: "of", Value: bson.D{{Key: "trace", Value: ""}, {Key: "headers", Value: ` {"a": "b"}`}}}),
		attributed("3", bson.E{Key: "body", Value: "x"}, bson.E{Key: "at", Value: bson.DateTime(1 << 60)}, bson.E{Key: "of", Value: bson.D{{Key: "headers", Value: bson.A{1}}}}),
		attributed("4", bson.E{Key: "body", Value: bson.A{bson.D{{Key: "class", Value: "in a list"}}}}, bson.E{Key: "at", Value: float64(1770091506)}, bson.E{Key: "of", Value: 7}),
	)
	want := map[string]store.Attributes{
		"1": {{Name: "kind", Value: "Grüße"}, {Name: "type", Value: "Paid"}, {Name: "time", Value: "2026-02-03T04:05:06.5Z"}, {Name: "n", Value: "1"},
			{Name: "at", Value: "1970-01-01T00:00:00.005Z"}, {Name: "in", Value: `{"x":"\u0000"}`}},
		"2": {{Name: "time", Value: "2026-02-03T04:05:06Z"}, {Name: "of.trace", Value: ""}, {Name: "a", Value: "b"}},
		"3": {{Name: "of.headers", Value: "[1]"}},
		"4": {{Name: "time", Value: "2026-02-03T04:05:06Z"}},
	}
	check := func(what, id string, payload []byte, got store.Attributes) {
		t.Helper()
		if payload == nil || !slices.Equal(got, want[id]) {
			t.Errorf("%s: document %s has payload %q, attributes %q, want %q", what, id, payload, got, want[id])
		}
	}

	for _, it := range r.unsettled(t, store.UnsettledQuery{}) {
		check("a view", it.ID, it.Payload, it.Attributes)
	}
	for _, q := range []store.UnsettledQuery{{NoPayload: true}, {MaxPayload: 1}} {
		for _, it := range r.unsettled(t, q) {
			if small := q.MaxPayload >= it.PayloadSize && !q.NoPayload; (it.Payload != nil) != small || small == (it.Attributes == nil) {
				t.Errorf("a view with few payloads: %+v", it)
			}
		}
	}

	var full, lean []store.ClaimRow
	for _, id := range []string{"1", "2", "3", "4"} {
		full, lean = append(full, row(id)), append(lean, row(id))
		full[len(full)-1].WantPayload = true
	}
	for i, a := range r.claim(t, full...) {
		check("a claim", full[i].ID, a.Payload, a.Attributes)
	}
	for i, a := range r.claim(t, lean...) {
		if a.Result != store.Claimed || a.Payload != nil || a.Attributes != nil {
			t.Errorf("a claim without the payload of %s: %+v", lean[i].ID, a)
		}
	}
	r.setAll(t)(store.Completed)
	states, err := r.store.ReadStatuses(ctx(t), append(full, lean[0]))
	if err != nil {
		t.Fatal(err)
	}
	for i := range full {
		check("a status", full[i].ID, states[i].Payload, states[i].Attributes)
	}
}

// TestGroupOfFields checks that views leave out exactly the lanes of a query, and that the
// filters for FAILED and delivered documents select exactly a group.
func TestGroupOfFields(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), attributedBox())
	var want []store.Group
	for i, c := range []struct {
		tenant, part any
		group        string
	}{
		{"a", "1", "a/1"}, {"A", int32(1), "A/1"}, {"a", nil, `a/\N`}, {nil, 1.0, `\N/1`}, {nil, nil, ""},
		{"", nil, `/\N`}, {`\N`, bson.Undefined{}, `\\N/\N`}, {"a/1", bson.D{{Key: "x", Value: nil}}, `a\/1/{"x":null}`}, {"☃\\", true, `☃\\/true`},
	} {
		r.insert(t, with(attributed(string(rune('1'+i)), bson.E{Key: "body", Value: "x"}, bson.E{Key: "tenant", Value: c.tenant}, bson.E{Key: "of", Value: bson.D{{Key: "part", Value: c.part}}}),
			"createdAt", time.Unix(int64(i), 0)))
		want = append(want, store.Group{Name: c.group, Valid: c.tenant != nil || c.part != nil})
	}
	if got := rigs.CheckExcludeLanes(t, r.store, len(want)); !slices.Equal(got, want) {
		t.Errorf("groups are %q, want %q", got, want)
	}

	var all []store.LaneKey
	for i := range 1000 { // more conditions than the server gets
		all = append(all, rigs.Lane(store.GroupOf(strings.Repeat("x", i)+"/1")))
	}
	all = append(all, rigs.Lane(want[0]), rigs.Lane(store.GroupOf("no/such/group")))
	if got := rigs.Groups(t, r.store, all...); !slices.Equal(got, want[1:]) {
		t.Errorf("without many lanes the groups are %q, want %q", got, want[1:])
	}
	rigs.CheckGroupFilters(t, r.store, want, []string{"", "a", "a/1/1", `\N/\N`, `a\/1`, `\x/\N`}, r.setAll(t))
}

// TestGroupBehindList checks that a group is not taken from a list, and that a view leaves out
// no document for a group that only the list has.
func TestGroupBehindList(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), attributedBox())
	list := bson.A{bson.D{{Key: "part", Value: "1"}}}
	r.insert(t, attributed("1", bson.E{Key: "body", Value: "x"}, bson.E{Key: "tenant", Value: "a"}, bson.E{Key: "of", Value: list}))
	for _, group := range []string{"a/1", `a/\N`} {
		want := []store.Group{store.GroupOf(`a/\N`)}
		if group == want[0].Name {
			want = nil
		}
		if got := rigs.Groups(t, r.store, rigs.Lane(store.GroupOf(group))); !slices.Equal(got, want) {
			t.Errorf("without %s the groups are %q, want %q", group, got, want)
		}
	}
}

// TestKindAttribute checks that documents are selected by their own kind where it is an
// attribute, and requeued into the lane of their outbox.
func TestKindAttribute(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), attributedBox())
	for id, kind := range map[string]any{"1": "Order", "2": "order", "3": nil} {
		r.insert(t, attributed(id, bson.E{Key: "body", Value: "x"}, bson.E{Key: "of", Value: bson.D{{Key: "aggregate", Value: kind}}}))
	}
	set := r.setAll(t)
	rigs.CheckKindFilters(t, r.store, map[string]string{"Order": "1", "order": "2", "EVENT": "3", "no": ""}, set)
	set(store.Failed)
	items, err := r.store.Requeue(ctx(t), r.epoch, store.DeadLetterFilter{Outbox: "events", Kind: "Order"}, 99)
	if err != nil || len(items) != 1 || items[0].ID != "1" || items[0].Kind != "EVENT" {
		t.Errorf("requeued: %+v, %v", items, err)
	}
}

// TestBooleans checks that a document without its boolean is not delivered yet, and that one
// with another value is another program's.
func TestBooleans(t *testing.T) {
	t.Parallel()
	box := flowBox()
	box.Layout.State, box.Layout.Columns.Status, box.Layout.Columns.Claimed = store.StateBoolean, "sent", ""
	r := newRig(t, servers.Mongo(t), box)
	var rows []store.ClaimRow
	var outcomes []store.Outcome
	for id, sent := range map[string]any{"false": false, "null": nil, "true": true, "zero": 0} {
		r.insert(t, with(pending(id), "sent", sent))
	}
	r.insert(t, pending("missing"))
	want := []string{"false", "missing", "null"}
	var got []string
	for _, it := range r.unsettled(t, store.UnsettledQuery{}) {
		got = append(got, it.ID)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("documents %q are to be sent, want %q", got, want)
	}
	for _, id := range append(want, "true", "zero") {
		rows, outcomes = append(rows, row(id)), append(outcomes, rigs.Outcome(id, store.Completed))
	}
	for i, a := range r.claim(t, rows...) {
		if free := i < len(want); (a.Result == store.Claimed) != free || !free && a.Result != store.AlreadySettled {
			t.Errorf("document %s is %s", rows[i].ID, a.Result)
		}
	}
	for i, result := range r.settle(t, outcomes...) {
		if free := i < len(want); (result == store.Written) != free || !free && result != store.WasSettled {
			t.Errorf("the outcome of document %s: %d", outcomes[i].ID, result)
		}
	}
	if rows, _, err := rigs.Delivered(t, r.store, store.DeliveredQuery{Outbox: "events"}); err != nil || len(rows) != 4 {
		t.Errorf("delivered: %q, %v", rows, err)
	}
}

// TestCheckFew checks the findings about fields that only some layouts have.
func TestCheckFew(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), attributedBox())
	r.insert(t, attributed("1", bson.E{Key: "body", Value: "x"}, bson.E{Key: "tenant", Value: "a"}, bson.E{Key: "untilAt", Value: "soon"}, bson.E{Key: "of", Value: bson.D{{Key: "part", Value: 1}}}))
	box := func(change func(*store.Layout)) store.Outbox {
		b := attributedBox()
		change(&b.Layout)
		return b
	}
	rigs.WantSetup(t, "a word for a boolean", openStore(t, r.url, box(func(l *store.Layout) { l.State, l.Words = store.StateBoolean, nil })).Check(ctx(t)), "type string in state", "expects type bool")
	rigs.WantSetup(t, "a text for the end of a claim", openStore(t, r.url, box(func(l *store.Layout) {
		l.Columns.Claimed, l.Lease = "untilAt", true
	})).Check(ctx(t)), "texts in untilAt (columns.claimed)")
	rigs.WantSetup(t, "another spelling of an attribute", openStore(t, r.url, box(func(l *store.Layout) {
		l.Attributes = []store.AttributeColumn{{Column: "until_at", Name: "until_at"}}
	})).Check(ctx(t)), "until_at (columns.attributes; did you mean untilAt?)")

	findings, err := r.store.Diagnose(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	var advice string
	for _, f := range findings {
		if f.Grade != store.GradeOK {
			advice += f.Text + "\n" + f.Remedy + "\n"
		}
	}
	for _, part := range []string{"has field of.aggregate (columns.kind), body.class (columns.type), at (columns.time)", `createIndex({"state": 1, "createdAt": 1, "_id": 1})`} {
		if !strings.Contains(advice, part) {
			t.Errorf("the findings do not say %q: %s", part, advice)
		}
	}
}
