package nats

import (
	"context"
	"crypto/rand"
	"errors"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Names of the values of a receipt.
const (
	receiptStream   = "stream"
	receiptSequence = "sequence" // of the message in the stream
)

// request is one call of Deliver, whose goroutine sends the messages and takes the answers. Of each
// lane one message, or one batch, is without an answer.
type request struct {
	sink       *Sink
	conn       *session
	ctx        context.Context
	msgs       []sink.Message
	items      []sink.Outcome
	sent       bool
	maxPayload int64
	msg        nats.Msg // the latest message; the client copies it

	*inbox
	flights []flight // by message
	open    int      // flights without an answer
	waiting []int    // first messages of lanes that wait for a token of a batch
}

// flight is a message, or a batch that ends with it, whose answer is awaited.
type flight struct {
	subject string // "" if none is awaited
	first   int    // the first message of the batch
}

// deliver sends the messages of all lanes and takes their answers.
func (r *request) deliver() sink.Result {
	for i := range r.items {
		r.items[i].Class = sink.NotSent
	}
	for first := 0; first < len(r.msgs); first = r.laneEnd(first) {
		if r.sink.atomic && r.laneEnd(first) > first+1 {
			r.waiting = append(r.waiting, first)
		} else {
			r.send(first)
		}
	}
	for r.open+len(r.waiting) > 0 {
		var token chan<- struct{}
		if len(r.waiting) > 0 {
			token = r.sink.batches
		}
		select {
		case token <- struct{}{}:
			first := r.waiting[0]
			r.waiting = r.waiting[1:]
			r.sendBatch(first)
		case <-r.arrived:
			for _, a := range r.take() {
				r.answered(&a)
			}
		case <-r.conn.failed:
			r.abort(errInbox)
		case <-r.ctx.Done():
			r.abort(r.ctx.Err())
		}
	}
	return r.result()
}

// laneEnd is the position behind the last message of a lane.
func (r *request) laneEnd(i int) int {
	lane := r.msgs[i].Lane
	for i < len(r.msgs) && r.msgs[i].Lane == lane {
		i++
	}
	return i
}

// send sends a message. The next one of its lane follows its answer.
func (r *request) send(i int) {
	if r.prepare(&r.msg, i, 0) {
		r.publish(&r.msg, i, i)
	}
}

// prepare makes the message of row i, or sets the outcome of a row that cannot be sent. A message is too
// large only if the server says so now: its limit may have been raised since the client connected.
func (r *request) prepare(msg *nats.Msg, i, more int) (ok bool) {
	out, ok := r.sink.prepare(msg, &r.msgs[i], r.maxPayload, more)
	if !ok && out.Final {
		switch limit, known := r.conn.askLimit(r.sink.limitAge); {
		case !known:
			out = r.sink.outcome(sink.Unavailable, store.ReasonGateway, "not connected")
		case limit > r.maxPayload && tooLarge(msg, limit, more) == "":
			out = r.sink.outcome(sink.Unavailable, store.ReasonGateway,
				"max_payload of the server was raised from %d to %d; connecting again", r.maxPayload, limit)
		}
	}
	if !ok {
		r.items[i] = out
	}
	return ok
}

// publish sends a message, or the last one of a batch, and awaits an answer.
func (r *request) publish(msg *nats.Msg, first, last int) (ok bool) {
	msg.Reply = r.conn.replyTo(r.inbox, last)
	if err := r.conn.nc.PublishMsg(msg); err != nil {
		r.fail(first, last, msg.Subject, err)
		return false
	}
	r.sent = true
	r.flights[last] = flight{msg.Subject, first}
	r.open++
	return true
}

// sendBatch sends the messages of a lane, up to the first that can never be sent, as one batch. The
// caller has a token for it. The server answers only the last message; if it missed one, it refuses
// the last.
func (r *request) sendBatch(first int) {
	batch := make([]nats.Msg, 0, r.laneEnd(first)-first)
	for i := first; i < first+cap(batch); i++ {
		var msg nats.Msg
		if !r.prepare(&msg, i, batchHeaderBytes) {
			break
		}
		batch = append(batch, msg)
	}
	if !r.publishBatch(batch, first) {
		<-r.sink.batches
	}
}

// publishBatch reports whether an answer to a batch is to come.
func (r *request) publishBatch(batch []nats.Msg, first int) (ok bool) {
	last := len(batch) - 1
	if last <= 0 { // a single message is no batch
		if last == 0 {
			r.publish(&batch[0], first, first)
		}
		return false
	}
	err := r.checkBatches()
	for id, i := rand.Text(), 0; err == nil && i <= last; i++ {
		batch[i].Header[batchIDHeader] = []string{id}
		batch[i].Header[batchSequenceHeader] = []string{strconv.Itoa(i + 1)}
		if i == last {
			batch[i].Header[batchCommitHeader] = []string{"1"}
			return r.publish(&batch[i], first, first+last)
		}
		if err = r.conn.nc.PublishMsg(&batch[i]); err == nil {
			r.sent = true
		}
	}
	r.fail(first, first+last, batch[last].Subject, err)
	return false
}

// checkBatches returns an error unless the server has batches. An older server ignores their
// headers and stores each message that it can.
func (r *request) checkBatches() error {
	switch v := r.conn.nc.ConnectedServerVersion(); {
	case v == "": // no server is connected
		return nats.ErrReconnectBufExceeded // as the client says of one message
	case !hasBatches(v):
		return &versionError{v}
	}
	return nil
}

// answered takes an answer, or an error of the session.
func (r *request) answered(a *answer) {
	if a.msg != nil {
		r.finish(a.index, a)
		return
	}
	for i := range r.flights {
		if a.subject == "" || a.subject == r.flights[i].subject {
			r.finish(i, a)
		}
	}
}

// finish takes the answer to a message or to a batch, and sends the next message of its lane.
func (r *request) finish(last int, a *answer) {
	if last >= len(r.flights) || r.flights[last].subject == "" {
		return // a second answer
	}
	f := r.flights[last]
	r.flights[last].subject = ""
	r.open--
	isBatch := f.first < last
	if isBatch {
		<-r.sink.batches
	}
	ack, err := a.result()
	switch {
	case err == nil:
		r.sink.answered.Store(true)
		for i := f.first; i <= last; i++ {
			r.items[i] = r.sink.delivered(ack.Stream, ack.Sequence-uint64(last-i))
		}
		if next := last + 1; next < r.laneEnd(last) {
			r.send(next)
		}
	case isBatch && mayBeStoredSingly(err):
		r.send(f.first)
	default:
		r.fail(f.first, last, f.subject, err)
	}
}

// mayBeStoredSingly reports whether nothing of a batch is stored, although each of its messages
// might be: one is a repetition, or one is missing, for example because the stream refused it
// without an answer.
func mayBeStoredSingly(err error) bool {
	var refused *jetstream.APIError
	return errors.As(err, &refused) && (refused.ErrorCode == codeBatchDuplicate || refused.ErrorCode == codeBatchIncomplete)
}

// abort ends the wait for answers.
func (r *request) abort(err error) {
	for i := range r.flights {
		r.finish(i, &answer{err: err})
	}
	for _, first := range r.waiting {
		r.fail(first, r.laneEnd(first)-1, "", err)
	}
	r.waiting = nil
}

// fail gives messages the same outcome.
func (r *request) fail(first, last int, subject string, err error) {
	out := r.sink.classify(r.ctx, r.conn, subject, err)
	out.Final = first == last && isTooLarge(err)
	for i := first; i <= last; i++ {
		r.items[i] = out
	}
}

// result returns the outcomes. A failure of all messages alike is one of the request.
func (r *request) result() sink.Result {
	res := sink.ResultOf(r.items, sink.SameClass)
	res.Unsent = !r.sent
	return res
}

// delivered returns the outcome of a stored message.
func (s *Sink) delivered(stream string, sequence uint64) sink.Outcome {
	out := sink.Outcome{Class: sink.Delivered}
	if s.receipts {
		out.Receipt = []sink.Receipt{
			{Name: receiptStream, Value: stream},
			{Name: receiptSequence, Value: strconv.FormatUint(sequence, 10)},
		}
	}
	return out
}
