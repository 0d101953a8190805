package mongo

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/store"
)

// checkpointDocument is the document of a relay in sluicebox_checkpoint.
type checkpointDocument struct {
	Origin   string `bson:"origin"`
	Position string `bson:"position"`
	Seq      int64  `bson:"seq"`
}

// LoadCheckpoint implements store.Checkpoints.
func (s *Store) LoadCheckpoint(ctx context.Context) (store.Checkpoint, error) {
	var d checkpointDocument
	err := s.read(ctx, func(ctx context.Context, on *conn) error {
		err := findOne(ctx, on.ownCollection(ownCheckpoint), s.name, &d)
		if !errors.Is(err, mongo.ErrNoDocuments) {
			return err
		}
		if err := installed(ctx, on); err != nil {
			return err
		}
		return store.ErrNoCheckpoint
	})
	if err != nil {
		return store.Checkpoint{}, fmt.Errorf("load checkpoint: %w", Explain(err))
	}
	return store.Checkpoint{Origin: d.Origin, Position: store.Position(d.Position), Seq: store.Seq(d.Seq)}, nil
}

// SaveCheckpoint implements store.Checkpoints. Every commit is on disk on a majority, so
// earlier writes are as durable as the checkpoint.
func (s *Store) SaveCheckpoint(ctx context.Context, epoch store.Epoch, cp store.Checkpoint) error {
	err := s.runAsLeader(ctx, epoch, func(ctx context.Context, on *conn) error {
		return upsertOne(ctx, on.ownCollection(ownCheckpoint), s.name, bson.D{
			{Key: "$set", Value: checkpointDocument{cp.Origin, string(cp.Position), int64(cp.Seq)}},
			{Key: "$currentDate", Value: bson.D{{Key: "updatedAt", Value: true}}},
		})
	})
	if err != nil {
		return fmt.Errorf("save checkpoint: %w", Explain(err))
	}
	return nil
}
