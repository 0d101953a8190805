package blackbox

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// mongoChaos is the chaosStore of a MongoDB.
type mongoChaos struct{ db *mongo.Database }

func (m mongoChaos) begin(ctx context.Context, rows []*chaosRow) (end func(commit bool) error, err error) {
	session, err := m.db.Client().StartSession()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			session.EndSession(context.WithoutCancel(ctx))
		}
	}()
	if err = session.StartTransaction(); err != nil {
		return nil, err
	}
	documents := map[string][]any{}
	for _, r := range rows {
		var group any = r.group
		if r.group == "" {
			group = nil
		}
		documents[r.table] = append(documents[r.table], bson.M{
			"_id": r.id, "type": r.kind, "messageGroup": group, "payload": r.payload, "retryCount": 0,
			"createdAt": r.at, "status": "PENDING", "processedAt": nil, "errorMessage": nil,
		})
	}
	in := mongo.NewSessionContext(ctx, session)
	for _, table := range seedCollections() {
		if len(documents[table]) == 0 {
			continue
		}
		if _, err = m.db.Collection(table).InsertMany(in, documents[table]); err != nil {
			_ = session.AbortTransaction(context.WithoutCancel(in)) // the server may have ended it
			return nil, err
		}
	}
	return func(commit bool) error {
		defer session.EndSession(context.WithoutCancel(ctx))
		if commit {
			return session.CommitTransaction(in)
		}
		return session.AbortTransaction(in)
	}, nil
}

func (m mongoChaos) exists(err error) bool { return mongo.IsDuplicateKeyError(err) }

func (m mongoChaos) states(ctx context.Context, since time.Time, take func(id, state string)) error {
	for _, collection := range seedCollections() {
		cursor, err := m.db.Collection(collection).Find(ctx, bson.M{"createdAt": bson.M{"$gte": since}}, options.Find().SetProjection(bson.M{"status": 1}))
		if err != nil {
			return err
		}
		for cursor.Next(ctx) {
			id, _ := cursor.Current.Lookup("_id").StringValueOK()
			state, _ := cursor.Current.Lookup("status").StringValueOK()
			take(id, state)
		}
		if err := cursor.Err(); err != nil {
			return err
		}
	}
	return nil
}

// newMongoChaos is a set of one member. Its oplog can be rolled, and holds half a minute of 1000 rows/s. Of a
// smaller one, every fault would fill the half after which rows are spilled.
func newMongoChaos(t *testing.T, onDisk bool) (*scene, *servers.MongoSet, chaosStore, *servers.Disk) {
	t.Helper()
	settings := servers.SmallOplog()
	settings["oplogSize"] = "96"
	set := servers.StartMongo(t, 1, settings)
	var disk *servers.Disk
	if onDisk {
		disk = set.Members[0].OnDisk(chaosDisk)
		set.Restart(nil)
	}
	m := mongoSceneIn(t, set.Database(), "")
	return &scene{t: t, kind: &kind{}, database: m.database, to: m.to, config: m.config}, set, mongoChaos{m.db}, disk
}

// mongoKinds are the faults that only MongoDB has.
func mongoKinds() []chaosKind {
	return []chaosKind{
		{name: "primary steps down", most: 300 * time.Millisecond, on: onMongo, inject: func(c *chaos, _ *rand.Rand) func() {
			c.server.(*servers.MongoSet).StepDown()
			return c.server.(*servers.MongoSet).AwaitMajority
		}},
		{name: "oplog rolled while both are down", least: 300 * time.Millisecond, most: time.Second, on: onMongo, inject: func(c *chaos, _ *rand.Rand) func() {
			a, b := c.relays[0], c.relays[1]
			upA, upB := a.down(a.kill), b.down(b.kill)
			return func() {
				c.server.(*servers.MongoSet).RollOplog()
				upA(c.t)
				upB(c.t)
			}
		}},
		{name: "connections killed", most: 300 * time.Millisecond, on: onMongo, inject: func(c *chaos, _ *rand.Rand) func() {
			admin := c.store.(mongoChaos).db.Client().Database("admin")
			cursor, err := admin.Aggregate(context.Background(), mongo.Pipeline{
				{{Key: "$currentOp", Value: bson.M{"allUsers": true, "idleConnections": true}}},
				{{Key: "$match", Value: bson.M{"appName": bson.M{"$regex": "^sluicebox "}, "opid": bson.M{"$exists": true}}}},
			})
			var operations []struct{ Opid any }
			if err == nil {
				err = cursor.All(context.Background(), &operations)
			}
			if err != nil {
				c.t.Fatal(err)
			}
			for _, op := range operations {
				_ = admin.RunCommand(context.Background(), bson.D{{Key: "killOp", Value: 1}, {Key: "op", Value: op.Opid}}).Err()
			}
			return func() {}
		}},
	}
}
