package rabbitmq

import (
	"context"
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
)

// request is one call of Deliver.
type request struct {
	sink  *Sink
	conn  *session
	items []sink.Outcome
	sent  bool
}

// outgoing is a message on its way, and the place of its outcome.
type outgoing struct {
	key string
	msg amqp.Publishing
	out *sink.Outcome

	answer *amqp.DeferredConfirmation // nil if it is not sent
}

// prepare encodes the messages. Those that can never be sent are rejected.
func (r *request) prepare(msgs []sink.Message) (all []*outgoing) {
	for i := range msgs {
		o, reason := r.sink.encode(&msgs[i])
		if reason == "" {
			if size, most := o.headerSize(), r.conn.conn.Config.FrameSize-frameOverhead; size > most {
				reason = fmt.Sprintf("headers of %d bytes exceed frame_max of the broker (%d)", size, most)
			}
		}
		if reason != "" {
			r.items[i] = r.sink.rejected("%s", reason)
			continue
		}
		o.out = &r.items[i]
		all = append(all, o)
	}
	return all
}

// frameOverhead is what a frame of headers has besides them: its own header and end, and the
// fields of fixed size.
const frameOverhead = 64

// headerSize returns the size of the properties in bytes, which must fit into one frame.
func (o *outgoing) headerSize() int {
	size := len(o.msg.MessageId) + len(o.msg.ContentType)
	for name, value := range o.msg.Headers {
		size += 1 + len(name) + 5 + len(value.(string))
	}
	return size
}

// encode returns the message for a row. reason is set if it can never be sent.
func (s *Sink) encode(m *sink.Message) (o *outgoing, reason string) {
	key, missing := s.routingKey.Text(m, event.AsIs)
	switch {
	case missing != "":
		return nil, "row has no " + missing + ", which routing-key needs"
	case len(key) > maxShort:
		return nil, fmt.Sprintf("routing key of %d bytes exceeds %d", len(key), maxShort)
	}
	e, reason := s.encoder.Encode(m)
	if reason != "" {
		return nil, reason
	}
	o = &outgoing{key: key, msg: amqp.Publishing{
		Headers: amqp.Table{}, ContentType: e.ContentType, DeliveryMode: amqp.Transient,
		MessageId: event.ID(s.idPrefix, m.ID), Timestamp: m.Committed, Body: e.Body,
	}}
	if s.persistent {
		o.msg.DeliveryMode = amqp.Persistent
	}
	for _, h := range e.Headers {
		o.msg.Headers[h.Name] = h.Value
	}
	return o, ""
}

// send sends messages and sets their outcomes. Those of an unusual size go alone, because the broker
// may close their channel.
func (r *request) send(ctx context.Context, all []*outgoing) {
	limit, proven := r.conn.sizes(r.sink.limitAge)
	if limit > 0 {
		all = r.rejectLarge(all, limit)
	}
	var usual, large []*outgoing
	for _, o := range all {
		if len(o.msg.Body) > proven {
			large = append(large, o)
		} else {
			usual = append(usual, o)
		}
	}
	for len(usual) > 0 {
		usual = r.publish(ctx, usual, r.conn.channel)
	}
	r.sendLarge(ctx, large)
}

// sendLarge sends messages that the broker may refuse for their size, one by one. A channel keeps the limit
// that the broker had when it was opened, so each of them gets a new channel.
func (r *request) sendLarge(ctx context.Context, all []*outgoing) {
	for _, o := range all {
		one := []*outgoing{o}
		if limit, _ := r.conn.sizes(r.sink.limitAge); limit > 0 {
			one = r.rejectLarge(one, limit)
		}
		if len(one) > 0 {
			r.publish(ctx, one, r.conn.fresh)
		}
	}
}

// publish sends messages on one channel, awaits the answers and sets the outcomes. It returns those
// that are to be sent again, because another one has closed the channel. They are fewer.
func (r *request) publish(ctx context.Context, all []*outgoing, channelFor func(context.Context) (*channel, error)) (again []*outgoing) {
	if reason := r.conn.blockedBy(); reason != "" {
		r.fail(all, r.sink.unavailable("%s", reason))
		return nil
	}
	received := r.conn.wire.received.Load()
	ch, err := channelFor(ctx)
	if err != nil {
		r.conn.abortIfSilent(received, err)
		r.fail(all, r.sink.classify(err))
		return nil
	}
	for _, o := range all {
		o.answer = nil
	}
	for _, o := range all {
		o.answer, err = ch.PublishWithDeferredConfirm(r.sink.exchange, o.key, r.sink.mandatory, false, o.msg)
		if err != nil {
			break // closed
		}
		r.sent = true
	}
	if err := await(ctx, all); err != nil {
		r.giveUp(ch, received, err, all)
		return nil
	}
	left := r.settle(ch, all)
	if !ch.IsClosed() {
		r.conn.put(ch)
		r.fail(left, r.sink.unavailable("connection lost: %v", err)) // its end has not reached the channel yet
		return nil
	}
	return r.afterClose(ctx, ch, left)
}

// await waits until all that are sent are answered.
func await(ctx context.Context, all []*outgoing) error {
	for _, o := range all {
		if o.answer == nil {
			return nil // so are those behind it
		}
		select {
		case <-o.answer.Done():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// giveUp ends a channel whose answers are late, and the connection if nothing has arrived.
// Messages that are confirmed are delivered.
func (r *request) giveUp(ch *channel, received int64, err error, all []*outgoing) {
	r.conn.abortIfSilent(received, err)
	left := r.settle(ch, all)
	out := r.sink.classify(err)
	if reason := r.conn.blockedBy(); reason != "" {
		out = r.sink.unavailable("%s; the message may still be stored", reason)
	}
	r.fail(left, out)
	r.conn.discard(ch)
}

// returned identifies a message that no queue gets. Two messages alike have one fate.
type returned struct{ id, key string }

// takeReturned returns the messages that came back, with the reasons.
func (c *channel) takeReturned() map[returned]string {
	reasons := map[returned]string{}
	for {
		select {
		case m, ok := <-c.returns:
			if !ok {
				return reasons
			}
			reasons[returned{m.MessageId, m.RoutingKey}] = m.ReplyText
		default:
			return reasons
		}
	}
}

// settle sets the outcomes of the answered messages and returns the others.
func (r *request) settle(ch *channel, all []*outgoing) (left []*outgoing) {
	answered, left := split(ch, all)
	reasons := ch.takeReturned() // behind that: a message comes back before its confirmation
	for _, o := range answered {
		switch reason, back := reasons[returned{o.msg.MessageId, o.key}]; {
		case !o.answer.Acked():
			*o.out = r.sink.unavailable("broker refuses the message (nack), for example because the queue is full")
		case back:
			*o.out = r.sink.unroutable(o.key, reason)
		default:
			r.conn.took(len(o.msg.Body))
			*o.out = sink.Outcome{Class: sink.Delivered}
		}
	}
	return left
}

// split separates the messages that are answered from the others.
func split(ch *channel, all []*outgoing) (answered, left []*outgoing) {
	for _, o := range all {
		done := false
		if o.answer != nil {
			select {
			case <-o.answer.Done():
				done = o.answer.Acked() || !ch.IsClosed() // a closed channel answers all its messages alike
			default:
			}
		}
		if done {
			answered = append(answered, o)
		} else {
			left = append(left, o)
		}
	}
	return answered, left
}

// rejectLarge rejects the messages above a limit and returns the others.
func (r *request) rejectLarge(all []*outgoing, limit int) (left []*outgoing) {
	for _, o := range all {
		if size := len(o.msg.Body); size > limit {
			*o.out = r.sink.rejected("message of %d bytes exceeds max_message_size of the broker (%d)", size, limit)
			o.out.Final = true
		} else {
			left = append(left, o)
		}
	}
	return left
}

// afterClose handles the messages that a closed channel left without an answer. It returns those to
// send again.
func (r *request) afterClose(ctx context.Context, ch *channel, left []*outgoing) (again []*outgoing) {
	reason := <-ch.closed
	limit := sizeLimit(reason)
	above := func(o *outgoing) bool { return len(o.msg.Body) > limit }
	switch {
	case reason == nil || r.conn.conn.IsClosed():
		r.fail(left, r.sink.lost(reason))
	case concernsAll(reason):
		r.fail(left, r.sink.classify(reason))
	case limit > 0 && ch.used && slices.ContainsFunc(left, above):
		for _, o := range left {
			if above(o) {
				r.sendLarge(ctx, []*outgoing{o})
			} else {
				again = append(again, o)
			}
		}
		return again
	case limit > 0:
		r.conn.refused(limit)
		if again = r.rejectLarge(left, limit); len(again) < len(left) {
			return again
		}
		r.alone(ctx, reason, left)
	default:
		r.alone(ctx, reason, left)
	}
	return nil
}

// alone sends messages one by one, because one of them has closed the channel for a reason. A single
// one is that one.
func (r *request) alone(ctx context.Context, reason *amqp.Error, all []*outgoing) {
	if len(all) == 1 {
		r.fail(all, r.sink.classify(reason))
		return
	}
	for i := range all {
		r.publish(ctx, all[i:i+1], r.conn.channel)
	}
}

// fail gives messages the same outcome.
func (r *request) fail(all []*outgoing, out sink.Outcome) {
	for _, o := range all {
		*o.out = out
	}
}
