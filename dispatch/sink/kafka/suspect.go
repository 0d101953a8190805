package kafka

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// A broker that throws on a batch answers UNKNOWN_SERVER_ERROR. A record may be the cause, or
// the broker itself. So a record is suspect only if its partition failed on it alone, and has stored
// another batch since its latest such failure. A broken broker stores none, so that the rows
// of its partitions are never suspect, whatever the other brokers store.

// isUnexplained reports whether a broker failed without a reason.
func isUnexplained(err error) bool { return errors.Is(err, kerr.UnknownServerError) }

// proofs are the partitions that failed without a reason, each with whether it has stored a batch
// since.
type proofs struct {
	mu     sync.Mutex
	failed map[topicPartition]bool
}

// stored records that a partition has stored a batch.
func (ps *proofs) stored(at topicPartition) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if _, ok := ps.failed[at]; ok {
		ps.failed[at] = true
	}
}

// fail records a failure, and reports whether the partition has stored a batch since the one before.
func (ps *proofs) fail(at topicPartition) (proven bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.failed == nil {
		ps.failed = map[topicPartition]bool{}
	}
	proven = ps.failed[at]
	ps.failed[at] = false
	return proven
}

// unexplained returns the outcome of a batch on which a broker failed without a reason.
func (r *request) unexplained(t *topic, b *batch, out sink.Outcome) sink.Outcome {
	if len(b.rows) == 1 && r.sink.proofs.fail(topicPartition{t.name, t.id, b.partition}) {
		out.Suspect, out.Reason = true, store.ReasonInternal
	}
	return out
}

// bisect finds the lane on whose rows a broker fails without a reason, and stores the rows of the others.
// It goes on while a half is stored, so an outage costs two batches. It returns what is still
// to be sent.
func (r *request) bisect(ctx context.Context, p *producer, t *topic, b *batch) (again []*batch) {
	halves := r.halves(b)
	for _, half := range halves {
		p.store(ctx, t, r.records, []*batch{half})
	}
	proof := slices.ContainsFunc(halves, func(half *batch) bool { return half.answer.verdict == stored })
	for _, half := range halves {
		if proof && isUnexplained(half.answer.err) && r.halves(half) != nil {
			again = append(again, r.bisect(ctx, p, t, half)...)
		} else {
			again = append(again, r.take(t, half)...)
		}
	}
	return again
}

// halves divides the lanes of a batch in two; nil if it has one.
func (r *request) halves(b *batch) []*batch {
	at := len(b.rows) / 2
	begins := func() bool { return at == 0 || r.msgs[b.rows[at]].Lane != r.msgs[b.rows[at-1]].Lane }
	for at < len(b.rows) && !begins() {
		at++
	}
	if at == len(b.rows) {
		for at = len(b.rows) / 2; !begins(); {
			at--
		}
	}
	if at == 0 {
		return nil
	}
	return []*batch{{partition: b.partition, rows: b.rows[:at]}, {partition: b.partition, rows: b.rows[at:]}}
}
