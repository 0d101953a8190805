package feed

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/capture/kafka/internal/record"
	"github.com/sluicebox/sluicebox/store"
)

// maxRaise bounds how often the epoch is raised, each time with a transaction.
const maxRaise = 10_000

// outrank raises an epoch that was just acquired above those of the topic, and returns the new one. They are
// equal or higher if the database was restored to an earlier moment: shards would ignore what the epoch
// appends. Another feeder that has acquired a higher epoch meanwhile is left alone. A relay that never led
// before has written nothing, so the topic is not its own.
func (s *session) outrank(ctx context.Context, epoch store.Epoch) (raised store.Epoch, err error) {
	highest, err := s.lastEpoch(ctx)
	if err != nil {
		return epoch, fmt.Errorf("feed: read the last records of topic %s: %w", s.f.cfg.Topic, err)
	}
	if epoch == 1 && highest > 0 || highest-epoch >= maxRaise {
		return epoch, &store.SetupError{
			Problem: fmt.Sprintf("feed: topic %s has records of epoch %d, and that of the database is %d: the topic is another relay's, or the database is new", s.f.cfg.Topic, highest, epoch),
			Remedy:  "stop all processes, name a new topic, and run sluicebox init",
		}
	}
	for raised = epoch; raised <= highest; {
		leader, err := s.tables.Leader(ctx)
		if err == nil && leader.Epoch != raised {
			err = store.ErrNotLeader
		}
		if err == nil {
			raised, err = s.tables.AcquireLeadership(ctx)
		}
		if err != nil {
			return raised, fmt.Errorf("feed: raise the epoch above %d, which the topic has: %w", highest, err)
		}
	}
	return raised, nil
}

// lastEpoch returns the highest epoch of the last records of all partitions; 0 without records. A partition may
// end with records that an earlier feeder appended late, but not for longer than Config.IdleInterval.
func (s *session) lastEpoch(ctx context.Context) (highest store.Epoch, err error) {
	last, err := s.lastRecords(ctx)
	if err != nil || len(last) == 0 {
		return 0, err
	}
	client, err := kgo.NewClient(append(slices.Clone(s.f.cfg.Client),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{s.f.cfg.Topic: last}), kgo.ConsumeResetOffset(kgo.NoResetOffset()))...)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	for len(last) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return 0, err
		}
		for _, rec := range fetches.Records() {
			r, err := record.Parse(rec.Value)
			if err != nil {
				return 0, fmt.Errorf("offset %d of partition %d: %w", rec.Offset, rec.Partition, err)
			}
			highest = max(highest, r.Epoch)
			delete(last, rec.Partition)
		}
	}
	return highest, nil
}

// lastRecords returns the offset of the last record of each partition that has one.
func (s *session) lastRecords(ctx context.Context) (map[int32]kgo.Offset, error) {
	admin := kadm.NewClient(s.client)
	starts, err := admin.ListStartOffsets(ctx, s.f.cfg.Topic)
	if err = cmp.Or(err, starts.Error()); err != nil {
		return nil, err
	}
	ends, err := admin.ListEndOffsets(ctx, s.f.cfg.Topic)
	if err = cmp.Or(err, ends.Error()); err != nil {
		return nil, err
	}
	last := map[int32]kgo.Offset{}
	for partition, end := range ends[s.f.cfg.Topic] {
		if start, _ := starts.Lookup(s.f.cfg.Topic, partition); end.Offset > start.Offset {
			last[partition] = kgo.NewOffset().At(end.Offset - 1)
		}
	}
	return last, nil
}
