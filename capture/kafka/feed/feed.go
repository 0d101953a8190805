// Package feed is the writer of a topic between capture and dispatch: it appends the rows of a
// database's log to the partitions that the shards read; see package kafka above it.
//
// A session of a feeder is a leadership. It raises the epoch, loads its checkpoint, writes a record with
// the epoch into every partition, and waits until all are acknowledged. Only then does it read the
// log, from the checkpoint. It acknowledges the log up to a position once all partitions have the rows. A
// record that Kafka does not acknowledge ends the session, because the rows behind it must not
// overtake it.
//
// While Kafka is down, the feeder holds up to Config.MaxBufferedBytes and stops receiving, so the
// database retains its log. [Feeder.Status] tells for how long.
package feed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/kafka/internal/record"
	"github.com/sluicebox/sluicebox/capture/kafka/internal/topic"
	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/store"
)

// Config configures a feeder.
type Config struct {
	// Client are the options of a client: brokers, TLS, credentials.
	Client []kgo.Opt
	// Topic exists and has as many partitions as there are shards.
	Topic      string
	Partitions int
	// Outboxes are the tables of the source.
	Outboxes []store.Outbox
	// MaxRecordBytes limits a record, like max.message.bytes of the topic. 0 is 1 000 000, and 4096
	// is the least. A row with a larger payload goes without its content, and the claim reads it.
	// Attributes or a group that are larger make several records of a row, and so do payloads if an
	// outbox has routes.
	MaxRecordBytes int
	// MaxBufferedBytes limits the memory of the records that wait for Kafka. 0 is 32 MiB.
	MaxBufferedBytes int
	// IdleInterval is how often a partition without rows gets a position. 0 is 1 s.
	IdleInterval time.Duration
	// Observer may be nil.
	Observer Observer
}

// Observer receives the events of a feeder. Its methods must return at once.
type Observer interface {
	capture.Observer
	checkpoint.Observer
	// Leads reports that all partitions have the first record of an epoch.
	Leads(epoch store.Epoch)
	// Restored reports that the database was restored to an earlier moment, because it gave an epoch that the
	// topic has already. The feeder has raised it, and the shards take snapshots.
	Restored(given, raised store.Epoch)
}

// Defaults of a Config. A broker's message.max.bytes is 1 MiB and 12 bytes.
const (
	defaultRecordBytes   = 1_000_000
	defaultBufferedBytes = 32 << 20
	defaultIdleInterval  = time.Second
)

const (
	// rowBytes is kept free in a record for the texts of a row beside its payload. A row with more
	// of them has several records.
	rowBytes = 64 << 10

	minRecordBytes = 4 << 10

	// heldBytes is what a record that waits for Kafka holds beside its value, in the client and in
	// progress: 310 to 390 bytes were measured, and requests have a copy of some values.
	heldBytes = 512
)

// maxPayload is the largest payload that a record carries, 0 without a limit: rows of an outbox with routes go
// whole, because a leg may still need one after its table has lost it.
func (c *Config) maxPayload() int {
	if slices.ContainsFunc(c.Outboxes, func(o store.Outbox) bool { return len(o.Routes) > 0 }) {
		return 0
	}
	return max(1, c.MaxRecordBytes-rowBytes)
}

// Tables is what a feeder needs of the database.
type Tables interface {
	store.Leadership
	store.Checkpoints
	store.Viewer
}

// Feeder writes one topic. Its sessions follow each other.
type Feeder struct {
	cfg    Config
	status status
}

// New validates a configuration. It opens no connection.
func New(cfg Config) (*Feeder, error) {
	switch {
	case cfg.Topic == "":
		return nil, &store.SetupError{Problem: "feed: there is no topic", Remedy: "name one"}
	case cfg.Partitions <= 0:
		return nil, &store.SetupError{Problem: fmt.Sprintf("feed: %d partitions", cfg.Partitions), Remedy: "name the number of partitions of the topic"}
	case cfg.MaxRecordBytes != 0 && cfg.MaxRecordBytes < minRecordBytes:
		return nil, &store.SetupError{Problem: fmt.Sprintf("feed: records of %d bytes", cfg.MaxRecordBytes), Remedy: fmt.Sprintf("use at least %d", minRecordBytes)}
	case cfg.MaxBufferedBytes < 0 || cfg.IdleInterval < 0:
		return nil, &store.SetupError{Problem: "feed: a limit is negative", Remedy: "remove it"}
	}
	for i := range cfg.Outboxes {
		if cfg.Outboxes[i].Layout.LogOnly() {
			return nil, &store.SetupError{
				Problem: fmt.Sprintf("feed: only the log has the rows of outbox %s, and a shard that loses its partition could not read them again", cfg.Outboxes[i].Name),
				Remedy:  "give the outbox a table that keeps its rows",
			}
		}
	}
	if cfg.MaxRecordBytes == 0 {
		cfg.MaxRecordBytes = defaultRecordBytes
	}
	if cfg.MaxBufferedBytes == 0 {
		cfg.MaxBufferedBytes = defaultBufferedBytes
	}
	if cfg.IdleInterval == 0 {
		cfg.IdleInterval = defaultIdleInterval
	}
	if cfg.Observer == nil {
		cfg.Observer = nobody{}
	}
	return &Feeder{cfg: cfg}, nil
}

// Run is one session of the relay that holds the lock. It returns the context's error,
// store.ErrNotLeader, a *store.SetupError, or an error after which Run can be called again with a new
// source. After a *capture.LostError the next session takes a snapshot.
func (f *Feeder) Run(ctx context.Context, tables Tables, src capture.Resumer) error {
	client, err := f.connect()
	if err != nil {
		return err
	}
	s := newSession(f, client, tables, src)
	defer s.end()
	at, err := s.lead(ctx)
	if err != nil {
		return err
	}
	from, err := s.open(ctx, at)
	if err != nil {
		return err
	}
	err = s.follow(ctx, from)
	var lost *capture.LostError
	var other *capture.OriginError
	if errors.As(err, &lost) && !lost.Readable || errors.As(err, &other) {
		err = errors.Join(err, s.ClearCheckpoint(context.WithoutCancel(ctx)))
	}
	return err
}

// session is one leadership.
type session struct {
	f      *Feeder
	client *kgo.Client
	tables Tables
	src    capture.Resumer

	epoch    store.Epoch
	origin   string
	split    *record.Splitter
	progress *progress
	room     *semaphore.Weighted // bytes
	waiting  []atomic.Int32      // records of each partition that have no answer
	promises sync.WaitGroup      // all of these

	// appending ends with the first record that was not acknowledged, which fail reports.
	appending context.Context
	fail      context.CancelCauseFunc

	scratch []byte
}

func newSession(f *Feeder, client *kgo.Client, tables Tables, src capture.Resumer) *session {
	return &session{
		f: f, client: client, tables: tables, src: src, waiting: make([]atomic.Int32, f.cfg.Partitions),
		room: semaphore.NewWeighted(int64(max(f.cfg.MaxBufferedBytes, f.cfg.MaxRecordBytes+heldBytes))),
	}
}

// begin begins the records of an epoch.
func (s *session) begin(epoch store.Epoch) {
	s.epoch = epoch
	s.split, s.progress = record.NewSplitter(epoch, s.f.cfg.Partitions, ""), newProgress(epoch, s.f.cfg.Partitions)
	s.split.MaxBytes = s.f.cfg.MaxRecordBytes
}

// lead raises the epoch, writes it into every partition, and returns the checkpoint. With the epoch no
// other feeder saves one any more. A checkpoint of a database that was restored says nothing of the topic.
func (s *session) lead(ctx context.Context) (at store.Checkpoint, err error) {
	d, err := topic.Describe(ctx, kadm.NewClient(s.client), s.f.spec())
	if err == nil {
		err = store.FaultError(d.Findings)
	}
	if err != nil {
		return at, fmt.Errorf("feed: %w", err)
	}
	epoch, err := s.tables.AcquireLeadership(ctx)
	if err != nil {
		return at, fmt.Errorf("feed: acquire leadership: %w", err)
	}
	raised, err := s.outrank(ctx, epoch)
	if err != nil {
		return at, err
	}
	if s.begin(raised); raised > epoch {
		s.f.cfg.Observer.Restored(epoch, raised)
		if err := s.ClearCheckpoint(ctx); err != nil {
			return at, fmt.Errorf("feed: clear the restored checkpoint: %w", err)
		}
	}
	if at, err = s.tables.LoadCheckpoint(ctx); err != nil && !errors.Is(err, store.ErrNoCheckpoint) {
		return at, fmt.Errorf("feed: load checkpoint: %w", err)
	}
	if err := s.all(ctx, func(to toPartition) error { return s.split.Lead(ackedOf(at), to) }); err != nil {
		return at, err
	}
	s.f.status.lead(s.epoch, d.Findings)
	s.f.cfg.Observer.Leads(s.epoch)
	return at, nil
}

// toPartition takes a record for a partition.
type toPartition = func(partition int, r *record.Record) error

// all writes a record into every partition and waits for them.
func (s *session) all(ctx context.Context, make func(toPartition) error) error {
	var records []*kgo.Record
	err := make(func(partition int, r *record.Record) error {
		records = append(records, s.record(partition, r))
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("feed: append to topic %s: %w", s.f.cfg.Topic, err)
	}
	for _, r := range records {
		s.progress.stored(int(r.Partition))
	}
	return nil
}

func (s *session) record(partition int, r *record.Record) *kgo.Record {
	s.scratch = r.Append(s.scratch[:0])
	return &kgo.Record{Topic: s.f.cfg.Topic, Partition: int32(partition), Value: append(make([]byte, 0, len(s.scratch)), s.scratch...)}
}

// open opens the source at the saved checkpoint. A snapshot is for the shards to take: each
// partition gets a Gap.
func (s *session) open(ctx context.Context, at store.Checkpoint) (store.Position, error) {
	at.Legs = nil                           // the numbers of partitions
	s.src.Resume().SeparatePositions = true // the place of a row rests on the ends of batches
	s.src.Resume().MaxPayload = s.f.cfg.maxPayload()
	opening, err := s.src.Open(ctx, at, s)
	if err != nil {
		return "", err
	}
	s.origin = opening.Origin
	if opening.View != nil {
		opening.View.Close()
	}
	s.split.Begin(opening.From)
	s.progress.begin(store.Checkpoint{Origin: s.origin, Position: opening.From})
	if opening.SnapshotReason == "" && at.Position != "" {
		return opening.From, nil
	}
	if err := s.all(ctx, func(to toPartition) error { return s.split.All(record.Gap, to) }); err != nil {
		if opening.Discard != nil {
			err = errors.Join(err, opening.Discard(context.WithoutCancel(ctx)))
		}
		return "", err
	}
	from, _ := s.progress.Watermark()
	return opening.From, s.tables.SaveCheckpoint(ctx, s.epoch, from)
}

// View implements capture.Tables.
func (s *session) View(ctx context.Context, snapshot string) (store.View, error) {
	return s.tables.View(ctx, snapshot)
}

// ClearCheckpoint implements capture.Tables.
func (s *session) ClearCheckpoint(ctx context.Context) error {
	return s.tables.SaveCheckpoint(ctx, s.epoch, store.Checkpoint{})
}

// Keep implements capture.Tables. New refuses outboxes whose rows it would have to keep.
func (s *session) Keep(ctx context.Context, at store.Checkpoint, items []store.Item) error {
	if len(items) > 0 {
		return &store.SetupError{Problem: "feed: rows that only the log has cannot be kept", Remedy: "give their outbox a table"}
	}
	return nil
}

// follow appends the log from a position on, and saves how far the partitions have it.
func (s *session) follow(ctx context.Context, from store.Position) error {
	group, ctx := errgroup.WithContext(ctx)
	s.appending, s.fail = context.WithCancelCause(ctx)
	batches := make(chan capture.Batch)
	group.Go(func() error { return capture.Follow(ctx, s.src, from, batches, s.f.cfg.Observer) })
	group.Go(func() error { return s.append(ctx, batches) })
	group.Go(func() error {
		<-s.appending.Done()
		return context.Cause(s.appending)
	})
	saver := &checkpoint.Saver{
		Config: checkpoint.DefaultSaverConfig(), Tracker: s.progress, Store: s.tables, Source: s.src, Epoch: s.epoch, Observer: s.f.cfg.Observer,
	}
	group.Go(func() error { return saver.Run(ctx) })
	return group.Wait()
}

// append appends batches until the context ends.
func (s *session) append(ctx context.Context, batches <-chan capture.Batch) error {
	idle := time.NewTicker(s.f.cfg.IdleInterval)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-idle.C:
			if err := s.appendIdle(); err != nil {
				return err
			}
		case b := <-batches:
			if err := s.appendBatch(&b); err != nil {
				return err
			}
		}
	}
}

func (s *session) appendBatch(b *capture.Batch) error {
	entry := s.progress.add(b.Position)
	if err := s.split.Split(b, s.produce(entry)); err != nil {
		return err
	}
	s.progress.added(entry, len(b.Items))
	return nil
}

// appendIdle gives a position to the partitions without rows.
func (s *session) appendIdle() error {
	entry := s.progress.add("")
	waits := func(partition int) bool { return s.waiting[partition].Load() > 0 }
	if err := s.split.Idle(waits, s.produce(entry)); err != nil {
		return err
	}
	s.progress.added(entry, 0)
	return nil
}

// produce returns a function that appends records of a batch. It blocks while the buffer is full.
//
// All records share a context. It ends when a record fails, and the client then drops the records that
// it has not sent. A record that it sends before it tells of the failure leaves a gap in the numbers, at
// which the shard takes a snapshot.
func (s *session) produce(e *entry) func(int, *record.Record) error {
	return func(partition int, r *record.Record) error {
		rec := s.record(partition, r)
		size := len(rec.Value) + heldBytes
		if err := s.room.Acquire(s.appending, int64(size)); err != nil {
			return context.Cause(s.appending)
		}
		if s.appending.Err() != nil { // nothing may follow a record that was not appended
			s.room.Release(int64(size))
			return context.Cause(s.appending)
		}
		s.progress.sent(e)
		s.f.status.sent(size)
		s.promises.Add(1)
		s.waiting[partition].Add(1)
		s.client.Produce(s.appending, rec, func(_ *kgo.Record, err error) {
			defer s.promises.Done()
			s.waiting[partition].Add(-1)
			s.f.status.done(size, err)
			s.room.Release(int64(size))
			s.acknowledged(e, partition, err)
		})
		return nil
	}
}

// acknowledged takes the answer for a record. It never blocks, because the client gives one answer after
// the other.
func (s *session) acknowledged(e *entry, partition int, err error) {
	if err != nil {
		s.fail(fmt.Errorf("feed: append to topic %s: %w", s.f.cfg.Topic, err))
		return
	}
	s.progress.stored(partition)
	s.progress.acknowledged(e)
}

// end closes the client and waits for its last answers, which change the status.
func (s *session) end() {
	s.client.Close()
	s.promises.Wait()
	s.f.status.reset()
}
