package mongo_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/mongo"
	"github.com/sluicebox/sluicebox/store"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
	"github.com/sluicebox/sluicebox/store/storetest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

const (
	outboxName = "shop"
	events     = "outbox_events"
)

func outboxes(name string) []store.Outbox {
	return []store.Outbox{{Name: name, Table: events, Layout: mongostore.FlowCatalyst(), Kind: "EVENT"}}
}

// oddNames is an outbox with an id that is not _id, names that need quoting, paths through
// subdocuments, a state kept as times, and the group inside JSON.
func oddNames(name string) []store.Outbox {
	box := capturetest.QuotedNames(name)
	c := &box.Layout.Columns
	c.Payload, c.RetryCount = "select.the 'payload'", "count.of all"
	return []store.Outbox{box}
}

// database is a database for one test.
type database struct {
	url      string
	stream   string // URL of a separate role for the stream; "" is url
	name     string // of the relay
	db       *driver.Database
	views    *mongostore.Store
	outboxes func(name string) []store.Outbox
}

func newDatabase(t testing.TB, url string) *database { return newDatabaseOf(t, url, outboxes) }

func newDatabaseOf(t testing.TB, url string, outboxes func(name string) []store.Outbox) *database {
	t.Helper()
	// The suite checks for leaked goroutines, and a client that streams server changes
	// starts new ones all the time. So these clients poll.
	quiet := url + "?"
	if strings.Contains(url, "?") {
		quiet = url + "&"
	}
	quiet += "serverMonitoringMode=poll&heartbeatFrequencyMS=5000&connectTimeoutMS=2000"
	d := &database{url: url, name: "t" + strconv.FormatInt(time.Now().UnixNano(), 36), outboxes: outboxes, db: servers.OpenMongo(t, quiet)}
	for _, o := range outboxes(outboxName) {
		d.run(t, bson.D{{Key: "create", Value: o.Table}})
	}
	views, err := mongostore.New(mongostore.Config{URL: quiet, Name: d.name, Outboxes: outboxes(outboxName)})
	if err != nil {
		t.Fatal(err)
	}
	d.views = views
	t.Cleanup(views.Close)
	view, err := views.View(t.Context(), "") // its connections stay
	if err != nil {
		t.Fatal(err)
	}
	view.Close()
	return d
}

// run runs a command in the database.
func (d *database) run(t testing.TB, command bson.D) bson.Raw {
	t.Helper()
	answer, err := d.db.RunCommand(context.WithoutCancel(t.Context()), command).Raw()
	if err != nil {
		t.Fatalf("%v, in: %v", err, command)
	}
	return answer
}

// admin runs a command in the database admin.
func (d *database) admin(t testing.TB, command bson.D) bson.Raw {
	t.Helper()
	answer, err := d.db.Client().Database("admin").RunCommand(context.WithoutCancel(t.Context()), command).Raw()
	if err != nil {
		t.Fatalf("%v, in: %v", err, command)
	}
	return answer
}

func (d *database) config() mongo.Config {
	return mongo.Config{URL: d.url, StreamURL: d.stream, Name: d.name, Outboxes: d.outboxes(outboxName)}
}

func (d *database) Source(t *testing.T, o capturetest.Options) capturetest.Source {
	cfg := d.config()
	cfg.Outboxes = d.outboxes(o.Outbox)
	cfg.MaxBatchRows = o.BatchRows
	return newSource(t, cfg)
}

func newSource(t testing.TB, cfg mongo.Config) *mongo.Source {
	t.Helper()
	src, err := mongo.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func (d *database) tables() *capturetest.Tables { return &capturetest.Tables{Viewer: d.views} }

func (d *database) Viewer(*testing.T) store.Viewer { return d.views }

// transaction begins a transaction; its operations take the context.
func (d *database) transaction(t testing.TB) (ctx context.Context, end func(commit bool)) {
	t.Helper()
	session, err := d.db.Client().StartSession(options.Session().SetDefaultTransactionOptions(
		options.Transaction().SetReadConcern(readconcern.Snapshot()).SetWriteConcern(writeconcern.Majority())))
	if err == nil {
		err = session.StartTransaction()
	}
	if err != nil {
		t.Error(err)
		return context.Background(), func(bool) {}
	}
	return driver.NewSessionContext(context.Background(), session), func(commit bool) {
		defer session.EndSession(context.Background())
		finish := session.AbortTransaction
		if commit {
			finish = session.CommitTransaction
		}
		if err := finish(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

func (d *database) Begin(t *testing.T, rows ...capturetest.Row) func(commit bool) {
	t.Helper()
	ctx, end := d.transaction(t)
	box := &d.outboxes(outboxName)[0]
	docs := make([]any, len(rows))
	for i, r := range rows {
		docs[i] = document(box, r)
	}
	if _, err := d.db.Collection(box.Table).InsertMany(ctx, docs); err != nil {
		t.Error(err)
	}
	return end
}

// document is a row as a service writes it.
func document(box *store.Outbox, r capturetest.Row) bson.D {
	l := &box.Layout
	var doc bson.D
	set(&doc, l.Columns.ID, r.ID)
	if group := storetest.GroupText(l, r.Group); group.Valid {
		set(&doc, l.Columns.Group, group.String)
	}
	set(&doc, l.Columns.Payload, r.Payload)
	set(&doc, l.Columns.RetryCount, 0)
	if l.Columns.Status != "" {
		set(&doc, l.Columns.Status, l.Words[store.Pending])
	}
	set(&doc, l.OrderBy[0], time.Now())
	return doc
}

// set sets the value at a path.
func set(doc *bson.D, path string, value any) {
	key, rest, deeper := strings.Cut(path, ".")
	if !deeper {
		*doc = append(*doc, bson.E{Key: key, Value: value})
		return
	}
	var inner bson.D
	set(&inner, rest, value)
	*doc = append(*doc, bson.E{Key: key, Value: inner})
}

// insert writes rows one by one, without a transaction.
func (d *database) insert(t testing.TB, ids ...string) {
	t.Helper()
	for _, id := range ids {
		d.put(t, events, document(&d.outboxes(outboxName)[0], capturetest.Row{ID: id, Group: store.GroupOf("g"), Payload: "payload of " + id}))
	}
}

func (d *database) put(t testing.TB, collection string, doc bson.D) {
	t.Helper()
	if _, err := d.db.Collection(collection).InsertOne(context.WithoutCancel(t.Context()), doc); err != nil {
		t.Fatal(err)
	}
}

func (d *database) Unrelated(t *testing.T) {
	t.Helper()
	d.put(t, "unrelated", bson.D{{Key: "n", Value: 1}})
}

// cursors returns the cursors of the relay's sources, including one that is being read.
func (d *database) cursors(t *testing.T) (ids []int64) {
	t.Helper()
	answer, err := d.db.Client().Database("admin").RunCommand(context.Background(), bson.D{
		{Key: "aggregate", Value: 1},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$currentOp", Value: bson.D{{Key: "allUsers", Value: true}, {Key: "idleCursors", Value: true}}}},
			bson.D{{Key: "$match", Value: bson.D{{Key: "cursor.originatingCommand.comment", Value: "sluicebox " + d.name}}}},
		}},
		{Key: "cursor", Value: bson.D{}},
	}).Raw()
	if err != nil {
		t.Error(err)
		return nil
	}
	list, _ := answer.Lookup("cursor", "firstBatch").ArrayOK()
	found, err := list.Values()
	if err != nil {
		t.Error(err)
	}
	for _, op := range found {
		if id, _ := op.Document().Lookup("cursor", "cursorId").Int64OK(); !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// Disconnect kills the cursors of the relay.
func (d *database) Disconnect(t *testing.T) {
	t.Helper()
	for _, id := range d.cursors(t) {
		kill := bson.D{{Key: "killCursors", Value: "$cmd.aggregate"}, {Key: "cursors", Value: bson.A{id}}}
		_ = d.db.RunCommand(context.Background(), kill).Err() // it may have ended by itself
	}
}

// logged returns how many bytes of oplog some rows make.
func logged(rows []capturetest.Row) (bytes int64) {
	for _, r := range rows {
		bytes += int64(2*len(r.ID) + len(r.Group.Name) + len(r.Payload) + 220)
	}
	return bytes
}

// TestSuiteAlone runs the part of the suite that checks for leaked goroutines.
func TestSuiteAlone(t *testing.T) {
	capturetest.RunIsolated(t, capturetest.Harness{
		Setup: func(t *testing.T) capturetest.Database { return newDatabase(t, servers.Mongo(t)) },
	})
}

func TestSuite(t *testing.T) {
	t.Parallel() // mostly waiting
	h := capturetest.Harness{
		Log: true, RowPositions: true, Bounded: true,
		Setup: func(t *testing.T) capturetest.Database { return newDatabase(t, servers.Mongo(t)) },
		Isolated: func(t *testing.T) capturetest.Database {
			return newDatabase(t, servers.StartMongo(t, 1, nil).Database())
		},
		LogBytes: logged,
		Shutdown: func(t *testing.T) (capturetest.Database, func() time.Duration) {
			set := servers.StartMongo(t, 1, nil)
			return newDatabase(t, set.Database()), func() time.Duration { return set.Stop("fast") }
		},
	}
	capturetest.Run(t, h)
	t.Run("odd names", func(t *testing.T) {
		capturetest.RunLayout(t, capturetest.Harness{Log: true, RowPositions: true, Setup: func(t *testing.T) capturetest.Database {
			return newDatabaseOf(t, servers.Mongo(t), oddNames)
		}})
	})
}
