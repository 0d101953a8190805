package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/capture/kafka/internal/record"
	"github.com/sluicebox/sluicebox/store"
)

var (
	_ capture.HistoryReader    = (*Source)(nil)
	_ capture.RetentionChecker = (*Source)(nil)
)

// maxClockSkew is how far the feeder's clock, which dates the records, may be behind the database's,
// which dates commits.
const maxClockSkew = 10 * time.Second

// CheckReachable implements capture.HistoryReader. Kafka deletes records by their age or size, whether or
// not anyone reads them. It does not look for a Gap behind the start.
func (s *Source) CheckReachable(ctx context.Context, at capture.StartPoint) error {
	_, err := s.locateHistory(ctx, at, func() (record.Place, error) {
		_, high, err := s.offsets(ctx)
		if err != nil {
			return record.Place{}, err
		}
		leader, err := s.cfg.Database.Leader(ctx)
		if errors.Is(err, store.ErrNotLeader) {
			err = nil
		}
		return record.Place{Offset: high, Epoch: leader.Epoch}, err
	})
	return err
}

// ReadRange implements capture.HistoryReader. It ends with a *capture.LostError at a Gap, because the rows
// before that are in the tables only.
func (s *Source) ReadRange(ctx context.Context, at capture.StartPoint, until store.Position, out chan<- capture.Batch) error {
	end, err := record.ParsePlace(until)
	if err != nil {
		return fault.OtherLogf("%v", err)
	}
	from, err := s.locateHistory(ctx, at, func() (record.Place, error) { return end, s.checkOffset(ctx, end.Offset) })
	if err != nil || from.Offset >= end.Offset {
		return err
	}

	if at.Position == "" { // rows are counted from a position
		select {
		case out <- capture.Batch{Position: from.Position()}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}

	s.resume.Reset(from.Position())
	r, err := s.newReader(ctx, from)
	if err != nil {
		return err
	}
	defer r.close()
	r.skip, r.ownRows = at.Skip, true
	if err := r.run(ctx, until, out); err != nil {
		return err
	}
	if at := r.at.Whole; at.Epoch != end.Epoch || at.Number != end.Number { // the start was wrong, or the database was restored
		return fault.Lostf("%s: record %d of epoch %d ends the range, not %d of epoch %d", s, at.Number, at.Epoch, end.Number, end.Epoch)
	}
	return nil
}

// LostReasons implements capture.RetentionChecker.
func (s *Source) LostReasons(ctx context.Context, of []store.Checkpoint) ([]string, error) {
	origin, err := s.origin(ctx)
	if err != nil {
		return nil, err
	}
	low, _, err := s.offsets(ctx)
	if err != nil {
		return nil, err
	}
	reasons := make([]string, len(of))
	for i := range of {
		if at, err := record.ParsePlace(of[i].Position); err == nil && of[i].Origin == origin && at.Offset < low {
			reasons[i] = s.beginsAfter(low, at.Offset).Reason
		}
	}
	return reasons, nil
}

// checkOffset returns a *capture.LostError if the partition cannot be read from an offset on.
func (s *Source) checkOffset(ctx context.Context, offset int64) error {
	lost, err := s.lost(ctx, offset)
	if err == nil && lost != nil {
		return lost
	}
	return err
}

// locateHistory returns the place of a start point. until returns the end of the range.
func (s *Source) locateHistory(ctx context.Context, at capture.StartPoint, until func() (record.Place, error)) (from record.Place, err error) {
	origin, err := s.origin(ctx)
	switch {
	case err != nil:
		return from, err
	case at.Origin != origin && (at.Origin != "" || at.Position != ""):
		return from, fault.OtherLogf("checkpoint belongs to %q, the partition is %s", at.Origin, origin)
	}
	if at.Position != "" {
		if from, err = record.ParsePlace(at.Position); err != nil {
			return from, fault.OtherLogf("%v", err)
		}
		if err := s.checkOffset(ctx, from.Offset); err != nil {
			return from, err
		}
	}
	end, err := until()
	if err == nil && at.Position == "" {
		from, err = s.placeAtTime(ctx, at.Since, end)
	}
	return from, err
}

// placeAtTime returns a place before all rows that were committed at a time or later. A record is written
// after its row's commit, so all records of these rows are at or behind the first record of that time.
//
// The search for a place begins at that first record, and if it finds none, earlier; see record.Starter.
// From the place to the first record, advance reads as Run does, so the result has the full state
// of a shard there: late records and repetitions are left out.
func (s *Source) placeAtTime(ctx context.Context, since time.Time, until record.Place) (from record.Place, err error) {
	first, err := s.offsetAtTime(ctx, time.UnixMilli(0))
	if err != nil {
		return from, err
	}
	began := time.UnixMilli(first.Timestamp)
	switch {
	case first.Timestamp < 0:
		return from, fault.Lostf("%s has no records; raise retention.ms", s)
	case began.After(since.Add(-s.clockSkew)):
		return from, fault.Lostf("%s begins at %s UTC, and the start must be %s later", s, began.UTC().Format(time.DateTime), s.clockSkew)
	}

	before := int64(-1)
	for _, earlier := range []time.Duration{s.clockSkew, 5 * time.Minute, 2 * time.Hour, math.MaxInt64} { // the last is all
		begin := first.Offset
		if at := since.Add(-earlier); at.UnixMilli() > first.Timestamp {
			listed, err := s.offsetAtTime(ctx, at)
			if err != nil {
				return from, err
			}
			begin = listed.Offset
		}
		if before < 0 {
			before = begin
		}
		if begin >= until.Offset {
			return until, nil
		}
		from, found, err := s.findStart(ctx, begin, record.Starter{Before: before, Until: until})
		switch {
		case err != nil:
			return from, err
		case found:
			return s.advance(ctx, from, before)
		case begin == first.Offset:
			return from, fault.Lostf("%s begins at offset %d, too late to tell which feeder led then; raise retention.ms", s, begin)
		}
	}
	return from, nil // not reached: the last search begins at the first record
}

// findStart searches for a place from an offset on.
func (s *Source) findStart(ctx context.Context, begin int64, starter record.Starter) (from record.Place, found bool, err error) {
	if begin == 0 { // nothing comes before it
		return record.Place{}, true, nil
	}
	done := false
	err = s.scan(ctx, begin, starter.Until.Offset, func(got *record.Record, offset int64) (bool, error) {
		done = starter.Take(*got, offset, s.cfg.Database.Compare)
		return done, nil
	})
	from, found = starter.Place(done)
	return from, found, err
}

// advance reads from a place to an offset, and returns the place there. A gap moves the place behind it, because the
// rows that only the tables have were committed before it. So does the first record of a topic: its feeder
// may know the records of another.
func (s *Source) advance(ctx context.Context, from record.Place, to int64) (record.Place, error) {
	cursor := record.NewCursor(from)
	err := s.scan(ctx, from.Offset, to, func(got *record.Record, offset int64) (bool, error) {
		_, err := cursor.Take(got, offset, s.cfg.Database.Compare)
		var gap *record.GapError
		switch {
		case errors.As(err, &gap) && (got.IsGap() || offset == 0):
			cursor, err = record.NewCursor(record.Place{Offset: offset + 1, Epoch: got.Epoch, Number: got.Number + 1}), nil
		case errors.As(err, &gap):
			err = fault.Lostf("%s: offset %d: %v", s, offset, gap)
		}
		return false, err
	})
	return cursor.Whole, err
}

// scan passes the records from an offset up to another, until take returns true.
func (s *Source) scan(ctx context.Context, from, to int64, take func(*record.Record, int64) (end bool, err error)) error {
	if from >= to {
		return nil
	}
	r, err := s.newReader(ctx, record.Place{Offset: from})
	if err != nil {
		return err
	}
	defer r.close()
	for {
		records, pollErr := r.poll(ctx, s.cfg.MaxBatchRows)
		for _, rec := range records {
			if rec.Offset >= to {
				return nil
			}
			got, err := r.parse(rec)
			switch {
			case got.Kind == record.Leader && got.Partitions != s.cfg.Partitions:
				return fault.Lostf("%s: the topic had %d partitions until offset %d", s, got.Partitions, rec.Offset)
			case err != nil:
				return err
			}
			if end, err := take(&got, rec.Offset); end || err != nil || rec.Offset == to-1 {
				return err
			}
		}
		if pollErr != nil {
			return pollErr
		}
	}
}

// offsetAtTime returns the first offset of a time or later. Its timestamp is -1 if there is none, and it is
// then the end of the partition.
func (s *Source) offsetAtTime(ctx context.Context, at time.Time) (kadm.ListedOffset, error) {
	admin, err := s.administrator()
	if err != nil {
		return kadm.ListedOffset{}, err
	}
	all, err := admin.ListOffsetsAfterMilli(ctx, at.UnixMilli(), s.cfg.Topic)
	listed, _ := all.Lookup(s.cfg.Topic, int32(s.cfg.Partition))
	if err = errors.Join(err, listed.Err); err != nil {
		return listed, fmt.Errorf("list offsets of topic %s: %w", s.cfg.Topic, err)
	}
	return listed, nil
}
