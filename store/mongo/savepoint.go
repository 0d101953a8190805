package mongo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/errortext"
	"github.com/sluicebox/sluicebox/store/internal/replays"
)

// savepointKey is the _id of a named checkpoint.
type savepointKey struct {
	Relay string `bson:"relay"`
	Name  string `bson:"name"`
}

// savepointDocument is a named checkpoint in sluicebox_named. The requester writes
// RetainLog and Request, the leader the rest.
type savepointDocument struct {
	Key           savepointKey   `bson:"_id"`
	RetainLog     bool           `bson:"keep"`
	Request       string         `bson:"wish"`
	State         string         `bson:"state"`
	Origin        string         `bson:"origin"`
	Position      string         `bson:"position"`
	Seq           int64          `bson:"seq"`
	At            *bson.DateTime `bson:"madeAt"`
	Reason        string         `bson:"why"`
	RetainedBytes int64          `bson:"keptBytes"`
}

// Savepoints implements store.ReplayLister.
func (s *Store) Savepoints(ctx context.Context) ([]store.Savepoint, error) {
	var list []store.Savepoint
	err := s.show(ctx, ownSavepoint, bson.D{{Key: "_id.relay", Value: s.name}}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}), func(doc bson.Raw) error {
		var d savepointDocument
		err := bson.Unmarshal(doc, &d)
		list = append(list, store.Savepoint{
			Name: d.Key.Name, Checkpoint: store.Checkpoint{Origin: d.Origin, Position: store.Position(d.Position), Seq: store.Seq(d.Seq)},
			At: timeOrZero(d.At), RetainLog: d.RetainLog, DeleteRequested: d.Request == replays.RequestDrop, State: store.SavepointState(d.State), Reason: d.Reason, RetainedBytes: d.RetainedBytes,
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read named checkpoints: %w", err)
	}
	return list, nil
}

// show reads documents of one of the relay's collections. If it finds none, it checks that
// the collections are installed.
func (s *Store) show(ctx context.Context, name string, filter bson.D, opts *options.FindOptionsBuilder, read func(bson.Raw) error) error {
	found := false
	return Explain(s.read(ctx, func(ctx context.Context, on *conn) error {
		err := forEach(ctx, commandTimeout, on.ownCollection(name), filter, opts, func(doc bson.Raw) error {
			found = true
			if err := read(doc); err != nil {
				return fmt.Errorf("in %s: %w", name, err)
			}
			return nil
		})
		if err == nil && !found {
			err = installed(ctx, on)
		}
		return err
	}))
}

// timeOrZero converts a stored time; null becomes the zero time.
func timeOrZero(at *bson.DateTime) time.Time {
	if at == nil {
		return time.Time{}
	}
	return at.Time().UTC()
}

// timeOrNull converts a time for storage; the zero time becomes null.
func timeOrNull(at time.Time) *bson.DateTime {
	if at.IsZero() {
		return nil
	}
	ms := bson.NewDateTimeFromTime(at)
	return &ms
}

// SaveSavepoint implements store.SavepointWriter. The time is truncated to milliseconds.
func (s *Store) SaveSavepoint(ctx context.Context, epoch store.Epoch, n store.Savepoint) error {
	err := s.runAsLeader(ctx, epoch, func(ctx context.Context, on *conn) error {
		found, err := setOne(ctx, on.ownCollection(ownSavepoint), savepointKey{s.name, n.Name}, bson.D{
			{Key: "state", Value: string(n.State)}, {Key: "origin", Value: n.Origin}, {Key: "position", Value: string(n.Position)},
			{Key: "seq", Value: int64(n.Seq)}, {Key: "madeAt", Value: timeOrNull(n.At)}, {Key: "why", Value: errortext.Sanitize(n.Reason, 0, false)},
			{Key: "keptBytes", Value: n.RetainedBytes},
		})
		if err == nil && !found {
			return store.ErrNoSavepoint
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("save checkpoint %s: %w", n.Name, Explain(err))
	}
	return nil
}

// DeleteSavepoint implements store.SavepointWriter.
func (s *Store) DeleteSavepoint(ctx context.Context, epoch store.Epoch, name string) error {
	err := s.runAsLeader(ctx, epoch, func(ctx context.Context, on *conn) error {
		_, err := remove(ctx, on.ownCollection(ownSavepoint), bson.D{{Key: "_id", Value: savepointKey{s.name, name}}})
		return err
	})
	if err != nil {
		return fmt.Errorf("delete checkpoint %s: %w", name, Explain(err))
	}
	return nil
}

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
