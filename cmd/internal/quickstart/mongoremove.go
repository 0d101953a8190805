package quickstart

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
	"github.com/sluicebox/sluicebox/store/backoff"
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
		if err = m.awaitEnds(ctx, client); err == nil {
			err = m.drop(ctx, client)
		}
	}
	if err != nil {
		return removalError(err, mongoRemoval(m.name))
	}
	return nil
}

// awaitEnds waits until the server has noticed that the clients of the quickstart and
// of its relay are gone. Until then it may still create collections for them.
func (m *mongoDatabase) awaitEnds(ctx context.Context, client *mongo.Client) error {
	ctx, cancel := context.WithTimeout(ctx, m.endTimeout)
	defer cancel()
	for {
		used, err := namesInUse(ctx, client)
		if err != nil {
			return fmt.Errorf("wait for clients of the database to end: %w", err)
		}
		if !used[m.name] {
			return nil
		}
		if backoff.Sleep(ctx, settlePollInterval) != nil {
			return errors.New("wait for clients of the database to end: timeout")
		}
	}
}

// drop drops the database. An abandoned transaction can block the drop until the
// server aborts it, after a minute or so, so drop retries after a timeout.
func (m *mongoDatabase) drop(ctx context.Context, client *mongo.Client) error {
	for {
		bound, cancel := context.WithTimeout(ctx, m.endTimeout)
		err := client.Database(m.name).Drop(bound)
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil || !mongo.IsTimeout(err):
			return fmt.Errorf("drop database %s: %w", m.name, err)
		}
	}
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
		used, err = namesInUse(ctx, m.client)
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

// namesInUse returns all words of the application names of connected quickstarts and
// relays, as far as the user may see them. For example, "sluicebox quickstart NAME"
// and "sluicebox NAME" contain NAME.
func namesInUse(ctx context.Context, client *mongo.Client) (map[string]bool, error) {
	look := func(all bool) (list []struct {
		Name string `bson:"appName"`
	}, err error) {
		cursor, err := client.Database("admin").Aggregate(ctx, mongo.Pipeline{
			{{Key: "$currentOp", Value: bson.D{{Key: "allUsers", Value: all}, {Key: "idleConnections", Value: true}, {Key: "idleSessions", Value: false}}}},
			{{Key: "$match", Value: bson.D{{Key: "appName", Value: bson.D{{Key: "$regex", Value: "^sluicebox "}}}}}},
			{{Key: "$project", Value: bson.D{{Key: "appName", Value: 1}}}},
		})
		if err != nil {
			return nil, err
		}
		return list, cursor.All(ctx, &list)
	}

	list, err := look(true)
	if demodb.Unauthorized(err) { // may not see the clients of other users
		list, err = look(false)
	}

	words := map[string]bool{}
	for _, client := range list {
		for word := range strings.FieldsSeq(client.Name) {
			words[word] = true
		}
	}
	return words, err
}
