package audit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/cmd/internal/verify"
	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// Topic says which records of Kafka are receipts.
type Topic struct {
	Name string
	// IDHeader is the header with the row's id. Empty: ce_id or id, or the id of a structured
	// CloudEvent.
	IDHeader string
	// Since skips older records; zero reads the topic from its start.
	Since time.Time
	// Clean removes secrets from the errors of the client.
	Clean func(error) error
}

// topic reads the records of a topic as receipts. Each partition is a source, because a lane stays in
// one.
type topic struct {
	Topic
	client *kgo.Client
	source int
	next   map[int32]int64 // the offsets behind what was read
}

// OpenTopic returns the receipts of a topic. options name the brokers. It connects with the first Read.
func OpenTopic(t Topic, source int, options []kgo.Opt) (Receipts, error) {
	from := kgo.NewOffset().AtStart()
	if !t.Since.IsZero() {
		from = from.AfterMilli(t.Since.UnixMilli())
	}
	options = append(options, kgo.ConsumeTopics(t.Name), kgo.ConsumeResetOffset(from), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords()) // the last record of a partition may be one
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, fmt.Errorf("read topic %s: %w", t.Name, err)
	}
	return &topic{t, client, source, map[int32]int64{}}, nil
}

func (t *topic) Close() { t.client.Close() }

// topicTimeout bounds a read that makes no progress.
const topicTimeout = 30 * time.Second

// Read implements Receipts.
func (t *topic) Read(ctx context.Context, take func(verify.Arrival)) error {
	if err := t.read(ctx, take); err != nil {
		return fmt.Errorf("read topic %s: %w", t.Name, t.Clean(err))
	}
	return nil
}

func (t *topic) read(ctx context.Context, take func(verify.Arrival)) error {
	ends, err := t.ends(ctx)
	if err != nil {
		return err
	}
	for !t.reached(ends) {
		poll, cancel := context.WithTimeout(ctx, topicTimeout)
		fetched := t.client.PollFetches(poll)
		cancel()
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := fetched.Err0(); err != nil {
			return err
		}
		for _, e := range fetched.Errors() {
			return fmt.Errorf("partition %d: %w", e.Partition, e.Err)
		}
		fetched.EachRecord(func(r *kgo.Record) {
			t.next[r.Partition] = r.Offset + 1
			if id := t.idOf(r); id != "" && !r.Attrs.IsControl() {
				sum := sha256.Sum256(r.Value)
				take(verify.Arrival{ID: id, At: r.Timestamp, Sum: hex.EncodeToString(sum[:]), Source: t.source + int(r.Partition), Chain: header(r, sink.ChainHeader)})
			}
		})
	}
	return nil
}

// ends returns the end of each partition, without those that have no records to read.
func (t *topic) ends(ctx context.Context) (map[int32]int64, error) {
	admin := kadm.NewClient(t.client)
	starts, err := t.starts(ctx, admin)
	if err != nil {
		return nil, err
	}
	listed, err := admin.ListCommittedOffsets(ctx, t.Name) // the end of a transaction that is open is not read yet
	if err := cmp.Or(err, listed.Error()); err != nil {
		return nil, err
	}
	ends := map[int32]int64{}
	listed.Each(func(end kadm.ListedOffset) {
		if start, _ := starts.Lookup(t.Name, end.Partition); end.Offset > start.Offset && start.Offset >= 0 {
			ends[end.Partition] = end.Offset
		}
	})
	return ends, nil
}

func (t *topic) starts(ctx context.Context, admin *kadm.Client) (kadm.ListedOffsets, error) {
	list := admin.ListStartOffsets
	if !t.Since.IsZero() {
		list = func(ctx context.Context, topics ...string) (kadm.ListedOffsets, error) {
			return admin.ListOffsetsAfterMilli(ctx, t.Since.UnixMilli(), topics...)
		}
	}
	starts, err := list(ctx, t.Name)
	return starts, cmp.Or(err, starts.Error())
}

func (t *topic) reached(ends map[int32]int64) bool {
	for partition, end := range ends {
		if t.next[partition] < end {
			return false
		}
	}
	return true
}

// idOf returns the id of the row in a record, "" if it has none.
func (t *topic) idOf(r *kgo.Record) string {
	names := []string{"ce_id", "id"}
	if t.IDHeader != "" {
		names = []string{t.IDHeader}
	}
	for _, name := range names {
		if id := header(r, name); id != "" {
			return id
		}
	}
	var event struct {
		SpecVersion string `json:"specversion"`
		ID          string `json:"id"`
	}
	if t.IDHeader == "" && json.Unmarshal(r.Value, &event) == nil && event.SpecVersion != "" {
		return event.ID
	}
	return ""
}

// header returns a header of a record, "" if it has none.
func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}
