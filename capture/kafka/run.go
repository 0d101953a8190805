package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/kafka/internal/record"
	"github.com/sluicebox/sluicebox/capture/kafka/internal/topic"
	"github.com/sluicebox/sluicebox/store"
)

// Bytes of a fetch, and how long a broker waits for records.
const (
	fetchBytes = 4 << 20
	fetchWait  = 5 * time.Second
)

// reader reads the partition from a place on.
type reader struct {
	src    *Source
	at     record.Cursor
	client *kgo.Client
	skip   int // rows to leave out; no position is sent before them
	// ownRows: a row of another partition is an error. The topic may have had another number of partitions once.
	ownRows bool

	ctx  context.Context // ends with the run, or with its connection
	lose context.CancelCauseFunc
}

// newReader begins to fetch. The caller closes it.
func (s *Source) newReader(ctx context.Context, place record.Place) (*reader, error) {
	r := &reader{src: s, at: record.NewCursor(place)}
	r.ctx, r.lose = context.WithCancelCause(ctx)
	client, err := kgo.NewClient(append(append([]kgo.Opt{}, s.cfg.Client...),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{s.cfg.Topic: {int32(s.cfg.Partition): kgo.NewOffset().At(place.Offset)}}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), // an offset that is gone is an error
		kgo.FetchMaxBytes(fetchBytes), kgo.FetchMaxPartitionBytes(fetchBytes), kgo.FetchMaxWait(fetchWait),
		kgo.WithHooks(r),
	)...)
	if err != nil {
		r.lose(nil)
		return nil, &store.SetupError{Problem: "read topic: " + err.Error(), Remedy: "correct the options of the client"}
	}
	r.client = client
	return r, nil
}

func (r *reader) close() {
	r.lose(nil)
	r.client.Close()
}

// OnBrokerWrite implements kgo.HookBrokerWrite.
func (r *reader) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	r.check(key, err)
}

// OnBrokerRead implements kgo.HookBrokerRead.
func (r *reader) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	r.check(key, err)
}

// check ends the run with its connection: the client would connect again without a word.
func (r *reader) check(key int16, err error) {
	if err != nil && key == kmsg.Fetch.Int16() {
		r.lose(err)
	}
}

// poll waits for records, until the run or ctx ends. Records and an error may come together: the client
// does not return these records again, so the caller must take them before the error.
func (r *reader) poll(ctx context.Context, most int) ([]*kgo.Record, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	return r.polled(ctx, r.client.PollRecords(ctx, most))
}

// polled returns the records and the error of a poll that ended with ctx or without it.
func (r *reader) polled(ctx context.Context, fetches kgo.Fetches) ([]*kgo.Record, error) {
	records := fetches.Records()
	if err := context.Cause(r.ctx); err != nil {
		return records, fmt.Errorf("%s: %w", r.src, err)
	}
	for _, f := range fetches.Errors() {
		if ctx.Err() == nil || !errors.Is(f.Err, ctx.Err()) {
			return records, r.failure(f.Err)
		}
	}
	return records, ctx.Err()
}

// failure returns the error of a fetch.
func (r *reader) failure(err error) error {
	switch {
	case isOutOfRange(err):
		return &capture.LostError{Reason: fmt.Sprintf("%s: %v; raise retention.ms", r.src, err)}
	case isOfTopic(err):
		return &capture.LostError{Reason: fmt.Sprintf("%s: %v; the topic was deleted", r.src, err)}
	}
	return fmt.Errorf("%s: %w", r.src, err)
}

// parse reads a record.
func (r *reader) parse(rec *kgo.Record) (got record.Record, err error) {
	if got, err = record.Parse(rec.Value); err != nil {
		return got, &store.SetupError{Problem: fmt.Sprintf("%s: offset %d: %v", r.src, rec.Offset, err), Remedy: "no other program may write into this topic"}
	}
	if got.Kind == record.Leader && got.Partitions != r.src.cfg.Partitions {
		return got, topic.Resized(r.src.cfg.Topic, got.Partitions, r.src.cfg.Partitions)
	}
	return got, nil
}

// take advances the place behind a record.
func (r *reader) take(got *record.Record, offset int64) (fresh bool, err error) {
	fresh, err = r.at.Take(got, offset, r.src.cfg.Database.Compare)
	var gap *record.GapError
	if errors.As(err, &gap) {
		err = &capture.LostError{Reason: fmt.Sprintf("%s: offset %d: %v", r.src, offset, gap)}
	}
	return fresh, err
}

// Run implements capture.Source.
func (s *Source) Run(ctx context.Context, span capture.Span, out chan<- capture.Batch) error {
	from := s.resume.Start(s, span.From)
	place, err := record.ParsePlace(from)
	if err != nil {
		return &store.SetupError{Problem: err.Error()}
	}
	if err := s.checkOffset(ctx, place.Offset); err != nil {
		return err
	}
	r, err := s.newReader(ctx, place)
	if err != nil {
		return err
	}
	defer r.close()
	s.resume.Connected()
	return r.run(ctx, span.Until, out)
}

// run sends the batches up to a position.
func (r *reader) run(ctx context.Context, until store.Position, out chan<- capture.Batch) error {
	for !r.reached(until) {
		records, err := r.poll(ctx, r.src.cfg.MaxBatchRows)
		if err := errors.Join(r.send(ctx, records, until, out), err); err != nil {
			return err
		}
	}
	return nil
}

// reached reports whether the reader is at a position or behind it.
func (r *reader) reached(until store.Position) bool {
	return until != "" && r.src.Compare(r.at.Whole.Position(), until) >= 0
}

// Publish implements capture.Publisher. It checks the topic, which the feeder fills.
func (s *Source) Publish(ctx context.Context) error {
	_, err := s.origin(ctx)
	return err
}

// Script implements capture.Publisher: a database needs nothing for a topic.
func (s *Source) Script() string { return "" }

// Tap implements capture.Stream. It sends the rows that the partition gets from now on, of whichever
// feeder, and repetitions too.
func (s *Source) Tap(ctx context.Context, out chan<- capture.Batch, begun func()) error {
	_, high, err := s.offsets(ctx)
	if err != nil {
		return err
	}
	r, err := s.newReader(ctx, record.Place{Offset: high})
	if err != nil {
		return err
	}
	defer r.close()
	begun()
	var rows record.Joiner
	for {
		records, err := r.poll(ctx, s.cfg.MaxBatchRows)
		b := &batch{}
		for _, rec := range records {
			got, err := r.parse(rec)
			if err != nil {
				return err
			}
			complete, err := rows.Join(&got)
			var gap *record.GapError
			if err != nil && !errors.As(err, &gap) { // a gap: its row began earlier, or comes again
				return err
			}
			if complete {
				r.add(b, &got, len(rec.Value))
			}
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case out <- b.Batch:
		}
	}
}

// batch is what a reader sends next.
type batch struct {
	capture.Batch
	bytes int
	at    record.Place // behind it
	moved bool         // at has changed
}

// send sends the batches of records up to a position.
func (r *reader) send(ctx context.Context, records []*kgo.Record, until store.Position, out chan<- capture.Batch) error {
	b := &batch{}
	for _, rec := range records {
		if r.reached(until) {
			break
		}
		before, fresh := r.at.Whole, false
		got, err := r.parse(rec)
		if err == nil {
			fresh, err = r.take(&got, rec.Offset)
		}
		if err != nil {
			return errors.Join(r.flush(ctx, b, out), err) // what came before is in order
		}
		if cfg := &r.src.cfg; fresh && got.Kind == record.Row && r.ownRows && record.Partition(&got.Item, cfg.Partitions) != cfg.Partition {
			return &capture.LostError{Reason: fmt.Sprintf("%s: offset %d: the topic had another number of partitions", r.src, rec.Offset)}
		}
		if fresh && got.Kind == record.Row && r.skip > 0 {
			r.skip--
			fresh = false
		}
		if fresh && got.Kind == record.Row && len(b.Marks) > 0 { // a batch has its marks behind its rows
			if err := r.flush(ctx, b, out); err != nil {
				return err
			}
		}
		if fresh {
			r.add(b, &got, len(rec.Value))
		}
		if r.at.Whole != before && r.skip == 0 {
			b.at, b.moved = r.at.Whole, true
		}
		if len(b.Items) == r.src.cfg.MaxBatchRows || b.bytes >= r.src.cfg.MaxBatchBytes {
			if err := r.flush(ctx, b, out); err != nil {
				return err
			}
		}
	}
	return r.flush(ctx, b, out)
}

// flush sends a batch and empties it.
func (r *reader) flush(ctx context.Context, b *batch, out chan<- capture.Batch) error {
	if !b.moved {
		return nil
	}
	b.Position = b.at.Position()
	r.src.acks.Offer(b.Position)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case out <- b.Batch:
	}
	r.src.resume.Sent(len(b.Items), b.Position)
	*b = batch{}
	return nil
}

// add adds a record of a size to a batch.
func (r *reader) add(b *batch, got *record.Record, size int) {
	b.bytes += max(size, got.Item.Bytes()) // the size of a row's last part is not its own
	switch got.Kind {
	case record.Mark:
		if !strings.HasPrefix(got.Token, snapshotMark) {
			b.Marks, b.Marked = append(b.Marks, got.Token), got.Time
		}
	case record.Row:
		it := got.Item
		it.Captured = time.Now()
		if o := r.src.outboxes[it.Outbox]; o != nil {
			r.src.resume.DropLargeContent(&it, o)
		}
		b.Items = append(b.Items, it)
	}
}
