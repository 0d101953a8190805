package demodb

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
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
