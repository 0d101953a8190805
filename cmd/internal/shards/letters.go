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
	return onOwn(ctx, t, f, limit, func(own store.DeadLetterFilter) ([]store.DeadLetter, error) {
		return t.Tables.Failed(ctx, own, limit, payload)
	})
}

// Requeue implements store.DeadLetters.
func (t shardTables) Requeue(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Item, error) {
	return onOwn(ctx, t, f, limit, func(own store.DeadLetterFilter) ([]store.Item, error) {
		return t.Tables.Requeue(ctx, epoch, own, limit)
	})
}

// Discard implements store.DeadLetters.
func (t shardTables) Discard(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Ref, error) {
	return onOwn(ctx, t, f, limit, func(own store.DeadLetterFilter) ([]store.Ref, error) {
		return t.Tables.Discard(ctx, epoch, own, limit)
	})
}

// onOwn calls do with a filter that also names the first rows of the partition, up to limit of them, if there are any.
func onOwn[T any](ctx context.Context, t shardTables, f store.DeadLetterFilter, limit int, do func(store.DeadLetterFilter) ([]T, error)) ([]T, error) {
	var ids []string
	err := t.EachFailed(ctx, f, func(d *store.DeadLetter) {
		if len(ids) < limit {
			ids = append(ids, d.ID)
		}
	})
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	slices.Sort(ids)
	f.IDs = slices.Compact(ids)
	return do(f)
}
