package blackbox

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// scaleKey is a row of a fleet's outbox: the n-th of its group.
type scaleKey struct{ group, n int }

// id orders the rows of a group: a snapshot sends those of one time by their ids.
func (k scaleKey) id() string      { return fmt.Sprintf("%09d-%d", k.n, k.group) }
func (k scaleKey) name() string    { return fmt.Sprint("g", k.group) }
func (k scaleKey) payload() string { return fmt.Sprintf(`{"g":%d,"n":%d}`, k.group, k.n) }

// scaleTable is a fleet's outbox.
type scaleTable interface {
	// insert commits rows in one transaction.
	insert(rows []scaleKey) error
	// open counts the rows that are not COMPLETED.
	open(t *testing.T) int
}

// scaleDatabases returns the kinds of databases to run a fleet on: a PostgreSQL and another one, or all selected.
func scaleDatabases(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, version := range servers.Spread(t, servers.Versions()) {
		names = append(names, fmt.Sprint("pg", version))
	}
	others := []string{"mongo"}
	for _, f := range servers.Flavours() {
		others = append(others, mysqlHost(f).name)
	}
	return append(names, servers.Spread(t, others)...)
}

// onFleets runs a test with a fleet on each kind of database.
func onFleets(t *testing.T, test func(t *testing.T, s *scaleFleet)) {
	for _, name := range scaleDatabases(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newScaleFleet(t, name))
		})
	}
}

// aPostgresFleet is a fleet on PostgreSQL. Measurements use it.
func aPostgresFleet(t *testing.T) *scaleFleet {
	t.Helper()
	versions := servers.Spread(t, servers.Versions())
	if len(versions) == 0 {
		t.Skip("none of the selected servers")
	}
	return newScaleFleet(t, fmt.Sprint("pg", versions[0]))
}

// scaleDatabase returns the URL of an empty database, and its outbox, which init has yet to create.
func scaleDatabase(t *testing.T, name string) (string, scaleTable) {
	t.Helper()
	if name == "mongo" {
		url := servers.Mongo(t)
		return url, mongoScaleTable{servers.OpenMongo(t, url)}
	}
	for _, h := range hosts() {
		if h.name == name {
			url := h.database(t)
			return url, sqlScaleTable{connect(t, url)}
		}
	}
	t.Fatalf("there is no database %s", name)
	return "", nil
}

// sqlScaleTable is the outbox on PostgreSQL, MySQL and MariaDB.
type sqlScaleTable struct{ *conn }

func (d sqlScaleTable) insert(rows []scaleKey) error {
	values := make([]string, len(rows))
	for i, k := range rows {
		values[i] = fmt.Sprintf("('%s', 'EVENT', '%s', '%s')", k.id(), k.name(), k.payload())
	}
	_, err := d.exec("INSERT INTO letters (id, type, message_group, payload) VALUES " + strings.Join(values, ","))
	return err
}

func (d sqlScaleTable) open(t *testing.T) int {
	t.Helper()
	return count(t, d.conn, "SELECT count(*) FROM letters WHERE status <> 1")
}

// mongoScaleTable is the outbox on MongoDB.
type mongoScaleTable struct{ *mongo.Database }

func (d mongoScaleTable) insert(rows []scaleKey) error {
	documents := make([]any, len(rows))
	for i, k := range rows {
		documents[i] = bson.M{
			"_id": k.id(), "type": "EVENT", "messageGroup": k.name(), "payload": k.payload(), "status": 0,
			"retryCount": 0, "createdAt": time.Now(), "updatedAt": time.Now(),
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	return d.Client().UseSession(ctx, func(in context.Context) error {
		_, err := mongo.SessionFromContext(in).WithTransaction(in, func(in context.Context) (any, error) {
			return d.Collection("letters").InsertMany(in, documents)
		})
		return err
	})
}

func (d mongoScaleTable) open(t *testing.T) int {
	t.Helper()
	n, err := d.Collection("letters").CountDocuments(t.Context(), bson.M{"status": bson.M{"$ne": 1}})
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}
