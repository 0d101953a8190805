package kafka

import (
	"context"
	"errors"
	"math"

	"github.com/sluicebox/sluicebox/capture/kafka/internal/record"
	"github.com/sluicebox/sluicebox/store"
)

// ShardView returns the part of a view that has the rows of one partition. Closing it closes the view.
//
// The rows of other partitions are left out here and not by the database, because the filter must be exact: a
// row that it leaves out by mistake reaches no shard.
//
//   - The hash is of the group's bytes as a layout reads them, for example out of a JSON document. A
//     statement would hash what the column has, in the server's encoding.
//   - MongoDB and SQLite have no SHA-256. A second hash would be a second order of the partitions.
//   - No index has the hash, so the database would still read all rows of each shard.
//
// Every shard reads the keys of all rows in a snapshot, and a sweep. With more than two partitions it
// reads no payloads, and the claims of its own rows read theirs. A query without MaxPayload gets all payloads:
// those of legs.
func ShardView(view store.View, partition, partitions int) store.View {
	return &shardView{View: view, partition: partition, partitions: partitions}
}

// PartitionOf returns the partition that has the rows of a message group.
func PartitionOf(group store.Group, partitions int) int {
	return record.Partition(&store.Item{Group: group}, partitions)
}

// shardView leaves out the rows of other partitions, and those that the partition brings.
type shardView struct {
	store.View
	partition, partitions int
	logged                map[store.Ref]struct{}
}

// Unsettled implements store.View.
func (v *shardView) Unsettled(ctx context.Context, q store.UnsettledQuery) (items []store.Item, err error) {
	err = v.Pages(ctx, q, min(q.Limit, pageRows), func(page []store.Item) error {
		items = append(items, page...)
		if q.MaxBytes > 0 && store.BytesOf(items) >= q.MaxBytes {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return v.cut(items, &q), err
}

// maxPayloadPartitions is the number up to which a view reads payloads, also of other partitions. With more
// of them, most payloads would be read for nothing.
const maxPayloadPartitions = 2

// pageRows is the number of rows that are read at once.
const pageRows = 5000

var errEnough = errors.New("enough rows")

// cut ends items with the row that reaches the limit of bytes.
func (v *shardView) cut(items []store.Item, q *store.UnsettledQuery) []store.Item {
	var bytes int64
	for i := range items {
		if bytes += int64(items[i].Bytes()); q.MaxBytes > 0 && bytes >= q.MaxBytes {
			return items[:i+1]
		}
	}
	return items
}

// Pages implements store.View. Its pages may be short, because they are those of the view without the rows
// of other shards.
func (v *shardView) Pages(ctx context.Context, q store.UnsettledQuery, page int, take func([]store.Item) error) error {
	left := q.Limit
	q.Limit = math.MaxInt32
	// Who asks for whole rows needs them: a leg may send one after its table has lost it.
	q.NoPayload = q.NoPayload || q.MaxPayload > 0 && v.partitions > maxPayloadPartitions
	err := v.View.Pages(ctx, q, page, func(items []store.Item) error {
		own := items[:0]
		for i := range items {
			if v.has(&items[i]) && left > 0 {
				own = append(own, items[i])
				left--
			}
		}
		if len(own) > 0 {
			if err := take(own); err != nil {
				return err
			}
		}
		if left == 0 {
			return errLimit
		}
		return nil
	})
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

var errLimit = errors.New("limit of rows")

// Delivered implements store.View.
func (v *shardView) Delivered(ctx context.Context, q store.DeliveredQuery, page int, take func([]store.Item) error) (undated int, err error) {
	return v.View.Delivered(ctx, q, page, func(items []store.Item) error {
		own := items[:0]
		for i := range items {
			if record.Partition(&items[i], v.partitions) == v.partition {
				own = append(own, items[i])
			}
		}
		if len(own) == 0 {
			return nil
		}
		return take(own)
	})
}

func (v *shardView) has(it *store.Item) bool {
	_, logged := v.logged[it.Ref]
	return !logged && record.Partition(it, v.partitions) == v.partition
}
