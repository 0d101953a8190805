package blackbox

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// natsScene is a scene with a NATS server.
type natsScene struct {
	*scene
	server *servers.NATSServer
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
				keys := fmt.Sprintf("type: nats, url: %q, subject: 'events.{group}', stream: EVENTS, batch: %s, headers: {row: '{id}'}, request-timeout: 500ms", s.server.URL, batch)
				again := s.brokerFaults(keys, []brokerFault{
					{func() { s.server.Stop("immediate") }, func() { s.server.Restart(nil) }},
					{s.server.Freeze, s.server.Thaw},
					{func() { s.configure(1) }, func() { s.configure(-1) }},
				}, s.messages)
				if again > 0 {
					s.t.Errorf("%d messages are stored again", again)
				}
			})
		})
	}
}
