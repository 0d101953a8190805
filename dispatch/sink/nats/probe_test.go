package nats_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/nats"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func writeFile(tb testing.TB, text string) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "file")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return file
}

// A probe stores nothing and finds the settings that do not fit.
func TestProbe(t *testing.T) {
	b := startBroker(t, servers.NATS, nil)
	probe := func(name string, c nats.Config, class sink.Class, texts ...string) {
		t.Helper()
		out := newSink(t, c).Probe(t.Context(), "")
		if out.Class != class {
			t.Errorf("%s: got %s (%s), want %s", name, out.Class, out.Detail, class)
		}
		for _, text := range texts {
			if !strings.Contains(out.Detail, text) {
				t.Errorf("%s: got detail %q, want %q in it", name, out.Detail, text)
			}
		}
	}
	with := func(change func(*nats.Config)) nats.Config {
		c := b.config()
		change(&c)
		return c
	}
	probe("valid", b.config(), sink.Delivered, "server 2.", "max_payload 65536", "stream ORDERS", "replicas 1", "duplicate window 2m0s", "batch: atomic is possible")
	probe("no stream named", with(func(c *nats.Config) { c.Stream = "" }), sink.Delivered, "stream ORDERS")
	probe("stream of the row", with(func(c *nats.Config) { c.Stream = "{kind}" }), sink.Delivered, "stream ORDERS")
	probe("window", with(func(c *nats.Config) { c.MaxBackoff = 10 * time.Minute }), sink.Refused, "duplicate window 2m0s of stream ORDERS is shorter", "10m20s")
	probe("short backoff", with(func(c *nats.Config) { c.MaxBackoff = time.Minute }), sink.Delivered)
	probe("missing", with(func(c *nats.Config) { c.Stream = "OTHER" }), sink.Misconfigured, "stream OTHER does not exist")
	probe("subject", with(func(c *nats.Config) { c.Subject = "{kind}.x" }), sink.Misconfigured, "not all of *.x")
	probe("subject of none", with(func(c *nats.Config) { c.Subject, c.Stream = "other.x", "" }), sink.Misconfigured, "other.x does not exist")

	b.change(func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false })
	probe("no batches", with(func(c *nats.Config) { c.Batch = nats.BatchAtomic }), sink.Misconfigured, "allow_atomic")
	b.change(func(c *jetstream.StreamConfig) { c.NoAck = true })
	probe("no_ack", b.config(), sink.Misconfigured, "no_ack")
	b.change(func(c *jetstream.StreamConfig) { c.NoAck = false })

	for permissions, wanted := range map[string]sink.Class{
		`{publish: {allow: ["orders.>", "$SYS.REQ.USER.INFO", "$JS.API.>"]}}`: sink.Delivered,
		`{publish: {allow: ["other.>", "$SYS.REQ.USER.INFO", "$JS.API.>"]}}`:  sink.Misconfigured,
		`{publish: {deny: ["orders.*"]}}`:                                     sink.Misconfigured,
		`{publish: {allow: ["orders.>"]}}`:                                    sink.Refused, // it may not ask
	} {
		c := b.config()
		permitted(permissions)(b, &c)
		probe(permissions, c, wanted)
		c.Password = "other"
		probe(permissions, c, sink.Misconfigured, "authorization violation")
	}
	b.Restart(map[string]string{"authorization": "-", "jetstream": "-"})
	probe("no JetStream", b.config(), sink.Misconfigured, "no JetStream")
	b.Stop()
	probe("no server", b.config(), sink.Unavailable)
}

// An old server has no batches and answers the other questions.
func TestProbeBeforeBatches(t *testing.T) {
	b := startBroker(t, servers.NATS29, nil)
	c := b.config()
	if out := newSink(t, c).Probe(t.Context(), ""); out.Class != sink.Delivered || !strings.Contains(out.Detail, "server 2.9.") {
		t.Errorf("got %s (%s)", out.Class, out.Detail)
	}
	c.Batch = nats.BatchAtomic
	if out := newSink(t, c).Probe(t.Context(), ""); out.Class != sink.Misconfigured || !strings.Contains(out.Detail, "set batch: none") {
		t.Errorf("got %s (%s)", out.Class, out.Detail)
	}
}
