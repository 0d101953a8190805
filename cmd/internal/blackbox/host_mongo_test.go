package blackbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// mongoScene is a MongoDB database with the two FlowCatalyst collections, a receiver, and a
// relay's configuration.
type mongoScene struct {
	t        *testing.T
	database string
	db       *mongo.Database
	to       *sinktest.Receiver
	config   string
}

// seedCollections are those of the FlowCatalyst outbox processor.
func seedCollections() []string { return []string{"outbox_events", "outbox_dispatch_jobs"} }

// aMongo runs a test on the shared MongoDB server, unless other servers are selected.
func aMongo(t *testing.T, rest string, test func(s *mongoScene)) {
	t.Helper()
	chooseMongo(t)
	test(mongoSceneIn(t, servers.Mongo(t), rest))
}

// anOwnMongo runs a test on a replica set of its own with that many members.
func anOwnMongo(t *testing.T, members int, settings map[string]string, rest string, test func(s *mongoScene, set *servers.MongoSet)) {
	t.Helper()
	chooseMongo(t)
	set := servers.StartMongo(t, members, settings)
	test(mongoSceneIn(t, set.Database(), rest), set)
}

func chooseMongo(t *testing.T) {
	t.Helper()
	if len(servers.Chosen([]string{"mongo"})) == 0 {
		t.Skip("none of the selected servers")
	}
}

// mongoSceneIn creates the FlowCatalyst collections, their indexes and the counters.
func mongoSceneIn(t *testing.T, database, rest string) *mongoScene {
	t.Helper()
	to := sinktest.NewReceiver(t)
	s := &mongoScene{t: t, database: database, db: servers.OpenMongo(t, database), to: to, config: preset(database, to.URL(), rest)}
	for _, name := range seedCollections() {
		index := mongo.IndexModel{Keys: bson.D{{Key: "status", Value: 1}, {Key: "messageGroup", Value: 1}, {Key: "createdAt", Value: 1}}}
		if _, err := s.db.Collection(name).Indexes().CreateOne(t.Context(), index); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.db.CreateCollection(t.Context(), "truth"); err != nil {
		t.Fatal(err)
	}
	return s
}

// run starts a relay and waits until it reads.
func (s *mongoScene) run() *relay {
	s.t.Helper()
	r := start(s.t, s.config)
	r.waitFor("source connected")
	return r
}

// mongoLoad describes a load; see testdata/mongowriter.py.
type mongoLoad struct {
	Seconds      int    `json:"seconds,omitempty"`
	Transactions int    `json:"transactions,omitempty"` // if 0 and seconds is 0: until its wait is called
	Clients      int    `json:"clients"`
	Rate         int    `json:"rate,omitempty"` // transactions per second; 0 is unlimited
	Groups       int    `json:"groups"`
	Most         int    `json:"most,omitempty"` // maximum documents per transaction
	Form         string `json:"form,omitempty"`
	Late         bool   `json:"late,omitempty"`
	Broken       bool   `json:"broken,omitempty"`
}

// write starts a writing service as a process and returns a function that waits for its end.
// Each of its transactions has committed or failed by then.
func (s *mongoScene) write(l mongoLoad) (wait func()) {
	s.t.Helper()
	options, err := json.Marshal(l)
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := servers.PyMongo(s.t, "testdata/mongowriter.py", s.database, string(options))
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	goOn, err := cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	s.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return func() {
		s.t.Helper()
		_ = goOn.Close() // it may have ended
		select {
		case err := <-done:
			if err != nil {
				s.t.Fatalf("the writer: %v: %s", err, said.String())
			}
			s.t.Logf("the writer: %s", strings.TrimSpace(said.String()))
		case <-time.After(mostWritten):
			s.t.Fatal("the writer does not end")
		}
	}
}

// load commits transactions, one after the other.
func (s *mongoScene) load(transactions int) {
	s.t.Helper()
	s.write(mongoLoad{Transactions: transactions, Clients: 1, Groups: 3})()
}

// count counts the documents of several collections that match a filter.
func (s *mongoScene) count(filter bson.M, collections ...string) (n int) {
	s.t.Helper()
	for _, name := range collections {
		s.read(func(ctx context.Context) error {
			some, err := s.db.Collection(name).CountDocuments(ctx, filter)
			n += int(some)
			return err
		})
	}
	return n
}

// documents reads a collection.
func (s *mongoScene) documents(collection string, into any) {
	s.t.Helper()
	s.read(func(ctx context.Context) error {
		cursor, err := s.db.Collection(collection).Find(ctx, bson.M{})
		if err != nil {
			return err
		}
		return cursor.All(ctx, into)
	})
}

// read retries until the set answers. The driver retries only once, and both attempts may
// meet an old primary or a set without one.
func (s *mongoScene) read(ask func(ctx context.Context) error) {
	s.t.Helper()
	within(s.t, testTimeout, func() string { return failure(ask(context.Background())) })
}

// rows returns the number of documents in both collections.
func (s *mongoScene) rows() int {
	s.t.Helper()
	return s.count(bson.M{}, seedCollections()...)
}

// open returns the ids of the documents that are not COMPLETED.
func (s *mongoScene) open() map[string]bool {
	s.t.Helper()
	ids := map[string]bool{}
	for _, collection := range seedCollections() {
		s.read(func(ctx context.Context) error {
			cursor, err := s.db.Collection(collection).Find(ctx, bson.M{"status": bson.M{"$ne": "COMPLETED"}}, options.Find().SetProjection(bson.M{"_id": 1}))
			if err != nil {
				return err
			}
			var documents []struct {
				ID string `bson:"_id"`
			}
			err = cursor.All(ctx, &documents)
			for _, d := range documents {
				ids[d.ID] = true
			}
			return err
		})
	}
	return ids
}

// processing counts the documents in PROCESSING.
func (s *mongoScene) processing() int {
	s.t.Helper()
	return s.count(bson.M{"status": "PROCESSING"}, seedCollections()...)
}

// settle waits until every document is COMPLETED and has a processedAt.
func (s *mongoScene) settle() {
	s.t.Helper()
	awaitZero(s.t, "documents are not COMPLETED with processedAt", func() int {
		open := bson.M{"$or": bson.A{bson.M{"status": bson.M{"$ne": "COMPLETED"}}, bson.M{"processedAt": nil}}}
		return s.count(open, seedCollections()...)
	})
}

// expectAll waits until every document of both collections has arrived and is COMPLETED, and
// checks the order of first arrivals. It returns the number of documents and of repeated
// arrivals.
func (s *mongoScene) expectAll() (rows, again int) {
	s.t.Helper()
	rows = s.rows()
	arrive(s.t, s.to, rows)
	s.settle()
	numbered, again := s.checkOrder()
	if numbered != rows {
		s.t.Errorf("the counters say %d, and there are %d documents", numbered, rows)
	}
	return rows, again
}

// expectOnce is expectAll, and fails if a document arrived twice.
func (s *mongoScene) expectOnce() (rows int) {
	s.t.Helper()
	rows, again := s.expectAll()
	if again > 0 {
		s.t.Errorf("%d of %d documents arrived more than once, want 0", again, rows)
	}
	return rows
}

// expectSet waits until every document has arrived and is COMPLETED, in any order.
func (s *mongoScene) expectSet() {
	s.t.Helper()
	arrive(s.t, s.to, s.rows())
	s.settle()
}

// written is the payload of the writers' documents.
type written struct {
	ID, Group string
	N         int
	At        int64 // ms since 1970
}

func writtenIn(t testing.TB, payload []byte) (w written) {
	t.Helper()
	if err := json.Unmarshal(payload, &w); err != nil {
		t.Fatalf("payload %q: %v", payload, err)
	}
	return w
}

// checkOrder compares the first arrivals of each group with its counter: all numbers from 1 to
// the counter must arrive in order. It returns the number of documents and of repeated
// arrivals.
func (s *mongoScene) checkOrder() (rows, again int) {
	s.t.Helper()
	seen, last := map[string]bool{}, map[string]int{}
	for _, r := range s.to.Accepted() {
		if seen[r.ID] {
			again++
			continue
		}
		seen[r.ID] = true
		w := writtenIn(s.t, r.Payload)
		of := r.ID[:1] + w.Group
		if w.N != last[of]+1 {
			s.t.Errorf("%s of %s: number %d arrived after %d", r.ID, w.Group, w.N, last[of])
		}
		last[of] = w.N
	}
	var truth []struct {
		ID string `bson:"_id"`
		N  int
	}
	s.documents("truth", &truth)
	for _, counter := range truth {
		rows += counter.N
		outbox, group, _ := strings.Cut(counter.ID, ":")
		if got := last[strings.ToUpper(outbox[:1])+"group-"+group]; got != counter.N {
			s.t.Errorf("%s: %d of %d documents arrived", counter.ID, got, counter.N)
		}
	}
	return rows, again
}

// reordered counts the events that have an earlier createdAt than an event of their group that
// committed before them.
func (s *mongoScene) reordered() (n int) {
	s.t.Helper()
	var events []struct {
		Payload   string
		CreatedAt time.Time `bson:"createdAt"`
	}
	s.documents("outbox_events", &events)
	type born struct {
		n  int
		at time.Time
	}
	groups := map[string][]born{}
	for _, e := range events {
		w := writtenIn(s.t, []byte(e.Payload))
		groups[w.Group] = append(groups[w.Group], born{w.N, e.CreatedAt})
	}
	for _, group := range groups {
		slices.SortFunc(group, func(a, b born) int { return a.n - b.n })
		for i := 1; i < len(group); i++ {
			if group[i].at.Before(group[i-1].at) {
				n++
			}
		}
	}
	return n
}

// disconnected waits until the server has noticed that a relay is gone. Its last statements
// are done by then.
func (s *mongoScene) disconnected() {
	s.t.Helper()
	within(s.t, testTimeout, func() string {
		if n := s.connections(); n > 0 {
			return fmt.Sprintf("%d connections of the killed relay", n)
		}
		return ""
	})
}

// connections counts the connections of the scene's relays, by application name.
func (s *mongoScene) connections() int {
	s.t.Helper()
	cursor, err := s.db.Client().Database("admin").Aggregate(context.Background(), mongo.Pipeline{
		{{Key: "$currentOp", Value: bson.M{"allUsers": true, "idleConnections": true, "idleSessions": false}}},
		{{Key: "$match", Value: bson.M{"appName": bson.M{"$regex": "^sluicebox " + nameFor(s.database)}}}},
	})
	var all []bson.Raw
	if err == nil {
		err = cursor.All(context.Background(), &all)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return len(all)
}
