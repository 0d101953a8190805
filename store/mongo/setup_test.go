package mongo_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mongo"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// Unusable collections are reported with a remedy.
func TestCheckCollections(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	for what, c := range map[string]struct {
		make func() error
		want []string
	}{
		"capped": {func() error {
			return r.db.CreateCollection(ctx(t), "capped", options.CreateCollection().SetCapped(true).SetSizeInBytes(4096))
		}, []string{"is capped"}},
		"collated": {func() error {
			return r.db.CreateCollection(ctx(t), "collated", options.CreateCollection().SetCollation(&options.Collation{Locale: "de", Strength: 1}))
		}, []string{"collation de"}},
		"timed": {func() error {
			return r.db.CreateCollection(ctx(t), "timed", options.CreateCollection().SetTimeSeriesOptions(options.TimeSeries().SetTimeField("createdAt")))
		}, []string{"is a timeseries"}},
		"looking": {func() error { return r.db.CreateView(ctx(t), "looking", r.box.Table, bson.A{}) }, []string{"is a view"}},
		"absent":  {func() error { return nil }, []string{"does not exist", r.box.Table, `createCollection("absent")`}},
	} {
		if err := c.make(); err != nil {
			t.Fatal(err)
		}
		box := r.box
		box.Table = what
		rigs.WantSetup(t, what, openStore(t, r.url, box).Check(ctx(t)), c.want...)
	}
}

// An id other than _id needs a unique index.
func TestCheckIndex(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	box := store.Outbox{Name: "events", Table: r.box.Table, Layout: mongo.OutboxMessagesText()}
	st := openStore(t, r.url, box)
	want := `db.getCollection("outbox_events").createIndex({"id": 1}, {unique: true});`
	rigs.WantSetup(t, "without an index", st.Check(ctx(t)), want)
	index := func(unique, partial bool) {
		opts := bson.D{{Key: "name", Value: "by_id"}, {Key: "key", Value: bson.D{{Key: "id", Value: 1}}}, {Key: "unique", Value: unique}}
		if partial {
			opts = append(opts, bson.E{Key: "partialFilterExpression", Value: bson.D{{Key: "status", Value: 0}}})
		}
		if err := r.db.RunCommand(ctx(t), bson.D{{Key: "createIndexes", Value: box.Table}, {Key: "indexes", Value: bson.A{opts}}}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, partial := range []bool{false, true} {
		index(partial, partial)
		rigs.WantSetup(t, "with an index that does not do", st.Check(ctx(t)), want)
		if err := r.docs().Indexes().DropOne(ctx(t), "by_id"); err != nil {
			t.Fatal(err)
		}
	}
	index(true, false)
	if err := st.Check(ctx(t)); err != nil {
		t.Errorf("with the index: %v", err)
	}
}

// Diagnose gives advice as statements that can be run.
func TestDiagnoseAdvice(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	r.insert(t, pending("1"), with(pending(1.5), "messageGroup", nil))
	said := func() string {
		found, err := r.store.Diagnose(ctx(t))
		if err != nil || store.CountFaults(found) > 0 {
			t.Fatalf("%+v, %v", found, err)
		}
		var text strings.Builder
		for _, f := range found {
			text.WriteString(f.Grade.String() + " " + f.Subject + ": " + f.Text + "; " + f.Remedy + "\n")
		}
		return text.String()
	}
	const create = `db.getCollection("outbox_events").createIndex({"status": 1, "createdAt": 1, "_id": 1});`
	for _, want := range []string{"replica set rs0 of 1 members", create, "are not relayed", "differ by less than a second", "survives a crash"} {
		if text := said(); !strings.Contains(text, want) {
			t.Errorf("Diagnose does not report %q:\n%s", want, text)
		}
	}
	index := bson.D{{Key: "name", Value: "seed"}, {Key: "key", Value: bson.D{{Key: "status", Value: 1}, {Key: "messageGroup", Value: 1}, {Key: "createdAt", Value: 1}}}}
	if err := r.db.RunCommand(ctx(t), bson.D{{Key: "createIndexes", Value: r.box.Table}, {Key: "indexes", Value: bson.A{index}}}).Err(); err != nil {
		t.Fatal(err)
	}
	if text := said(); strings.Contains(text, create) {
		t.Errorf("with the seed's index:\n%s", text)
	}
}

// Collections of a newer release are left unchanged.
func TestNewerVersion(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	newer := bson.D{{Key: "$set", Value: bson.D{{Key: "version", Value: 99}}}}
	if _, err := r.db.Collection("sluicebox_meta").UpdateOne(ctx(t), bson.D{{Key: "_id", Value: "version"}}, newer); err != nil {
		t.Fatal(err)
	}
	_, led := r.store.AcquireLeadership(ctx(t))
	for what, err := range map[string]error{"install": r.store.Install(ctx(t)), "check": r.store.Check(ctx(t)), "lead": led} {
		rigs.WantSetup(t, what, err, "version 99")
	}
	if may, err := r.store.MayInstall(ctx(t)); may || err != nil {
		t.Errorf("MayInstall: got %v, %v", may, err)
	}
}

// Install creates a missing collection, and restores the version.
func TestMissingCollection(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	if err := r.db.Collection("sluicebox_queue").Drop(ctx(t)); err != nil {
		t.Fatal(err)
	}
	rigs.WantSetup(t, "check", r.store.Check(ctx(t)), "sluicebox_queue", "sluicebox init")
	if may, err := r.store.MayInstall(ctx(t)); !may || err != nil {
		t.Errorf("MayInstall: got %v, %v", may, err)
	}
	if err := errors.Join(r.store.Install(ctx(t)), r.store.Check(ctx(t))); err != nil {
		t.Error(err)
	}
}

// Collections of an unreleased version are not taken for current ones, and left unchanged.
func TestUnreleasedCollections(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	for _, name := range []string{"sluicebox_record", "sluicebox_queue"} {
		if err := r.db.Collection(name).Drop(ctx(t)); err != nil {
			t.Fatal(err)
		}
	}
	for _, version := range []int{1, 3} {
		if err := r.db.CreateCollection(ctx(t), "sluicebox_parked"); err != nil && version == 1 {
			t.Fatal(err)
		}
		set := bson.D{{Key: "$set", Value: bson.D{{Key: "version", Value: version}}}}
		if _, err := r.db.Collection("sluicebox_meta").UpdateOne(ctx(t), bson.D{{Key: "_id", Value: "version"}}, set); err != nil {
			t.Fatal(err)
		}
		_, led := r.store.AcquireLeadership(ctx(t))
		_, jobs := r.store.Jobs(ctx(t))
		for what, err := range map[string]error{
			"install": r.store.Install(ctx(t)), "check": r.store.Check(ctx(t)), "lead": led, "jobs": jobs, "request": r.store.RequestReplay(ctx(t), "job", "{}"),
		} {
			rigs.WantSetup(t, what, err, "unreleased version", "drop every collection")
		}
		if may, err := r.store.MayInstall(ctx(t)); may || err != nil {
			t.Errorf("MayInstall: got %v, %v", may, err)
		}
	}
	if there, err := r.db.ListCollectionNames(ctx(t), bson.D{{Key: "name", Value: "sluicebox_record"}}); err != nil || len(there) > 0 {
		t.Errorf("a call created %q, %v", there, err)
	}
}

// Claims and outcomes find their documents by the id index, even if a text may stand for
// values of several types.
func TestPlans(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	var docs []bson.D
	for range 2000 {
		docs = append(docs, pending(bson.NewObjectID()))
	}
	r.insert(t, docs...)
	profiles := r.profile(t, r.box.Table, func() {
		for i := range 5 {
			id := docs[i*100][0].Value.(bson.ObjectID).Hex()
			full := row(id)
			full.WantPayload = true
			r.claim(t, row(id))
			r.claim(t, full)
			r.settle(t, rigs.Outcome(id, store.Completed))
		}
	})
	if len(profiles) < 15 {
		t.Errorf("got %d statements", len(profiles))
	}
	for _, p := range profiles {
		if p.Docs > 2 || strings.Contains(p.Plan, "COLLSCAN") {
			t.Errorf("%+v", p)
		}
	}
}

// A view reads the unsettled documents in their order from the index that Diagnose proposes,
// and no delivered ones, whatever the state is.
func TestViewPlans(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*store.Layout){
		"a boolean": func(l *store.Layout) { l.State, l.Columns.Status, l.Columns.Claimed = store.StateBoolean, "sent", "" },
		"two words": func(l *store.Layout) {
			l.Words = map[store.Status]string{store.Pending: "PENDING", store.Completed: "COMPLETED"}
		},
		"a lease": func(l *store.Layout) {
			l.State, l.Columns.Status, l.Columns.Delivered, l.Lease = store.StateTimestamps, "", "sent", true
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			box := flowBox()
			box.Layout.Words = nil
			change(&box.Layout)
			box.Layout.Name = name
			r := newRig(t, servers.Mongo(t), box)
			var docs []bson.D
			for i := range 2000 {
				doc := pending(fmt.Sprint("id ", i))
				if i%200 > 0 {
					doc = with(with(doc, "status", "COMPLETED"), "sent", true)
				}
				docs = append(docs, doc)
			}
			r.insert(t, docs...)
			r.createProposed(t)
			profiles := r.profile(t, r.box.Table, func() {
				if items := r.unsettled(t, store.UnsettledQuery{Limit: 5}); len(items) != 10 {
					t.Errorf("a view shows %d documents, want 10", len(items))
				}
			})
			for _, p := range profiles {
				if p.Docs > 20 || p.Sorted || strings.Contains(p.Plan, "COLLSCAN") && p.Docs > 1 { // the snapshot reads any document
					t.Errorf("%+v", p)
				}
			}
			if len(profiles) < 2 {
				t.Errorf("got %d statements", len(profiles))
			}
		})
	}
}

// createProposed creates the index that Diagnose proposes.
func (r *rig) createProposed(t *testing.T) {
	t.Helper()
	findings, err := r.store.Diagnose(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		_, keys, proposed := strings.Cut(f.Remedy, `.createIndex({`)
		keys, _, _ = strings.Cut(keys, "})")
		var by bson.D
		if !proposed {
			continue
		}
		if err := bson.UnmarshalExtJSON([]byte("{"+keys+"}"), false, &by); err != nil {
			t.Fatal(err)
		}
		if _, err := r.docs().Indexes().CreateOne(ctx(t), driver.IndexModel{Keys: by}); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("no index is proposed: %+v", findings)
}

// A view is consistent with the position that it reports: everything it shows was written
// at or before that time, and everything else later.
func TestViewPosition(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	for i := range 20 {
		r.insert(t, pending(i))
		view, err := r.store.View(ctx(t), "")
		if err != nil {
			t.Fatal(err)
		}
		var seconds, increment int64
		if _, err := fmt.Sscanf(string(view.Position()), "%d.%d", &seconds, &increment); err != nil || time.Until(time.Unix(seconds, 0)).Abs() > time.Minute {
			t.Fatalf("got position %q, %v", view.Position(), err)
		}
		items, err := view.Unsettled(ctx(t), store.UnsettledQuery{Outbox: "events", Limit: 100})
		if err != nil || len(items) != i+1 {
			t.Errorf("%d items, %v; want %d", len(items), err, i+1)
		}
		view.Close()
	}
}
