package mongo_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// Every kind of insert is seen, and nothing else: the relay's own updates of the documents
// bring none of them again.
func TestInsertCommands(t *testing.T) {
	d := newDatabase(t, servers.Mongo(t))
	src, o := d.opening(t, d.config(), store.Checkpoint{})
	box := &d.outboxes(outboxName)[0]
	doc := func(id string) bson.D {
		return document(box, capturetest.Row{ID: id, Group: store.GroupOf("g"), Payload: "payload of " + id})
	}
	of := func(id string) bson.D { return bson.D{{Key: "_id", Value: id}} }
	in := d.db.Collection(events)
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	must(in.InsertOne(ctx, doc("one")))
	must(in.InsertMany(ctx, []any{doc("many 1"), doc("many 2"), doc("many 3")}))
	must(in.InsertMany(ctx, []any{doc("unordered 1"), doc("unordered 2")}, options.InsertMany().SetOrdered(false)))
	must(in.ReplaceOne(ctx, of("replaced"), doc("replaced"), options.Replace().SetUpsert(true)))
	must(in.UpdateOne(ctx, of("updated"), bson.D{{Key: "$set", Value: doc("updated")[1:]}}, options.UpdateOne().SetUpsert(true)))
	must(nil, in.FindOneAndUpdate(ctx, of("found"), bson.D{{Key: "$set", Value: doc("found")[1:]}},
		options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Err())
	must(in.BulkWrite(ctx, []driver.WriteModel{
		driver.NewInsertOneModel().SetDocument(doc("bulk 1")),
		driver.NewUpdateOneModel().SetFilter(of("one")).SetUpdate(bson.D{{Key: "$set", Value: bson.D{{Key: "status", Value: "COMPLETED"}}}}),
		driver.NewInsertOneModel().SetDocument(doc("bulk 2")),
		driver.NewDeleteOneModel().SetFilter(of("many 2")),
	}))
	d.put(t, "staged", doc("merged"))
	must(d.db.Collection("staged").Aggregate(ctx, bson.A{bson.D{{Key: "$merge", Value: bson.D{{Key: "into", Value: events}}}}}))
	must(in.UpdateMany(ctx, bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "status", Value: "PENDING"}}}}))
	must(in.ReplaceOne(ctx, of("many 3"), doc("many 3")))
	must(in.DeleteMany(ctx, bson.D{}))
	items := itemsOf(upToMark(t, src, o.From))
	var ids []string
	for i := range items {
		it := &items[i]
		ids = append(ids, it.ID)
		if string(it.Payload) != "payload of "+it.ID || it.Group != store.GroupOf("g") || it.Kind != "EVENT" {
			t.Errorf("got %+v", it)
		}
	}
	want := []string{"one", "many 1", "many 2", "many 3", "unordered 1", "unordered 2", "replaced", "updated", "found", "bulk 1", "bulk 2", "merged"}
	if !slices.Equal(ids, want) {
		t.Errorf("got rows %q, want %q", ids, want)
	}
}

// Values of all types arrive as the store shows them. A missing payload is nil, and the
// claim refuses it.
func TestTypes(t *testing.T) {
	d := newDatabase(t, servers.Mongo(t))
	src, o := d.opening(t, d.config(), store.Checkpoint{})
	long, decimal := int64(1)<<40, bson.NewDecimal128(0, 7)
	values := []any{nil, "text", int32(1), long, 1.5, true, decimal, bson.NewObjectID(), bson.DateTime(1), bson.D{{Key: "a", Value: bson.A{1, "x", nil}}}, bson.A{1}, bson.Binary{Data: []byte("\x00\xff")}}
	for i, v := range values {
		d.put(t, events, bson.D{{Key: "_id", Value: i}, {Key: "messageGroup", Value: v}, {Key: "payload", Value: v}, {Key: "status", Value: "PENDING"}, {Key: "retryCount", Value: float64(i)}})
	}
	d.put(t, events, bson.D{{Key: "_id", Value: "bare"}, {Key: "status", Value: "PENDING"}})
	streamed := itemsOf(upToMark(t, src, o.From))
	view, err := d.views.View(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	shown, err := view.Unsettled(t.Context(), store.UnsettledQuery{Outbox: outboxName, Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	if len(streamed) != len(values)+1 || len(shown) != len(streamed) {
		t.Fatalf("got %d rows, view has %d", len(streamed), len(shown))
	}
	byID := map[string]store.Item{}
	for _, it := range shown {
		byID[it.ID] = it
	}
	for _, it := range streamed {
		other := byID[it.ID]
		if it.Group != other.Group || string(it.Payload) != string(other.Payload) || it.RetryCount != other.RetryCount || it.Kind != other.Kind || (it.Payload == nil) != (it.ID == "bare") {
			t.Errorf("the stream has %+v, the view %+v", it, other)
		}
	}
}

// Events that pass the filter but yield no rows, e.g. replaced documents and markers of
// another relay, still advance the position.
func TestSkippedEventsAdvancePosition(t *testing.T) {
	d := newDatabase(t, servers.Mongo(t))
	d.insert(t, "one")
	other := d.config()
	other.Name = "another"
	marks := newSource(t, other)
	defer marks.Close()
	for name, write := range map[string]func(i int) error{
		"documents written anew": func(i int) error {
			doc := append(document(&d.outboxes(outboxName)[0], capturetest.Row{ID: "one", Payload: "x"}), bson.E{Key: "n", Value: i})
			_, err := d.db.Collection(events).ReplaceOne(context.Background(), bson.D{{Key: "_id", Value: "one"}}, doc)
			return err
		},
		"markers of another relay": func(i int) error { return marks.Mark(context.Background(), fmt.Sprint("mark-", i)) },
	} {
		t.Run(name, func(t *testing.T) {
			writing, stop := context.WithCancel(t.Context())
			var writer sync.WaitGroup
			writer.Go(func() {
				for i := 0; writing.Err() == nil; i++ {
					if err := write(i); err != nil {
						t.Error(err)
						return
					}
				}
			})
			defer writer.Wait()
			defer stop()
			fo, src, o := d.follow(t, d.config(), store.Checkpoint{}) // no answer is empty from here on
			fo.Until("a position", func() bool { return src.Compare(fo.Position, o.From) > 0 })
			stop()
			writer.Wait()
			fo.Expect()
		})
	}
}
