package mongo_test

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mongo"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestBothForms relays the collections of FlowCatalyst's SDKs in both forms. The relay
// reads an SDK's documents, and writes values in the form that the SDK reads.
func TestBothForms(t *testing.T) {
	t.Parallel()
	created := time.Date(2026, 3, 1, 10, 0, 0, 123_000_000, time.UTC)
	forms := map[string]struct {
		layout store.Layout
		doc    func(id string) bson.D
		group  string
		time   bson.Type
		names  [4]string // of the status, the count, the time and the error
	}{
		"camel": {
			mongo.OutboxMessages(), func(id string) bson.D {
				return bson.D{
					{Key: "_id", Value: id}, {Key: "type", Value: "EVENT"}, {Key: "messageGroup", Value: "g"}, {Key: "payload", Value: `{}`},
					{Key: "status", Value: 0}, {Key: "retryCount", Value: 0}, {Key: "createdAt", Value: created}, {Key: "updatedAt", Value: created},
					{Key: "errorMessage", Value: nil}, {Key: "clientId", Value: "c"}, {Key: "payloadSize", Value: 2}, {Key: "headers", Value: bson.D{}},
				}
			}, "g", bson.TypeDateTime, [4]string{"status", "retryCount", "updatedAt", "errorMessage"},
		},
		"snake": {
			mongo.OutboxMessagesText(), func(id string) bson.D {
				return bson.D{
					{Key: "id", Value: id}, {Key: "type", Value: "EVENT"}, {Key: "message_group", Value: "g"}, {Key: "payload", Value: `{}`},
					{Key: "status", Value: int64(0)}, {Key: "retry_count", Value: 0}, {Key: "created_at", Value: created.Format(time.RFC3339Nano)},
					{Key: "updated_at", Value: created.Format(time.RFC3339Nano)}, {Key: "client_id", Value: "c"}, {Key: "payload_size", Value: 2},
				}
			}, "g", bson.TypeString, [4]string{"status", "retry_count", "updated_at", "error_message"},
		},
	}
	for name, f := range forms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, servers.Mongo(t), store.Outbox{Name: "events", Table: "outbox_messages", Layout: f.layout})
			r.insert(t, f.doc("0ABC"), f.doc("0ABD"), f.doc("0ABE"))
			if err := r.store.Check(ctx(t)); err != nil {
				t.Errorf("check: %v", err)
			}
			items := r.unsettled(t, store.UnsettledQuery{})
			if len(items) != 3 || items[0].ID != "0ABC" || items[0].Kind != "EVENT" || items[0].Group != store.GroupOf(f.group) {
				t.Fatalf("got items %+v", items)
			}
			r.claim(t, row("0ABC"), row("0ABD"), row("0ABE"))
			r.settle(t, rigs.Outcome("0ABC", store.Completed),
				store.Outcome{Ref: row("0ABD").Ref, Status: store.Failed, RetryCount: 3, Error: "no", Reason: store.ReasonGateway, At: created.Add(time.Hour)})
			if n, _ := r.docs().CountDocuments(ctx(t), bson.D{}); n != 2 {
				t.Errorf("got %d documents, want 2", n)
			}
			dead := r.read(t, "0ABD")
			code, _ := dead.Lookup(f.names[0]).AsInt64OK()
			count, _ := dead.Lookup(f.names[1]).AsInt64OK()
			if code != 6 || count != 3 || dead.Lookup(f.names[3]).StringValue() != "no" || dead.Lookup(f.names[2]).Type != f.time {
				t.Errorf("got FAILED document %s", dead)
			}
			if at := dead.Lookup(f.names[2]); f.time == bson.TypeString && at.StringValue() != "2026-03-01T11:00:00.123Z" {
				t.Errorf("got time %s", at)
			}
			letters, err := r.store.Failed(ctx(t), store.DeadLetterFilter{Outbox: "events", Since: created.Add(time.Hour)}, 5, false)
			if err != nil || len(letters) != 1 || !letters[0].FailedAt.Equal(created.Add(time.Hour)) {
				t.Errorf("got dead letters %+v, %v", letters, err)
			}
		})
	}
}

// TestWrongForm checks that a layout of the other form is reported by name.
func TestWrongForm(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	r.insert(t, bson.D{
		{Key: "_id", Value: 1}, {Key: "id", Value: "x"}, {Key: "message_group", Value: "g"}, {Key: "type", Value: "EVENT"}, {Key: "payload", Value: ""},
		{Key: "status", Value: "PENDING"}, {Key: "created_at", Value: "2026-03-01T10:00:00Z"}, {Key: "updated_at", Value: "2026-03-01T10:00:00Z"},
	})
	rigs.WantSetup(t, "documents in snake_case", r.store.Check(ctx(t)), "messageGroup", "message_group")
	text := store.Outbox{Name: "events", Table: r.box.Table, Layout: mongo.OutboxMessagesText()}
	rigs.WantSetup(t, "words in place of numbers", openStore(t, r.url, text).Check(ctx(t)), "status", "createIndex")
	dates := text
	dates.Layout.TextTimes = false
	dates.Layout.State, dates.Layout.Words = store.StateWords, mongo.FlowCatalyst().Words
	rigs.WantSetup(t, "texts in place of dates", openStore(t, r.url, dates).Check(ctx(t)), "updated_at", "texts")
}
