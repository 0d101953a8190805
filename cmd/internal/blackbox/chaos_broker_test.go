package blackbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// copies is the second destination of the jobs: a broker, or a webhook where there is none.
type copies struct {
	sink   string // the keys of its configuration
	broker *natsScene
	read   uint64 // messages of the broker that the oracle has
}

func hasBroker() bool { return os.Getenv("SLUICEBOX_TEST_NATS_BIN") != "" }

// newCopies starts the second destination. Short runs have no broker.
func (c *chaos) newCopies(brief bool) *copies {
	c.t.Helper()
	if brief || !hasBroker() {
		to := sinktest.NewReceiver(c.t)
		to.Script(c.to.takeCopy)
		return &copies{sink: fmt.Sprintf("type: webhook, url: %q", to.URL())}
	}
	n := &natsScene{scene: c.scene, server: servers.NATS.Start(c.t, nil)}
	n.configure(-1)
	return &copies{broker: n, sink: fmt.Sprintf("type: nats, url: %q, subject: events.copy, stream: EVENTS, headers: {row: '{id}'}", n.server.URL)}
}

// readCopies notes what the broker has stored since the last time.
func (c *chaos) readCopies() {
	c.t.Helper()
	if c.copies.broker == nil {
		return
	}
	c.copies.broker.stream(func(ctx context.Context, js jetstream.JetStream) error {
		stream, err := js.Stream(ctx, "EVENTS")
		if err != nil {
			return err
		}
		consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
			AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: c.copies.read + 1,
		})
		if err != nil {
			return err
		}
		for last := stream.CachedInfo().State.LastSeq; c.copies.read < last; {
			batch, err := consumer.Fetch(int(min(last-c.copies.read, 500)), jetstream.FetchMaxWait(testTimeout))
			if err != nil {
				return err
			}
			for m := range batch.Messages() {
				at, err := m.Metadata()
				if err != nil {
					return err
				}
				c.acceptAt(copyMark+m.Headers().Get("row"), m.Data(), at.Timestamp)
				c.copies.read = at.Sequence.Stream
			}
			if batch.Error() != nil {
				return batch.Error()
			}
		}
		return nil
	})
}

// brokerKinds are faults of the second destination.
func brokerKinds() []chaosKind {
	const short, long = 300 * time.Millisecond, 5 * time.Second
	kind := func(name string, begin func(s *servers.NATSServer), end func(s *servers.NATSServer)) chaosKind {
		return chaosKind{name: "broker " + name, least: short, most: long, on: func(string) bool { return hasBroker() }, inject: func(c *chaos, _ *rand.Rand) func() {
			begin(c.copies.broker.server)
			return func() { end(c.copies.broker.server) }
		}}
	}
	restart := func(s *servers.NATSServer) { s.Restart(nil) }
	return []chaosKind{
		kind("killed", func(s *servers.NATSServer) { s.Stop("immediate") }, restart),
		kind("restarted", func(s *servers.NATSServer) { s.Stop("fast") }, restart),
		kind("frozen", (*servers.NATSServer).Freeze, (*servers.NATSServer).Thaw),
	}
}
