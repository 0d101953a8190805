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

// RequestSavepoint implements store.Requester.
func (s *Store) RequestSavepoint(ctx context.Context, name string, keep bool) error {
	err := store.ValidateSavepointName(name)
	if err == nil {
		err = s.writeRequest(ctx, store.ErrSavepointExists, func(ctx context.Context, on *conn, _ int64) (bool, error) {
			d := savepointDocument{Key: savepointKey{s.name, name}, RetainLog: keep, Request: replays.RequestMake, State: string(store.SavepointRequested)}
			return insertNew(ctx, on.ownCollection(ownSavepoint), d)
		})
	}
	if err != nil {
		return fmt.Errorf("request checkpoint %s: %w", name, err)
	}
	return nil
}

// RequestSavepointDeletion implements store.Requester.
func (s *Store) RequestSavepointDeletion(ctx context.Context, name string) error {
	err := s.writeRequest(ctx, store.ErrNoSavepoint, func(ctx context.Context, on *conn, _ int64) (bool, error) {
		return setOne(ctx, on.ownCollection(ownSavepoint), savepointKey{s.name, name}, bson.D{{Key: "wish", Value: replays.RequestDrop}})
	})
	if err != nil {
		return fmt.Errorf("request deletion of checkpoint %s: %w", name, err)
	}
	return nil
}

// RequestReplay implements store.Requester.
func (s *Store) RequestReplay(ctx context.Context, id, spec string) error {
	err := s.writeRequest(ctx, store.ErrJobExists, func(ctx context.Context, on *conn, nth int64) (bool, error) {
		d := jobDocument{Key: jobKey{s.name, id}, Nth: nth, Desired: string(store.DesiredRun), Spec: spec, State: string(store.JobWaiting)}
		made, err := insertNew(ctx, on.ownCollection(ownReplay), d)
		if err != nil || !made {
			return made, err
		}
		return true, on.stamp(ctx, d.Key, "askedAt")
	})
	if err != nil {
		return fmt.Errorf("request replay %s: %w", id, err)
	}
	return nil
}

// RequestJobState implements store.Requester.
func (s *Store) RequestJobState(ctx context.Context, id string, wish store.DesiredState) error {
	err := wish.Validate()
	if err == nil {
		err = s.writeRequest(ctx, store.ErrNoJob, func(ctx context.Context, on *conn, _ int64) (bool, error) {
			open := bson.D{{Key: "_id", Value: jobKey{s.name, id}}, {Key: "state", Value: bson.D{{Key: "$nin", Value: replays.EndedStates()}}}}
			n, err := update(ctx, on.ownCollection(ownReplay), open, bson.D{{Key: "$set", Value: bson.D{{Key: "wish", Value: string(wish)}}}})
			if err != nil || n > 0 {
				return true, err
			}
			return exists(ctx, on.ownCollection(ownReplay), jobKey{s.name, id})
		})
	}

	if err != nil {
		return fmt.Errorf("request %[2]s of replay %[1]s: %[3]w", id, wish, err)
	}
	return nil
}

// writeRequest increments the request count and writes a request, in a transaction of its
// own. It returns none if put neither finds nor creates a document.
func (s *Store) writeRequest(ctx context.Context, none error, put func(ctx context.Context, on *conn, nth int64) (bool, error)) error {
	err := s.lifetime.Do(ctx, func(ctx context.Context) error {
		on, err := s.server.open(ctx)
		if err == nil {
			err = errors.Join(on.recheckStandalone(ctx), installed(ctx, on))
		}
		if err != nil {
			return err
		}
		write := func(ctx context.Context) error {
			nth, err := s.incrementRequests(ctx, on)
			if err != nil {
				return err
			}
			done, err := put(ctx, on, nth)
			if err == nil && !done {
				return none
			}
			return err
		}
		if err = on.transactAlone(ctx, write); hasCode(err, codeDuplicate) { // two requests created the counter at once
			err = on.transactAlone(ctx, write)
		}
		return err
	})
	return Explain(err)
}

// incrementRequests increments the relay's request count and returns it.
func (s *Store) incrementRequests(ctx context.Context, on *conn) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	var d struct {
		N int64 `bson:"n"`
	}
	err := on.ownCollection(ownRequest).FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: s.name}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: int64(1)}}}},
		options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&d)
	return d.N, err
}

// transactAlone runs do in a transaction outside of any leadership, and retries it when the
// server aborts it. Without a replica set do runs without a transaction.
func (c *conn) transactAlone(ctx context.Context, do func(context.Context) error) error {
	if c.standalone.Load() {
		return do(ctx)
	}

	ctx, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	own, err := c.client.StartSession(options.Session().SetDefaultTransactionOptions(transactions()))
	if err != nil {
		return err
	}

	defer own.EndSession(context.WithoutCancel(ctx))
	_, err = own.WithTransaction(ctx, func(ctx context.Context) (any, error) { return nil, do(ctx) })
	if err == nil {
		c.recordWrite(own.OperationTime())
	}
	return err
}

// insertNew inserts a document; it returns false if its _id already exists.
func insertNew(ctx context.Context, in *mongo.Collection, doc any) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	_, err := in.InsertOne(ctx, doc)
	if hasCode(err, codeDuplicate) {
		return false, nil // the server aborts the transaction
	}
	return err == nil, err
}

// setOne sets fields of the document with an _id and reports whether it exists.
func setOne(ctx context.Context, in *mongo.Collection, id any, fields bson.D) (bool, error) {
	n, err := update(ctx, in, bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$set", Value: fields}})
	return n > 0, err
}

// exists reports whether a document with an _id exists.
func exists(ctx context.Context, in *mongo.Collection, id any) (bool, error) {
	err := findOne(ctx, in, id, &bson.D{})
	if errors.Is(err, mongo.ErrNoDocuments) {
		return false, nil
	}
	return err == nil, err
}
