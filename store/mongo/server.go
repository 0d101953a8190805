package mongo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lifetime"
)

const (
	// commandTimeout is how long a command may take that a relay waits for: a server that says
	// nothing costs a claim this long.
	commandTimeout = store.MinLockLease
	// closeTimeout bounds the farewell to a server that may be gone.
	closeTimeout = time.Second
	// viewTimeout bounds each batch of what reads whole collections.
	viewTimeout = 10 * time.Minute
)

// errStopIteration is what the reader of documents returns to be given no more.
var errStopIteration = errors.New("that is enough")

// majority is the concern of every write: a majority of the members has it on disk.
func majority() *writeconcern.WriteConcern {
	wc, onDisk := writeconcern.Majority(), true
	wc.Journal = &onDisk
	return wc
}

// server opens the connections of a store when they are needed first.
type server struct {
	url, application string

	mu     sync.Mutex
	conn   *conn
	closed bool
}

// open returns the connections, and opens them if nobody did before.
func (v *server) open(ctx context.Context) (*conn, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.closed:
		return nil, lifetime.ErrClosed
	case v.conn != nil:
		return v.conn, nil
	}
	opts, database, err := ParseURL(v.url, v.application)
	if err != nil {
		return nil, err
	}
	client, err := mongo.Connect(opts.SetReadConcern(readconcern.Majority()).SetWriteConcern(majority()))
	if err != nil {
		return nil, refuseURL("cannot be used: "+withoutSecrets(v.url, err), "see https://www.mongodb.com/docs/manual/reference/connection-string")
	}
	on := &conn{client: client, db: client.Database(database)}
	if err = on.hello(ctx); err == nil {
		on.writeSession, err = client.StartSession(options.Session().SetDefaultTransactionOptions(transactions()))
	}
	if err == nil {
		on.outcomeSession, err = client.StartSession()
	}
	if err != nil {
		disconnect(client)
		return nil, fmt.Errorf("connect: %w", Explain(err))
	}
	v.conn = on
	return on, nil
}

// transactions are the options of all transactions.
func transactions() *options.TransactionOptionsBuilder {
	return options.Transaction().SetReadConcern(readconcern.Snapshot()).SetWriteConcern(majority())
}

// disconnect ends the connections for good. No call uses them any more.
func (v *server) disconnect() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	if v.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	v.conn.writeSession.EndSession(ctx)
	v.conn.outcomeSession.EndSession(ctx)
	disconnect(v.conn.client)
}

func disconnect(client *mongo.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = client.Disconnect(ctx) // it is given up either way
}

// conn is the connections to a server, with what is known of it.
type conn struct {
	client         *mongo.Client
	db             *mongo.Database
	writeSession   *mongo.Session // the one session that writes in transactions; see writer
	outcomeSession *mongo.Session // that of outcomes that need none; see Store.aside
	isMongos       atomic.Bool    // the server is a mongos
	version        string

	standalone atomic.Bool // the server is no member of a replica set: it has no transactions

	lastWrite atomic.Pointer[bson.Timestamp] // the operation time of the latest commit
}

// recordWrite notes when something was written: who reads later is to see it.
func (c *conn) recordWrite(at *bson.Timestamp) {
	for at != nil {
		known := c.lastWrite.Load()
		if known != nil && !known.Before(*at) || c.lastWrite.CompareAndSwap(known, at) {
			return
		}
	}
}

// greeting is what the relay wants of the answer to hello.
type greeting struct {
	SetName string `bson:"setName"`
	Msg     string `bson:"msg"` // "isdbgrid" of a mongos
}

// hello finds out what kind of server it is.
func (c *conn) hello(ctx context.Context) error {
	var build struct {
		Version string `bson:"version"`
		Array   []int  `bson:"versionArray"`
	}
	if err := c.run(ctx, bson.D{{Key: "buildInfo", Value: 1}}, &build); err != nil {
		return err
	}
	if len(build.Array) == 0 || build.Array[0] < minVersion {
		return &store.SetupError{Problem: "MongoDB " + build.Version + " is too old", Remedy: fmt.Sprintf("use %d.0 or later", minVersion)}
	}
	c.version = build.Version
	c.standalone.Store(true)
	return c.recheckStandalone(ctx)
}

// recheckStandalone finds out whether a server that was no member of a replica set is one by now.
func (c *conn) recheckStandalone(ctx context.Context) error {
	if !c.standalone.Load() {
		return nil
	}
	var hello greeting
	err := c.run(ctx, bson.D{{Key: "hello", Value: 1}}, &hello)
	if err == nil {
		c.isMongos.Store(hello.Msg != "")
		c.standalone.Store(hello.SetName == "" && hello.Msg == "")
	}
	return err
}

// minVersion is the first major version with snapshot reads outside of transactions
// (mongodb.com/docs/manual/reference/read-concern-snapshot).
const minVersion = 5

// run runs a command of the database.
func (c *conn) run(ctx context.Context, command bson.D, into any) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return c.db.RunCommand(ctx, command).Decode(into)
}

// admin runs a command of the server.
func (c *conn) admin(ctx context.Context, command bson.D, into any) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return c.client.Database("admin").RunCommand(ctx, command).Decode(into)
}

// ownCollection returns one of the relay's own collections.
func (c *conn) ownCollection(name string) *mongo.Collection { return c.db.Collection(name) }

// outboxCollection returns the collection of an outbox.
func (c *conn) outboxCollection(o *store.Outbox) *mongo.Collection {
	if o.Schema == "" {
		return c.db.Collection(o.Table)
	}
	return c.client.Database(o.Schema).Collection(o.Table)
}

// update updates all documents of a filter and tells how many there are.
func update(ctx context.Context, in *mongo.Collection, filter, update any) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	done, err := in.UpdateMany(ctx, filter, update)
	if err != nil {
		return 0, err
	}
	return done.MatchedCount, nil
}

// upsertOne updates the document of an _id, which it makes if there is none.
func upsertOne(ctx context.Context, in *mongo.Collection, id, update any) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	_, err := in.UpdateOne(ctx, bson.D{{Key: "_id", Value: id}}, update, options.UpdateOne().SetUpsert(true))
	return err
}

// remove deletes all documents of a filter and tells how many there were.
func remove(ctx context.Context, in *mongo.Collection, filter any) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	done, err := in.DeleteMany(ctx, filter)
	if err != nil {
		return 0, err
	}
	return done.DeletedCount, nil
}

// findOne reads the one document of an _id; mongo.ErrNoDocuments says that there is none.
func findOne(ctx context.Context, in *mongo.Collection, id, into any) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return in.FindOne(ctx, bson.D{{Key: "_id", Value: id}}).Decode(into)
}

// forEach gives the documents of a filter to read, which may keep nothing of them. Each
// batch may take as long as wait.
func forEach(ctx context.Context, wait time.Duration, in *mongo.Collection, filter any, opts *options.FindOptionsBuilder, read func(bson.Raw) error) error {
	first, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	docs, err := in.Find(first, filter, opts)
	if err != nil {
		return err
	}
	defer func() {
		bye, stop := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer stop()
		_ = docs.Close(bye) // its error is that of docs.Err
	}()
	for next(ctx, wait, docs) {
		if err := read(docs.Current); err != nil {
			return err
		}
	}
	return docs.Err()
}

// next goes on to the next document, and asks for the next batch where it has to.
func next(ctx context.Context, wait time.Duration, docs *mongo.Cursor) bool {
	if docs.RemainingBatchLength() > 0 {
		return docs.Next(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return docs.Next(ctx)
}
