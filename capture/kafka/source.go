package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/logsource"
	"github.com/sluicebox/sluicebox/capture/kafka/internal/record"
	"github.com/sluicebox/sluicebox/capture/kafka/internal/topic"
	"github.com/sluicebox/sluicebox/store"
)

// Database is what a shard needs of the database whose rows the topic has.
type Database interface {
	// Mark writes a marker into the database's log, under the name of the feeder.
	Mark(ctx context.Context, token string) error
	// Compare orders two positions of that log.
	Compare(a, b store.Position) int
	// Leader returns the present leader under the name of the feeder, or store.ErrNotLeader.
	Leader(ctx context.Context) (store.Leader, error)
}

// Config configures the source of a shard.
type Config struct {
	// Client are the options of a client: brokers, TLS, credentials.
	Client []kgo.Opt
	Topic  string
	// Partition is the one to read, of Partitions.
	Partition, Partitions int
	Database              Database
	// Outboxes are the tables whose rows the topic has.
	Outboxes []store.Outbox
	// MaxBatchRows and MaxBatchBytes bound a batch; a single row may exceed the bytes. 0 is 500
	// rows and 4 MiB.
	MaxBatchRows, MaxBatchBytes int
}

// Source reads one partition. It implements capture.Resumer. Each of its batches has a position,
// because the partition has one for each row.
type Source struct {
	cfg       Config
	outboxes  map[string]*store.Outbox // by name
	clockSkew time.Duration            // see maxClockSkew
	resume    capture.Resume
	acks      logsource.Acks[int64]

	mu    sync.Mutex
	admin *kadm.Client // made by the first call that needs it
}

// New validates a configuration. It opens no connection. Call Close after all other calls have
// returned.
func New(cfg Config) (*Source, error) {
	switch {
	case cfg.Topic == "":
		return nil, &store.SetupError{Problem: "read topic: there is none", Remedy: "name one"}
	case cfg.Partition < 0 || cfg.Partition >= cfg.Partitions:
		return nil, &store.SetupError{Problem: fmt.Sprintf("read topic %s: there is no partition %d of %d", cfg.Topic, cfg.Partition, cfg.Partitions), Remedy: "name one from 0 on"}
	case cfg.Database == nil:
		return nil, &store.SetupError{Problem: "read topic " + cfg.Topic + ": there is no database", Remedy: "name the one whose rows it has"}
	}
	if err := logsource.ValidateBatch(cfg.MaxBatchRows, cfg.MaxBatchBytes); err != nil {
		return nil, &store.SetupError{Problem: err.Error()}
	}
	logsource.SetBatchDefaults(&cfg.MaxBatchRows, &cfg.MaxBatchBytes)
	s := &Source{cfg: cfg, clockSkew: maxClockSkew, outboxes: map[string]*store.Outbox{}}
	for i := range cfg.Outboxes {
		s.outboxes[cfg.Outboxes[i].Name] = &cfg.Outboxes[i]
	}
	return s, nil
}

// String names the partition, for errors.
func (s *Source) String() string {
	return fmt.Sprintf("partition %d of topic %s", s.cfg.Partition, s.cfg.Topic)
}

// Resume implements capture.Resumer.
func (s *Source) Resume() *capture.Resume { return &s.resume }

// Mark writes a marker into the database's log. Only this partition gets it.
func (s *Source) Mark(ctx context.Context, token string) error {
	return s.cfg.Database.Mark(ctx, record.AddressMark(s.cfg.Partition, token))
}

// Compare orders positions by their offset.
func (s *Source) Compare(a, b store.Position) int {
	return capture.ComparePositions(a, b, Offset)
}

// Offset returns the offset of the next record of a position, -1 for no position.
func Offset(at store.Position) (int64, error) {
	if at == "" {
		return -1, nil
	}
	p, err := record.ParsePlace(at)
	return p.Offset, err
}

// Acknowledge implements capture.Retention. It frees nothing: Kafka deletes records by their age or
// size.
func (s *Source) Acknowledge(p store.Position) {
	s.acks.Acknowledge(p, Offset, s.Compare)
}

// Retained implements capture.Retention. It estimates the bytes behind the last acknowledged position
// by the records' mean size. Limit is 0.
func (s *Source) Retained(ctx context.Context) (capture.RetainedLog, error) {
	low, high, err := s.offsets(ctx)
	if err != nil {
		return capture.RetainedLog{}, err
	}
	admin, err := s.administrator()
	if err != nil {
		return capture.RetainedLog{}, err
	}
	set := kadm.TopicsSet{}
	set.Add(s.cfg.Topic, int32(s.cfg.Partition))
	dirs, err := admin.DescribeAllLogDirs(ctx, set)
	if err != nil {
		return capture.RetainedLog{}, fmt.Errorf("describe size of topic %s: %w", s.cfg.Topic, err)
	}
	var size int64
	dirs.Each(func(d kadm.DescribedLogDir) {
		d.Topics.Each(func(p kadm.DescribedLogDirPartition) { size = max(size, p.Size) })
	})
	last := s.acks.Last()
	if high == low || last == nil {
		return capture.RetainedLog{}, nil
	}
	acked := min(max(last.Parsed, low), high)
	return capture.RetainedLog{Bytes: int64(float64(size) * float64(high-acked) / float64(high-low))}, nil
}

// Close closes all connections.
func (s *Source) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.admin != nil {
		s.admin.Close()
		s.admin = nil
	}
}

// administrator returns the client for everything but records.
func (s *Source) administrator() (*kadm.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.admin == nil {
		client, err := kgo.NewClient(s.cfg.Client...)
		if err != nil {
			return nil, &store.SetupError{Problem: "read topic: " + err.Error(), Remedy: "correct the options of the client"}
		}
		s.admin = kadm.NewClient(client)
	}
	return s.admin, nil
}

// origin returns the identity of the partition. It checks the topic.
func (s *Source) origin(ctx context.Context) (string, error) {
	admin, err := s.administrator()
	if err != nil {
		return "", err
	}
	d, err := topic.Describe(ctx, admin, topic.Spec{Name: s.cfg.Topic, Partitions: s.cfg.Partitions})
	if err == nil {
		err = store.FaultError(d.Findings)
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("kafka/%s/%d/%d", d.ID, s.cfg.Partitions, s.cfg.Partition), nil
}

// checkOrigin refuses a checkpoint of another number of partitions.
func (s *Source) checkOrigin(at string) error {
	parts := strings.Split(at, "/")
	if len(parts) == 4 && parts[0] == "kafka" && parts[2] != fmt.Sprint(s.cfg.Partitions) {
		return &store.SetupError{
			Problem: fmt.Sprintf("the checkpoint of this shard is of a topic of %s partitions, and %d are configured", parts[2], s.cfg.Partitions),
			Remedy:  "rows of a group would change their shard: configure the former number and topic",
		}
	}
	return nil
}

// offsets returns the first offset of the partition, and the one of the next record.
func (s *Source) offsets(ctx context.Context) (low, high int64, err error) {
	admin, err := s.administrator()
	if err != nil {
		return 0, 0, err
	}
	for i, list := range []func(context.Context, ...string) (kadm.ListedOffsets, error){admin.ListStartOffsets, admin.ListEndOffsets} {
		all, err := list(ctx, s.cfg.Topic)
		at, _ := all.Lookup(s.cfg.Topic, int32(s.cfg.Partition))
		if err = errors.Join(err, at.Err); err != nil {
			return 0, 0, fmt.Errorf("list offsets of topic %s: %w", s.cfg.Topic, err)
		}
		if i == 0 {
			low = at.Offset
		} else {
			high = at.Offset
		}
	}
	return low, high, nil
}

// lost returns why the partition cannot be read from an offset on, nil if it can.
func (s *Source) lost(ctx context.Context, offset int64) (lost *capture.LostError, err error) {
	low, high, err := s.offsets(ctx)
	switch {
	case err != nil:
		return nil, err
	case offset < low:
		return s.beginsAfter(low, offset), nil
	case offset > high:
		return &capture.LostError{Reason: fmt.Sprintf("%s ends at offset %d, before the checkpoint at %d: Kafka has lost records", s, high, offset)}, nil
	}
	return nil, nil
}

// beginsAfter returns the error for an offset that the partition no longer has.
func (s *Source) beginsAfter(low, offset int64) *capture.LostError {
	return &capture.LostError{Reason: fmt.Sprintf("%s begins at offset %d, behind the checkpoint at %d; raise retention.ms", s, low, offset)}
}

// Diagnose implements store.Diagnoser.
func (s *Source) Diagnose(ctx context.Context) ([]store.Finding, error) {
	admin, err := s.administrator()
	if err != nil {
		return nil, err
	}
	return topic.Diagnose(ctx, admin, topic.Spec{Name: s.cfg.Topic, Partitions: s.cfg.Partitions}), nil
}

// isOutOfRange reports whether Kafka has not the offset that was asked for.
func isOutOfRange(err error) bool {
	var loss *kgo.ErrDataLoss
	return errors.Is(err, kerr.OffsetOutOfRange) || errors.As(err, &loss)
}

// isOfTopic reports whether the topic is not the one that was opened.
func isOfTopic(err error) bool {
	return slices.ContainsFunc([]error{kerr.UnknownTopicID, kerr.InconsistentTopicID}, func(e error) bool { return errors.Is(err, e) })
}
