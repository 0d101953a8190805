package config_test

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
	storemongo "github.com/sluicebox/sluicebox/store/mongo"
)

const routed = `name: relay_1
source: {url: "postgres://u:p@db/shop", stream-url: "postgres://s@db/shop", poll-interval: 3s, poll-batch-size: 9, poll-backoff: {threshold: 2, multiplier: 5, max: 90s}, heartbeat-interval: 7s}
dispatch: {takeover: timeout, processing-timeout-seconds: 60, max-retries: 1}
outboxes:
  - {table: shop.outbox_messages, layout: outbox-messages, sink: today}
  - {name: jobs, table: outbox_jobs, layout: flowcatalyst, kind: DISPATCH_JOB, sink: seed}
sinks:
  today: {type: flowcatalyst, wire: items, api-base-url: "https://today", token: t, ca-file: ca.pem, api-batch-size: 5, max-concurrent-groups: 6,
          global-buffer-size: 7, buffer-bytes: 8, max-retries: 9, backoff: {initial: 10ms, max: 11ms}, request-timeout: 12s, proof-wait: 13s, retry-after-max: 14s}
  seed: {type: flowcatalyst, api-base-url: "https://seed"}
  again: {type: webhook, url: "https://again/hooks"}
`

func TestComposeOutboxesAndSinks(t *testing.T) {
	cfg := load(t, routed)
	want := []store.Outbox{
		{Name: "shop.outbox_messages", Schema: "shop", Table: "outbox_messages", Layout: store.OutboxMessages()},
		{Name: "jobs", Table: "outbox_jobs", Layout: store.FlowCatalyst(), Kind: "DISPATCH_JOB"},
	}
	if got := cfg.Outboxes(); !reflect.DeepEqual(got, want) {
		t.Errorf("outboxes are %+v", got)
	}
	if got := cfg.Routes(); !reflect.DeepEqual(got, map[string]string{"shop.outbox_messages": "today", "jobs": "seed"}) {
		t.Errorf("routes are %v", got)
	}
	if got := cfg.Sinks(); !slices.Equal(got, []string{"again", "seed", "today"}) {
		t.Errorf("sinks are %v", got)
	}
	own := dispatch.Config{
		APIBatchSize: 5, MaxConcurrentGroups: 6, BufferRows: 7, BufferBytes: 8, MaxRetries: 9,
		BackoffInitial: 10 * time.Millisecond, BackoffMax: 11 * time.Millisecond, ProofWait: 13 * time.Second, RetryAfterMax: 14 * time.Second,
		OnFailed: dispatch.Continue, Ungrouped: dispatch.FIFO,
	}
	if got := cfg.Dispatch("today"); got != own {
		t.Errorf("today's dispatcher is %+v", got)
	}
	inherited := dispatch.DefaultConfig()
	inherited.MaxRetries = 1
	if got := cfg.Dispatch("seed"); got != inherited {
		t.Errorf("seed's dispatcher is %+v", got)
	}
	today := cfg.FlowCatalyst("today")
	if today.Wire != "items" || today.BaseURL != "https://today" || string(today.Token) != "t" ||
		today.CAFile != "ca.pem" || today.RequestTimeout != 12*time.Second || today.MaxConnections != 6 {
		t.Errorf("today's sink is %+v", today)
	}
	if err := today.Validate(); err != nil {
		t.Error(err)
	}
}

func TestComposeSource(t *testing.T) {
	cfg := load(t, routed)
	st := cfg.Store()
	if st.URL != "postgres://u:p@db/shop" || st.Name != "relay_1" || len(st.Outboxes) != 2 || st.TakeoverTimeout != time.Minute {
		t.Errorf("store is %+v", st)
	}
	if err := st.Validate(); err != nil {
		t.Error(err)
	}
	stream := cfg.Stream()
	if stream.URL != st.URL || stream.StreamURL != "postgres://s@db/shop" || stream.Name != "relay_1" ||
		len(stream.Outboxes) != 2 || stream.HeartbeatInterval != 7*time.Second {
		t.Errorf("stream is %+v", stream)
	}
	if err := stream.Validate(); err != nil {
		t.Error(err)
	}
	p := cfg.Poll()
	if p.Interval != 3*time.Second || p.BatchSize != 9 || len(p.Outboxes) != 2 || p.Backoff != (poll.Backoff{Threshold: 2, Multiplier: 5, Max: 90 * time.Second}) {
		t.Errorf("poll is %+v", p)
	}
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
	if got := load(t, least).Poll().Backoff; got != poll.DefaultBackoff() {
		t.Errorf("the back-off is %+v, want the default", got)
	}
	if got := load(t, least).Store().TakeoverTimeout; got != 0 {
		t.Errorf("rows are taken over after %s, want at once", got)
	}
	admin := load(t, least+"admin: {listen: '127.0.0.1:0', token: t}\n").Admin(nil)
	if admin.Listen != "127.0.0.1:0" || admin.Token != "t" {
		t.Errorf("admin listens on %s", admin.Listen)
	}
}

// claims is one key for all outboxes of both databases.
func TestComposeWithoutClaims(t *testing.T) {
	const rest = "outboxes:\n  - {table: a, layout: outbox-messages, sink: s}\n  - {table: b, layout: flowcatalyst, kind: EVENT, sink: s}\nsinks: {s: {type: flowcatalyst, api-base-url: https://p}}\n"
	for value, want := range map[string]bool{"on": false, "off": true} {
		for _, text := range []string{source + "dispatch: {claims: " + value + "}\n" + rest, source + rest} {
			cfg := load(t, text, "SLUICEBOX_DISPATCH_CLAIMS="+value)
			for _, boxes := range [][]store.Outbox{cfg.Store().Outboxes, cfg.SQLiteStore().Outboxes} {
				for _, o := range boxes {
					if o.Layout.Unclaimed != want {
						t.Errorf("claims: %s: outbox %s is unclaimed %v", value, o.Name, o.Layout.Unclaimed)
					}
				}
			}
		}
	}
}

func TestComposeMongo(t *testing.T) {
	cfg := load(t, "name: relay_1\nsource: {url: 'mongodb://u:p@db1,db2/shop?replicaSet=rs0', stream-url: 'mongodb://s@db1,db2/shop?replicaSet=rs0'}\n"+
		"dispatch: {takeover: timeout, processing-timeout-seconds: 60}\n"+
		"outboxes:\n  - {table: outbox_events, layout: flowcatalyst, kind: EVENT, sink: s}\n  - {table: app.messages, layout: outbox-messages, sink: s}\n"+
		"  - {table: texts, layout: outbox-messages-text, sink: s}\nsinks: {s: {type: flowcatalyst, wire: items, api-base-url: https://p}}\n")
	st := cfg.MongoStore()
	if st.URL != "mongodb://u:p@db1,db2/shop?replicaSet=rs0" || st.Name != "relay_1" || st.TakeoverTimeout != time.Minute {
		t.Errorf("the store is %+v", st)
	}
	for i, want := range []store.Outbox{
		{Table: "outbox_events", Kind: "EVENT", Layout: storemongo.FlowCatalyst()},
		{Table: "app.messages", Layout: storemongo.OutboxMessages()},
		{Table: "texts", Layout: storemongo.OutboxMessagesText()},
	} {
		want.Name = want.Table
		if got := st.Outboxes[i]; !reflect.DeepEqual(got, want) {
			t.Errorf("outbox %d is\n%+v, want\n%+v", i, got, want)
		}
	}
	stream := cfg.MongoStream()
	if stream.URL != st.URL || stream.StreamURL != "mongodb://s@db1,db2/shop?replicaSet=rs0" || stream.Name != st.Name || len(stream.Outboxes) != 3 {
		t.Errorf("the stream is %+v", stream)
	}
	if err := errors.Join(st.Validate(), stream.Validate()); err != nil {
		t.Errorf("their own checks say: %v", err)
	}
}

func TestComposeSQLite(t *testing.T) {
	cfg := load(t, "name: relay_1\nsource: {url: sqlite:shop.db}\ndispatch: {takeover: timeout, processing-timeout-seconds: 60}\nflowcatalyst: {api-base-url: https://p}\n")
	st := cfg.SQLiteStore()
	if st.URL != "sqlite:shop.db" || st.Name != "relay_1" || len(st.Outboxes) != 2 || st.TakeoverTimeout != time.Minute {
		t.Errorf("the store is %+v", st)
	}
	stream := cfg.SQLiteStream()
	if stream.URL != st.URL || stream.Name != st.Name || len(stream.Outboxes) != 2 {
		t.Errorf("the stream is %+v", stream)
	}
	if err := errors.Join(st.Validate(), stream.Validate()); err != nil {
		t.Errorf("their own checks say: %v", err)
	}
}

func TestComposeRetention(t *testing.T) {
	cfg := load(t, `source: {url: "postgres://relay@db/shop"}
flowcatalyst: {api-base-url: "https://platform", retention: 1d12h}
`)
	for _, o := range cfg.Outboxes() {
		if o.Retention != 36*time.Hour || o.ValidateRetention() != nil {
			t.Errorf("%s keeps its rows for %s", o.Name, o.Retention)
		}
	}
	for _, o := range load(t, least).Outboxes() {
		if o.Retention != 0 {
			t.Errorf("without the key, %s keeps its rows for %s", o.Name, o.Retention)
		}
	}
}
