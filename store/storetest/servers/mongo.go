package servers

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// mongoName is how MongoDB's servers are called in messages.
const mongoName = "MongoDB"

func mongoVariable(what string) string { return "SLUICEBOX_TEST_MONGO_" + what }

// SharedMongo returns the URL of the shared server of MongoDB 6,
// mongodb://127.0.0.1:port/?replicaSet=rs0, a replica set of one member. It lets
// everybody do everything. The test is skipped if there is no such server. Whoever
// reads its log sees the transactions of all tests.
func SharedMongo(tb testing.TB) string {
	tb.Helper()
	return demand(tb, mongoVariable("URL"), mongoName)
}

// Mongo names a new database in the shared server and returns its URL. MongoDB makes
// a database with its first collection. When the test ends, transactions that are
// left in it are ended and then it is dropped.
func Mongo(tb testing.TB) string {
	tb.Helper()
	server := SharedMongo(tb)
	at, name := mongoDatabase(tb, server)
	tb.Cleanup(func() {
		if err := DropMongo(server, name); err != nil {
			tb.Errorf("dropping the test's database: %v", err)
		}
	})
	return at
}

// mongoDatabase returns the URL of a new database in a server, and its name.
func mongoDatabase(tb testing.TB, server string) (at, name string) {
	tb.Helper()
	before, _, query := splitMongo(tb, server)
	name = databaseName(tb)
	return before + "/" + name + query, name
}

// splitMongo takes a URL apart: what is before the database's name, the name, and what
// is behind it. The standard library does not take a URL with several hosts.
func splitMongo(tb testing.TB, text string) (before, name, behind string) {
	tb.Helper()
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		tb.Fatalf("%s must be a URL", mongoVariable("URL"))
	}
	end := len(rest)
	if i := strings.IndexByte(rest, '?'); i >= 0 {
		end = i
	}
	hosts, name, _ := strings.Cut(rest[:end], "/")
	return scheme + "://" + hosts, name, rest[end:]
}

// OpenMongo returns the database that a URL names, or admin, by way of a client that
// is closed when the test ends.
func OpenMongo(tb testing.TB, text string) *mongo.Database {
	tb.Helper()
	_, name, _ := splitMongo(tb, text)
	client, err := openMongo(text)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closeMongo(client) })
	return client.Database(cmp.Or(name, "admin"))
}

// openMongo connects to nothing yet. Its driver asks the servers now and then whether
// they are there: else a question is always open, on a goroutine that is another each
// time, and tests look for goroutines that are left. It asks as often as it may, 10 s
// being its default: what it asks of a primary that has lost its place to another fails
// until then.
func openMongo(text string) (*mongo.Client, error) {
	const often = 500 * time.Millisecond // https://www.mongodb.com/docs/manual/reference/connection-string-options/, heartbeatFrequencyMS
	opts := options.Client().ApplyURI(text).SetServerSelectionTimeout(connectTimeout).SetHeartbeatInterval(often)
	return mongo.Connect(opts.SetServerMonitoringMode(options.ServerMonitoringModePoll))
}

// closeMongo ends what the client has open at the server, if that still answers.
func closeMongo(client *mongo.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = client.Disconnect(ctx) // the server may be gone
}

// PyMongo returns a command of Python, whose programs may import pymongo.
func PyMongo(tb testing.TB, args ...string) *exec.Cmd {
	tb.Helper()
	cmd := exec.Command("python3", args...)
	cmd.Env = append(environment(""), "PYTHONPATH="+demand(tb, "SLUICEBOX_TEST_PYMONGO_BIN", "pymongo"), "PYTHONDONTWRITEBYTECODE=1")
	return cmd
}

// DropMongo drops a database of the shared server, whose URL may name another one. A
// transaction that a process left behind keeps it, and the server waits for a minute and
// more before it ends that by itself.
func DropMongo(server, name string) error {
	const patience = 2 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
	defer cancel()
	client, err := openMongo(server)
	if err != nil {
		return err
	}
	defer closeMongo(client)
	for range dropTries {
		bound, done := context.WithTimeout(ctx, patience)
		err = client.Database(name).Drop(bound)
		done()
		if err == nil {
			return nil
		}
		if ended := endTransactions(ctx, client, name); ended != nil {
			return errors.Join(err, ended)
		}
	}
	return err
}

// lockedBy finds the session of a transaction in what the server says of a lock.
var lockedBy = regexp.MustCompile(`lsid: \{ id: UUID\("([0-9a-f-]{36})"\)`)

// endTransactions ends the transactions that lock a database.
func endTransactions(ctx context.Context, client *mongo.Client, name string) error {
	admin := client.Database("admin")
	var answer struct {
		Locks []struct {
			Resource string `bson:"resourceId"`
			Granted  []struct {
				By string `bson:"debugInfo"`
			}
		} `bson:"lockInfo"`
	}
	if err := admin.RunCommand(ctx, doc("lockInfo", 1)).Decode(&answer); err != nil {
		return err
	}
	sessions := bson.A{}
	for _, lock := range answer.Locks {
		if !strings.HasSuffix(lock.Resource, ", "+name+"}") {
			continue
		}
		for _, granted := range lock.Granted {
			if by := lockedBy.FindStringSubmatch(granted.By); by != nil {
				id, err := hex.DecodeString(strings.ReplaceAll(by[1], "-", ""))
				if err != nil {
					return err
				}
				sessions = append(sessions, doc("id", bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id}))
			}
		}
	}
	if len(sessions) == 0 {
		return nil // for the server, none named is all there are
	}
	return admin.RunCommand(ctx, doc("killSessions", sessions)).Err()
}
