package floor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/cmd/internal/bench/floor"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// mongoPlace is a collection with a floor.
type mongoPlace struct {
	*place
	rows                         *mongo.Collection
	waiting, processing, settled any // values of the status
}

func newMongo(t *testing.T, layout string, bulk bool) *mongoPlace {
	t.Helper()
	url := servers.Mongo(t)
	p := &mongoPlace{
		place: &place{t: t, cfg: floor.Config{URL: url, Table: "rows", Layout: layout, Bulk: bulk, Batch: 40, Senders: 3}},
		rows:  servers.OpenMongo(t, url).Collection("rows"), waiting: "PENDING", processing: "PROCESSING", settled: "FAILED",
	}
	if layout == "outbox-messages" {
		p.waiting, p.processing, p.settled = 0, 9, 3
	}
	if err := p.rows.Database().CreateCollection(t.Context(), "rows"); err != nil {
		t.Fatal(err)
	}
	answer, err := p.rows.Database().RunCommand(t.Context(), bson.D{{Key: "ping", Value: 1}}).Raw()
	if err != nil {
		t.Fatal(err)
	}
	seconds, number, _ := answer.Lookup("operationTime").TimestampOK()
	p.cfg.From = fmt.Sprintf("%d.%d", seconds, number)
	return p
}

// eachMongo runs a test with each layout, in both modes.
func eachMongo(t *testing.T, test func(t *testing.T, p *mongoPlace)) {
	t.Helper()
	for _, layout := range []string{"flowcatalyst", "outbox-messages"} {
		for _, bulk := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/bulk=%t", layout, bulk), func(t *testing.T) {
				t.Parallel() // a test mostly waits
				test(t, newMongo(t, layout, bulk))
			})
		}
	}
}

// insert writes documents in one transaction. The payload is the id.
func (p *mongoPlace) insert(status any, ids ...string) {
	p.t.Helper()
	var docs []bson.D
	for _, id := range ids {
		payload, err := json.Marshal(id)
		if err != nil {
			p.t.Fatal(err)
		}
		docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "payload", Value: string(payload)}, {Key: "status", Value: status}, {Key: "processedAt", Value: nil}})
	}
	err := p.rows.Database().Client().UseSession(context.Background(), func(ctx context.Context) error {
		_, err := mongo.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) { return p.rows.InsertMany(ctx, docs) })
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *mongoPlace) count(filter bson.D) int {
	p.t.Helper()
	n, err := p.rows.CountDocuments(context.Background(), filter)
	if err != nil {
		p.t.Fatal(err)
	}
	return int(n)
}

// awaitCompleted waits until all n documents were marked recently, or deleted.
func (p *mongoPlace) awaitCompleted(n int) {
	p.t.Helper()
	now := time.Now()
	p.within("documents are left", func() bool {
		if p.cfg.Layout == "outbox-messages" {
			return p.count(bson.D{}) == 0
		}
		return p.count(bson.D{{Key: "status", Value: "COMPLETED"},
			{Key: "processedAt", Value: bson.D{{Key: "$gt", Value: now.Add(-time.Hour)}, {Key: "$lt", Value: now.Add(time.Hour)}}}}) == n
	})
}

func TestMongoEachRowIsDeliveredOnceAndCompleted(t *testing.T) {
	eachMongo(t, func(t *testing.T, p *mongoPlace) {
		to := newReceiver(t)
		p.insert(p.waiting, numbered("before", 1)...)
		p.start(to)
		ids := append(numbered("large", 2500), `q"\',{}`, "", "NULL")
		p.insert(p.waiting, ids[:2500]...)
		for _, id := range ids[2500:] {
			p.insert(p.waiting, id)
		}
		ids = append(ids, "before 0")
		to.await(t, len(ids))
		p.awaitCompleted(len(ids))
		p.stop()
		to.expect(t, p.cfg, ids)
	})
}

// TestMongoRowIsClaimedAgainUntilItCanBe: a document that is not pending looks like one that
// is not yet visible.
func TestMongoRowIsClaimedAgainUntilItCanBe(t *testing.T) {
	eachMongo(t, func(t *testing.T, p *mongoPlace) {
		to := newReceiver(t)
		p.start(to)
		p.insert(p.settled, "late")
		p.insert(p.waiting, numbered("other", 3)...)
		if p.cfg.Bulk { // otherwise they may wait for their turn
			to.await(t, 3)
			if slices.Contains(to.sorted(), "late") {
				t.Error("a document was delivered that was not pending")
			}
		}
		_, err := p.rows.UpdateByID(t.Context(), "late", bson.D{{Key: "$set", Value: bson.D{{Key: "status", Value: p.waiting}}}})
		if err != nil {
			t.Fatal(err)
		}
		to.await(t, 4)
		p.awaitCompleted(4)
		p.stop()
	})
}

// TestMongoWithoutClaimsRowIsCompletedOnceItIsVisible is
// TestWithoutClaimsRowIsCompletedOnceItIsVisible for MongoDB.
func TestMongoWithoutClaimsRowIsCompletedOnceItIsVisible(t *testing.T) {
	eachMongo(t, func(t *testing.T, p *mongoPlace) {
		p.cfg.NoClaims = true
		to := newReceiver(t)
		p.start(to)
		p.insert(p.waiting, numbered("large", 250)...)
		p.insert(p.settled, "late")
		to.await(t, 251)
		_, err := p.rows.UpdateByID(t.Context(), "late", bson.D{{Key: "$set", Value: bson.D{{Key: "status", Value: p.waiting}}}})
		if err != nil {
			t.Fatal(err)
		}
		p.awaitCompleted(251)
		p.stop()
		to.expect(t, p.cfg, append(numbered("large", 250), "late"))
	})
}

func TestMongoContextEndsRunThatWaitsForAnAnswer(t *testing.T) {
	eachMongo(t, func(t *testing.T, p *mongoPlace) {
		to := newReceiver(t)
		to.hang()
		p.start(to)
		p.insert(p.waiting, "asked")
		to.await(t, 1)
		p.stop()
		if got := p.count(bson.D{{Key: "status", Value: p.processing}}); got != 1 {
			t.Errorf("%d documents are claimed, want 1", got)
		}
	})
}

func TestMongoRunSaysWhatItCannotRead(t *testing.T) {
	for _, c := range []struct {
		name, want string
		change     func(p *mongoPlace)
	}{
		{"no collection", "no collection missing", func(p *mongoPlace) { p.cfg.Table = "missing" }},
		{"no payload", "row empty", func(p *mongoPlace) { p.write(bson.D{{Key: "_id", Value: "empty"}}) }},
		{"a payload of another type", "row number", func(p *mongoPlace) { p.write(bson.D{{Key: "_id", Value: "number"}, {Key: "payload", Value: 1}}) }},
		{"an id of another type", "field _id", func(p *mongoPlace) { p.write(bson.D{{Key: "_id", Value: 7}, {Key: "payload", Value: "{}"}}) }},
		{"dropped", "closed it", func(p *mongoPlace) {
			if err := p.rows.Drop(p.t.Context()); err != nil {
				p.t.Fatal(err)
			}
			if err := p.rows.Database().CreateCollection(p.t.Context(), p.rows.Name()); err != nil {
				p.t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newMongo(t, "flowcatalyst", true)
			p.cfg.Endpoint = newReceiver(t).url
			c.change(p)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := floor.Run(ctx, p.cfg, func() {})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %s in it", err, c.want)
			}
		})
	}
}

func (p *mongoPlace) write(doc bson.D) {
	p.t.Helper()
	if _, err := p.rows.InsertOne(p.t.Context(), doc); err != nil {
		p.t.Fatal(err)
	}
}
