package nats_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/nats"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// run returns the messages first to last of one lane.
func run(first, last int) (msgs []sink.Message) {
	for i := first; i <= last; i++ {
		id := fmt.Sprint(i)
		msgs = append(msgs, sink.Message{ID: id, Kind: "order.paid", Group: store.GroupOf("g"), Payload: []byte(`{"n":` + id + `}`), Attempt: 1})
	}
	return msgs
}

// ids returns the ids of the messages first to last.
func ids(first, last int) (all []string) {
	for _, m := range run(first, last) {
		all = append(all, m.ID)
	}
	return all
}

// want delivers messages and fails the test unless all have the class.
func want(t *testing.T, s *nats.Sink, msgs []sink.Message, class sink.Class) sink.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	res := s.Deliver(ctx, msgs)
	for i := range msgs {
		if out := res.At(i); out.Class != class {
			t.Fatalf("message %s is %s (%s), want %s", msgs[i].ID, out.Class, out.Detail, class)
		}
	}
	return res
}

func wantStored(t *testing.T, b *broker, want []string) {
	t.Helper()
	if got := b.Stored(); !slices.Equal(got, want) {
		t.Errorf("got %d messages stored %.200q, want %d %.200q", len(got), got, len(want), want)
	}
}

// A batch whose first attempt was stored, although its answer was lost, is stored once. So is a
// batch of which the stream has a part.
func TestRepeatedBatch(t *testing.T) {
	b := startBroker(t, servers.NATS, nil)
	c := b.config()
	c.Batch = nats.BatchAtomic
	first, second := newSink(t, c), newSink(t, c)
	want(t, first, run(0, 3), sink.Delivered)
	want(t, second, run(0, 3), sink.Delivered)
	want(t, second, run(2, 999), sink.Delivered)
	want(t, second, run(1000, 1999), sink.Delivered)
	wantStored(t, b, ids(0, 1999))
}

// A stream that is full in the middle of a batch stores nothing of it.
func TestFullInABatch(t *testing.T) {
	b := startBroker(t, servers.NATS, func(c *jetstream.StreamConfig) { c.MaxMsgs = 5 })
	c := b.config()
	c.Batch = nats.BatchAtomic
	s := newSink(t, c)
	want(t, s, run(0, 9), sink.Unavailable)
	wantStored(t, b, nil)
	b.change(func(c *jetstream.StreamConfig) { c.MaxMsgs = -1 })
	want(t, s, run(0, 9), sink.Delivered)
	wantStored(t, b, ids(0, 9))
}

// A stream that is full in the middle of a run without batches has the messages before, and no later one
// is sent.
func TestFullInARun(t *testing.T) {
	b := startBroker(t, servers.NATS, func(c *jetstream.StreamConfig) { c.MaxMsgs = 5 })
	s := newSink(t, b.config())
	msgs := run(0, 9)
	res := s.Deliver(t.Context(), msgs)
	for i := range msgs {
		want := sink.Delivered
		switch {
		case i == 5:
			want = sink.Unavailable
		case i > 5:
			want = sink.NotSent
		}
		if got := res.At(i); got.Class != want {
			t.Errorf("message %d is %s (%s), want %s", i, got.Class, got.Detail, want)
		}
	}
	wantStored(t, b, ids(0, 4))
	b.change(func(c *jetstream.StreamConfig) { c.MaxMsgs = -1 })
	want(t, s, msgs[5:], sink.Delivered)
	wantStored(t, b, ids(0, 9))
}

// Where the server or the stream has no batches, no message of a run is stored: they would be
// stored one by one, and a failing one would not hold up those behind it.
func TestWithoutBatches(t *testing.T) {
	for _, c := range []struct {
		version servers.NATSVersion
		detail  string
	}{{servers.NATS, "allow_atomic"}, {servers.NATS29, "batch: none"}} {
		b := startBroker(t, c.version, func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false })
		config := b.config()
		config.Batch = nats.BatchAtomic
		s := newSink(t, config)
		res := want(t, s, run(0, 9), sink.Misconfigured)
		if !strings.Contains(res.Detail, c.detail) {
			t.Errorf("%s: got detail %q", c.version, res.Detail)
		}
		wantStored(t, b, nil)
	}
}

// A message that was not answered in time is stored once if it arrives after all, and its retry
// behind it.
func TestFrozenServer(t *testing.T) {
	for _, batch := range []nats.Batch{nats.BatchNone, nats.BatchAtomic} {
		b := startBroker(t, servers.NATS, nil)
		c := b.config()
		c.Batch, c.RequestTimeout = batch, 300*time.Millisecond
		s := newSink(t, c)
		want(t, s, run(0, 0), sink.Delivered)
		last := 1
		if batch == nats.BatchAtomic {
			last = 4
		}
		b.Freeze()
		res := want(t, s, run(1, last), sink.Unavailable)
		if !strings.Contains(res.At(0).Detail, "no answer within the time-out") {
			t.Errorf("%s: got detail %q", batch, res.At(0).Detail)
		}
		b.Thaw()
		deliverUntil(t, s, run(1, last))
		wantStored(t, b, ids(0, last))
	}
}

// deliverUntil repeats a request until it is delivered.
func deliverUntil(t *testing.T, s *nats.Sink, msgs []sink.Message) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		res := s.Deliver(t.Context(), msgs)
		if res.At(len(msgs)-1).Class == sink.Delivered {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not delivered: %s", res.At(0).Detail)
		}
		<-time.After(10 * time.Millisecond) // a lane waits longer
	}
}

// The limit of the server is raised while the sink is connected. A row that was too large is delivered
// after another connection, and none is rejected for the old limit.
func TestLimitIsRaised(t *testing.T) {
	for _, batch := range []nats.Batch{nats.BatchNone, nats.BatchAtomic} {
		b := startBroker(t, servers.NATS, nil)
		c := b.config()
		c.Batch = batch
		s := newSink(t, c)
		nats.SetLimitAge(s, 0)
		msgs := run(0, 2)
		msgs[0].Payload = make([]byte, 100<<10)
		res := s.Deliver(t.Context(), msgs)
		if out := res.At(0); out.Class != sink.Rejected || !out.Final {
			t.Fatalf("%s: a large row is %s, final %t: %s", batch, out.Class, out.Final, out.Detail)
		}
		b.Reload(map[string]string{"max_payload": "1MB"})
		res = s.Deliver(t.Context(), msgs)
		out := res.At(0)
		if out.Class != sink.Unavailable || !strings.Contains(out.Detail, "was raised from 65536 to") {
			t.Errorf("%s: after the limit was raised the row is %s: %s", batch, out.Class, out.Detail)
		}
		for end := time.Now().Add(patience); out.Class != sink.Delivered; out = res.At(len(msgs) - 1) {
			if out.Class == sink.Rejected || time.Now().After(end) {
				t.Fatalf("%s: the row is %s: %s", batch, out.Class, out.Detail)
			}
			<-time.After(10 * time.Millisecond) // a lane waits longer
			res = s.Deliver(t.Context(), msgs)
		}
		wantStored(t, b, ids(0, 2))
	}
}

// An account takes smaller messages than its server. That is no raised limit: a row that is larger is
// rejected, and the sink stays connected. The server tells the limit of the account after the login.
func TestLimitOfAccount(t *testing.T) {
	b := &broker{tb: t, login: natsgo.UserInfo("u", "p"), NATSServer: servers.NATS.Start(t, map[string]string{
		"accounts": "{A: {jetstream: enabled, users: [{user: u, password: p}], limits: {max_payload: 65536}}}",
	})}
	b.createStream(servers.NATS, nil)
	c := b.config()
	c.User, c.Password = "u", "p"
	s := newSink(t, c)
	nats.SetLimitAge(s, 0)
	want(t, s, run(0, 0), sink.Delivered)
	large := run(1, 1)
	large[0].Payload = make([]byte, 100<<10)
	for range 20 { // each asks the server
		res := s.Deliver(t.Context(), large)
		if out := res.At(0); out.Class != sink.Rejected || !out.Final {
			t.Fatalf("a large row is %s, final %t: %s", out.Class, out.Final, out.Detail)
		}
	}
}

// A replay is stored again within the duplicate window, and a retry of the replay is not.
func TestReplay(t *testing.T) {
	b := startBroker(t, servers.NATS, nil)
	s := newSink(t, b.config())
	msgs := run(0, 0)
	want(t, s, msgs, sink.Delivered)
	msgs[0].Replay = "job"
	want(t, s, msgs, sink.Delivered)
	want(t, s, msgs, sink.Delivered)
	wantStored(t, b, []string{"0", "/0/job"})
	if got := b.messages()[1].Headers().Get("Sluicebox-Replay"); got != "job" {
		t.Errorf("got header %q", got)
	}
}

// Rows of two outboxes with the same id are two messages.
func TestOneIDInTwoOutboxes(t *testing.T) {
	b := startBroker(t, servers.NATS, nil)
	s := newSink(t, b.config())
	for _, outbox := range []string{"a", "b", "a", "b"} {
		msgs := run(0, 0)
		msgs[0].Outbox = outbox
		want(t, s, msgs, sink.Delivered)
	}
	wantStored(t, b, []string{"a/0", "b/0"})
}

// A consumer gets the row as the format says.
func TestMessage(t *testing.T) {
	b := startBroker(t, servers.NATS, nil)
	c := b.config()
	c.Subject, c.IDPrefix = "orders.{group}.{kind}", "shop-"
	c.Format, c.CloudEventsSource = "cloudevents", "/shop"
	c.Headers = map[string]sink.Secret{"X-Tenant": "t-{attr.tenant}"}
	m := run(7, 7)
	m[0].Attributes = store.Attributes{{Name: "tenant", Value: "é\r\nNats-Rollup: all"}}
	want(t, newSink(t, c), m, sink.Delivered)
	got := b.messages()[0]
	if got.Subject() != "orders.g.order%2Epaid" || string(got.Data()) != `{"n":7}` {
		t.Errorf("got %s %s", got.Subject(), got.Data())
	}
	for name, value := range map[string]string{
		"Nats-Msg-Id": "shop-7", "Nats-Expected-Stream": "ORDERS", "Nats-Rollup": "", "Content-Type": "application/json",
		"ce-id": "shop-7", "ce-type": "order.paid", "ce-source": "/shop", "ce-subject": "g", "X-Tenant": "t-%C3%A9%0D%0ANats-Rollup:%20all",
	} {
		if got.Headers().Get(name) != value {
			t.Errorf("header %s is %q, want %q", name, got.Headers().Get(name), value)
		}
	}
}

// A receipt names the place of each message, also of one that the stream has already.
func TestReceipts(t *testing.T) {
	b := startBroker(t, servers.NATS, nil)
	for _, batch := range []nats.Batch{nats.BatchNone, nats.BatchAtomic} {
		c := b.config()
		c.Batch, c.Receipts = batch, true
		msgs := run(0, 0)
		if batch == nats.BatchAtomic {
			msgs = run(0, 4) // the first is a repetition
		}
		for range 2 {
			res := want(t, newSink(t, c), msgs, sink.Delivered)
			for i := range msgs {
				wanted := []sink.Receipt{{Name: "stream", Value: "ORDERS"}, {Name: "sequence", Value: fmt.Sprint(i + 1)}}
				if got := res.At(i).Receipt; !slices.Equal(got, wanted) {
					t.Errorf("%s: message %d has the receipt %v, want %v", batch, i, got, wanted)
				}
			}
		}
		fresh := run(10, 12)
		if batch == nats.BatchAtomic {
			res := want(t, newSink(t, c), fresh, sink.Delivered)
			for i := range fresh {
				if got := res.At(i).Receipt[1].Value; got != fmt.Sprint(6+i) {
					t.Errorf("message %d of a batch has the sequence %s, want %d", i, got, 6+i)
				}
			}
		}
	}
}

// Each way to log in works.
func TestCredentials(t *testing.T) {
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, _ := user.Seed()
	public, _ := user.PublicKey()
	for name, c := range map[string]struct {
		authorization string
		change        func(c *nats.Config)
	}{
		"password": {`{users: [{user: admin, password: admin}, {user: relay, password: ` + canary + `}]}`, func(c *nats.Config) { c.User, c.Password = "relay", canary }},
		"token":    {`{token: ` + canary + `}`, func(c *nats.Config) { c.Token = canary }},
		"nkey":     {`{users: [{user: admin, password: admin}, {nkey: ` + public + `}]}`, func(c *nats.Config) { c.NKeyFile = writeFile(t, string(seed)) }},
	} {
		t.Run(name, func(t *testing.T) {
			b := startBroker(t, servers.NATS, nil)
			b.Restart(map[string]string{"authorization": c.authorization})
			config := b.config()
			c.change(&config)
			want(t, newSink(t, config), run(0, 0), sink.Delivered)
		})
	}
}

// TLS trusts the CA of ca-file, and shows the certificate of cert-file.
func TestTLS(t *testing.T) {
	b := startBroker(t, servers.NATS, nil)
	c := b.config()
	ca, cert, key := b.TLS(true)
	c.CAFile = ca
	want(t, newSink(t, c), run(0, 0), sink.Unavailable) // the server ends the handshake
	c.CertFile, c.KeyFile = cert, key
	want(t, newSink(t, c), run(0, 0), sink.Delivered)
}

// A user that may publish again, and whose answers arrive again, needs no other sink.
func TestCredentialsAreRepaired(t *testing.T) {
	b := startBroker(t, servers.NATS, nil)
	c := b.config()
	for _, permissions := range []string{`{publish: {deny: "orders.>"}}`, `{subscribe: {deny: "_INBOX.>"}}`} {
		permitted(permissions)(b, &c)
		s := newSink(t, c)
		want(t, s, run(0, 0), sink.Misconfigured)
		permitted(`{}`)(b, &c)
		deliverUntil(t, s, run(0, 0))
	}
	wrong := c
	wrong.Password = "other"
	s := newSink(t, wrong)
	want(t, s, run(1, 1), sink.Misconfigured)
	b.Restart(map[string]string{"authorization": `{users: [{user: admin, password: admin}, {user: relay, password: other}]}`})
	deliverUntil(t, s, run(1, 1))
	wantStored(t, b, ids(0, 1))
}

// Different rows have different ids, or the stream would drop one. Parts may have slashes.
func TestMessageIDs(t *testing.T) {
	seen := map[string]sink.Message{}
	for _, outbox := range []string{"", "a", "a/b", "a%2Fb"} {
		for _, id := range []string{"1", "b/1", "1/r", "a/1", "b%2F1"} {
			for _, replay := range []string{"", "r", "1/r"} {
				m := sink.Message{Outbox: outbox, ID: id, Replay: replay}
				got := nats.MsgID(&m)
				if other, taken := seen[got]; taken {
					t.Errorf("%+v and %+v have the id %s", m, other, got)
				}
				seen[got] = m
			}
		}
	}
	if got := nats.MsgID(&sink.Message{Outbox: "shop.orders", ID: "7", Replay: "r1"}); got != "shop.orders/7/r1" {
		t.Errorf("the id is %s", got)
	}
}
