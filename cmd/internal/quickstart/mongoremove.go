package quickstart

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// mongoRemoval are the statements that remove what the quickstart of a name has in a
// server.
func mongoRemoval(name string) []string {
	return []string{fmt.Sprintf("db.getSiblingDB(%q).dropDatabase()", name)}
}

// cleanUp ends the sessions and, unless it is to be kept, removes the database. It works
// by a client of its own, since the other may be in trouble.
func (m *mongoDatabase) cleanUp(ctx context.Context, keep bool) error {
	closeMongo(ctx, m.client)
	if keep || !m.created {
		return nil
	}
	m.options.SetAppName("sluicebox quickstart, removing")
	client, err := mongo.Connect(m.options)
	if err == nil {
		defer closeMongo(ctx, client)
		if err = m.awaitEnds(ctx, client); err == nil {
			err = m.drop(ctx, client)
		}
	}
	if err != nil {
		return removalError(err, mongoRemoval(m.name))
	}
	return nil
}

// closeMongo closes a client, if it is there.
func closeMongo(ctx context.Context, client *mongo.Client) {
	if client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = client.Disconnect(ctx) // the server may be gone
}

// awaitEnds waits until the server has seen the end of the clients of the quickstart and
// of its relay: it may still be making collections for one that went.
func (m *mongoDatabase) awaitEnds(ctx context.Context, client *mongo.Client) error {
	ctx, cancel := context.WithTimeout(ctx, m.endTimeout)
	defer cancel()
	for {
		used, err := namesInUse(ctx, client)
		if err != nil {
			return fmt.Errorf("wait for the end of the database's clients: %w", err)
		}
		if !used[m.name] {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("wait for the end of the database's clients: one does not end")
		case <-time.After(settlePollInterval):
		}
	}
}

// drop drops the database. A transaction keeps it that the server has not noticed the
// end of: the server ends it after a minute or so.
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

// quickstartName is what newName makes.
var quickstartName = regexp.MustCompile("^" + namePrefix + "[0-9a-f]{8}$")

// leftovers says what quickstarts that were kept or killed have on the server, and how
// it is removed; "" if there is nothing. What a client uses, such as that of a relay
// that goes on with what was kept, is not left.
func (m *mongoDatabase) leftovers(ctx context.Context) (string, error) {
	there, err := m.client.ListDatabaseNames(ctx, bson.D{{Key: "name", Value: bson.D{{Key: "$regex", Value: quickstartName.String()}}}},
		options.ListDatabases().SetAuthorizedDatabases(true))
	var used map[string]bool
	if err == nil && len(there) > 0 {
		used, err = namesInUse(ctx, m.client)
	}
	if err != nil {
		return "", fmt.Errorf("look for what earlier quickstarts have left: %w", err)
	}
	var names []string
	for _, name := range there {
		if !used[name] {
			names = append(names, name)
		}
	}
	return leftoverNote(names, "database %s on this server.", mongoRemoval), nil
}

// namesInUse returns the words in the names of the clients of quickstarts and of relays that
// the user may see: "sluicebox quickstart NAME", "sluicebox NAME" and more.
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
	if hasCode(err, codeUnauthorized) { // for the clients of others
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
