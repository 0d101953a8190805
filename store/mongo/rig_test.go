package mongo_test

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mongo"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// flowBox is the outbox of events in the collection outbox_events, in the form of the first
// FlowCatalyst processor.
func flowBox() store.Outbox {
	o := rigs.EventsOutbox()
	o.Layout = mongo.FlowCatalyst()
	return o
}

// rig is a leading store with direct access to its database.
type rig struct {
	url   string
	db    *driver.Database
	box   store.Outbox
	store *mongo.Store
	epoch store.Epoch
}

func newRig(t testing.TB, url string, box store.Outbox) *rig {
	t.Helper()
	r := &rig{url: url, box: box, store: openStore(t, url, box)}
	opened := servers.OpenMongo(t, url)
	r.db = opened.Client().Database(opened.Name(), options.Database().SetWriteConcern(writeconcern.Majority()))
	if err := r.db.CreateCollection(ctx(t), box.Table); err != nil {
		t.Fatal(err)
	}
	if id := box.Layout.Columns.ID; id != "_id" {
		_, err := r.docs().Indexes().CreateOne(ctx(t), driver.IndexModel{Keys: bson.D{{Key: id, Value: 1}}, Options: options.Index().SetUnique(true)})
		if err != nil {
			t.Fatal(err)
		}
	}
	r.epoch = rigs.InstallAndLead(t, r.store)
	return r
}

func openStore(t testing.TB, url string, boxes ...store.Outbox) *mongo.Store {
	t.Helper()
	st, err := mongo.New(mongo.Config{URL: url, Name: "rig", Outboxes: boxes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return st
}

func ctx(t testing.TB) context.Context { return rigs.Context(t) }

func (r *rig) docs() *driver.Collection { return r.db.Collection(r.box.Table) }

func (r *rig) insert(t testing.TB, docs ...bson.D) {
	t.Helper()
	if _, err := r.docs().InsertMany(ctx(t), docs); err != nil {
		t.Fatal(err)
	}
}

// pending is a document of the first FlowCatalyst collection.
func pending(id any) bson.D {
	return bson.D{
		{Key: "_id", Value: id}, {Key: "messageGroup", Value: "g"}, {Key: "payload", Value: `{"n":1}`},
		{Key: "status", Value: "PENDING"}, {Key: "retryCount", Value: 0}, {Key: "createdAt", Value: time.Now()},
	}
}

// with sets a field of a document.
func with(doc bson.D, name string, value any) bson.D {
	for i := range doc {
		if doc[i].Key == name {
			doc[i].Value = value
			return doc
		}
	}
	return append(doc, bson.E{Key: name, Value: value})
}

// read reads a document.
func (r *rig) read(t testing.TB, id any) bson.Raw {
	t.Helper()
	doc, err := r.docs().FindOne(ctx(t), bson.D{{Key: r.box.Layout.Columns.ID, Value: id}}).Raw()
	if err != nil {
		t.Fatalf("document %v: %v", id, err)
	}
	return doc
}

func (r *rig) status(t testing.TB, id any) string {
	t.Helper()
	return r.read(t, id).Lookup("status").StringValue()
}

func row(id string) store.ClaimRow {
	return store.ClaimRow{Ref: store.Ref{Outbox: "events", ID: id}}
}

func (r *rig) claim(t testing.TB, rows ...store.ClaimRow) []store.ClaimAnswer {
	t.Helper()
	return rigs.Claim(t, r.store, r.epoch, rows)
}

func (r *rig) settle(t testing.TB, outcomes ...store.Outcome) []store.SettleResult {
	t.Helper()
	return rigs.Settle(t, r.store, r.epoch, outcomes)
}

// unsettled reads all rows that a view shows.
func (r *rig) unsettled(t testing.TB, q store.UnsettledQuery) []store.Item {
	t.Helper()
	view, err := r.store.View(ctx(t), "")
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	q.Outbox, q.Limit = r.box.Name, max(q.Limit, 1000)
	items, err := view.Unsettled(ctx(t), q)
	if err != nil {
		t.Fatal(err)
	}
	return items
}
