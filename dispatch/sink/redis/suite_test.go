package redis_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/dispatch/sink/redis"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

const canary = "canary-7f3a"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// broker is a server whose stream the tests read.
type broker struct {
	*servers.RedisServer
	tb testing.TB
}

func start(tb testing.TB, settings map[string]string) *broker {
	tb.Helper()
	return &broker{servers.Redis(tb, settings), tb}
}

func (b *broker) Stop()  { b.RedisServer.Stop("immediate") }
func (b *broker) Start() { b.Restart(nil) }

// do sends a command to the server.
func (b *broker) do(args ...any) any {
	b.tb.Helper()
	c := client.NewClient(&client.Options{Addr: b.Addr, DisableIdentity: true})
	defer func() { _ = c.Close() }()
	value, err := c.Do(b.tb.Context(), args...).Result()
	if err != nil {
		b.tb.Fatalf("%v: %v", args, err)
	}
	return value
}

// entries returns the fields and values of the entries of a stream.
func (b *broker) entries(stream string) (all []map[string]any) {
	b.tb.Helper()
	c := client.NewClient(&client.Options{Addr: b.Addr, DisableIdentity: true})
	defer func() { _ = c.Close() }()
	list, err := c.XRange(b.tb.Context(), stream, "-", "+").Result()
	if err != nil {
		b.tb.Fatal(err)
	}
	for _, m := range list {
		all = append(all, m.Values)
	}
	return all
}

func (b *broker) Stored() (ids []string) {
	for _, e := range b.entries("orders") {
		ids = append(ids, fmt.Sprint(e["id"]))
	}
	return ids
}

func (b *broker) config() redis.Config {
	cfg := redis.DefaultConfig()
	cfg.URL, cfg.Stream, cfg.RequestTimeout, cfg.Senders = sink.Secret("redis://"+b.Addr), "orders", 20*time.Second, 8
	return cfg
}

func newSink(tb testing.TB, cfg redis.Config) *redis.Sink {
	tb.Helper()
	s, err := redis.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

// sinkWith returns a fault by another configuration.
func sinkWith(name string, change func(b *broker, c *redis.Config)) sinktest.Fault {
	return sinktest.Fault{Name: name, Class: sink.Misconfigured, Sink: func(tb testing.TB, b sinktest.Broker) sink.Sink {
		of := b.(*broker)
		cfg := of.config()
		change(of, &cfg)
		return newSink(tb, cfg)
	}}
}

// broken returns a fault by commands to the server, which others repair.
func broken(name string, class sink.Class, commands, repair []string) sinktest.Fault {
	run := func(b sinktest.Broker, commands []string) {
		for _, command := range commands {
			var args []any
			for _, word := range strings.Fields(command) {
				args = append(args, word)
			}
			b.(*broker).do(args...)
		}
	}
	return sinktest.Fault{Name: name, Class: class, Break: func(_ testing.TB, b sinktest.Broker) func() {
		run(b, commands)
		return func() { run(b, repair) }
	}}
}

func TestSuite(t *testing.T) {
	sinktest.RunBroker(t, sinktest.BrokerHarness{
		New: func(tb testing.TB) (sink.Sink, sinktest.Broker) {
			b := start(tb, nil)
			return newSink(tb, b.config()), b
		},
		Kind: "order", Mode: sink.Prefix, Secrets: []string{canary},
		Faults: []sinktest.Fault{
			broken("out of memory", sink.Unavailable, []string{"CONFIG SET maxmemory 1"}, []string{"CONFIG SET maxmemory 0"}),
			broken("a replica", sink.Unavailable, []string{"REPLICAOF 127.0.0.1 1"}, []string{"REPLICAOF NO ONE"}),
			broken("too few replicas", sink.Unavailable, []string{"CONFIG SET min-replicas-to-write 1"}, []string{"CONFIG SET min-replicas-to-write 0"}),
			broken("no stream", sink.Misconfigured, []string{"SET orders x"}, []string{"DEL orders"}),
			broken("not allowed", sink.Misconfigured, []string{"ACL SETUSER default -xadd"}, []string{"ACL SETUSER default +xadd"}),
			broken("another key", sink.Misconfigured, []string{"ACL SETUSER default resetkeys ~other"}, []string{"ACL SETUSER default allkeys"}),
			{Name: "no connections left", Class: sink.Unavailable, Break: func(tb testing.TB, b sinktest.Broker) func() {
				of := b.(*broker)
				c := client.NewClient(&client.Options{Addr: of.Addr, DisableIdentity: true})
				tb.Cleanup(func() { _ = c.Close() })
				if err := c.ConfigSet(tb.Context(), "maxclients", "1").Err(); err != nil {
					tb.Fatal(err)
				}
				return func() {
					if err := c.ConfigSet(tb.Context(), "maxclients", "100").Err(); err != nil {
						tb.Error(err)
					}
				}
			}},
			sinkWith("no password", func(b *broker, _ *redis.Config) { b.do("CONFIG", "SET", "requirepass", canary) }),
			sinkWith("a wrong password", func(b *broker, c *redis.Config) {
				b.do("CONFIG", "SET", "requirepass", canary)
				c.Password = canary + "x"
			}),
			sinkWith("a password of none", func(_ *broker, c *redis.Config) { c.User, c.Password = "nobody", canary }),
			sinkWith("no such database", func(_ *broker, c *redis.Config) { c.URL += "/77" }),
			{Name: "TLS without TLS", Class: sink.Unavailable, Sink: func(tb testing.TB, b sinktest.Broker) sink.Sink {
				cfg := b.(*broker).config() // the server waits for the end of a line
				cfg.URL, cfg.RequestTimeout = "rediss"+cfg.URL[len("redis"):], 300*time.Millisecond
				return newSink(tb, cfg)
			}},
			{Name: "no TLS", Class: sink.Unavailable, Sink: func(tb testing.TB, b sinktest.Broker) sink.Sink {
				of := b.(*broker)
				of.TLS() // it closes a connection without TLS, like a server that is going down
				return newSink(tb, of.config())
			}},
			sinkWith("another CA", func(b *broker, c *redis.Config) {
				b.TLS()
				c.URL = sink.Secret("rediss://" + b.Addr)
			}),
		},
	})
}

// Messages of several lanes fail alone: of each lane a prefix is stored, also if the server refuses
// one in the middle of a lane.
func TestPrefix(t *testing.T) {
	b := start(t, nil)
	cfg := b.config()
	cfg.Stream, cfg.Receipts = "{attr.stream}", true
	s := newSink(t, cfg)
	row := func(id string, lane int, stream string) sink.Message {
		return sink.Message{ID: id, Lane: lane, Kind: "k", Payload: []byte("{}"), Attributes: attributes("stream", stream)}
	}
	b.do("SET", "plain", "x")
	b.do("XADD", "last", "18446744073709551615-18446744073709551614", "a", "b") // has room for one entry
	msgs := []sink.Message{
		row("1", 0, "last"), row("2", 0, "last"), row("3", 0, "last"),
		row("4", 1, "orders"), row("5", 1, "orders"),
		row("6", 2, "plain"),
		row("7", 3, "orders"), {ID: "8", Lane: 3}, row("9", 3, "orders"),
	}
	res := s.Deliver(t.Context(), msgs)
	for i, want := range []sink.Class{
		sink.Delivered, sink.Refused, sink.NotSent, sink.Delivered, sink.Delivered, sink.Misconfigured, sink.Delivered, sink.Rejected, sink.NotSent,
	} {
		out := res.At(i)
		if out.Class != want || (want == sink.Delivered) != (len(out.Receipt) == 2) {
			t.Errorf("row %s is %s (%s, %v), want %s", msgs[i].ID, out.Class, out.Detail, out.Receipt, want)
		}
	}
	if got := b.Stored(); !slices.Equal(got, []string{"4", "5", "7"}) {
		t.Errorf("stored %v", got)
	}
	if got := len(b.entries("last")); got != 2 {
		t.Errorf("%d entries in the stream that is full, want 2", got)
	}
	r := res.At(3).Receipt
	if r[0].Name != "stream" || r[0].Value != "orders" || r[1].Name != "id" || !strings.Contains(r[1].Value, "-") {
		t.Errorf("the receipt is %v", r)
	}
	limits := s.Limits("k")
	for _, name := range []string{"", "a\x00", "\xff", strings.Repeat("x", 513)} {
		bad := row("10", 0, name)
		if res := s.Deliver(t.Context(), []sink.Message{bad}); res.Class != sink.Rejected || !res.Unsent || limits.EndpointOf(&bad) != "" {
			t.Errorf("stream %q: %+v", name, res)
		}
	}
	if limits.EndpointOf == nil || limits.EndpointOf(&msgs[5]) != "plain" || limits.EndpointOf(&msgs[7]) != "" {
		t.Errorf("the limits are %+v", limits)
	}
}

// TestEntry: the fields of entries in each format.
func TestEntry(t *testing.T) {
	b := start(t, nil)
	m := sink.Message{ID: "7", Kind: "order", Payload: []byte("\x00\xff"), Replay: "r1", Attributes: attributes("type", "Paid")}
	for name, c := range map[string]struct {
		settings event.Settings
		want     map[string]any
	}{
		"raw":   {event.Settings{IDPrefix: "p-", Headers: map[string]sink.Secret{"type": "{type}", "none": "{attr.none}"}}, map[string]any{"id": "p-7", "data": "\x00\xff", "type": "Paid", "Sluicebox-Replay": "r1"}},
		"event": {event.Settings{Format: event.FormatCloudEvents, CloudEventsSource: "/s"}, map[string]any{"id": "7", "data": "\x00\xff", "ce_id": "7", "ce_source": "/s", "ce_specversion": "1.0", "ce_type": "Paid", "content-type": "application/json", "Sluicebox-Replay": "r1"}},
	} {
		cfg := b.config()
		cfg.Settings, cfg.Stream = c.settings, name
		if res := newSink(t, cfg).Deliver(t.Context(), []sink.Message{m}); res.Class != sink.Delivered {
			t.Fatalf("%s: %s: %s", name, res.Class, res.Detail)
		}
		got := b.entries(name)
		if len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(c.want) {
			t.Errorf("%s: the entries are %q, want %q", name, got, c.want)
		}
	}
}

// A stream is trimmed, with XADD and with the script.
func TestMaxLength(t *testing.T) {
	b := start(t, map[string]string{"stream-node-max-entries": "10"})
	cfg := b.config()
	cfg.MaxLength = 20
	s := newSink(t, cfg)
	for lane := range 10 {
		var msgs []sink.Message
		for i := range 10 {
			msgs = append(msgs, sink.Message{ID: fmt.Sprintf("%d-%d", lane, i)})
		}
		for _, request := range [][]sink.Message{msgs[:1], msgs[1:]} {
			if res := s.Deliver(t.Context(), request); res.At(0).Class != sink.Delivered {
				t.Fatal(res)
			}
		}
	}
	got := b.Stored()
	if len(got) < 20 || len(got) > 40 || got[len(got)-1] != "9-9" {
		t.Errorf("%d entries, the last is %s", len(got), got[len(got)-1])
	}
}

// A server that does not answer ends a request at its time. What it executes afterwards are
// repetitions.
func TestFrozen(t *testing.T) {
	b := start(t, nil)
	cfg := b.config()
	cfg.RequestTimeout = 500 * time.Millisecond
	s := newSink(t, cfg)
	msgs := []sink.Message{{ID: "1"}, {ID: "2"}}
	b.Freeze()
	res := s.Deliver(t.Context(), msgs)
	if res.Class != sink.Unavailable || !strings.Contains(res.Detail, "request-timeout (500ms)") {
		t.Errorf("%s: %s", res.Class, res.Detail)
	}
	b.Thaw()
	for deadline := time.Now().Add(20 * time.Second); res.Class != sink.Delivered && res.At(0).Class != sink.Delivered; {
		if res = s.Deliver(t.Context(), msgs); time.Now().After(deadline) {
			t.Fatalf("%s: %s", res.Class, res.Detail)
		}
	}
	var first []string
	for _, id := range b.Stored() {
		if !slices.Contains(first, id) {
			first = append(first, id)
		}
	}
	if !slices.Equal(first, []string{"1", "2"}) {
		t.Errorf("stored %v", b.Stored())
	}
}

func TestTLSAndUser(t *testing.T) {
	b := start(t, nil)
	b.do("ACL", "SETUSER", "relay", "on", ">"+canary, "~orders", "+xadd", "+eval")
	cfg := b.config()
	cfg.User, cfg.Password = "relay", canary
	if res := newSink(t, cfg).Deliver(t.Context(), []sink.Message{{ID: "1"}, {ID: "2"}}); res.At(1).Class != sink.Delivered {
		t.Errorf("as a user of few permissions: %+v", res)
	}
	if out := newSink(t, cfg).Probe(t.Context(), ""); out.Class != sink.Delivered {
		t.Errorf("a probe as a user of few permissions: %+v", out)
	}
	cfg = b.config()
	cfg.CAFile, cfg.CertFile, cfg.KeyFile = b.TLS()
	cfg.URL = sink.Secret("rediss://" + b.Addr)
	if res := newSink(t, cfg).Deliver(t.Context(), []sink.Message{{ID: "3"}}); res.Class != sink.Delivered {
		t.Errorf("over TLS: %+v", res)
	}
}

func TestProbe(t *testing.T) {
	b := start(t, nil)
	probe := func() sink.Outcome { return newSink(t, b.config()).Probe(t.Context(), "") }
	if out := probe(); out.Class != sink.Delivered || !strings.Contains(out.Detail, "only a delivery proves") {
		t.Errorf("%+v", out)
	}
	b.do("SET", "orders", "x")
	if out := probe(); out.Class != sink.Misconfigured || !strings.Contains(out.Detail, "key orders is a string; name a stream") {
		t.Errorf("%+v", out)
	}
	b.do("CONFIG", "SET", "requirepass", canary)
	if out := probe(); out.Class != sink.Misconfigured || !strings.Contains(out.Detail, "NOAUTH") {
		t.Errorf("%+v", out)
	}
}

// A message above the server's limit disturbs no other, and is suspect or rejected. A server that is down
// makes none suspect.
func TestTooLargeForTheServer(t *testing.T) {
	b := start(t, nil)
	s := newSink(t, b.config())
	large := sink.Message{ID: "large", Lane: 1, Payload: bytes.Repeat([]byte("x"), 2<<20)}
	request := []sink.Message{{ID: "1", Lane: 0}, {ID: "2", Lane: 0}, large, {ID: "behind", Lane: 1}, {ID: "3", Lane: 2}}
	expect := func(of sink.Class) (blamed sink.Outcome) {
		t.Helper()
		res := s.Deliver(t.Context(), request)
		for i, class := range []sink.Class{sink.Delivered, sink.Delivered, of, sink.NotSent, sink.Delivered} {
			if out := res.At(i); class != 0 && out.Class != class {
				t.Errorf("message %s is %s (%s), want %s", request[i].ID, out.Class, out.Detail, class)
			}
		}
		return res.At(2)
	}
	blamed := func(what string, out sink.Outcome) {
		t.Helper()
		isBlamed := out.Class == sink.Rejected || out.Class == sink.Unavailable && out.Suspect
		if !isBlamed || !strings.Contains(out.Detail, "proto-max-bulk-len") {
			t.Errorf("%s: the large message is %s, suspect %t: %s", what, out.Class, out.Suspect, out.Detail)
		}
		t.Logf("%s: %s: %s", what, out.Class, out.Detail)
	}
	expect(sink.Delivered)
	b.do("CONFIG", "SET", "proto-max-bulk-len", "1048576")
	if out := s.Deliver(t.Context(), []sink.Message{large}); out.Class != sink.Rejected && out.Class != sink.Unavailable {
		t.Errorf("after a larger one was accepted: %s: %s", out.Class, out.Detail)
	}
	s = newSink(t, b.config()) // the server may be closing a connection of the other one
	blamed("with others", expect(0))
	blamed("alone", s.Deliver(t.Context(), []sink.Message{large}).Outcome)
	if got := b.Stored(); !slices.Equal(got, []string{"1", "2", "3", "large", "1", "2", "3"}) {
		t.Errorf("stored %v", got)
	}
	b.Stop()
	for range 2 {
		if out := s.Deliver(t.Context(), []sink.Message{large}); out.Class != sink.Unavailable || out.Suspect {
			t.Errorf("of a server that is down: %s, suspect %t: %s", out.Class, out.Suspect, out.Detail)
		}
	}
}
