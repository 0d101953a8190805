package quickstart

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
	"github.com/sluicebox/sluicebox/store"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
)

// mongoDatabase is the quickstart's own database in a MongoDB replica set. The
// relay's collections are in it too.
type mongoDatabase struct {
	name       string // of the database and the relay
	options    *options.ClientOptions
	endTimeout time.Duration // demodb.EndTimeout, but shorter in tests

	client *mongo.Client
	// created is set once the server may have objects to remove.
	created bool
}

// newMongo prepares a database on the server of a URL, without connecting. It does
// not use the database that the URL names.
func newMongo(raw, name string) (*mongoDatabase, databaseInfo, error) {
	at := mongostore.InDatabase(raw, name)
	opts, _, err := mongostore.ParseURL(at, "sluicebox quickstart "+name)
	if err != nil {
		return nil, databaseInfo{}, err
	}
	shell := "mongosh " + shellWord(withoutMongoPassword(at)) + " --eval "
	return &mongoDatabase{name: name, options: opts, endTimeout: demodb.EndTimeout}, databaseInfo{
		name: name, url: at, table: "outbox_events",
		description:    fmt.Sprintf("database %s on %s", name, strings.Join(opts.Hosts, ", ")),
		inspectCommand: shell + `'db.outbox_events.aggregate([{$group: {_id: "$status", documents: {$sum: 1}, retries: {$max: "$retryCount"}}}])'`,
		removeCommand:  shell + "'db.dropDatabase()'",
	}, nil
}

// withoutMongoPassword removes the password from a connection string. The mongosh
// shell then prompts for it.
func withoutMongoPassword(raw string) string {
	scheme, rest, _ := strings.Cut(raw, "://")
	login, behind, has := strings.Cut(rest, "@")
	if user, _, secret := strings.Cut(login, ":"); has && secret {
		return scheme + "://" + user + "@" + behind
	}
	return raw
}

func (m *mongoDatabase) setUp(ctx context.Context) (note string, err error) {
	if m.client, err = demodb.OpenMongo(m.options); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := m.checkReplicaSet(ctx); err != nil {
		return "", err
	}
	if note, err = m.leftovers(ctx); err != nil {
		return "", err
	}
	if err := m.makeCollections(ctx); err != nil {
		return "", m.explain(err)
	}
	return note, nil
}

func (m *mongoDatabase) hosts() string { return strings.Join(m.options.Hosts, ", ") }

// checkReplicaSet returns an error unless the server is part of a replica set or a
// mongos. An order and its outbox document are written in one transaction, which a
// standalone server does not have.
func (m *mongoDatabase) checkReplicaSet(ctx context.Context) error {
	var hello struct {
		SetName string `bson:"setName"`
		Msg     string
	}
	if err := m.client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		return fmt.Errorf("connect to %s: %w", m.hosts(), err)
	}
	const router = "isdbgrid" // the msg of a mongos
	if hello.SetName == "" && hello.Msg != router {
		return &store.SetupError{
			Problem: "server " + m.hosts() + " is not a replica set member and has no transactions",
			Remedy:  "start mongod with --replSet rs0, and run once in mongosh:\nrs.initiate()",
		}
	}
	return nil
}

// makeCollections creates the collections of the example service.
func (m *mongoDatabase) makeCollections(ctx context.Context) error {
	db := m.client.Database(m.name)
	err := db.CreateCollection(ctx, "orders")
	// A refused command has created nothing. After a timeout the collection may
	// exist, for example if the command was waiting for a majority.
	var refusal mongo.CommandError
	m.created = !errors.As(err, &refusal) || mongo.IsNetworkError(err) || mongo.IsTimeout(err)
	if err != nil {
		return err
	}
	_, err = db.Collection("outbox_events").Indexes().CreateOne(ctx, mongo.IndexModel{
		Keys: bson.D{{Key: "status", Value: 1}, {Key: "messageGroup", Value: 1}, {Key: "createdAt", Value: 1}},
	})
	return err
}

// explain adds the missing grant to an authorization error.
func (m *mongoDatabase) explain(err error) error {
	user := ""
	if m.options.Auth != nil {
		user = m.options.Auth.Username
	}
	if !demodb.Unauthorized(err) || user == "" {
		return fmt.Errorf("create database %s: %w", m.name, err)
	}
	source := m.options.Auth.AuthSource
	return &store.SetupError{
		Problem: fmt.Sprintf("user %s lacks privileges for a database of its own: %s", user, err),
		Remedy: "run in mongosh as an administrator, or use another user:\n" +
			fmt.Sprintf(`db.getSiblingDB(%q).grantRolesToUser(%q, [{role: "readWrite", db: %q}, {role: "dbAdmin", db: %q}])`, source, user, m.name, m.name) +
			"\nor, to cover the new name of each quickstart: readWriteAnyDatabase and dbAdminAnyDatabase in admin",
	}
}

func (m *mongoDatabase) session(ctx context.Context) (session, error) {
	s, err := m.client.StartSession()
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", m.hosts(), err)
	}
	return &mongoSession{session: s, db: m.client.Database(m.name)}, nil
}

// mongoSession is the session of one writer.
type mongoSession struct {
	session *mongo.Session
	db      *mongo.Database
}

// commit writes both documents in one transaction. The driver retries it after
// transient transaction errors.
func (s *mongoSession) commit(ctx context.Context, o order) error {
	_, err := s.session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		now := time.Now()
		_, err := s.db.Collection("orders").InsertOne(ctx, bson.D{
			{Key: "_id", Value: o.id()}, {Key: "customer", Value: o.customer()}, {Key: "amountCents", Value: o.cents()}, {Key: "createdAt", Value: now},
		})
		if err != nil {
			return nil, fmt.Errorf("insert order %s: %w", o.id(), err)
		}
		_, err = s.db.Collection("outbox_events").InsertOne(ctx, bson.D{
			{Key: "_id", Value: o.id()}, {Key: "type", Value: "EVENT"}, {Key: "messageGroup", Value: o.customer()}, {Key: "payload", Value: o.payload()},
			{Key: "status", Value: "PENDING"}, {Key: "retryCount", Value: 0}, {Key: "createdAt", Value: now},
			{Key: "processedAt", Value: nil}, {Key: "errorMessage", Value: nil},
		})
		if err != nil {
			return nil, fmt.Errorf("insert outbox document of order %s: %w", o.id(), err)
		}
		return nil, nil
	})
	if err != nil {
		return fmt.Errorf("commit order %s: %w", o.id(), err)
	}
	return nil
}

func (s *mongoSession) close() { s.session.EndSession(context.Background()) }

func (m *mongoDatabase) countByStatus(ctx context.Context) (map[string]int, error) {
	cursor, err := m.client.Database(m.name).Collection("outbox_events").Aggregate(ctx, mongo.Pipeline{
		{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$status"}, {Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}}}}},
	})
	var counts []struct {
		Status string `bson:"_id"`
		N      int
	}
	if err == nil {
		err = cursor.All(ctx, &counts)
	}
	if err != nil {
		return nil, fmt.Errorf("count documents by status: %w", err)
	}
	states := map[string]int{}
	for _, c := range counts {
		states[c.Status] = c.N
	}
	return states, nil
}

// isStreaming looks for the relay's checkpoint record. Before it reads the log, the relay
// clears its checkpoint, which creates the record. A polling relay saves none.
func (m *mongoDatabase) isStreaming(ctx context.Context) (bool, error) {
	key := bson.D{{Key: "relay", Value: m.name}, {Key: "kind", Value: "relay"}, {Key: "key", Value: "checkpoint"}}
	n, err := m.client.Database(m.name).Collection("sluicebox_record").CountDocuments(ctx, bson.D{{Key: "_id", Value: key}})
	if err != nil {
		return false, fmt.Errorf("look up relay checkpoint: %w", err)
	}
	return n > 0, nil
}
