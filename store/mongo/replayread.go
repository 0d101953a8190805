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

// ReplayRows implements store.ReplayReader.
func (s *Store) ReplayRows(ctx context.Context, id string, from []store.ReplayRange, each int) ([][]store.ReplayRow, error) {
	err := replays.CheckLimit(each)
	if len(from) == 0 && err == nil {
		return nil, nil
	}

	lists := make([][]store.ReplayRow, len(from))
	if err == nil {
		err = s.read(ctx, func(ctx context.Context, on *conn) (err error) {
			for i := 0; i < len(from) && err == nil; i++ {
				lists[i], err = s.readReplayRows(ctx, on, id, &from[i], each)
			}
			return err
		})
	}

	if err != nil {
		return nil, fmt.Errorf("read rows of replay %s: %w", id, Explain(err))
	}
	return lists, nil
}

// inLane is the filter for rows of a lane by n.
func (s *Store) inLane(id, outbox string, lane bson.Binary, n bson.D) bson.D {
	return bson.D{
		{Key: "_id.relay", Value: s.name}, {Key: "_id.job", Value: id}, {Key: "outbox", Value: outbox}, {Key: "lane", Value: lane}, {Key: "_id.n", Value: n},
	}
}

func (s *Store) readReplayRows(ctx context.Context, on *conn, id string, from *store.ReplayRange, limit int) (rows []store.ReplayRow, err error) {
	filter := s.inLane(id, from.Outbox, hashOf(from.Lane), bson.D{{Key: "$gt", Value: from.After}})
	opts := options.Find().SetSort(bson.D{{Key: "_id.n", Value: 1}}).SetLimit(int64(limit))
	err = forEach(ctx, commandTimeout, on.ownCollection(ownReplayRow), filter, opts, func(doc bson.Raw) error {
		d, err := rowOf(doc)
		rows = append(rows, d.row())
		return err
	})
	return rows, err
}

// ReplayLanes implements store.ReplayReader. It walks the rows by n and skips lanes that
// have earlier rows.
func (s *Store) ReplayLanes(ctx context.Context, id string, after int64, limit int) ([]store.ReplayLane, error) {
	err := replays.CheckLimit(limit)
	var lanes []store.ReplayLane
	if err == nil {
		err = s.read(ctx, func(ctx context.Context, on *conn) (err error) {
			lanes, err = s.readLanes(ctx, on, id, after, limit)
			return err
		})
	}

	if err != nil {
		return nil, fmt.Errorf("read lanes of replay %s: %w", id, Explain(err))
	}
	return lanes, nil
}

func (s *Store) readLanes(ctx context.Context, on *conn, id string, after int64, limit int) (lanes []store.ReplayLane, err error) {
	type lane struct{ outbox, hash string }
	known := map[lane]bool{}
	opts := options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetProjection(project("_id", "outbox", "lane", "kind", "group"))
	err = forEach(ctx, commandTimeout, on.ownCollection(ownReplayRow), s.afterN(id, after), opts, func(doc bson.Raw) error {
		d, err := rowOf(doc)
		of := lane{d.Outbox, string(d.Lane.Data)}
		if err != nil || known[of] {
			return err
		}
		known[of] = true
		if began, err := s.laneBegan(ctx, on, id, &d, after); err != nil || began {
			return err
		}
		l := store.ReplayLane{LaneKey: store.LaneKey{Outbox: d.Outbox, Kind: d.Kind, Group: groupOf(d.Group)}}
		l.First, _ = d.Key.N.(int64)
		copy(l.Hash[:], d.Lane.Data)
		if lanes = append(lanes, l); len(lanes) == limit {
			return errStopIteration
		}
		return nil
	})
	if errors.Is(err, errStopIteration) {
		err = nil
	}

	return lanes, err
}

// laneBegan reports whether the row's lane also has rows up to n.
func (s *Store) laneBegan(ctx context.Context, on *conn, id string, d *rowDocument, n int64) (bool, error) {
	if n <= 0 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	err := on.ownCollection(ownReplayRow).FindOne(ctx, s.inLane(id, d.Outbox, d.Lane, bson.D{{Key: "$lte", Value: n}}), options.FindOne().SetProjection(project("_id"))).Err()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return false, nil
	}
	return err == nil, err
}
