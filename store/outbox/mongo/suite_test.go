package mongo_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.uber.org/goleak"

	capture "github.com/sluicebox/sluicebox/capture/mongo"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
	"github.com/sluicebox/sluicebox/store/ledger"
	relay "github.com/sluicebox/sluicebox/store/mongo"
	"github.com/sluicebox/sluicebox/store/outbox"
	"github.com/sluicebox/sluicebox/store/outbox/mongo"
	"github.com/sluicebox/sluicebox/store/outbox/outboxtest"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWriter(t *testing.T) {
	url := servers.Mongo(t)
	outboxtest.Run(t, &database{url, servers.OpenMongo(t, url)})
}

// TestRelay relays the documents of a service without a state, and with one.
func TestRelay(t *testing.T) {
	url := servers.Mongo(t)
	outboxtest.RunRelays(t, &database{url, servers.OpenMongo(t, url)}, capture.Database{URL: url}, "debezium", "outbox-messages")
}

type database struct {
	url string
	db  *driver.Database
}

func (*database) Kind() layouts.Database { return layouts.MongoDB }

func (d *database) Create(t *testing.T, of *layouts.Definition) {
	t.Helper()
	if err := d.db.CreateCollection(rigs.Context(t), of.Table); err != nil {
		t.Fatal(err)
	}
	for _, x := range of.Indexes {
		var keys bson.D
		for _, name := range x.Fields {
			keys = append(keys, bson.E{Key: name, Value: 1})
		}
		index := driver.IndexModel{Keys: keys, Options: options.Index().SetUnique(x.Unique)}
		if _, err := d.db.Collection(of.Table).Indexes().CreateOne(rigs.Context(t), index); err != nil {
			t.Fatal(err)
		}
	}
}

func (d *database) Writer(t *testing.T) outbox.Writer {
	t.Helper()
	w, err := mongo.NewWriter(d.url, "suite")
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (d *database) Store(t *testing.T, o store.Outbox) store.Tables {
	t.Helper()
	st, err := relay.New(relay.Config{URL: d.url, Name: "suite", Outboxes: []store.Outbox{o}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return ledger.Store{Tables: st, Ledger: st.Ledger}
}

func (d *database) Service(t *testing.T, o *outbox.Outbox, commit bool, rows ...outbox.Row) (ids []string, err error) {
	t.Helper()
	ctx := rigs.Context(t)
	session, err := d.db.Client().StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.EndSession(ctx)
	if _, err := mongo.Write(ctx, session, d.db, o, rows...); err == nil || !strings.Contains(err.Error(), "no transaction") {
		t.Fatalf("without a transaction: %v", err)
	}
	if err := session.StartTransaction(); err != nil {
		t.Fatal(err)
	}
	if ids, err = mongo.Write(ctx, session, d.db, o, rows...); err == nil && commit {
		return ids, session.CommitTransaction(ctx)
	}
	if end := session.AbortTransaction(ctx); end != nil {
		t.Error(end)
	}
	return ids, err
}
