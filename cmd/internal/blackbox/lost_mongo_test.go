package blackbox

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// oneOf returns one of several variants of a test, chosen by its name. If SLUICEBOX_TEST_VERSIONS is
// set, it returns all.
func oneOf(t *testing.T, variants ...string) []string {
	t.Helper()
	if os.Getenv("SLUICEBOX_TEST_VERSIONS") != "" {
		return variants
	}
	return servers.Spread(t, variants)
}

// The oplog loses the relay's position while the relay is stopped, or frozen, under eight
// writers. The relay logs the loss, delivers every document once, and streams again.
func TestMongoTheOplogIsRolled(t *testing.T) {
	t.Parallel()
	for _, how := range oneOf(t, "stopped", "frozen") {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			anOwnMongo(t, 1, servers.SmallOplog(), "", func(s *mongoScene, set *servers.MongoSet) {
				s.auto()
				r := s.run()
				s.load(40)
				before := s.expectOnce()
				if how == "stopped" {
					r.checkpoint("before")
					expectStop(t, r)
				} else {
					r.freeze()
				}
				amid := mongoLoad{Transactions: 400, Clients: 8, Most: 3, Groups: 50}
				s.write(amid)()
				set.RollOplog()
				wait := s.write(amid)
				if how == "stopped" {
					r = start(t, s.config)
				} else {
					r.thaw()
				}
				s.expectLoss(r)
				wait()
				expectMode(t, r, "stream")
				s.expectSet()
				s.load(30)
				s.expectSet()
				if c := s.to.Counts(); c.Duplicates > 0 {
					t.Errorf("%d documents arrived more than once, want 0", c.Duplicates)
				}
				if how == "stopped" {
					s.replayRolled(r, before)
				}
				expectStop(t, r)
			})
		})
	}
}

// auto lets a relay poll while the log is unreadable.
func (s *mongoScene) auto() { s.config = strings.Replace(s.config, "mode: stream", "mode: auto", 1) }

// expectLoss waits until a relay logs the loss of its position and recovers.
func (s *mongoScene) expectLoss(r *relay) {
	s.t.Helper()
	within(s.t, testTimeout, func() string {
		// A thawed relay may find the loss before it notices that it lost leadership.
		if last := lastLine(r.said(), "backlog="); last == "" || strings.HasSuffix(last, `reason=""`) || strings.Contains(last, "no checkpoint yet") {
			return "the relay does not say that it lost its place"
		}
		return ""
	})
}

// A collection is dropped or renamed, with the relay running or stopped. Every document that
// exists at the end is delivered, and the relay streams again. By default each change has one of
// the two; SLUICEBOX_TEST_VERSIONS=all tries both.
func TestMongoTheCollectionIs(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(s *mongoScene){
		"dropped and made anew": func(s *mongoScene) {
			s.must(s.db.Collection("outbox_events").Drop(context.Background()))
			s.must(s.db.CreateCollection(context.Background(), "outbox_events"))
		},
		"renamed and made anew": func(s *mongoScene) {
			s.rename("outbox_events", "outbox_events_old")
			s.must(s.db.CreateCollection(context.Background(), "outbox_events"))
		},
		"renamed and named back": func(s *mongoScene) {
			s.rename("outbox_events", "outbox_events_old")
			s.rename("outbox_events_old", "outbox_events")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, when := range oneOf(t, "running", "stopped") {
				aMongo(t, "", func(s *mongoScene) {
					s.auto()
					r := s.run()
					s.load(20)
					s.expectOnce()
					if when == "stopped" {
						expectStop(t, r)
					}
					spoil(s)
					before := s.to.Counts().Distinct
					left := s.count(bson.M{"status": "PENDING"}, seedCollections()...)
					s.load(30)
					if when == "stopped" {
						r = start(t, s.config)
					}
					arrive(t, s.to, before+left+30)
					s.settle()
					s.load(10)
					arrive(t, s.to, before+left+40)
					s.settle()
					expectMode(t, r, "stream")
					if c := s.to.Counts(); c.Duplicates > 0 {
						t.Errorf("%d documents arrived more than once, want 0", c.Duplicates)
					}
					expectStop(t, r)
				})
			}
		})
	}
}

func (s *mongoScene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *mongoScene) rename(from, to string) {
	s.t.Helper()
	s.must(s.db.Client().Database("admin").RunCommand(context.Background(), bson.D{
		{Key: "renameCollection", Value: s.db.Name() + "." + from}, {Key: "to", Value: s.db.Name() + "." + to},
	}).Err())
}

// backlog inserts documents from before the first start and returns the number of settled
// ones. A smaller number means a later createdAt.
func (s *mongoScene) backlog(n int) (settled int) {
	s.t.Helper()
	var all []any
	for i := 1; i <= n; i++ {
		status := "PENDING"
		if i%3 == 0 {
			status = "PROCESSING"
		} else if i%7 == 0 {
			status = "COMPLETED"
			settled++
		}
		id := fmt.Sprintf("B%012d", i)
		all = append(all, bson.M{
			"_id": id, "type": "EVENT", "messageGroup": "g", "payload": `{"id": "` + id + `"}`, "status": status, "retryCount": 0,
			"createdAt": bson.DateTime(1767225600000 - int64(i)*1000), // 2026 and before
		})
	}
	_, err := s.db.Collection("outbox_events").InsertMany(context.Background(), all)
	s.must(err)
	return settled
}

// unique makes a unique index.
func (s *mongoScene) unique(collection, field string) {
	s.t.Helper()
	index := mongo.IndexModel{Keys: bson.D{{Key: field, Value: 1}}, Options: options.Index().SetUnique(true)}
	_, err := s.db.Collection(collection).Indexes().CreateOne(context.Background(), index)
	s.must(err)
}

// A webhook delivers a document of nearly 16 MiB, whose change event would be too large for the
// server to send, and then the rest of its group. FlowCatalyst accepts no such request, and
// the relay logs that. A document without room for its status delays no other.
func TestMongoADocumentNear16MiB(t *testing.T) {
	t.Parallel()
	aMongo(t, "", func(s *mongoScene) {
		s.config = fmt.Sprintf(`
name: %s
source: {mode: stream, url: %q}
outboxes:
  - {table: outbox_events, layout: flowcatalyst, kind: EVENT, sink: hook}
sinks:
  hook: {type: webhook, url: %q, max-request-bytes: 17MiB, request-timeout: 60s}
admin: {listen: %s}
`, nameFor(s.database), s.database, s.to.URL(), adminKey)
		r := s.run()
		const most = 16 << 20
		for i, room := range []int{1 << 10, most - 10, 0} { // the remaining part of the 16 MiB
			s.large(fmt.Sprintf("L%012d", i), fmt.Sprintf("group-%d", i/2), most-room)
		}
		arrive(s.t, s.to, 2)
		awaitZero(s.t, "documents are not COMPLETED", func() int {
			return s.count(bson.M{"status": bson.M{"$ne": "COMPLETED"}, "messageGroup": "group-0"}, "outbox_events")
		})
		r.waitFor("16 MiB")
		s.large("L000000000003", "group-0", 1<<10)
		arrive(s.t, s.to, 3)
		for _, got := range s.to.Accepted() {
			if got.ID == "L000000000002" {
				s.t.Error("a document was sent whose outcome has no room")
			}
		}
	})
}

// large inserts a document of that many bytes.
func (s *mongoScene) large(id, group string, bytes int) {
	s.t.Helper()
	d := bson.M{
		"_id": id, "type": "EVENT", "messageGroup": group, "status": "PENDING", "retryCount": 0, "createdAt": bson.DateTime(1767225600000), "payload": "",
	}
	raw, err := bson.Marshal(d)
	s.must(err)
	d["payload"] = strings.Repeat("x", max(0, bytes-len(raw)))
	_, err = s.db.Collection("outbox_events").InsertOne(context.Background(), d)
	s.must(err)
}
