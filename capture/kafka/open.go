package kafka

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/kafka/internal/record"
	"github.com/sluicebox/sluicebox/store"
)

// remarkAfter is how long a snapshot waits for a marker before it writes another: a feeder that
// lost the database's log does not read the first.
const remarkAfter = time.Second

// snapshotMark begins the tokens of snapshots, which no batch has.
const snapshotMark = "snapshot-"

// Open implements capture.Source. A snapshot waits until a feeder runs.
func (s *Source) Open(ctx context.Context, at store.Checkpoint, tables capture.Tables) (capture.OpenResult, error) {
	if err := s.checkOrigin(at.Origin); err != nil {
		return capture.OpenResult{}, err
	}
	origin, err := s.origin(ctx)
	if err != nil {
		return capture.OpenResult{}, err
	}
	reason, err := s.snapshotReason(ctx, at, origin)
	if err != nil {
		return capture.OpenResult{}, err
	}
	o := capture.OpenResult{Origin: origin, From: at.Position, SnapshotReason: reason}
	if reason != "" {
		if err := tables.ClearCheckpoint(ctx); err != nil {
			return o, err
		}
		if o.From, o.View, err = s.snapshot(ctx, tables); err != nil {
			return o, fmt.Errorf("take snapshot for %s: %w", s, err)
		}
	}
	if s.resume.Last() != o.From {
		s.resume.Reset(o.From)
	}
	offset, err := offsetOf(o.From)
	s.acks.Reset(o.From, offset)
	return o, err
}

// snapshotReason returns why the partition cannot be read from a checkpoint on, "" if it can.
func (s *Source) snapshotReason(ctx context.Context, at store.Checkpoint, origin string) (string, error) {
	switch {
	case at.Position == "":
		return "no checkpoint", nil
	case at.Origin != origin:
		return fmt.Sprintf("the checkpoint is of %s, the partition is %s", at.Origin, origin), nil
	}
	place, err := record.ParsePlace(at.Position)
	if err != nil {
		return err.Error(), nil
	}
	lost, err := s.lost(ctx, place.Offset)
	if lost != nil {
		return lost.Reason, err
	}
	return "", err
}

// snapshot returns a position of the partition, and a view of the tables that has all rows before it
// and none behind it.
//
// A marker of the database's log gives the position, once the partition has it: all rows before it
// were committed. The view is opened then, and a second marker is written. The rows between the two
// markers are left out of the view, because the partition brings them.
func (s *Source) snapshot(ctx context.Context, tables store.Viewer) (store.Position, store.View, error) {
	first, err := s.findMarker(ctx)
	if err != nil {
		return "", nil, err
	}
	view, err := tables.View(ctx, "")
	if err != nil {
		return "", nil, err
	}
	rows := map[store.Ref]struct{}{}
	err = s.readMarked(ctx, first, func(r *record.Record) { rows[r.Item.Ref] = struct{}{} })
	if err != nil {
		view.Close()
		return "", nil, err
	}
	return first.Position(), &shardView{View: view, partition: s.cfg.Partition, partitions: s.cfg.Partitions, logged: rows}, nil
}

// findMarker writes a marker, and returns the place behind it in the partition. The marker's feeder
// led when the partition had it, because it does so still. So no Leader of a higher epoch is
// before this place.
func (s *Source) findMarker(ctx context.Context) (record.Place, error) {
	for {
		_, high, err := s.offsets(ctx)
		if err != nil {
			return record.Place{}, err
		}
		r, err := s.newReader(ctx, record.Place{Offset: high})
		if err != nil {
			return record.Place{}, err
		}
		place, err := s.awaitMarker(ctx, r, func(got *record.Record, offset int64) (record.Place, bool, error) {
			return record.Place{Offset: offset + 1, Epoch: got.Epoch, Number: got.Number + 1, Done: got.End}, got.Kind == record.Mark, nil
		})
		r.close()
		if err != nil {
			return place, err
		}
		leader, err := s.cfg.Database.Leader(ctx)
		if err == nil && leader.Epoch == place.Epoch || err != nil && !errors.Is(err, store.ErrNotLeader) {
			return place, err
		}
	}
}

// readMarked passes the rows from a place to a marker that it writes.
func (s *Source) readMarked(ctx context.Context, from record.Place, take func(*record.Record)) error {
	r, err := s.newReader(ctx, from)
	if err != nil {
		return err
	}
	defer r.close()
	_, err = s.awaitMarker(ctx, r, func(got *record.Record, _ int64) (record.Place, bool, error) {
		fresh, err := r.place.Take(got, s.cfg.Database.Compare)
		if fresh && got.Kind == record.Row {
			take(got)
		}
		return r.place, fresh && got.Kind == record.Mark, err
	})
	return err
}

// taker returns the place behind a record, and whether a marker there counts.
type taker func(got *record.Record, offset int64) (record.Place, bool, error)

// awaitMarker writes a marker and passes records until it has it.
func (s *Source) awaitMarker(ctx context.Context, r *reader, take taker) (record.Place, error) {
	token := snapshotMark + rand.Text()
	for {
		if err := s.Mark(ctx, token); err != nil {
			return record.Place{}, err
		}
		place, found, err := s.passMarker(ctx, r, token, take)
		if found || err != nil {
			return place, err
		}
	}
}

// passMarker passes records until it has a marker, or until it is time for another marker.
func (s *Source) passMarker(ctx context.Context, r *reader, token string, take taker) (place record.Place, found bool, err error) {
	wait, cancel := context.WithTimeout(ctx, remarkAfter)
	defer cancel()
	for wait.Err() == nil {
		records, err := r.poll(wait, s.cfg.MaxBatchRows)
		if err != nil && wait.Err() == nil {
			return place, false, err
		}
		for _, rec := range records {
			got, err := record.Parse(rec.Value)
			if err != nil {
				return place, false, err
			}
			place, counts, err := take(&got, rec.Offset)
			if err != nil || counts && got.Token == token {
				return place, true, err
			}
		}
	}
	return place, false, ctx.Err()
}
