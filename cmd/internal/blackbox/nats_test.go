package blackbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// toNATS routes the events of a scene to a stream.
const toNATS = `
name: %s
source: {url: %q}
outboxes:
  - {table: outbox_events, layout: flowcatalyst, kind: EVENT, sink: js}
sinks:
  js: {type: nats, url: %q, subject: 'events.{group}', stream: EVENTS, batch: %s, headers: {row: '{id}'}, request-timeout: 500ms, backoff: {initial: 20ms, max: 200ms}}
admin: {listen: %s}
`

// natsScene is a relay that delivers to a NATS server.
type natsScene struct {
	*scene
	server  *servers.NATSServer
	relay   *relay
	written int
}

// stream calls a function with the stream of the scene.
func (s *natsScene) stream(call func(ctx context.Context, js jetstream.JetStream) error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	closed := make(chan struct{})
	nc, err := nats.Connect(s.server.URL, nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { nc.Close(); <-closed }()
	js, err := jetstream.New(nc)
	if err == nil {
		err = call(ctx, js)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// configure creates or changes the stream; -1 is no limit.
func (s *natsScene) configure(maxBytes int64) {
	s.t.Helper()
	s.stream(func(ctx context.Context, js jetstream.JetStream) error {
		_, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
			Name: "EVENTS", Subjects: []string{"events.*"}, MaxBytes: maxBytes, Discard: jetstream.DiscardNew,
			AllowAtomicPublish: true, Duplicates: 5 * time.Minute,
		})
		return err
	})
}

// messages returns the stored messages in order.
func (s *natsScene) messages() (all []sinktest.Received) {
	s.t.Helper()
	s.stream(func(ctx context.Context, js jetstream.JetStream) error {
		stream, err := js.Stream(ctx, "EVENTS")
		if err != nil {
			return err
		}
		consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
		if err != nil {
			return err
		}
		for left := int(stream.CachedInfo().State.Msgs); left > 0; {
			batch, err := consumer.Fetch(min(left, 500), jetstream.FetchMaxWait(testTimeout))
			if err != nil {
				return err
			}
			for m := range batch.Messages() {
				all = append(all, sinktest.Received{ID: m.Headers().Get("row"), Payload: m.Data()})
				left--
			}
			if batch.Error() != nil {
				return batch.Error()
			}
		}
		return nil
	})
	return all
}

// write writes some rows in several transactions.
func (s *natsScene) write() {
	s.t.Helper()
	for range 10 {
		n := 1 + rand.IntN(60)
		s.number(s.written+1, s.written+n, "i % 50")
		s.written += n
	}
}

// fails waits until a delivery fails as unavailable.
func (s *natsScene) fails(wrong func()) {
	s.t.Helper()
	const failures = `sluicebox_delivery_attempts_total{outcome="unavailable",sink="js"}`
	before := s.relay.metric(failures)
	wrong()
	s.write()
	within(s.t, testTimeout, func() string {
		if s.relay.metric(failures) == before {
			return "no delivery fails"
		}
		return ""
	})
}

// The server is killed, frozen and full, and the relay is killed, while rows are written. All rows
// are stored, those of each group in order. None is stored twice, because the stream drops
// repetitions. By hand:
//
//	SLUICEBOX_TEST_CRASHES=20 go test -v -run 'TestNATSFaults' ./cmd/internal/blackbox
func TestNATSFaults(t *testing.T) {
	t.Parallel()
	for _, batch := range []string{"none", "atomic"} {
		t.Run(batch, func(t *testing.T) {
			t.Parallel()
			aPostgres(t, "", func(sc *scene) {
				s := &natsScene{scene: sc, server: servers.NATS.Start(sc.t, nil)}
				s.configure(-1)
				s.config = fmt.Sprintf(toNATS, nameFor(s.database), s.database, s.server.URL, batch, adminKey)
				s.relay = start(s.t, s.config)
				s.relay.waitFor("source connected")
				for range crashes(s.t, 1) {
					s.write()
					s.fails(func() { s.server.Stop("immediate") })
					s.server.Restart(nil)
					s.write()
					s.fails(s.server.Freeze)
					s.server.Thaw()
					s.write()
					s.fails(func() { s.configure(1) })
					s.configure(-1)
					s.write()
					s.relay.kill()
					s.relay = start(s.t, s.config)
					s.relay.waitFor("source connected")
				}
				s.write()
				awaitZero(s.t, "rows are not COMPLETED", func() int {
					return count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED'")
				})
				stored := s.messages()
				if again := checkNumbered(s.t, stored); again > 0 || len(stored) != s.written {
					s.t.Errorf("%d messages are stored, %d of them again, want %d and none", len(stored), again, s.written)
				}
				if left := none(s.t, s.conn, "paid for the faults", "SELECT count(*) FROM outbox_events WHERE retry_count > 0"); left != "" {
					s.t.Error(left)
				}
				s.t.Logf("%d rows", s.written)
				expectStop(s.t, s.relay)
			})
		})
	}
}
