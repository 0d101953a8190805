package nats

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/ascii"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
)

// Headers of a batch (ADR-50).
const (
	batchIDHeader       = "Nats-Batch-Id"
	batchSequenceHeader = "Nats-Batch-Sequence"
	batchCommitHeader   = "Nats-Batch-Commit"
)

const (
	// batchVersion is the first version whose batches may have a Nats-Msg-Id.
	batchMajor, batchMinor, batchPatch = 2, 12, 1

	// maxHeader is the size of headers that a server stores (server, checkMsgHeaders), less the
	// headers of a batch.
	maxHeader = 65535 - batchHeaderBytes

	// batchHeaderBytes is the most that the headers of a batch add.
	batchHeaderBytes = 128
)

// Names of the values of a receipt.
const (
	receiptStream   = "stream"
	receiptSequence = "sequence" // of the message in the stream
)

// outgoing is a message on its way, and the place of its outcome.
type outgoing struct {
	msg *nats.Msg
	out *sink.Outcome
}

// prepare encodes the messages of a lane. It returns those before the first that can never be
// sent, which is rejected. The ones behind it are not sent.
func (r *request) prepare(msgs []sink.Message, items []sink.Outcome) (run []outgoing) {
	for i := range items {
		items[i].Class = sink.NotSent
	}
	for i := range msgs {
		msg, reason := r.sink.encode(&msgs[i])
		if reason == "" {
			reason = tooLarge(msg, r.conn.nc.MaxPayload())
		}
		if reason != "" {
			items[i] = r.sink.rejected("%s", reason)
			break
		}
		run = append(run, outgoing{msg, &items[i]})
	}
	return run
}

// encode returns the message for a row. reason is set if it can never be sent.
func (s *Sink) encode(m *sink.Message) (msg *nats.Msg, reason string) {
	msg = &nats.Msg{Header: nats.Header{}}
	if msg.Subject, reason = subjectOf(&s.subject, m); reason != "" {
		return nil, reason
	}
	stream, reason := streamOf(&s.stream, m)
	if reason != "" {
		return nil, reason
	}
	id := event.ID(s.idPrefix, m.ID)
	if id == "" {
		return nil, "row has an empty id, which streams need to drop repetitions; set id-prefix"
	}
	e, reason := s.encoder.Encode(m)
	if reason != "" {
		return nil, reason
	}
	msg.Data = e.Body
	for _, h := range e.Headers {
		msg.Header[h.Name] = []string{h.Value}
	}
	if stream != "" {
		msg.Header[jetstream.ExpectedStreamHeader] = []string{stream}
	}
	msg.Header[jetstream.MsgIDHeader] = []string{msgID(m, id)}
	return msg, ""
}

// msgID returns the Nats-Msg-Id of a row with this id for receivers. The outbox is part of it,
// because a stream drops a message whose Nats-Msg-Id it has: the row 1 of another table would be
// lost.
func msgID(m *sink.Message, id string) string {
	if m.Outbox != "" {
		id = m.Outbox + "/" + id
	}
	if m.Replay != "" {
		id += "/" + m.Replay
	}
	return ascii.PercentEncode(id, "")
}

// tooLarge returns the reason why a server would refuse a message by its size, "" if none.
func tooLarge(msg *nats.Msg, maxPayload int64) (reason string) {
	header := len("NATS/1.0\r\n\r\n")
	for name, values := range msg.Header {
		for _, value := range values {
			header += len(name) + len(": \r\n") + len(value)
		}
	}
	switch size := int64(header + len(msg.Data) + batchHeaderBytes); {
	case header > maxHeader:
		return fmt.Sprintf("headers of %d bytes exceed %d", header, maxHeader)
	case size > maxPayload:
		return fmt.Sprintf("message of %d bytes with its headers exceeds max_payload of the server (%d)", size, maxPayload)
	}
	return ""
}

// pending is a message without an answer.
type pending struct {
	outgoing
	future jetstream.PubAckFuture
	watch  *watch
}

// start sends a message.
func (r *request) start(o outgoing) (p *pending, err error) {
	p = &pending{outgoing: o, watch: r.conn.watch(o.msg.Subject)}
	// The client would repeat a message that no stream took.
	if p.future, err = r.conn.js.PublishMsgAsync(o.msg, jetstream.WithRetryAttempts(0)); err != nil {
		r.conn.unwatch(o.msg.Subject, p.watch)
		return nil, err
	}
	r.sent.Store(true)
	return p, nil
}

// sendOne sends a message, awaits the answer and sets the outcome.
func (r *request) sendOne(ctx context.Context, o outgoing) {
	p, err := r.start(o)
	if err != nil {
		*o.out = r.sink.classify(ctx, r.conn, o.msg.Subject, err)
		return
	}
	r.finish(ctx, p)
}

// await returns the answer to a message.
func (r *request) await(ctx context.Context, p *pending) (*jetstream.PubAck, error) {
	defer r.conn.unwatch(p.msg.Subject, p.watch)
	select {
	case ack := <-p.future.Ok():
		r.sink.answered.Store(true)
		return ack, nil
	case err := <-p.future.Err():
		return nil, err
	case <-p.watch.denied:
		return nil, errDenied
	case <-r.conn.failed:
		return nil, errInbox
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// finish awaits the answer to a message and sets its outcome.
func (r *request) finish(ctx context.Context, p *pending) {
	ack, err := r.await(ctx, p)
	if err != nil {
		*p.out = r.sink.classify(ctx, r.conn, p.msg.Subject, err)
		return
	}
	*p.out = r.sink.delivered(ack.Stream, ack.Sequence)
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

// sendRun sends several messages of a lane as one batch.
func (r *request) sendRun(ctx context.Context, run []outgoing) {
	select {
	case r.sink.batches <- struct{}{}:
		defer func() { <-r.sink.batches }()
	case <-ctx.Done():
		r.fail(run, r.sink.classify(ctx, r.conn, run[0].msg.Subject, ctx.Err()))
		return
	}
	ack, err := r.commit(ctx, run)
	var refused *jetstream.APIError
	switch {
	case err == nil:
		for i := range run {
			*run[i].out = r.sink.delivered(ack.Stream, ack.Sequence-uint64(len(run)-1-i))
		}
	case errors.As(err, &refused) && (refused.ErrorCode == codeBatchDuplicate || refused.ErrorCode == codeBatchIncomplete):
		// Nothing is stored. An incomplete batch may lack a message that the stream refused
		// without an answer, for example one above max_msg_size.
		r.sendEach(ctx, run)
	default:
		r.fail(run, r.sink.classify(ctx, r.conn, run[len(run)-1].msg.Subject, err))
	}
}

// fail gives all messages of a run the same outcome.
func (r *request) fail(run []outgoing, out sink.Outcome) {
	for i := range run {
		*run[i].out = out
	}
}

// commit sends a batch and returns the answer to its last message. The server answers no other
// one; if it missed one, it refuses the last.
func (r *request) commit(ctx context.Context, run []outgoing) (*jetstream.PubAck, error) {
	// An older server ignores the headers of a batch and stores each message that it can.
	switch v := r.conn.nc.ConnectedServerVersion(); {
	case v == "": // no server is connected
		return nil, nats.ErrReconnectBufExceeded // as the client says of one message
	case !hasBatches(v):
		return nil, &versionError{v}
	}
	id, last := rand.Text(), len(run)-1
	for i := range run {
		header := run[i].msg.Header
		header[batchIDHeader] = []string{id}
		header[batchSequenceHeader] = []string{strconv.Itoa(i + 1)}
		if i == last {
			break
		}
		if err := r.conn.nc.PublishMsg(run[i].msg); err != nil {
			return nil, err
		}
		r.sent.Store(true)
	}
	run[last].msg.Header[batchCommitHeader] = []string{"1"}
	p, err := r.start(run[last])
	if err != nil {
		return nil, err
	}
	return r.await(ctx, p)
}

// sendEach sends the messages of a run one after the other, each after the answer to the one
// before, up to the first that is not stored.
func (r *request) sendEach(ctx context.Context, run []outgoing) {
	for i := range run {
		for _, name := range []string{batchIDHeader, batchSequenceHeader, batchCommitHeader} {
			run[i].msg.Header.Del(name)
		}
		run[i].out.Class = sink.NotSent
	}
	for i := range run {
		r.sendOne(ctx, run[i])
		if run[i].out.Class != sink.Delivered {
			return
		}
	}
}

// versionError reports a server without batches that drop repetitions.
type versionError struct{ version string }

func (e *versionError) Error() string {
	return fmt.Sprintf("server %s has no atomic batches with Nats-Msg-Id; set batch: none, or use %d.%d.%d",
		e.version, batchMajor, batchMinor, batchPatch)
}

// hasBatches reports whether a server of a version has atomic batches with Nats-Msg-Id.
func hasBatches(version string) bool {
	var major, minor, patch int
	if n, _ := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); n < 3 {
		return false
	}
	if major != batchMajor {
		return major > batchMajor
	}
	return minor > batchMinor || minor == batchMinor && patch >= batchPatch
}
