package kafka

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/kafka/internal/record"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

// remarkAfter is how long a snapshot waits for a marker before it writes another: a feeder that
// lost the database's log does not read the first. Each wait is twice as long, up to maxRemarkAfter,
// because the feeder holds all markers while Kafka is down.
const (
	remarkAfter    = time.Second
	maxRemarkAfter = 32 * time.Second
)

// snapshotMark begins the tokens of snapshots, which no batch has.
const snapshotMark = "snapshot-"

// reopenInterval is the pause before a snapshot is taken again.
const reopenInterval = 100 * time.Millisecond

// Open implements capture.Source. A snapshot waits until a feeder runs. If the partition is lost behind
// the snapshot's position, for example because the feeder has lost the database's log, then Open takes
// another one.
func (s *Source) Open(ctx context.Context, at store.Checkpoint, tables capture.Tables) (capture.OpenResult, error) {
	for {
		opened, err := s.open(ctx, at, tables)
		var lost *capture.LostError
		if !errors.As(err, &lost) {
			return opened, err
		}
		if err := backoff.Sleep(ctx, reopenInterval); err != nil {
			return opened, err
		}
	}
}

func (s *Source) open(ctx context.Context, at store.Checkpoint, tables capture.Tables) (capture.OpenResult, error) {
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
	offset, err := Offset(o.From)
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
		got, offset, err := s.awaitMarker(ctx, r, func(*record.Record, int64) (bool, error) { return true, nil })
		place := record.Place{Offset: offset + 1, Epoch: got.Epoch, Number: got.Number + 1, Done: got.End}
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
	_, _, err = s.awaitMarker(ctx, r, func(got *record.Record, offset int64) (bool, error) {
		fresh, err := r.take(got, offset)
		if fresh && got.Kind == record.Row {
			take(got)
		}
		return fresh, err
	})
	return err
}

// taker takes a record at an offset, and reports whether a marker there counts.
type taker func(got *record.Record, offset int64) (counts bool, err error)

// awaitMarker writes a marker and passes records until it has it. It returns the marker and its offset. Each
// marker that it writes is another one: MySQL logs no change of a row to the same value.
func (s *Source) awaitMarker(ctx context.Context, r *reader, take taker) (mark record.Record, offset int64, err error) {
	token := snapshotMark + rand.Text() + "-"
	wait := remarkAfter
	for n := 0; ; n++ {
		if err := s.Mark(ctx, token+strconv.Itoa(n)); err != nil {
			return mark, 0, err
		}
		mark, offset, err = s.passMarker(ctx, r, token, wait, take)
		if strings.HasPrefix(mark.Token, token) || err != nil {
			return mark, offset, err
		}
		wait = min(2*wait, maxRemarkAfter)
	}
}

// passMarker passes records until it has a marker that begins with token, or until it is time for another. All records of
// a poll are passed, also if the time for them ends meanwhile.
func (s *Source) passMarker(ctx context.Context, r *reader, token string, most time.Duration, take taker) (mark record.Record, offset int64, err error) {
	wait, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for {
		records, pollErr := r.poll(wait, s.cfg.MaxBatchRows)
		for _, rec := range records {
			got, err := r.parse(rec)
			if err != nil {
				return mark, 0, err
			}
			counts, err := take(&got, rec.Offset)
			if err != nil || counts && got.Kind == record.Mark && strings.HasPrefix(got.Token, token) {
				return got, rec.Offset, err
			}
		}
		switch {
		case pollErr == nil:
		case wait.Err() != nil && errors.Is(pollErr, wait.Err()):
			return mark, 0, ctx.Err()
		default:
			return mark, 0, pollErr
		}
	}
}
