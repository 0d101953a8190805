package rabbitmq

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Probe implements sink.Prober. It publishes nothing: it logs in and asks for the exchange.
func (s *Sink) Probe(ctx context.Context, _ string) sink.Outcome {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	conn, err := s.link.Get(ctx)
	if err != nil {
		return s.noConnection(err)
	}
	version, _ := conn.conn.Properties["version"].(string)
	facts := fmt.Sprintf("server %s, vhost %s", version, conn.conn.Config.Vhost)
	if reason := conn.blockedBy(); reason != "" {
		return s.unavailable("%s; %s", reason, facts)
	}
	if err := s.findExchange(ctx, conn); err != nil {
		return s.classify(err)
	}
	return s.outcome(sink.Delivered, store.ReasonNone, "%s, exchange %q; only a delivery proves that the user may publish and that a queue gets the rows", facts, s.exchange)
}

// findExchange fails if the exchange does not exist. The default exchange always does.
func (s *Sink) findExchange(ctx context.Context, conn *session) error {
	ch, err := conn.channel(ctx)
	if err != nil {
		return err
	}
	if s.exchange == "" {
		conn.put(ch)
		return nil
	}
	answer := make(chan error, 1)
	if !conn.spawn(func() {
		// A passive declaration compares nothing.
		answer <- ch.ExchangeDeclarePassive(s.exchange, amqp.ExchangeDirect, false, false, false, false, nil)
	}) {
		return amqp.ErrClosed
	}
	select {
	case err = <-answer:
		if err == nil {
			conn.put(ch)
		}
	case <-ctx.Done():
		conn.discard(ch)
		err = ctx.Err()
	}
	return err
}
