package mongo

import (
	"context"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/sluicebox/sluicebox/store"
)

const (
	// commandTimeout bounds a command on the relay's critical path: a silent server delays
	// a claim by this much.
	commandTimeout = store.MinLockLease
	// viewTimeout bounds each batch when whole collections are read.
	viewTimeout = 10 * time.Minute
)

// majority is the write concern of every write: on disk on a majority of the members.
func majority() *writeconcern.WriteConcern {
	wc, onDisk := writeconcern.Majority(), true
	wc.Journal = &onDisk
	return wc
}

// server opens the connections of a store on first use.
type server struct {
	url, application string
	beside           *server // has the connections; nil for a store with its own

	turn chan struct{} // has one element; its owner may read and set conn
	conn *conn
}

func newServer(url, application string, beside *server) *server {
	v := &server{url: url, application: application, beside: beside, turn: make(chan struct{}, 1)}
	v.turn <- struct{}{}
	return v
}

// open returns the connections, opening them if necessary.
func (v *server) open(ctx context.Context) (*conn, error) {
	select {
	case <-v.turn:
		defer func() { v.turn <- struct{}{} }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}

	if v.conn != nil {
		return v.conn, nil
	}

	on, err := v.connect(ctx)
	if err != nil {
		return nil, err
	}
	if err = on.identify(ctx); err == nil {
		on.writeSession, err = on.client.StartSession(options.Session().SetDefaultTransactionOptions(transactions()))
	}

	if err == nil {
		on.outcomeSession, err = on.client.StartSession()
	}

	if err != nil {
		v.hangUp(on.client)
		return nil, fmt.Errorf("connect: %w", Explain(err))
	}

	v.conn = on
	return on, nil
}

// connect returns connections without sessions: new ones, or those of the store that this one is beside.
func (v *server) connect(ctx context.Context) (*conn, error) {
	if v.beside != nil {
		shared, err := v.beside.open(ctx)
		if err != nil {
			return nil, err
		}
		return &conn{client: shared.client, db: shared.db}, nil
	}
	opts, database, err := ParseURL(v.url, v.application)
	if err != nil {
		return nil, err
	}
	client, err := mongo.Connect(opts.SetReadConcern(readconcern.Majority()).SetWriteConcern(majority()))
	if err != nil {
		return nil, refuseURL("cannot be used: "+withoutSecrets(v.url, err), "see https://www.mongodb.com/docs/manual/reference/connection-string")
	}
	return &conn{client: client, db: client.Database(database)}, nil
}

// onServer runs a call with the connections, in the store's lifetime.
func (s *Store) onServer(ctx context.Context, call func(context.Context, *conn) error) error {
	return s.lifetime.Do(ctx, func(ctx context.Context) error {
		on, err := s.server.open(ctx)
		if err != nil {
			return err
		}
		return call(ctx, on)
	})
}

// transactions returns the options of all transactions.
func transactions() *options.TransactionOptionsBuilder {
	return options.Transaction().SetReadConcern(readconcern.Snapshot()).SetWriteConcern(majority())
}

// disconnect closes the connections. No call uses them or opens others any more.
func (v *server) disconnect() {
	<-v.turn
	defer func() { v.turn <- struct{}{} }()

	if v.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), store.CloseTimeout)
	defer cancel()
	if v.beside != nil {
		v.conn.discardSessions(ctx)
		return
	}
	v.conn.writeSession.EndSession(ctx)
	v.conn.outcomeSession.EndSession(ctx)
	disconnect(v.conn.client)
}

// discardSessions ends the sessions on the server, with their transactions. EndSession would give them back to the
// pool of the client, for other stores: the next leader kills the sessions that its predecessor had.
func (c *conn) discardSessions(ctx context.Context) {
	ids := bson.A{c.writeSession.ID(), c.outcomeSession.ID()}
	_ = c.client.Database("admin").RunCommand(ctx, bson.D{{Key: "endSessions", Value: ids}}).Err() // best effort: they time out
}

// hangUp closes the connections unless they are another store's.
func (v *server) hangUp(client *mongo.Client) {
	if v.beside == nil {
		disconnect(client)
	}
}

func disconnect(client *mongo.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), store.CloseTimeout)
	defer cancel()
	_ = client.Disconnect(ctx) // best effort
}

// conn holds the connections to a server and facts about it.
type conn struct {
	client         *mongo.Client
	db             *mongo.Database
	writeSession   *mongo.Session // the only session that writes in transactions; see writer
	outcomeSession *mongo.Session // outcomes without a transaction; see settleWithoutTransaction
	isMongos       atomic.Bool    // connected to a mongos
	version        string

	standalone atomic.Bool // not a replica set member, so no transactions

	lastWrite atomic.Pointer[bson.Timestamp] // operation time of the latest commit
}

// recordWrite records the time of a write, so that later reads see it.
func (c *conn) recordWrite(at *bson.Timestamp) {
	for at != nil {
		known := c.lastWrite.Load()
		if known != nil && !known.Before(*at) || c.lastWrite.CompareAndSwap(known, at) {
			return
		}
	}
}

// identify checks the server's version and determines its kind.
func (c *conn) identify(ctx context.Context) error {
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

// greeting is a server's answer to hello.
type greeting struct {
	SetName  string    `bson:"setName"` // "" outside a replica set
	Msg      string    `bson:"msg"`     // "isdbgrid" on a mongos
	Hosts    []string  `bson:"hosts"`
	Primary  string    `bson:"primary"`
	Writable bool      `bson:"isWritablePrimary"`
	Now      time.Time `bson:"localTime"`
}

func (c *conn) hello(ctx context.Context) (g greeting, err error) {
	err = c.run(ctx, bson.D{{Key: "hello", Value: 1}}, &g)
	return g, err
}

// recheckStandalone detects a standalone server that has since joined a replica set.
func (c *conn) recheckStandalone(ctx context.Context) error {
	if !c.standalone.Load() {
		return nil
	}
	g, err := c.hello(ctx)
	if err == nil {
		c.isMongos.Store(g.Msg != "")
		c.standalone.Store(g.SetName == "" && g.Msg == "")
	}
	return err
}

// minVersion is the first major version with snapshot reads outside transactions
// (mongodb.com/docs/manual/reference/read-concern-snapshot).
const minVersion = 5

// run runs an administrative command.
func (c *conn) run(ctx context.Context, command bson.D, into any) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return c.client.Database("admin").RunCommand(ctx, command).Decode(into)
}

// ownCollection returns one of the relay's collections.
func (c *conn) ownCollection(name string) *mongo.Collection { return c.db.Collection(name) }

// update updates all documents that match a filter and returns their number.
func update(ctx context.Context, in *mongo.Collection, filter, update any) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	done, err := in.UpdateMany(ctx, filter, update)
	if err != nil {
		return 0, err
	}
	return done.MatchedCount, nil
}

// withID is the filter for the document with an _id.
func withID(id any) bson.D { return bson.D{{Key: "_id", Value: id}} }

// upsertOne updates the document with an _id, creating it if necessary.
func upsertOne(ctx context.Context, in *mongo.Collection, id, update any) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	_, err := in.UpdateOne(ctx, withID(id), update, options.UpdateOne().SetUpsert(true))
	return err
}

// remove deletes all documents that match a filter and returns their number.
func remove(ctx context.Context, in *mongo.Collection, filter any) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	done, err := in.DeleteMany(ctx, filter)
	if err != nil {
		return 0, err
	}
	return done.DeletedCount, nil
}

// modify updates one document and decodes the result into a value. With upsert it creates the
// document if necessary; else mongo.ErrNoDocuments says that there is none.
func modify(ctx context.Context, in *mongo.Collection, filter, update any, upsert bool, into any) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	opts := options.FindOneAndUpdate().SetUpsert(upsert).SetReturnDocument(options.After)
	return in.FindOneAndUpdate(ctx, filter, update, opts).Decode(into)
}

// findOne reads the document that matches a filter; mongo.ErrNoDocuments if there is none.
func findOne(ctx context.Context, in *mongo.Collection, filter, into any) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return in.FindOne(ctx, filter).Decode(into)
}

// find yields the documents that match a filter, each valid until the next. wait bounds each
// batch. An error comes last.
func find(ctx context.Context, wait time.Duration, in *mongo.Collection, filter any, opts *options.FindOptionsBuilder) iter.Seq2[bson.Raw, error] {
	return func(yield func(bson.Raw, error) bool) {
		first, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		docs, err := in.Find(first, filter, opts)
		if err != nil {
			yield(nil, err)
			return
		}

		defer func() {
			closing, done := context.WithTimeout(context.WithoutCancel(ctx), store.CloseTimeout)
			defer done()
			_ = docs.Close(closing) // docs.Err returns its error
		}()
		for next(ctx, wait, docs) {
			if !yield(docs.Current, nil) {
				return
			}
		}
		if err := docs.Err(); err != nil {
			yield(nil, err)
		}
	}
}

// next advances to the next document, fetching the next batch if necessary.
func next(ctx context.Context, wait time.Duration, docs *mongo.Cursor) bool {
	if docs.RemainingBatchLength() > 0 {
		return docs.Next(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return docs.Next(ctx)
}
