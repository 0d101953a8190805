package mongo

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
)

// ParkedLanes implements store.Parking.
func (s *Store) ParkedLanes(ctx context.Context) ([]store.ParkedLane, error) {
	var lanes []store.ParkedLane
	err := s.read(ctx, func(ctx context.Context, on *conn) error {
		for _, name := range s.outboxes.Names() {
			of, err := s.countLanes(ctx, on, name)
			if err != nil {
				return err
			}
			lanes = append(lanes, of...)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the parked lanes: %w", Explain(err))
	}
	return lanes, nil
}

func (s *Store) countLanes(ctx context.Context, on *conn, outbox string) (lanes []store.ParkedLane, err error) {
	ctx, cancel := context.WithTimeout(ctx, viewTime)
	defer cancel()
	found, err := on.own(ownParked).Aggregate(ctx, bson.A{
		bson.D{{Key: "$match", Value: bson.D{{Key: "_id.relay", Value: s.name}, {Key: "_id.outbox", Value: outbox}}}},
		bson.D{{Key: "$group", Value: bson.D{
			{Key: "_id", Value: "$_id.lane"},
			{Key: "rows", Value: bson.D{{Key: "$sum", Value: 1}}},
			{Key: "kind", Value: bson.D{{Key: "$first", Value: "$kind"}}},
		}}},
	}, options.Aggregate().SetAllowDiskUse(true))
	if err != nil {
		return nil, err
	}
	var counts []struct {
		Lane bson.Binary `bson:"_id"`
		Rows int64       `bson:"rows"`
		Kind string      `bson:"kind"`
	}
	if err := found.All(ctx, &counts); err != nil {
		return nil, err
	}
	for _, of := range counts {
		lane := store.ParkedLane{Outbox: outbox, Kind: of.Kind, Rows: int(of.Rows)}
		copy(lane.Hash[:], of.Lane.Data)
		lanes = append(lanes, lane)
	}
	return lanes, nil
}

// ForgetParked implements store.Parking, by transactions of a bounded size. After an
// error some of the rows may be gone.
func (s *Store) ForgetParked(ctx context.Context, epoch store.Epoch, after store.Seq) (int, error) {
	all := 0
	for _, name := range s.outboxes.Names() {
		for n := mostParked; n == mostParked; {
			err := s.lead(ctx, epoch, func(ctx context.Context, on *conn) (err error) {
				n, err = s.forgetSome(ctx, on, name, after)
				return err
			})
			if err != nil {
				return all, fmt.Errorf("forget parked rows: %w", Explain(err))
			}
			all += n
		}
	}
	return all, nil
}

// forgetSome deletes some rows of an outbox behind a seq, and tells how many.
func (s *Store) forgetSome(ctx context.Context, on *conn, outbox string, after store.Seq) (int, error) {
	filter := bson.D{{Key: "_id.relay", Value: s.name}, {Key: "_id.outbox", Value: outbox}, {Key: "_id.seq", Value: bson.D{{Key: "$gt", Value: int64(after)}}}}
	var keys []bson.RawValue
	opts := options.Find().SetProjection(project("_id")).SetLimit(mostParked)
	err := each(ctx, silence, on.own(ownParked), filter, opts, func(doc bson.Raw) error {
		keys = append(keys, cloned(doc.Lookup("_id")))
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(keys), removeKeys(ctx, on.own(ownParked), keys)
}
