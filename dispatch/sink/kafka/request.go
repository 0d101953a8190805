package kafka

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// request is a call of Deliver.
type request struct {
	sink    *Sink
	msgs    []sink.Message
	topic   string // of all its rows
	records []record
	out     []sink.Outcome // a class of 0 is not known yet
	reload  func() (*topic, error)
}

func newRequest(s *Sink, msgs []sink.Message) *request {
	r := &request{sink: s, msgs: msgs, records: make([]record, len(msgs)), out: make([]sink.Outcome, len(msgs))}
	for i := range msgs {
		if r.out[i].Class != 0 {
			continue // behind a row that cannot be sent
		}
		rec, reason := s.encode(&msgs[i])
		switch {
		case reason != "":
			r.end(i, sink.Outcome{Class: sink.Rejected, Reason: store.ReasonBadRequest, Detail: reason})
		case r.topic == "", r.topic == rec.topic:
			r.topic, r.records[i] = rec.topic, rec
		default: // a request has one topic; see Config.Limits
			r.end(i, sink.Outcome{Class: sink.NotSent})
		}
	}
	return r
}

// end sets the outcome of row i, and leaves out the rows behind it in its lane.
func (r *request) end(i int, out sink.Outcome) {
	lane := r.msgs[i].Lane
	r.out[i] = out
	for i++; i < len(r.msgs) && r.msgs[i].Lane == lane; i++ {
		r.out[i] = sink.Outcome{Class: sink.NotSent}
	}
}

// deliver sends the rows with a producer.
func (r *request) deliver(ctx context.Context, p *producer) sink.Result {
	if r.topic == "" {
		return r.result(true) // no row can be sent
	}
	r.reload = func() (*topic, error) { return p.load(ctx, r.topic) }
	t, err := p.topic(ctx, r.topic)
	if err == nil && time.Since(t.read) > limitAge && r.exceeds(r.sink.maxMessage(t)) {
		t, err = r.reload() // the limit may have been raised
	}
	if err != nil {
		r.fail(r.sink.outcomeOf("topic "+r.topic, err))
		return r.result(false)
	}
	waiting := r.batches(p, t)
	unsent := len(waiting) == 0
	for len(waiting) > 0 {
		var now, later []*batch
		for _, b := range waiting {
			if slices.ContainsFunc(now, func(other *batch) bool { return other.partition == b.partition }) {
				later = append(later, b)
			} else {
				now = append(now, b)
			}
		}
		p.store(ctx, t, r.records, now)
		for _, b := range now {
			if isUnexplained(b.answer.err) && r.halves(b) != nil {
				later = append(later, r.bisect(ctx, p, t, b)...)
			} else {
				later = append(later, r.take(t, b)...)
			}
		}
		waiting = later
	}
	return r.result(unsent)
}

// exceeds reports whether a row may be larger than a batch of a size.
func (r *request) exceeds(limit int) bool {
	return slices.ContainsFunc(r.records, func(rec record) bool { return batchOverhead+rec.size() > limit })
}

// fail sets the outcome of all rows that have none.
func (r *request) fail(out sink.Outcome) {
	for i := range r.out {
		if r.out[i].Class == 0 {
			r.out[i] = out
		}
	}
}

// batches divides the rows by partition. Rows that do not fit into the batch of their
// partition are left out, and so are those behind them in their lanes.
func (r *request) batches(p *producer, t *topic) (all []*batch) {
	limit, anywhere, before := r.sink.maxMessage(t), int32(-1), int32(-1)
	sizes := map[int32]int{}
	for i := range r.records {
		if r.out[i].Class != 0 {
			continue
		}
		rec := &r.records[i]
		if batchOverhead+rec.size() > limit && r.sink.knowsMaximum(t) && r.endIfLarge(i, limit) {
			continue
		}
		to := anywhere
		if rec.place != nil {
			to = p.partition(rec.place, len(t.leaders))
		} else if to < 0 {
			to = p.anyPartition(t)
			anywhere = to
		}
		if i > 0 && r.msgs[i-1].Lane == r.msgs[i].Lane && to != before {
			r.end(i, sink.Outcome{Class: sink.NotSent}) // the batches of two partitions have no order
			continue
		}
		before = to
		at := slices.IndexFunc(all, func(b *batch) bool { return b.partition == to })
		switch {
		case at < 0:
			all = append(all, &batch{partition: to, rows: []int{i}})
			sizes[to] = batchOverhead
		case sizes[to]+rec.size() > limit:
			r.end(i, sink.Outcome{Class: sink.NotSent})
			continue
		default:
			all[at].rows = append(all[at].rows, i)
		}
		sizes[to] += rec.size()
	}
	return all
}

// endIfLarge rejects row i if it does not fit into a batch of its own.
func (r *request) endIfLarge(i, limit int) bool {
	alone := batch{rows: []int{i}}
	alone.encode(r.records, sequence{}, r.sink.compressor)
	if len(alone.wire) <= limit {
		return false
	}
	r.end(i, sink.Outcome{Class: sink.Rejected, Reason: store.ReasonBadRequest, Final: true, Detail: fmt.Sprintf(
		"record needs %d bytes, and topic %s takes %d (max.message.bytes, or max-request-bytes of the sink)", len(alone.wire), r.topic, limit)})
	return true
}

// take sets the outcomes of a batch's rows. Of a rejected batch, which is not stored, it
// returns what is still to be sent.
func (r *request) take(t *topic, b *batch) []*batch {
	if b.answer.verdict == stored {
		for n, i := range b.rows {
			r.out[i] = r.sink.delivered(t, b.partition, b.answer.offset+int64(n))
		}
		return nil
	}
	r.sink.topics.forget(t.name)
	doing := fmt.Sprintf("topic %s, partition %d", t.name, b.partition)
	if b.answer.verdict == rejected {
		if again, ok := r.divide(b, doing); ok {
			return again
		}
	}
	out := r.sink.outcomeOf(doing, b.answer.err)
	if isUnexplained(b.answer.err) {
		out = r.unexplained(t, b, out)
	}
	out.Final = len(b.rows) == 1 && is(b.answer.err, kerr.MessageTooLarge, kerr.RecordListTooLarge) && !r.fits(b)
	for _, i := range b.rows {
		r.out[i] = out
	}
	return nil
}

// fits reports whether the topic may take a batch that its leader has rejected for its size. Brokers apply a
// limit that was raised one after the other, so the leader may judge by the old one for a moment. If the
// limit cannot be read now, the row is retried rather than FAILED.
func (r *request) fits(b *batch) bool {
	t, err := r.reload()
	return err != nil || t.hasMaximum && len(b.wire) <= t.maxMessage
}

// divide ends the rows that a broker names as the reason why it rejected a batch, and returns
// the other rows as a new batch. If it names none, each lane gets its own batch, so that a lane
// does not fail with another. It returns false if the rows are of one lane.
func (r *request) divide(b *batch, doing string) (again []*batch, ok bool) {
	for n, i := range b.rows {
		if err := b.answer.bad[n]; err != nil && r.out[i].Class == 0 {
			r.end(i, r.sink.outcomeOf(doing, err))
			ok = true
		}
	}
	if ok {
		rows := slices.DeleteFunc(b.rows, func(i int) bool { return r.out[i].Class != 0 })
		if len(rows) > 0 {
			again = append(again, &batch{partition: b.partition, rows: rows})
		}
		return again, true
	}
	for _, i := range b.rows {
		if last := len(again) - 1; last >= 0 && r.msgs[again[last].rows[0]].Lane == r.msgs[i].Lane {
			again[last].rows = append(again[last].rows, i)
		} else {
			again = append(again, &batch{partition: b.partition, rows: []int{i}})
		}
	}
	return again, len(again) > 1
}

// result returns the outcomes. Partitions that fail in different ways are no failure of the request.
func (r *request) result(unsent bool) sink.Result {
	res := sink.ResultOf(r.out, func(first, other *sink.Outcome) bool {
		return other.Class == first.Class && other.Detail == first.Detail
	})
	res.Unsent = unsent
	return res
}
