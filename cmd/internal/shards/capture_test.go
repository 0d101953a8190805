package shards

import (
	"context"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/capture/kafka/feed"
	"github.com/sluicebox/sluicebox/capture/postgres"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// newTestCapture returns a Capture whose connections to Kafka go through dial.
func newTestCapture(t *testing.T, url, holder string, brokers []string, dial func(ctx context.Context, network, address string) (net.Conn, error)) *Capture {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Engine, cfg.Topic, cfg.Partitions, cfg.Brokers, cfg.SessionTimeout = "kafka", "shop", 2, brokers, minSessionTimeout
	options := &sluicebox.Options{
		Name: "shop", Holder: holder, Database: postgres.Database{URL: url},
		Outboxes: []sluicebox.Outbox{{Outbox: store.Outbox{Name: "shop", Table: "outbox_events", Layout: store.FlowCatalyst(), Kind: "EVENT"}}},
	}
	c, err := NewCapture(&cfg, options, "test", slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	client, err := cfg.options("test")
	if err != nil {
		t.Fatal(err)
	}
	c.feeder, err = feed.New(feed.Config{
		Client: append(slices.Clone(client), kgo.Dialer(dial)), Topic: cfg.Topic, Partitions: cfg.Partitions, Outboxes: outboxesOf(options), Observer: feedObserver{c},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A leader that only Kafka does not answer gives up the lock after five session timeouts, and another
// process captures.
func TestCaptureCutOffFromKafka(t *testing.T) {
	t.Parallel()
	cluster := servers.Kafka(t, 1, nil)
	url := servers.Database(t, servers.Versions()[0])
	servers.Exec(t, url, `CREATE TABLE outbox_events (id text PRIMARY KEY, message_group text, payload text, status text NOT NULL DEFAULT 'PENDING',
		retry_count int NOT NULL DEFAULT 0, created_at timestamptz NOT NULL DEFAULT now(), processed_at timestamptz, error_message text)`)
	proxy := servers.NewProxy(t, "tcp://"+cluster.Brokers[0].Address)
	held := strings.TrimPrefix(proxy.URL("tcp://"), "tcp://")
	cut := newTestCapture(t, url, "cut", cluster.Addresses(), func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, held)
	})
	other := newTestCapture(t, url, "other", cluster.Addresses(), new(net.Dialer).DialContext)
	if _, err := cut.CreateTopic(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer func() { stop(); proxy.Reconnect(); work.Wait() }()
	await := func(what string, holds func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !holds(); <-time.After(10 * time.Millisecond) { // a state has no signal
			if time.Now().After(end) {
				t.Fatalf("waiting for %s: the states are %+v and %+v", what, cut.State(), other.State())
			}
		}
	}
	work.Go(func() { cut.Run(ctx) })
	await("the first leader", func() bool { return cut.State().Leads && cut.Feed().Records > 0 })
	work.Go(func() { other.Run(ctx) })
	await("the second to stand by", func() bool { return other.State().Leader != "" })

	proxy.Disconnect()
	began := time.Now()
	await("another leader", func() bool { return other.State().Leads && other.Feed().Records > 0 })
	if took, least := time.Since(began), 3*minSessionTimeout; took < least {
		t.Errorf("another leads after %s; an answer may take %s", took, least)
	}
	await("the former leader to stand by", func() bool { return strings.HasPrefix(cut.State().Leader, "other") })
}
