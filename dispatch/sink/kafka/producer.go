package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// An attempt is repeated this often within a request, after 20 ms and then twice as long each
// time: 0.6 s in all, in which a leader that shuts down in order has a successor. A longer
// outage is the lane's to retry.
const (
	maxAttempts  = 6
	firstBackoff = 20 * time.Millisecond
)

// acksAll: the broker answers when every replica in sync has the batch.
const acksAll = -1

// producer sends the batches of one request at a time. A free one waits for the next.
type producer struct {
	sink   *Sink
	client *kgo.Client

	// place partitions like the Java client: murmur2 of the key.
	place kgo.TopicPartitioner
	keyed kgo.Record // its argument
	turn  int        // the latest partition of rows without a key

	// id numbers the batches; see sequence. hasID is false before the first batch, and after
	// one that may be stored although its rows are not delivered: the broker would take the
	// next one, which has its numbers, for a repetition, and drop it.
	id    int64
	epoch int16
	hasID bool
	next  map[topicPartition]int32

	connected bool   // the client knows the brokers
	notice    string // for the next result
}

type topicPartition struct {
	topic     string
	id        [16]byte // zero where the cluster has none; see topic
	partition int32
}

func newProducer(s *Sink) (*producer, error) {
	client, err := kgo.NewClient(s.options()...)
	if err != nil {
		return nil, err
	}
	return &producer{
		sink: s, client: client, next: map[topicPartition]int32{},
		place: kgo.StickyKeyPartitioner(nil).ForTopic(""), turn: rand.IntN(1 << 16),
	}, nil
}

func (p *producer) close() { p.client.Close() }

// partition returns the partition of a key.
func (p *producer) partition(key []byte, partitions int) int32 {
	p.keyed.Key = key
	return int32(p.place.Partition(&p.keyed, partitions))
}

// anyPartition returns a partition for the rows of a request that may go to any: the next one
// with a leader.
func (p *producer) anyPartition(t *topic) int32 {
	for range t.leaders {
		p.turn = (p.turn + 1) % len(t.leaders)
		if t.leaders[p.turn] >= 0 {
			break
		}
	}
	return int32(p.turn)
}

// initialize gets the producer's id.
func (p *producer) initialize(ctx context.Context) error {
	if p.hasID {
		return nil
	}
	req := kmsg.NewPtrInitProducerIDRequest()
	req.ProducerID, req.ProducerEpoch = -1, -1
	resp, err := req.RequestWith(ctx, p.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return err
	}
	p.id, p.epoch, p.hasID = resp.ProducerID, resp.ProducerEpoch, true
	clear(p.next)
	return nil
}

// store sends the batches, at most one for each partition, until each has its final answer.
func (p *producer) store(ctx context.Context, t *topic, records []record, batches []*batch) {
	if err := p.prepare(ctx, t, records, batches); err != nil {
		for _, b := range batches {
			b.answer = answer{verdict: failed, err: err}
		}
		return
	}
	open := batches
	for attempt := 0; len(open) > 0; attempt++ {
		p.send(ctx, t, open)
		open = p.settle(t, open)
		if len(open) == 0 || attempt+1 == maxAttempts || !wait(ctx, firstBackoff<<attempt) {
			break
		}
		if fresh, err := p.load(ctx, t.name); err == nil && fresh.id == t.id {
			t = fresh
		}
	}
	for _, b := range batches {
		if b.unknown || b.answer.verdict != stored && b.answer.verdict != rejected {
			p.hasID = false // the broker may have stored it, whatever it answered
		}
	}
}

// wait waits; false if the context ended before.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// prepare encodes the batches before their first attempt.
func (p *producer) prepare(ctx context.Context, t *topic, records []record, batches []*batch) error {
	isFull := func(b *batch) bool {
		return p.next[topicPartition{t.name, t.id, b.partition}] > math.MaxInt32-int32(len(b.rows))
	}
	if slices.ContainsFunc(batches, isFull) {
		p.hasID = false // the numbers are used up
	}
	if err := p.initialize(ctx); err != nil {
		return fmt.Errorf("get a producer id: %w", err)
	}
	for _, b := range batches {
		first := p.next[topicPartition{t.name, t.id, b.partition}]
		b.encode(records, sequence{p.id, p.epoch, first}, p.sink.compressor)
	}
	return nil
}

// settle takes the answers to an attempt and returns the batches to send again.
func (p *producer) settle(t *topic, batches []*batch) (again []*batch) {
	for _, b := range batches {
		switch b.answer.verdict {
		case stored:
			at := topicPartition{t.name, t.id, b.partition}
			p.next[at] += int32(len(b.rows))
			p.sink.proofs.stored(at)
			b.unknown = false
		case unanswered:
			b.unknown = true
			again = append(again, b)
		case moved:
			again = append(again, b)
		}
	}
	return again
}

// send sends batches to the leaders of their partitions, once, and sets their answers.
func (p *producer) send(ctx context.Context, t *topic, batches []*batch) {
	byLeader := map[int32][]*batch{}
	for _, b := range batches {
		leader := t.leader(b.partition)
		if leader < 0 {
			b.answer = answer{verdict: moved, err: errNoLeader}
			continue
		}
		byLeader[leader] = append(byLeader[leader], b)
	}
	var all sync.WaitGroup
	for leader, its := range byLeader {
		all.Go(func() { p.sendTo(ctx, leader, t, its) })
	}
	all.Wait()
}

// sendTo makes one request to a broker.
func (p *producer) sendTo(ctx context.Context, leader int32, t *topic, batches []*batch) {
	req := kmsg.NewPtrProduceRequest()
	req.Acks = acksAll
	if deadline, ok := ctx.Deadline(); ok {
		req.TimeoutMillis = int32(max(time.Until(deadline).Milliseconds(), 1))
	}
	to := kmsg.NewProduceRequestTopic()
	to.Topic, to.TopicID = t.name, t.id // by version of the protocol
	for _, b := range batches {
		part := kmsg.NewProduceRequestTopicPartition()
		part.Partition, part.Records = b.partition, b.wire
		to.Partitions = append(to.Partitions, part)
	}
	req.Topics = append(req.Topics, to)

	reply, err := p.client.Broker(int(leader)).Request(ctx, req)
	resp, ok := reply.(*kmsg.ProduceResponse)
	if err == nil && !ok {
		err = errSkipped
	}
	for _, b := range batches {
		if err != nil {
			b.answer = answer{verdict: requestVerdict(err), err: err}
		} else {
			b.answer = answerFor(resp, b.partition)
		}
	}
}

// answerFor returns the answer for a partition.
func answerFor(resp *kmsg.ProduceResponse, partition int32) answer {
	for i := range resp.Topics {
		for j := range resp.Topics[i].Partitions {
			if part := &resp.Topics[i].Partitions[j]; part.Partition == partition {
				return partitionAnswer(part)
			}
		}
	}
	return answer{verdict: unanswered, err: errSkipped}
}

func partitionAnswer(part *kmsg.ProduceResponseTopicPartition) answer {
	err := kerr.ErrorForCode(part.ErrorCode)
	a := answer{verdict: verdictOf(err), err: err, offset: part.BaseOffset}
	if err != nil && part.ErrorMessage != nil {
		a.err = withText(err, *part.ErrorMessage)
	}
	for _, r := range part.ErrorRecords {
		if a.bad == nil {
			a.bad = map[int]error{}
		}
		a.bad[int(r.RelativeOffset)] = err
		if r.ErrorMessage != nil {
			a.bad[int(r.RelativeOffset)] = withText(err, *r.ErrorMessage)
		}
	}
	return a
}

// withText adds the broker's text to an error of the protocol.
func withText(err error, text string) error {
	code := (*kerr.Error)(nil)
	if !errors.As(err, &code) || text == "" {
		return err
	}
	return &textError{code, text}
}

// textError is an error of the protocol with the broker's text.
type textError struct {
	code *kerr.Error
	text string
}

func (e *textError) Error() string { return e.code.Message + ": " + e.text }
func (e *textError) Unwrap() error { return e.code }
