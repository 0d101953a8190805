package nats_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/nats"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// A server that is gone is unavailable, not one without batches.
func TestOutageOfBatches(t *testing.T) {
	b := startBroker(t, servers.NATS, nil)
	c := b.config()
	c.Batch, c.RequestTimeout = nats.BatchAtomic, 500*time.Millisecond
	s := newSink(t, c)
	b.Stop()
	want(t, s, run(0, 1), sink.Unavailable)
	b.Start()
	for deadline := time.Now().Add(patience); ; {
		res := s.Deliver(t.Context(), run(0, 1))
		if res.At(0).Class == sink.Delivered {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server is back, and a row is %s (%s)", res.At(0).Class, res.At(0).Detail)
		}
	}
	b.Stop()
	for range 20 { // the client notices it with one of the first
		want(t, s, run(2, 3), sink.Unavailable)
	}
}

// A server that reads nothing holds a request up for about its time-out.
func TestFrozenWrite(t *testing.T) {
	b := startBroker(t, servers.NATS, nil)
	c := b.config()
	c.RequestTimeout = time.Second
	s := newSink(t, c)
	want(t, s, run(0, 0), sink.Delivered)
	b.Freeze()
	defer b.Thaw()
	msgs := run(1, 100) // more than the buffers of a connection take
	for i := range msgs {
		msgs[i].Lane, msgs[i].Payload = i, bytes.Repeat([]byte("x"), 60<<10)
	}
	began := time.Now()
	want(t, s, msgs, sink.Unavailable)
	if took := time.Since(began); took > writeTimeout-time.Second {
		t.Errorf("a request with a time-out of %s takes %s", c.RequestTimeout, took)
	}
}

// writeTimeout is the bound of a write with a long request timeout.
const writeTimeout = 10 * time.Second

// An account without storage left is an outage, although the server answers with 400: no row is
// the reason.
func TestAccountFull(t *testing.T) {
	const limit = 200 << 10
	for batch, rows := range map[nats.Batch]int{nats.BatchNone: 1, nats.BatchAtomic: 2} {
		t.Run(string(batch), func(t *testing.T) {
			b := &broker{tb: t, login: natsgo.UserInfo("relay", canary), NATSServer: servers.NATS.Start(t, map[string]string{
				"accounts": "{A: {jetstream: {max_mem: 1MB, max_file: 200KB}, users: [{user: relay, password: " + canary + "}]}}",
			})}
			b.admin(func(ctx context.Context, js jetstream.JetStream) error {
				_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, AllowAtomicPublish: true})
				return err
			})
			c := b.config()
			c.Batch, c.User, c.Password = batch, "relay", canary
			s := newSink(t, c)
			payload := bytes.Repeat([]byte("x"), 10<<10)
			class := sink.Delivered
			for first := 0; class == sink.Delivered && first*len(payload) <= limit; first += rows {
				msgs := run(first, first+rows-1)
				for i := range msgs {
					msgs[i].Payload = payload
				}
				res := s.Deliver(t.Context(), msgs)
				class = res.At(0).Class
			}
			if class != sink.Unavailable {
				t.Errorf("the row that the account has no room for is %s, want %s", class, sink.Unavailable)
			}
		})
	}
}
