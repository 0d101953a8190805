package mongo

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lanekinds"
)

// SpilledLanes implements store.SpillStore. It reads only the _id index.
func (s *Store) SpilledLanes(ctx context.Context, take func(store.SpilledLane)) error {
	err := s.read(ctx, func(ctx context.Context, on *conn) error {
		for _, name := range s.outboxes.Names() {
			if err := s.countLanes(ctx, on, name, take); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read spilled lanes: %w", Explain(err))
	}
	return nil
}

// spilledRange is the filter for an outbox's spilled rows after a lane.
func (s *Store) spilledRange(outbox string, after any) bson.D {
	key := func(lane any) bson.D {
		return bson.D{{Key: "relay", Value: s.name}, {Key: "outbox", Value: outbox}, {Key: "lane", Value: lane}, {Key: "seq", Value: bson.MaxKey{}}}
	}
	return bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: key(after)}, {Key: "$lt", Value: key(bson.MaxKey{})}}}}
}

func (s *Store) countLanes(ctx context.Context, on *conn, outbox string, take func(store.SpilledLane)) error {
	ctx, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	in, byID := on.ownCollection(ownSpilled), bson.D{{Key: "_id", Value: 1}}
	kinds, err := lanekinds.FindKinds(func(after store.LaneHash) (lane store.LaneHash, kind string, found bool, err error) {
		opts := options.Find().SetSort(byID).SetLimit(1)
		err = forEach(ctx, commandTimeout, in, s.spilledRange(outbox, hashOf(after)), opts, func(doc bson.Raw) error {
			found = true
			_, hash := doc.Lookup("_id", "lane").Binary()
			copy(lane[:], hash)
			kind = doc.Lookup("kind").StringValue()
			return nil
		})
		return lane, kind, found, err
	})
	if err != nil {
		return err
	}

	// Grouping on the server would read every document.
	l := store.SpilledLane{Outbox: outbox}
	opts := options.Find().SetSort(byID).SetProjection(byID).SetBatchSize(keyBatchSize)
	err = forEach(ctx, commandTimeout, in, s.spilledRange(outbox, bson.MinKey{}), opts, func(doc bson.Raw) error {
		_, hash := doc.Lookup("_id", "lane").Binary()
		if l.Rows > 0 && string(hash) != string(l.Hash[:]) {
			take(l)
			l.Rows = 0
		}
		copy(l.Hash[:], hash)
		l.Kind = kinds[l.Hash.Kind()]
		l.Rows++
		return nil
	})

	if err == nil && l.Rows > 0 {
		take(l)
	}

	return err
}

// keyBatchSize is how many keys the server returns per batch.
const keyBatchSize = 50_000

// DeleteSpilledAfter implements store.SpillStore, in transactions of bounded size. After an
// error some of the rows may be deleted.
func (s *Store) DeleteSpilledAfter(ctx context.Context, epoch store.Epoch, after store.Seq) (int, error) {
	all := 0
	for _, name := range s.outboxes.Names() {
		for n := maxSpillRows; n == maxSpillRows; {
			err := s.runAsLeader(ctx, epoch, func(ctx context.Context, on *conn) (err error) {
				n, err = s.deleteSpilledBatch(ctx, on, name, after)
				return err
			})
			if err != nil {
				return all, fmt.Errorf("delete spilled rows after seq: %w", Explain(err))
			}
			all += n
		}
	}
	return all, nil
}

// deleteSpilledBatch deletes some rows of an outbox after a seq and returns how many.
func (s *Store) deleteSpilledBatch(ctx context.Context, on *conn, outbox string, after store.Seq) (int, error) {
	filter := bson.D{{Key: "_id.relay", Value: s.name}, {Key: "_id.outbox", Value: outbox}, {Key: "_id.seq", Value: bson.D{{Key: "$gt", Value: int64(after)}}}}
	var keys []bson.RawValue
	opts := options.Find().SetProjection(project("_id")).SetLimit(maxSpillRows)
	err := forEach(ctx, commandTimeout, on.ownCollection(ownSpilled), filter, opts, func(doc bson.Raw) error {
		keys = append(keys, cloned(doc.Lookup("_id")))
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(keys), removeKeys(ctx, on.ownCollection(ownSpilled), keys)
}
