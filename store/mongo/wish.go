package mongo

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/replays"
)

// WishNamed implements store.Wishes.
func (s *Store) WishNamed(ctx context.Context, name string, keep bool) error {
	err := store.CheckNamed(name)
	if err == nil {
		err = s.wish(ctx, store.ErrNamedExists, func(ctx context.Context, on *conn, _ int64) (bool, error) {
			d := namedDocument{Key: namedKey{s.name, name}, Keep: keep, Wish: replays.Make, State: string(store.NamedWanted)}
			return insertNew(ctx, on.own(ownNamed), d)
		})
	}
	if err != nil {
		return fmt.Errorf("ask for checkpoint %s: %w", name, err)
	}
	return nil
}

// WishDrop implements store.Wishes.
func (s *Store) WishDrop(ctx context.Context, name string) error {
	err := s.wish(ctx, store.ErrNoNamed, func(ctx context.Context, on *conn, _ int64) (bool, error) {
		return setOne(ctx, on.own(ownNamed), namedKey{s.name, name}, bson.D{{Key: "wish", Value: replays.Drop}})
	})
	if err != nil {
		return fmt.Errorf("ask for the end of checkpoint %s: %w", name, err)
	}
	return nil
}

// WishReplay implements store.Wishes.
func (s *Store) WishReplay(ctx context.Context, id, spec string) error {
	err := s.wish(ctx, store.ErrJobExists, func(ctx context.Context, on *conn, nth int64) (bool, error) {
		d := jobDocument{Key: jobKey{s.name, id}, Nth: nth, Wish: string(store.WishRun), Spec: spec, State: string(store.JobWaiting)}
		made, err := insertNew(ctx, on.own(ownReplay), d)
		if err != nil || !made {
			return made, err
		}
		return true, on.stamp(ctx, d.Key, "askedAt")
	})
	if err != nil {
		return fmt.Errorf("ask for replay %s: %w", id, err)
	}
	return nil
}

// WishJob implements store.Wishes.
func (s *Store) WishJob(ctx context.Context, id string, wish store.JobWish) error {
	err := wish.Validate()
	if err == nil {
		err = s.wish(ctx, store.ErrNoJob, func(ctx context.Context, on *conn, _ int64) (bool, error) {
			open := bson.D{{Key: "_id", Value: jobKey{s.name, id}}, {Key: "state", Value: bson.D{{Key: "$nin", Value: replays.Ends()}}}}
			n, err := update(ctx, on.own(ownReplay), open, bson.D{{Key: "$set", Value: bson.D{{Key: "wish", Value: string(wish)}}}})
			if err != nil || n > 0 {
				return true, err
			}
			return exists(ctx, on.own(ownReplay), jobKey{s.name, id})
		})
	}
	if err != nil {
		return fmt.Errorf("ask replay %s to %s: %w", id, wish, err)
	}
	return nil
}

// wish counts a wish and writes it, in a transaction of its own. none is the error of
// one that finds, or makes, no document.
func (s *Store) wish(ctx context.Context, none error, put func(ctx context.Context, on *conn, nth int64) (bool, error)) error {
	err := s.life.Do(ctx, func(ctx context.Context) error {
		on, err := s.server.open(ctx)
		if err == nil {
			err = errors.Join(on.joined(ctx), installed(ctx, on))
		}
		if err != nil {
			return err
		}
		write := func(ctx context.Context) error {
			nth, err := s.countWish(ctx, on)
			if err != nil {
				return err
			}
			done, err := put(ctx, on, nth)
			if err == nil && !done {
				return none
			}
			return err
		}
		if err = on.apart(ctx, write); has(err, codeDuplicate) { // two made the count at once
			err = on.apart(ctx, write)
		}
		return err
	})
	return Explain(err)
}

// countWish adds 1 to the relay's count and returns it.
func (s *Store) countWish(ctx context.Context, on *conn) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	var d struct {
		N int64 `bson:"n"`
	}
	err := on.own(ownWish).FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: s.name}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: int64(1)}}}},
		options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&d)
	return d.N, err
}

// apart runs do in a transaction that is none of a leader, as often as the server takes
// it back. Without a replica set do runs as it is.
func (c *conn) apart(ctx context.Context, do func(context.Context) error) error {
	if c.alone.Load() {
		return do(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	own, err := c.client.StartSession(options.Session().SetDefaultTransactionOptions(transactions()))
	if err != nil {
		return err
	}
	defer own.EndSession(context.WithoutCancel(ctx))
	_, err = own.WithTransaction(ctx, func(ctx context.Context) (any, error) { return nil, do(ctx) })
	if err == nil {
		c.wrote(own.OperationTime())
	}
	return err
}

// insertNew inserts a document, and reports false if there is one of its _id.
func insertNew(ctx context.Context, in *mongo.Collection, doc any) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	_, err := in.InsertOne(ctx, doc)
	if has(err, codeDuplicate) {
		return false, nil // the transaction is taken back
	}
	return err == nil, err
}

// setOne sets fields of the document of an _id, and reports whether there is one.
func setOne(ctx context.Context, in *mongo.Collection, id any, fields bson.D) (bool, error) {
	n, err := update(ctx, in, bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$set", Value: fields}})
	return n > 0, err
}

// exists reports whether there is a document of an _id.
func exists(ctx context.Context, in *mongo.Collection, id any) (bool, error) {
	err := one(ctx, in, id, &bson.D{})
	if errors.Is(err, mongo.ErrNoDocuments) {
		return false, nil
	}
	return err == nil, err
}
