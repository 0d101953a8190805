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
	place  record.Place
	client *kgo.Client

	ctx  context.Context // ends with the run, or with its connection
	lose context.CancelCauseFunc
}

// newReader begins to fetch. The caller closes it.
func (s *Source) newReader(ctx context.Context, place record.Place) (*reader, error) {
	r := &reader{src: s, place: place}
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

// poll waits for records. ctx may end earlier than the run.
func (r *reader) poll(ctx context.Context, most int) ([]*kgo.Record, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	fetches := r.client.PollRecords(ctx, most)
	if err := context.Cause(r.ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", r.src, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if all := fetches.Errors(); len(all) > 0 {
		return nil, r.failure(all[0].Err)
	}
	return fetches.Records(), nil
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

// take parses a record and advances the place behind it.
func (r *reader) take(rec *kgo.Record) (got record.Record, fresh bool, err error) {
	if got, err = record.Parse(rec.Value); err != nil {
		return got, false, &store.SetupError{Problem: fmt.Sprintf("%s: offset %d: %v", r.src, rec.Offset, err), Remedy: "no other program may write into this topic"}
	}
	if got.Kind == record.Leader && got.Partitions != r.src.cfg.Partitions {
		return got, false, topic.Resized(r.src.cfg.Topic, got.Partitions, r.src.cfg.Partitions)
	}
	fresh, err = r.place.Take(&got, r.src.cfg.Database.Compare)
	var gap *record.GapError
	if errors.As(err, &gap) {
		err = &capture.LostError{Reason: fmt.Sprintf("%s: offset %d: %v", r.src, rec.Offset, gap)}
	}
	r.place.Offset = rec.Offset + 1
	return got, fresh, err
}

// Run implements capture.Source.
func (s *Source) Run(ctx context.Context, span capture.Span, out chan<- capture.Batch) error {
	from := s.resume.Start(s, span.From)
	place, err := record.ParsePlace(from)
	if err != nil {
		return &store.SetupError{Problem: err.Error()}
	}
	lost, err := s.lost(ctx, place.Offset)
	if err != nil {
		return err
	}
	if lost != nil {
		return lost
	}
	r, err := s.newReader(ctx, place)
	if err != nil {
		return err
	}
	defer r.close()
	s.resume.Connected()
	for span.Until == "" || s.Compare(r.place.Position(), span.Until) < 0 {
		records, err := r.poll(ctx, s.cfg.MaxBatchRows)
		if err != nil {
			return err
		}
		if err := r.send(ctx, records, span.Until, out); err != nil {
			return err
		}
	}
	return nil
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
	for {
		records, err := r.poll(ctx, s.cfg.MaxBatchRows)
		if err != nil {
			return err
		}
		b := &batch{}
		for _, rec := range records {
			got, err := record.Parse(rec.Value)
			if err != nil {
				return err
			}
			r.add(b, &got, len(rec.Value))
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
		if until != "" && r.src.Compare(r.place.Position(), until) >= 0 {
			break
		}
		got, fresh, err := r.take(rec)
		if err != nil {
			return errors.Join(r.flush(ctx, b, out), err) // what came before is in order
		}
		if fresh && got.Kind == record.Row && len(b.Marks) > 0 { // a batch has its marks behind its rows
			if err := r.flush(ctx, b, out); err != nil {
				return err
			}
		}
		if fresh {
			r.add(b, &got, len(rec.Value))
		}
		b.at, b.moved = r.place, true
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
	b.bytes += size
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
