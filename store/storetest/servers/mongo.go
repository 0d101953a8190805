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

// mongoName is the name of the MongoDB servers in messages.
const mongoName = "MongoDB"

func mongoVariable(what string) string { return "SLUICEBOX_TEST_MONGO_" + what }

// SharedMongo returns the URL of the shared MongoDB 6 server,
// mongodb://127.0.0.1:port/?replicaSet=rs0. It is a replica set of one member without
// access control, and its oplog contains the transactions of all tests. The test is skipped
// if there is no such server.
func SharedMongo(tb testing.TB) string {
	tb.Helper()
	return requireEnv(tb, mongoVariable("URL"), mongoName)
}

// Mongo returns the URL of a new database in the shared server. MongoDB creates a database
// with its first collection. The end of the test aborts open transactions in the database
// and drops it.
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

// mongoDatabase returns the URL and the name of a new database in a server.
func mongoDatabase(tb testing.TB, server string) (at, name string) {
	tb.Helper()
	before, _, query := splitMongo(tb, server)
	name = databaseName(tb)
	return before + "/" + name + query, name
}

// splitMongo splits a URL into the part before the database name, the name, and the part
// after it. It does not use net/url, which does not parse URLs with several hosts.
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

// OpenMongo returns the database in the URL, or admin. Its client is closed when the test
// ends.
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

// openMongo creates a client, which connects later.
//
// The driver polls the servers instead of streaming their state, because a streaming
// monitor always has an open call, each time on a new goroutine, and tests check for leaked
// goroutines. The interval is the shortest that the driver allows (default 10 s), because
// calls to a primary that was replaced fail until the next poll.
func openMongo(text string) (*mongo.Client, error) {
	const interval = 500 * time.Millisecond // minimum of heartbeatFrequencyMS, https://www.mongodb.com/docs/manual/reference/connection-string-options/
	opts := options.Client().ApplyURI(text).SetServerSelectionTimeout(connectTimeout).SetHeartbeatInterval(interval)
	return mongo.Connect(opts.SetServerMonitoringMode(options.ServerMonitoringModePoll))
}

// closeMongo closes the client's sessions on the server, if the server responds.
func closeMongo(client *mongo.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = client.Disconnect(ctx) // the server may be down
}

// PyMongo returns a Python command that can import pymongo.
func PyMongo(tb testing.TB, args ...string) *exec.Cmd {
	tb.Helper()
	cmd := exec.Command("python3", args...)
	cmd.Env = append(environment(""), "PYTHONPATH="+requireEnv(tb, "SLUICEBOX_TEST_PYMONGO_BIN", "pymongo"), "PYTHONDONTWRITEBYTECODE=1")
	return cmd
}

// DropMongo drops a database of the shared server; the URL may name another database. A
// transaction of a dead process blocks the drop, and the server aborts it only after a
// minute or more, so DropMongo ends such transactions.
func DropMongo(server, name string) error {
	const tryTimeout = 2 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
	defer cancel()
	client, err := openMongo(server)
	if err != nil {
		return err
	}
	defer closeMongo(client)
	for range dropTries {
		bound, done := context.WithTimeout(ctx, tryTimeout)
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

// lockedBy matches the session of a transaction in lockInfo's debug text.
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
		return nil // killSessions without ids ends all sessions
	}

	return admin.RunCommand(ctx, doc("killSessions", sessions)).Err()
}
