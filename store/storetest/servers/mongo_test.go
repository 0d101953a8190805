package servers_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// runCommand runs a command and returns the answer.
func runCommand(t *testing.T, db *mongo.Database, command bson.D) bson.Raw {
	t.Helper()
	answer, err := db.RunCommand(t.Context(), command).Raw()
	if err != nil {
		t.Fatalf("%v, in: %v", err, command)
	}
	return answer
}

// note writes a document with majority write concern and journaling.
func note(t *testing.T, db *mongo.Database, n int) {
	t.Helper()
	if _, err := db.Collection("kept").InsertOne(t.Context(), bson.M{"_id": n}); err != nil {
		t.Fatal(err)
	}
}

// noteAfterAll is note for a set that may still have an old primary which does not know of
// its replacement. That primary accepts the write and rolls it back, and the driver retries
// only once.
func noteAfterAll(t *testing.T, db *mongo.Database, n int) {
	t.Helper()
	for t.Context().Err() == nil {
		_, err := db.Collection("kept").InsertOne(t.Context(), bson.M{"_id": n})
		if err == nil || mongo.IsDuplicateKeyError(err) {
			return
		}
		var server mongo.ServerError
		if !errors.As(err, &server) || !server.HasErrorLabel("RetryableWriteError") {
			t.Fatal(err)
		}
		t.Logf("noted again, since %v", err)
	}
}

// noted counts the documents.
func noted(t *testing.T, db *mongo.Database) int64 {
	t.Helper()
	n, err := db.Collection("kept").CountDocuments(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestMongoDatabaseIsDropped(t *testing.T) {
	t.Parallel()
	server := servers.OpenMongo(t, servers.SharedMongo(t)).Client()
	var name string
	t.Run("inner", func(t *testing.T) {
		// A dead process: nothing ends its transaction, which would block the drop.
		left, err := mongo.Connect(options.Client().ApplyURI(servers.SharedMongo(t)))
		if err != nil {
			t.Fatal(err)
		}

		t.Cleanup(func() { _ = left.Disconnect(context.Background()) }) // after the drop
		url := servers.Mongo(t)
		db := servers.OpenMongo(t, url)
		name = db.Name()
		note(t, db, 1)
		session, err := left.StartSession()
		if err != nil {
			t.Fatal(err)
		}
		if err := session.StartTransaction(); err != nil {
			t.Fatal(err)
		}

		ctx := mongo.NewSessionContext(context.WithoutCancel(t.Context()), session)
		if _, err := left.Database(name).Collection("kept").InsertOne(ctx, bson.M{"_id": 2}); err != nil {
			t.Fatal(err)
		}

		note(t, servers.OpenMongo(t, servers.Mongo(t)), 1)
	})

	names, err := server.ListDatabaseNames(t.Context(), bson.M{"name": name})
	if err != nil || len(names) > 0 {
		t.Errorf("database %s is still there: %v %v", name, names, err)
	}
}

func TestSharedMongoIsLikeAUsers(t *testing.T) {
	t.Parallel()
	db := servers.OpenMongo(t, servers.SharedMongo(t))
	info := runCommand(t, db, bson.D{{Key: "buildInfo", Value: 1}})
	if version := info.Lookup("version").StringValue(); !strings.HasPrefix(version, "6.") {
		t.Errorf("version %s, want 6…", version)
	}

	config := runCommand(t, db, bson.D{{Key: "replSetGetConfig", Value: 1}})
	if durable := config.Lookup("config", "writeConcernMajorityJournalDefault").Boolean(); !durable {
		t.Error("a majority need not have journalled a write")
	}

	concern := runCommand(t, db, bson.D{{Key: "getDefaultRWConcern", Value: 1}})
	if w := concern.Lookup("defaultWriteConcern", "w").StringValue(); w != "majority" {
		t.Errorf("the default write concern is %s", w)
	}
}

func TestMongoCrashRestart(t *testing.T) {
	t.Parallel()
	s := servers.StartMongo(t, 1, map[string]string{"setParameter transactionLifetimeLimitSeconds": "77"})
	db := servers.OpenMongo(t, s.Database())
	got := s.Run("admin", bson.D{{Key: "getParameter", Value: 1}, {Key: "transactionLifetimeLimitSeconds", Value: 1}})
	if n := got.Lookup("transactionLifetimeLimitSeconds").AsInt64(); n != 77 {
		t.Errorf("transactionLifetimeLimitSeconds = %d, want 77", n)
	}

	note(t, db, 1)
	t.Logf("crashed in %v", s.Stop("immediate"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := db.Client().Ping(ctx, nil); err == nil {
		t.Fatal("the stopped server takes connections")
	}
	if took := s.Members[0].Stop("fast"); took != 0 {
		t.Errorf("stopping a stopped server took %v", took)
	}

	s.Restart(map[string]string{"oplogSize": "99"})
	if log := s.Members[0].Log(); !strings.Contains(log, "Detected unclean shutdown") {
		t.Errorf("the restart recovered nothing:\n%s", log)
	}
	if n := noted(t, db); n != 1 {
		t.Errorf("%d documents, want 1", n)
	}

	t.Logf("stopped in %v", s.Stop("fast"))
}

func TestMongoElections(t *testing.T) {
	t.Parallel()
	s := servers.StartMongo(t, 3, nil)
	db := servers.OpenMongo(t, s.Database())
	note(t, db, 1)

	began := time.Now()
	stepped := s.StepDown()
	next := s.Primary()
	t.Logf("a step-down took %v", time.Since(began))
	if next == stepped {
		t.Error("the primary that stepped down is primary again")
	}

	note(t, db, 2)

	began = time.Now()
	next.Freeze()
	third := s.Primary()
	t.Logf("a frozen primary was replaced in %v", time.Since(began))
	if third == next {
		t.Error("a frozen member is primary")
	}

	next.Thaw() // otherwise a majority accepts no write for a minute: see AwaitMajority
	noteAfterAll(t, db, 3)

	began = time.Now()
	third.Stop("immediate")
	if s.Primary() == third {
		t.Error("a dead member is primary")
	}

	t.Logf("a dead primary was replaced in %v", time.Since(began))
	note(t, db, 4)
	s.Restart(nil)
	if n := noted(t, db); n != 4 {
		t.Errorf("%d documents, want 4", n)
	}
}

func TestMongoStepDownOfOne(t *testing.T) {
	t.Parallel()
	s := servers.StartMongo(t, 1, nil)
	if s.StepDown() != s.Primary() {
		t.Error("the only member is not primary")
	}
}

func TestMongoOplogIsRolled(t *testing.T) {
	t.Parallel()
	s := servers.StartMongo(t, 1, servers.SmallOplog())
	db := servers.OpenMongo(t, s.Database())
	stream, err := db.Collection("kept").Watch(t.Context(), mongo.Pipeline{})
	if err != nil {
		t.Fatal(err)
	}

	note(t, db, 1)
	if !stream.Next(t.Context()) {
		t.Fatal(stream.Err())
	}

	token := stream.ResumeToken()
	if err := stream.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	began := time.Now()
	s.RollOplog()
	t.Logf("rolled in %v", time.Since(began))
	_, err = db.Collection("kept").Watch(t.Context(), mongo.Pipeline{}, options.ChangeStream().SetResumeAfter(token))
	const historyLost = 286 // ChangeStreamHistoryLost
	var server mongo.ServerError
	if !errors.As(err, &server) || !server.HasErrorCode(historyLost) {
		t.Errorf("a stream after what is gone: %v", err)
	}
}

func TestMongoTLSAndAuth(t *testing.T) {
	t.Parallel()
	s := servers.StartMongo(t, 1, nil)
	stranger := servers.OpenMongo(t, s.Database())
	s.Auth()
	if err := stranger.RunCommand(t.Context(), bson.D{{Key: "listCollections", Value: 1}}).Err(); err == nil {
		t.Error("a stranger is let in")
	}

	authority, err := os.ReadFile(s.TLS())
	if err != nil {
		t.Fatal(err)
	}

	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	client, err := mongo.Connect(options.Client().ApplyURI(s.URL).SetTLSConfig(&tls.Config{RootCAs: roots}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) }()
	note(t, client.Database("t"), 1)
}

func TestPyMongo(t *testing.T) {
	t.Parallel()
	at := servers.Mongo(t)
	file := filepath.Join(t.TempDir(), "insert.py")
	const program = "import pymongo, sys\npymongo.MongoClient(sys.argv[1]).get_default_database().kept.insert_one({'_id': 1})\n"
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := servers.PyMongo(t, file, at).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := noted(t, servers.OpenMongo(t, at)); n != 1 {
		t.Errorf("%d documents, want 1", n)
	}
	if u, err := url.Parse(at); err != nil || !strings.HasPrefix(u.Path, "/t_") {
		t.Errorf("the database's URL is %s, %v", at, err)
	}
}

func TestMissingMongo(t *testing.T) {
	if testing.Short() {
		t.Skip("a short run skips in CI too")
	}

	t.Setenv("CI", "")
	t.Setenv("SLUICEBOX_TEST_MONGO_URL", "")
	o := &outcome{TB: t}
	func() {
		defer func() { _ = recover() }()
		servers.SharedMongo(o)
	}()
	if !strings.Contains(o.skipped, "MongoDB") || !strings.Contains(o.skipped, "make test") {
		t.Errorf("%+v", o)
	}
}
