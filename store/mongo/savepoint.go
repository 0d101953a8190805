package mongo

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
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
