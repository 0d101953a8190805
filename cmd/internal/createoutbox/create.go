// Package createoutbox creates outbox tables of well-known layouts.
package createoutbox

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
	storemongo "github.com/sluicebox/sluicebox/store/mongo"
	storemysql "github.com/sluicebox/sluicebox/store/mysql"
	storepg "github.com/sluicebox/sluicebox/store/postgres"
	storesqlite "github.com/sluicebox/sluicebox/store/sqlite"
)

// timeout bounds the creation of a table. It waits for locks that others hold.
const timeout = 30 * time.Second

// application names the sessions to operators.
const application = "sluicebox init"

// database is the code of one kind of database.
type database struct {
	name   layouts.Database
	is     func(source config.URL) bool
	create func(ctx context.Context, source string, d *layouts.Definition) error
}

func databases() []database {
	return []database{
		{layouts.Postgres, config.URL.Postgres, inPostgres},
		{layouts.MySQL, config.URL.MySQL, inMySQL},
		{layouts.SQLite, config.URL.SQLite, inSQLite},
		{layouts.MongoDB, config.URL.Mongo, inMongo},
	}
}

// DatabaseOf returns the kind of database of a source.
func DatabaseOf(source config.URL) (layouts.Database, error) {
	for _, db := range databases() {
		if db.is(source) {
			return db.name, nil
		}
	}
	return "", &store.SetupError{Problem: "the source is not a URL of a supported database", Remedy: "write " + config.DatabaseURLForms}
}

// Create creates a table. It fails if the table exists, and then changes nothing. MySQL has no
// transactions for such statements: after an error the table may exist without its index.
func Create(ctx context.Context, source config.URL, d *layouts.Definition) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, db := range databases() {
		if !db.is(source) {
			continue
		}
		if err := db.create(ctx, source.Reveal(), d); err != nil {
			return fmt.Errorf("create table %s: %w", d.Table, err)
		}
	}
	return nil
}

func inPostgres(ctx context.Context, source string, d *layouts.Definition) error {
	cfg, err := storepg.ParseURL(source, application)
	if err != nil {
		return err
	}
	session, err := demodb.OpenSQL(ctx, cfg)
	if err != nil {
		return err
	}
	return storepg.Explain(run(ctx, session, d.Statements))
}

func inMySQL(ctx context.Context, source string, d *layouts.Definition) error {
	cfg, err := storemysql.ParseURL(source, application)
	if err != nil {
		return err
	}
	session, err := demodb.OpenMySQL(ctx, cfg)
	if err != nil {
		return err
	}
	return storemysql.Explain(run(ctx, session, d.Statements))
}

// run runs statements in one transaction and closes the session. MySQL commits each of them.
func run(ctx context.Context, session *demodb.SQL, statements []string) error {
	defer session.Close()
	tx, err := session.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // no effect after the commit
	for _, statement := range statements {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func inSQLite(ctx context.Context, source string, d *layouts.Definition) error {
	path, err := storesqlite.ParseURL(source)
	if err != nil {
		return err
	}
	conn, err := storesqlite.Dial(ctx, path)
	if err != nil {
		return err
	}
	defer conn.Close()
	return storesqlite.Explain(conn.Write(ctx, storesqlite.Full, func(ctx context.Context) error {
		for _, statement := range d.Statements {
			if _, err := conn.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	}))
}

func inMongo(ctx context.Context, source string, d *layouts.Definition) error {
	opts, name, err := storemongo.ParseURL(source, application)
	if err != nil {
		return err
	}
	client, err := demodb.OpenMongo(opts)
	if err != nil {
		return err
	}
	defer demodb.CloseMongo(client)
	if d.Schema != "" {
		name = d.Schema
	}
	db := client.Database(name)
	if err := db.CreateCollection(ctx, d.Table); err != nil {
		return storemongo.Explain(err)
	}
	for _, x := range d.Indexes {
		keys := make(bson.D, len(x.Fields))
		for i, field := range x.Fields {
			keys[i] = bson.E{Key: field, Value: 1}
		}
		model := mongo.IndexModel{Keys: keys, Options: options.Index().SetUnique(x.Unique)}
		if _, err := db.Collection(d.Table).Indexes().CreateOne(ctx, model); err != nil {
			return storemongo.Explain(err)
		}
	}
	return nil
}
