package quickstart

import (
	"context"
	"fmt"
	"regexp"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
)

// mongoRemoval returns the statements that remove everything of the named
// quickstart from a server.
func mongoRemoval(name string) []string {
	return []string{fmt.Sprintf("db.getSiblingDB(%q).dropDatabase()", name)}
}

// cleanUp ends the sessions and, unless keep is set, drops the database. It opens a
// client of its own, because the other may have lost its connection.
func (m *mongoDatabase) cleanUp(ctx context.Context, keep bool) error {
	demodb.CloseMongo(m.client)
	if keep || !m.created {
		return nil
	}
	m.options.SetAppName("sluicebox quickstart, removing")
	client, err := demodb.OpenMongo(m.options)
	if err == nil {
		defer demodb.CloseMongo(client)
		err = demodb.DropMongo(ctx, client, m.name, m.endTimeout)
	}
	if err != nil {
		return removalError(err, mongoRemoval(m.name))
	}
	return nil
}

// quickstartName matches the names of quickstarts.
var quickstartName = regexp.MustCompile("^" + namePrefix + "[0-9a-f]{8}$")

// leftovers lists the databases of kept and killed quickstarts on the server, with
// the statements that drop them, or returns "" if there are none. A database that a
// client uses is not listed: for example, a relay may run on a kept one.
func (m *mongoDatabase) leftovers(ctx context.Context) (string, error) {
	there, err := m.client.ListDatabaseNames(ctx, bson.D{{Key: "name", Value: bson.D{{Key: "$regex", Value: quickstartName.String()}}}},
		options.ListDatabases().SetAuthorizedDatabases(true))
	var used map[string]bool
	if err == nil && len(there) > 0 {
		used, err = demodb.MongoUsers(ctx, m.client)
	}
	if err != nil {
		return "", fmt.Errorf("list leftovers of earlier quickstarts: %w", err)
	}
	var names []string
	for _, name := range there {
		if !used[name] {
			names = append(names, name)
		}
	}
	return leftoverNote(names, "database %s on this server.", mongoRemoval), nil
}
