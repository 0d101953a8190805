package kafka_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/kafka"
	"github.com/sluicebox/sluicebox/capture/kafka/feed"
	"github.com/sluicebox/sluicebox/capture/mongo"
	"github.com/sluicebox/sluicebox/store"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// mongoDatabase is a database whose log has a position for each document. Two outboxes read its
// collection, so each document is two rows.
type mongoDatabase struct {
	url, name string
	db        *driver.Database
	*mongostore.Store
	*mongo.Source // of markers
}

func newMongoDatabase(t *testing.T, name string) *mongoDatabase {
	t.Helper()
	url := servers.Mongo(t)
	d := &mongoDatabase{url: url, name: name, db: servers.OpenMongo(t, url)}
	if err := d.db.CreateCollection(t.Context(), "outbox_events"); err != nil {
		t.Fatal(err)
	}
	var err error
	if d.Store, err = mongostore.New(mongostore.Config{URL: url, Name: name, Outboxes: d.outboxes()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Store.Close)
	if err := d.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.Source = d.source(t, 0)
	return d
}

func (d *mongoDatabase) outboxes() []store.Outbox {
	return []store.Outbox{
		{Name: "shop", Table: "outbox_events", Layout: mongostore.FlowCatalyst(), Kind: "EVENT"},
		{Name: "audit", Table: "outbox_events", Layout: mongostore.FlowCatalyst(), Kind: "AUDIT_LOG"},
	}
}

func (d *mongoDatabase) source(t *testing.T, batchRows int) *mongo.Source {
	t.Helper()
	src, err := mongo.New(mongo.Config{URL: d.url, Name: d.name, Outboxes: d.outboxes(), MaxBatchRows: batchRows})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(src.Close)
	return src
}

// feed runs a feeder until the partition has a number of rows.
func (d *mongoDatabase) feed(t *testing.T, r *rig, tables feed.Tables, batchRows int, insert func(), rows int64) {
	t.Helper()
	f, err := feed.New(feed.Config{Client: r.client(), Topic: r.name, Partitions: 1, Outboxes: d.outboxes(), Observer: r})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { _ = f.Run(ctx, tables, d.source(t, batchRows)) }) // until it is canceled
	<-r.connected
	insert()
	waitFor(t, "the topic has the rows", func() bool { return f.Status().Records >= rows })
	cancel()
	work.Wait()
}

// testMongo: a second feeder reads the log from the checkpoint again, in batches of another size. The shard
// has every row once and in order. A batch that begins with repeated rows and ends with others would be
// taken for a repetition as a whole.
func testMongo(t *testing.T, c *servers.KafkaCluster) {
	const documents, more = 40, 10
	r := &rig{cluster: c, partitions: 1}
	r.create(t)
	d := newMongoDatabase(t, r.name)
	var want []string
	insert := func(n int) func() {
		return func() {
			var docs []any
			for range n {
				id := strconv.Itoa(len(want) / 2)
				want = append(want, "shop "+id, "audit "+id)
				docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "message_group", Value: "g"}, {Key: "payload", Value: "{}"}, {Key: "status", Value: "PENDING"}, {Key: "retry_count", Value: 0}})
			}
			if _, err := d.db.Collection("outbox_events").InsertMany(t.Context(), docs); err != nil {
				t.Fatal(err)
			}
		}
	}
	held := &frozen{Tables: d.Store, saves: make(chan struct{})} // saves where it begins, and no more
	d.feed(t, r, held, 14, insert(documents), 2*documents)
	insert(more)() // so that it reads them in one batch with the last ones of before
	d.feed(t, r, d.Store, 6, func() {}, 2*(documents+more))

	src := r.source(t, kafka.Config{Client: r.client(), Topic: r.name, Partitions: 1, Database: d, Outboxes: d.outboxes()})
	t.Cleanup(src.Close)
	f := capturetest.FollowFrom(t, src, "2/1/2/0/") // behind the first records of the first feeder
	f.Until("all rows", func() bool { return len(f.Items) >= len(want) })
	var got []string
	for i := range f.Items {
		got = append(got, f.Items[i].Outbox+" "+f.Items[i].ID)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q,\nwant %q", got, want)
	}
}
