package mongo

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/store"
	relay "github.com/sluicebox/sluicebox/store/mongo"
	"github.com/sluicebox/sluicebox/store/outbox/internal/diagnose"
)

// Diagnose checks what a writer needs of collections: the privileges, and a value for each field
// that their validator requires. It changes nothing. An error means that the remaining checks
// could not run.
func Diagnose(ctx context.Context, url, application string, outboxes []*store.Outbox) ([]store.Finding, error) {
	opts, name, err := relay.ParseURL(url, application)
	if err != nil {
		return nil, err
	}
	client, err := mongo.Connect(opts)
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }() // it reads only
	found, err := diagnose.Outboxes(outboxes, func(o *store.Outbox, _ []string) (*diagnose.Table, error) {
		return read(ctx, collection(client.Database(name), o))
	})
	return found, relay.Explain(err)
}

func read(ctx context.Context, in *mongo.Collection) (t *diagnose.Table, err error) {
	t = &diagnose.Table{
		Name: in.Database().Name() + "." + in.Name(),
		Rule: func(field string) string {
			return fmt.Sprintf("field %s is required by the collection's validator", field)
		},
		Default: func(field string) string {
			return fmt.Sprintf("remove %s from required in the validator (collMod) of %s", field, in.Name())
		},
	}
	user, missing, grant, err := relay.LackingPrivileges(ctx, in, "find", "insert")
	if err != nil {
		return nil, err
	}
	t.Account, t.Missing, t.Grant = "user "+user, missing, grant
	var list []struct {
		Options struct {
			Validator struct {
				Schema struct {
					Required []string `bson:"required"`
				} `bson:"$jsonSchema"`
			} `bson:"validator"`
		} `bson:"options"`
	}
	cursor, err := in.Database().ListCollections(ctx, bson.D{{Key: "name", Value: in.Name()}})
	if err == nil {
		err = cursor.All(ctx, &list)
	}
	switch failed := (mongo.CommandError{}); {
	case errors.As(err, &failed) && failed.HasErrorCode(13): // few users may list collections
		return t, nil
	case err != nil:
		return nil, err
	case len(list) == 0:
		return nil, nil // the check of the outbox reports it
	}
	t.Required = list[0].Options.Validator.Schema.Required
	return t, nil
}
