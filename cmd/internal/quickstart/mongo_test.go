package quickstart

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
	"github.com/sluicebox/sluicebox/store"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// newTestMongo returns a database with a new name, which the test's end drops.
func newTestMongo(t *testing.T, server string) (*mongoDatabase, databaseInfo) {
	t.Helper()
	m, at, err := newMongo(server, demodb.NewName(namePrefix))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = servers.OpenMongo(t, at.url).Drop(context.Background()) })
	return m, at
}

func mongoExists(t *testing.T, server, name string) bool {
	t.Helper()
	names, err := servers.OpenMongo(t, server).Client().ListDatabaseNames(context.Background(), bson.M{"name": name})
	if err != nil {
		t.Fatal(err)
	}
	return len(names) > 0
}

// TestMongoSetUpInterrupted cancels setUp later and later, until one signal came in the
// middle and one after the end. Nothing may stay.
func TestMongoSetUpInterrupted(t *testing.T) {
	t.Parallel()
	server, midway, done := servers.SharedMongo(t), false, false
	for after := time.Duration(0); !midway || !done; {
		m, _ := newTestMongo(t, server)
		ctx, cancel := context.WithTimeout(t.Context(), after)
		_, err := m.setUp(ctx)
		cancel()
		if err := m.cleanUp(t.Context(), false); err != nil {
			t.Fatalf("set up for %s: %v; %v", after, err, m.created)
		}
		if mongoExists(t, server, m.name) {
			t.Errorf("interrupted after %s (%v), the database stays", after, err)
		}
		if err == nil {
			done, after = true, after/2
			continue
		}
		midway = midway || m.created
		after += 2*time.Millisecond + after/8
	}
}

// TestMongoTakesNothingAway: cleanUp keeps an existing database of the same name.
func TestMongoTakesNothingAway(t *testing.T) {
	t.Parallel()
	server := servers.SharedMongo(t)
	m, at := newTestMongo(t, server)
	if err := servers.OpenMongo(t, at.url).CreateCollection(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	if _, err := m.setUp(t.Context()); err == nil || !strings.Contains(err.Error(), "create database "+m.name) {
		t.Errorf("set up: %v", err)
	}
	if err := m.cleanUp(t.Context(), false); err != nil {
		t.Error(err)
	}
	if !mongoExists(t, server, m.name) {
		t.Error("a database is gone that somebody else has made")
	}
}

// TestMongoLeftovers: only databases that no client uses are listed.
func TestMongoLeftovers(t *testing.T) {
	t.Parallel()
	server := servers.SharedMongo(t)
	kept, _ := newTestMongo(t, server)
	used, at := newTestMongo(t, server)
	lives, _ := newTestMongo(t, server)
	for _, m := range []*mongoDatabase{kept, used, lives} {
		if _, err := m.setUp(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range []*mongoDatabase{kept, used} {
		if err := m.cleanUp(t.Context(), true); err != nil {
			t.Error(err)
		}
	}
	relay, err := mongo.Connect(options.Client().ApplyURI(at.url).SetAppName("sluicebox " + used.name + " control"))
	if err != nil {
		t.Fatal(err)
	}
	defer demodb.CloseMongo(relay)
	if err := relay.Ping(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := demodb.AwaitUnused(t.Context(), lives.client, kept.name, kept.endTimeout); err != nil { // until the server notices
		t.Fatal(err)
	}
	next, _ := newTestMongo(t, server)
	note, err := next.setUp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{kept.name: true, used.name: false, lives.name: false, next.name: false} {
		if got := strings.Contains(note, "left database "+name+" on this server. To remove it:\n  db.getSiblingDB(\""+name+"\").dropDatabase();\n"); got != want {
			t.Errorf("%s is named: %t, want %t, in:\n%s", name, got, want, note)
		}
	}
	for _, m := range []*mongoDatabase{lives, next} {
		if err := m.cleanUp(t.Context(), false); err != nil {
			t.Error(err)
		}
	}
}

// TestMongoRights: the error for a user without a right names the grant.
func TestMongoRights(t *testing.T) {
	t.Parallel()
	set := servers.StartMongo(t, 1, nil)
	set.Auth()
	set.Run("shop", bson.D{{Key: "createUser", Value: "u"}, {Key: "pwd", Value: "canary"}, {Key: "roles", Value: bson.A{"readWrite"}}})
	own := strings.Replace(strings.Replace(set.URL, "root:root@", "u:canary@", 1), "/?", "/shop?", 1)
	own = strings.Replace(own, "authSource=admin&", "", 1)
	m, _, err := newMongo(own, demodb.NewName(namePrefix))
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.setUp(t.Context())
	var setup *store.SetupError
	if !errors.As(err, &setup) || m.created || !strings.Contains(setup.Remedy, `db.getSiblingDB("shop").grantRolesToUser("u", [{role: "readWrite", db: "`+m.name+`"}`) {
		t.Fatalf("without a right: %v", err)
	}
	if err := m.cleanUp(t.Context(), false); err != nil {
		t.Error(err)
	}
	roles := bson.A{bson.M{"role": "readWrite", "db": m.name}, bson.M{"role": "dbAdmin", "db": m.name}}
	set.Run("shop", bson.D{{Key: "grantRolesToUser", Value: "u"}, {Key: "roles", Value: roles}})
	again, _, err := newMongo(own, m.name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.setUp(t.Context()); err != nil {
		t.Error(err)
	}
	if err := again.cleanUp(t.Context(), false); err != nil {
		t.Error(err)
	}
	if mongoExists(t, set.URL, m.name) {
		t.Error("the database stays")
	}
}

// TestMongoWithoutASet: a standalone server has no transactions and is refused.
func TestMongoWithoutASet(t *testing.T) {
	t.Parallel()
	m, _ := newTestMongo(t, servers.StandaloneMongo(t, nil).URL+"shop")
	_, err := m.setUp(t.Context())
	var setup *store.SetupError
	if !errors.As(err, &setup) || !strings.Contains(setup.Remedy, "rs.initiate()") {
		t.Errorf("set up: %v", err)
	}
	if err := m.cleanUp(t.Context(), false); err != nil {
		t.Error(err)
	}
}

func TestMongoURLs(t *testing.T) {
	for url, want := range map[string]string{
		"mongodb://db/shop":                            "mongodb://db/NAME",
		"mongodb://db1:1,db2:2":                        "mongodb://db1:1,db2:2/NAME",
		"mongodb://db1,db2/?replicaSet=rs0":            "mongodb://db1,db2/NAME?replicaSet=rs0",
		"mongodb://u:canary@db/shop":                   "mongodb://u:canary@db/NAME?authSource=shop",
		"mongodb://u:canary@db/shop?tls=true":          "mongodb://u:canary@db/NAME?tls=true&authSource=shop",
		"mongodb://u:canary@db/":                       "mongodb://u:canary@db/NAME",
		"mongodb+srv://u@db/shop?authSource=admin&w=1": "mongodb+srv://u@db/NAME?authSource=admin&w=1",
	} {
		if got := mongostore.InDatabase(url, "NAME"); got != want {
			t.Errorf("%s with another database is %s, want %s", url, got, want)
		}
	}
	m, at, err := newMongo("mongodb://u:canary@db/shop", "NAME")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(at.inspectCommand+at.removeCommand+at.description, "canary") || !strings.HasPrefix(at.inspectCommand, "mongosh 'mongodb://u@db/NAME?authSource=shop' --eval '") {
		t.Errorf("%s: %s", at.description, at.inspectCommand)
	}
	if m.options.Auth == nil || m.options.Auth.AuthSource != "shop" {
		t.Errorf("the user is of %+v", m.options.Auth)
	}
}
