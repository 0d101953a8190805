package mongo_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestWatch reads the changes of a collection.
func TestWatch(t *testing.T) {
	d := newDatabase(t, servers.Mongo(t))
	one := func(command bson.D) func() { return func() { d.run(t, command) } }
	doc := func(id, status string) bson.D {
		return bson.D{{Key: "_id", Value: id}, {Key: "messageGroup", Value: "g"}, {Key: "payload", Value: "{}"}, {Key: "status", Value: status}}
	}
	update := func(id string, change bson.D) bson.D {
		return bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "u", Value: change}}
	}
	updates := func(list ...bson.D) bson.D {
		return bson.D{{Key: "update", Value: "outbox_events"}, {Key: "updates", Value: list}}
	}
	set := func(field string, value any) bson.D {
		return bson.D{{Key: "$set", Value: bson.D{{Key: field, Value: value}}}}
	}
	capturetest.RunWatch(t, newSource(t, d.config()), false, []capturetest.WatchStep{
		{Do: one(bson.D{{Key: "insert", Value: "outbox_events"}, {Key: "documents", Value: bson.A{doc("a", "PENDING")}}}), Want: []string{"insert a g PENDING"}},
		{Do: one(updates(update("a", set("status", "PROCESSING")))), Want: []string{"update a PROCESSING"}},
		{Do: one(updates(update("a", set("payload", "[]")))), Want: []string{"update a UNKNOWN"}},
		{Do: one(updates(update("a", doc("a", "FAILED")))), Want: []string{"update a FAILED"}},
		{Do: one(updates(update("a", bson.D{{Key: "$unset", Value: bson.D{{Key: "status", Value: ""}}}}))), Want: []string{"update a UNKNOWN"}},
		{Do: one(updates(update("a", set("status", "COMPLETED")))), Want: []string{"update a COMPLETED"}},
		{Do: one(bson.D{{Key: "delete", Value: "outbox_events"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}}}), Want: []string{"delete a"}},
		{
			Do: func() {
				ctx, end := d.transaction(t)
				for _, id := range []string{"b", "c"} {
					if _, err := d.db.Collection("outbox_events").InsertOne(ctx, doc(id, "PENDING")); err != nil {
						t.Fatal(err)
					}
				}
				end(true)
			},
			Want: []string{"insert b g PENDING", "insert c g PENDING"},
		},
	})
}
