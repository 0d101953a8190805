package demodb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
)

// OpenMongo makes a client, which connects with its first command. The caller closes it with
// CloseMongo.
func OpenMongo(opts *options.ClientOptions) (*mongo.Client, error) {
	client, err := mongo.Connect(opts)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", strings.Join(opts.Hosts, ", "), mongostore.Explain(err))
	}
	return client, nil
}

// CloseMongo closes a client. It waits at most store.CloseTimeout for the server. A nil client
// is ignored.
func CloseMongo(client *mongo.Client) {
	if client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), store.CloseTimeout)
	defer cancel()
	_ = client.Disconnect(ctx) // the server may be gone
}

// codeUnauthorized is the server error Unauthorized; see
// https://github.com/mongodb/mongo/blob/v6.0/src/mongo/base/error_codes.yml.
const codeUnauthorized = 13

// Unauthorized reports whether the server refused a command because the user lacks a role.
func Unauthorized(err error) bool {
	var server mongo.ServerError
	return errors.As(err, &server) && server.HasErrorCode(codeUnauthorized)
}

// unusedPollInterval is the time between two checks for clients of a database.
const unusedPollInterval = 50 * time.Millisecond

// DropMongo drops a database that no client uses, see AwaitUnused. An abandoned transaction can
// block the drop until the server aborts it, after a minute or so, so DropMongo repeats it after
// each wait, until the context ends.
func DropMongo(ctx context.Context, client *mongo.Client, name string, wait time.Duration) error {
	if err := AwaitUnused(ctx, client, name, wait); err != nil {
		return err
	}
	for {
		bound, cancel := context.WithTimeout(ctx, wait)
		err := client.Database(name).Drop(bound)
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil || !mongo.IsTimeout(err):
			return fmt.Errorf("drop database %s: %w", name, err)
		}
	}
}

// AwaitUnused waits until the server has noticed that the clients of a database are gone. Until
// then it may still create collections for them.
func AwaitUnused(ctx context.Context, client *mongo.Client, name string, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		used, err := MongoUsers(ctx, client)
		if err != nil {
			return fmt.Errorf("wait for clients of the database to end: %w", err)
		}
		if !used[name] {
			return nil
		}
		if backoff.Sleep(ctx, unusedPollInterval) != nil {
			return errors.New("wait for clients of the database to end: timeout")
		}
	}
}

// MongoUsers returns all words of the application names of connected relays and commands, as far as the user may see them. For example, "sluicebox quickstart NAME"
// and "sluicebox NAME" contain NAME.
func MongoUsers(ctx context.Context, client *mongo.Client) (map[string]bool, error) {
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
	if Unauthorized(err) { // may not see the clients of other users
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
