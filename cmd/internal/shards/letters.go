package shards

import (
	"context"
	"slices"

	"github.com/sluicebox/sluicebox/capture/kafka"
	"github.com/sluicebox/sluicebox/store"
)

// The FAILED rows of a shard are those of its partition. The statements of the tables select those of all
// shards, for the reasons that kafka.ShardView names.

// EachFailed implements store.FailedReader.
func (t shardTables) EachFailed(ctx context.Context, f store.DeadLetterFilter, take func(*store.DeadLetter)) error {
	return t.Tables.EachFailed(ctx, f, func(d *store.DeadLetter) {
		if kafka.PartitionOf(d.Group, t.partitions) == t.partition {
			take(d)
		}
	})
}

// CountFailed implements store.DeadLetters.
func (t shardTables) CountFailed(ctx context.Context, f store.DeadLetterFilter) (int, error) {
	seen := map[string]struct{}{} // EachFailed may pass a row twice
	err := t.EachFailed(ctx, f, func(d *store.DeadLetter) { seen[d.ID] = struct{}{} })
	return len(seen), err
}

// Failed implements store.DeadLetters.
func (t shardTables) Failed(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) ([]store.DeadLetter, error) {
	own, err := t.ownFailed(ctx, f, limit)
	if err != nil || len(own.IDs) == 0 {
		return nil, err
	}
	return t.Tables.Failed(ctx, own, limit, payload)
}

// Requeue implements store.DeadLetters.
func (t shardTables) Requeue(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Item, error) {
	own, err := t.ownFailed(ctx, f, limit)
	if err != nil || len(own.IDs) == 0 {
		return nil, err
	}
	return t.Tables.Requeue(ctx, epoch, own, limit)
}

// Discard implements store.DeadLetters.
func (t shardTables) Discard(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Ref, error) {
	own, err := t.ownFailed(ctx, f, limit)
	if err != nil || len(own.IDs) == 0 {
		return nil, err
	}
	return t.Tables.Discard(ctx, epoch, own, limit)
}

// ownFailed returns a filter that also names the first rows of the partition, up to limit of them.
func (t shardTables) ownFailed(ctx context.Context, f store.DeadLetterFilter, limit int) (store.DeadLetterFilter, error) {
	var ids []string
	err := t.EachFailed(ctx, f, func(d *store.DeadLetter) {
		if len(ids) < limit {
			ids = append(ids, d.ID)
		}
	})
	slices.Sort(ids)
	f.IDs = slices.Compact(ids)
	return f, err
}
