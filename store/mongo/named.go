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

// namedKey is the _id of a named checkpoint.
type namedKey struct {
	Relay string `bson:"relay"`
	Name  string `bson:"name"`
}

// namedDocument is a checkpoint in sluicebox_named. Whoever asks for one writes Keep and
// Wish, the leader the rest.
type namedDocument struct {
	Key      namedKey       `bson:"_id"`
	Keep     bool           `bson:"keep"`
	Wish     string         `bson:"wish"`
	State    string         `bson:"state"`
	Origin   string         `bson:"origin"`
	Position string         `bson:"position"`
	Seq      int64          `bson:"seq"`
	At       *bson.DateTime `bson:"madeAt"`
	Why      string         `bson:"why"`
	Bytes    int64          `bson:"keptBytes"`
}

// Named implements store.Replays.
func (s *Store) Named(ctx context.Context) ([]store.Named, error) {
	var list []store.Named
	err := s.show(ctx, ownNamed, bson.D{{Key: "_id.relay", Value: s.name}}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}), func(doc bson.Raw) error {
		var d namedDocument
		err := bson.Unmarshal(doc, &d)
		list = append(list, store.Named{
			Name: d.Key.Name, Checkpoint: store.Checkpoint{Origin: d.Origin, Position: store.Position(d.Position), Seq: store.Seq(d.Seq)},
			At: instant(d.At), Keep: d.Keep, Drop: d.Wish == replays.Drop, State: store.NamedState(d.State), Why: d.Why, Bytes: d.Bytes,
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the named checkpoints: %w", err)
	}
	return list, nil
}

// show reads documents of an own collection. Where there are none it looks whether the
// collection is there.
func (s *Store) show(ctx context.Context, name string, filter bson.D, opts *options.FindOptionsBuilder, read func(bson.Raw) error) error {
	found := false
	return Explain(s.read(ctx, func(ctx context.Context, on *conn) error {
		err := each(ctx, silence, on.own(name), filter, opts, func(doc bson.Raw) error {
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

// instant is a time of an own collection, zero for null.
func instant(at *bson.DateTime) time.Time {
	if at == nil {
		return time.Time{}
	}
	return at.Time().UTC()
}

// orNull is a time as the own collections keep it, null for zero.
func orNull(at time.Time) *bson.DateTime {
	if at.IsZero() {
		return nil
	}
	ms := bson.NewDateTimeFromTime(at)
	return &ms
}

// SaveNamed implements store.ReplayKeeper. The time is cut to milliseconds.
func (s *Store) SaveNamed(ctx context.Context, epoch store.Epoch, n store.Named) error {
	err := s.lead(ctx, epoch, func(ctx context.Context, on *conn) error {
		there, err := setOne(ctx, on.own(ownNamed), namedKey{s.name, n.Name}, bson.D{
			{Key: "state", Value: string(n.State)}, {Key: "origin", Value: n.Origin}, {Key: "position", Value: string(n.Position)},
			{Key: "seq", Value: int64(n.Seq)}, {Key: "madeAt", Value: orNull(n.At)}, {Key: "why", Value: errortext.Fit(n.Why, 0, false)},
			{Key: "keptBytes", Value: n.Bytes},
		})
		if err == nil && !there {
			return store.ErrNoNamed
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("save checkpoint %s: %w", n.Name, Explain(err))
	}
	return nil
}

// ForgetNamed implements store.ReplayKeeper.
func (s *Store) ForgetNamed(ctx context.Context, epoch store.Epoch, name string) error {
	err := s.lead(ctx, epoch, func(ctx context.Context, on *conn) error {
		_, err := remove(ctx, on.own(ownNamed), bson.D{{Key: "_id", Value: namedKey{s.name, name}}})
		return err
	})
	if err != nil {
		return fmt.Errorf("forget checkpoint %s: %w", name, Explain(err))
	}
	return nil
}
