package mongo_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/mongo"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// twoOutboxes are three outboxes over two collections, two of them over the same one.
func twoOutboxes(name string) []store.Outbox {
	return []store.Outbox{
		{Name: name, Table: events, Layout: mongostore.FlowCatalyst(), Kind: "EVENT"},
		{Name: "jobs", Table: "outbox_dispatch_jobs", Layout: mongostore.FlowCatalyst(), Kind: "JOB"},
		{Name: "jobs again", Table: "outbox_dispatch_jobs", Layout: mongostore.FlowCatalyst(), Kind: "AUDIT"},
	}
}

// A transaction over several collections, the relay's and others, with more than inserts,
// arrives in the order of its writes.
func TestSeveralCollections(t *testing.T) {
	d := newDatabaseOf(t, servers.Mongo(t), func(name string) []store.Outbox {
		boxes := twoOutboxes(name)
		return boxes[:2]
	})
	d.outboxes = twoOutboxes
	src, o := d.opening(t, d.config(), store.Checkpoint{})
	box := &d.outboxes(outboxName)[0]
	ctx, end := d.transaction(t)
	var want []string
	for i := range 10 {
		id := fmt.Sprintf("row-%02d", i)
		for _, c := range []string{events, "outbox_dispatch_jobs"} {
			if _, err := d.db.Collection(c).InsertOne(ctx, document(box, capturetest.Row{ID: id, Payload: "x"})); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := d.db.Collection("unrelated").InsertOne(ctx, bson.D{{Key: "_id", Value: id}}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.db.Collection(events).UpdateOne(ctx, bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$set", Value: bson.D{{Key: "status", Value: "PENDING"}}}}); err != nil {
			t.Fatal(err)
		}
		want = append(want, "shop "+id, "jobs "+id, "jobs again "+id)
	}
	end(true)
	var got []string
	for _, it := range itemsOf(upToMark(t, src, o.From)) {
		got = append(got, it.Outbox+" "+it.ID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got rows %q, want %q", got, want)
	}
}

// A transaction larger than one oplog entry: the stream can resume at every position inside
// it.
func TestHugeTransaction(t *testing.T) {
	d := newDatabase(t, servers.Mongo(t))
	cfg := d.config()
	cfg.MaxBatchRows = 3
	src, o := d.opening(t, cfg, store.Checkpoint{})
	var rows []capturetest.Row
	var want []string
	for i := range 40 { // 20 MiB
		rows = append(rows, capturetest.Row{ID: fmt.Sprintf("%03d", i), Group: store.GroupOf("g"), Payload: strings.Repeat("x", 512<<10)})
		want = append(want, rows[i].ID)
	}
	d.insert(t, "before")
	d.Begin(t, rows...)(true)
	d.insert(t, "after")
	want = append(append([]string{"before"}, want...), "after")
	batches := upToMark(t, src, o.From)
	expectItems(t, itemsOf(batches), want)
	if len(batches) < 14 {
		t.Errorf("got only %d batches; nothing was tested", len(batches))
	}
	received := 0
	for i, b := range batches {
		if b.Position == "" {
			if len(b.Items) > 0 {
				t.Errorf("batch %d has no position", i)
			}
			continue
		}
		received += len(b.Items)
		if i%4 != 0 && i < len(batches)-2 { // each costs the 20 MiB again
			continue
		}
		again, opening := d.opening(t, cfg, store.Checkpoint{Origin: o.Origin, Position: b.Position})
		if opening.View != nil {
			t.Fatalf("the log is intact at %s, the opening says: %s", b.Position, opening.SnapshotReason)
		}
		expectItems(t, itemsOf(upToMark(t, again, opening.From)), want[received:])
	}
}

func expectItems(t *testing.T, items []store.Item, want []string) {
	t.Helper()
	var got []string
	for i := range items {
		got = append(got, items[i].ID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got rows %q, want %q", got, want)
	}
}

// A changed set of outboxes changes the filter, and its events have other positions. The
// stream can resume at every position, including that of an event that the new filter does
// not pass.
func TestPipelineChanged(t *testing.T) {
	d := newDatabaseOf(t, servers.Mongo(t), twoOutboxesOnce)
	both, first, second := d.config(), d.config(), d.config()
	both.MaxBatchRows, first.MaxBatchRows, second.MaxBatchRows = 1, 1, 1
	first.Outboxes, second.Outboxes = both.Outboxes[:1], both.Outboxes[1:]
	src, o := d.opening(t, both, store.Checkpoint{})
	box := &both.Outboxes[0]
	ctx, end := d.transaction(t)
	for i := range 4 {
		id := fmt.Sprint(i)
		for _, c := range []string{events, "outbox_dispatch_jobs"} {
			if _, err := d.db.Collection(c).InsertOne(ctx, document(box, capturetest.Row{ID: id, Payload: "x"})); err != nil {
				t.Fatal(err)
			}
		}
	}
	end(true)
	all := upToMark(t, src, o.From)
	for i, b := range all {
		for name, cfg := range map[string]*mongo.Config{"first": &first, "second": &second, "both": &both} {
			var want []string
			for _, it := range itemsOf(all[i+1:]) {
				if name == "both" || it.Outbox == cfg.Outboxes[0].Name {
					want = append(want, it.ID)
				}
			}
			again, opening := d.opening(t, *cfg, store.Checkpoint{Origin: o.Origin, Position: b.Position})
			if opening.View != nil {
				t.Fatalf("%s: the log is intact at %s, the opening says: %s", name, b.Position, opening.SnapshotReason)
			}
			expectItems(t, itemsOf(upToMark(t, again, opening.From)), want)
		}
	}
}

func twoOutboxesOnce(name string) []store.Outbox { return twoOutboxes(name)[:2] }

// Documents close to the size limit arrive. If the event would be larger than the server
// sends, it arrives without its content, which the claim reads.
func TestLargeDocuments(t *testing.T) {
	d := newDatabaseOf(t, servers.Mongo(t), func(name string) []store.Outbox {
		boxes := outboxes(name)
		boxes[0].Layout.Attributes = []store.AttributeColumn{{Column: "messageGroup", Name: "group"}, {Column: "of", Name: "of"}}
		return boxes
	})
	src, o := d.opening(t, d.config(), store.Checkpoint{})
	const most = 16<<20 - 1000
	plain := func(id string, payload int) bson.D {
		return document(&d.outboxes(outboxName)[0], capturetest.Row{ID: id, Group: store.GroupOf("g"), Payload: strings.Repeat("p", payload)})
	}
	longID := strings.Repeat("i", 20000) // part of the resume token, in hexadecimal
	d.put(t, events, plain("small", 10))
	d.put(t, events, plain("payload", most))
	d.put(t, events, append(plain("other", 10), bson.E{Key: "other", Value: strings.Repeat("o", most)}))
	d.put(t, events, plain(longID, most-25000))
	d.put(t, events, append(plain("update", 10), bson.E{Key: "many", Value: manyFields(2000)}))
	both := longID + " both" // with a payload and an attribute that fit alone
	d.put(t, events, append(plain(both, most-2<<20), bson.E{Key: "of", Value: strings.Repeat("a", 2<<20-25000)}))
	d.put(t, events, plain("last", 10))
	items := itemsOf(upToMark(t, src, o.From))
	expectItems(t, items, []string{"small", "payload", "other", longID, "update", both, "last"})
	for i, size := range []int{10, most, 10, most - 25000, 10, most - 2<<20, 10} {
		it := &items[i]
		dropped := it.Payload == nil && size > 13<<20
		if dropped && it.PayloadSize < size || !dropped && len(it.Payload) != size || len(it.ID) >= len(longID) && !dropped {
			t.Errorf("%.10s: the payload has %d bytes and is said to have %d, it has %d", it.ID, len(it.Payload), it.PayloadSize, size)
		}
		if group, _ := it.Attributes.Get("group"); dropped != (group == "") {
			t.Errorf("%.10s: the payload is dropped: %t; the attributes are %.99v", it.ID, dropped, it.Attributes)
		}
	}
}

func manyFields(n int) (doc bson.D) {
	for i := range n {
		doc = append(doc, bson.E{Key: fmt.Sprintf("field %d", i), Value: i})
	}
	return doc
}

// The stream resumes after ids of every kind: a token does not distinguish all of them.
func TestKindsOfIDs(t *testing.T) {
	d := newDatabase(t, servers.Mongo(t))
	cfg := d.config()
	cfg.MaxBatchRows = 1
	src, o := d.opening(t, cfg, store.Checkpoint{})
	box := &d.outboxes(outboxName)[0]
	for _, id := range []any{"text", int32(7), int64(8), 9.0, bson.NewObjectID(), bson.Binary{Subtype: 4, Data: make([]byte, 16)}, int64(1) << 60, int64(-5)} {
		doc := document(box, capturetest.Row{Payload: "x"})
		doc[0].Value = id
		d.put(t, events, doc)
	}
	all := upToMark(t, src, o.From)
	for i, b := range all {
		again, opening := d.opening(t, cfg, store.Checkpoint{Origin: o.Origin, Position: b.Position})
		if opening.View != nil {
			t.Fatalf("the log is intact at %s, the opening says: %s", b.Position, opening.SnapshotReason)
		}
		var want []string
		for _, it := range itemsOf(all[i+1:]) {
			want = append(want, it.ID)
		}
		expectItems(t, itemsOf(upToMark(t, again, opening.From)), want)
	}
	if len(itemsOf(all)) != 8 {
		t.Errorf("got %d rows", len(itemsOf(all)))
	}
}

// A document that is deleted in the transaction that inserts it arrives with its content: the
// log is all that is left of it.
func TestDeletedInItsTransaction(t *testing.T) {
	d := newDatabaseOf(t, servers.Mongo(t), func(name string) []store.Outbox {
		p, _ := layouts.Named("debezium")
		return []store.Outbox{{Name: name, Table: "outbox", Layout: *p.Documents}}
	})
	src, o := d.opening(t, d.config(), store.Checkpoint{})
	ctx, end := d.transaction(t)
	in := d.db.Collection("outbox")
	for _, id := range []string{"1", "2"} {
		_, err := in.InsertOne(ctx, bson.D{
			{Key: "_id", Value: id}, {Key: "aggregatetype", Value: "order"}, {Key: "aggregateid", Value: 7}, {Key: "type", Value: "Paid"},
			{Key: "payload", Value: bson.D{{Key: "n", Value: 1}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.DeleteOne(ctx, bson.D{{Key: "_id", Value: id}}); err != nil {
			t.Fatal(err)
		}
	}
	end(true)
	items := itemsOf(upToMark(t, src, o.From))
	expectItems(t, items, []string{"1", "2"})
	for _, it := range items {
		kind, _ := it.Attributes.Get(store.AttributeKind)
		typ, _ := it.Attributes.Get(store.AttributeType)
		if string(it.Payload) != `{"n":1}` || it.Group != store.GroupOf("order/7") || kind != "order" || typ != "Paid" {
			t.Errorf("got %+v", it)
		}
	}
}
