package inbox

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// ReceiveMongo is Receive on a replica set of MongoDB. While a copy is being applied the transaction
// runs again, and so apply may run twice. Its writes need the ctx that it gets.
func ReceiveMongo(ctx context.Context, db *mongo.Database, kind, id string, apply func(ctx context.Context) error) (first bool, err error) {
	session, err := db.Client().StartSession()
	if err != nil {
		return false, err
	}
	defer session.EndSession(ctx)
	key := bson.D{{Key: "_id", Value: bson.D{{Key: "kind", Value: kind}, {Key: "id", Value: id}}}} // in this order
	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		update := bson.M{"$setOnInsert": bson.M{"receivedAt": time.Now()}}
		done, err := db.Collection("inbox").UpdateOne(ctx, key, update, options.UpdateOne().SetUpsert(true))
		if err != nil {
			return nil, err
		}
		if first = done.UpsertedCount == 1; first {
			return nil, apply(ctx)
		}
		return nil, nil
	})
	return first && err == nil, err
}
