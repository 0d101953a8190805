package mongo

import (
	"context"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	mongostore "github.com/sluicebox/sluicebox/store/mongo"
)

// commandTimeout bounds every command that the server should answer at once.
const commandTimeout = 10 * time.Second

// lazyClient is a client for the database, logged in as one user. It connects on first use.
type lazyClient struct {
	url         string
	application string

	mu       sync.Mutex
	client   *mongo.Client
	database string
	user     string // "" without a login
}

// db returns the URL's database.
func (d *lazyClient) db() (*mongo.Database, error) {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.client == nil {
		opts, database, err := mongostore.ParseURL(d.url, d.application)
		if err != nil {
			return nil, err
		}
		client, err := mongo.Connect(opts)
		if err != nil {
			return nil, err
		}
		d.client, d.database = client, database
		if opts.Auth != nil {
			d.user = opts.Auth.Username
		}
	}

	return d.client.Database(d.database), nil
}

// close ends the client's connections. Nothing depends on whether the server answers.
func (d *lazyClient) close() {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = d.client.Disconnect(ctx)
	d.client = nil
}

// runCommand runs a command in a database and returns the answer.
func runCommand(ctx context.Context, db *mongo.Database, command bson.D) (bson.Raw, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return db.RunCommand(ctx, command).Raw()
}

// runAdminCommand runs a command in the database admin.
func runAdminCommand(ctx context.Context, db *mongo.Database, command bson.D) (bson.Raw, error) {
	return runCommand(ctx, db.Client().Database("admin"), command)
}

// lookupString returns a string field of an answer; "" if it is missing.
func lookupString(answer bson.Raw, path ...string) string {
	s, _ := answer.Lookup(path...).StringValueOK()
	return s
}
