package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/mongo"
	"github.com/sluicebox/sluicebox/capture/mysql"
	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/capture/postgres"
	"github.com/sluicebox/sluicebox/capture/sqlite"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
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
	want[1].Layout.Filled = []store.FilledColumn{{Column: "type", Fill: store.FillKind}}
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
		Backoff: dispatch.Backoff{Initial: 10 * time.Millisecond, Max: 11 * time.Millisecond}, ProofWait: 13 * time.Second, RetryAfterMax: 14 * time.Second,
		OnFailed: dispatch.Continue, Ungrouped: dispatch.FIFO, Retry: dispatch.Retry{Compat: dispatch.CompatNone},
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

// relay returns the options of a relay, which its database accepts.
func relay(t *testing.T, cfg *config.Config) sluicebox.Options {
	t.Helper()
	o, err := cfg.Relay("")
	if err != nil {
		t.Fatal(err)
	}
	st, err := o.Database.Store(store.Settings{Name: o.Name, Outboxes: cfg.Outboxes(), TakeoverTimeout: o.TakeoverTimeout})
	if err != nil {
		t.Fatalf("its store: %v", err)
	}
	st.Close()
	src, err := o.Database.Stream(capture.Settings{Name: o.Name, Outboxes: cfg.Outboxes()})
	if err != nil {
		t.Fatalf("its source: %v", err)
	}
	src.Close()
	return o
}

func TestComposeSource(t *testing.T) {
	o := relay(t, load(t, routed))
	if want := (postgres.Database{URL: "postgres://u:p@db/shop", StreamURL: "postgres://s@db/shop", Heartbeat: 7 * time.Second}); o.Database != want {
		t.Errorf("the database is %+v", o.Database)
	}
	if o.Name != "relay_1" || o.Mode != sluicebox.ModeAuto || o.TakeoverTimeout != time.Minute || len(o.Outboxes) != 2 || o.Outboxes[1].Name != "jobs" || o.Outboxes[1].Sink != "seed" ||
		o.MaxHold != 1<<30 || o.MaxKept != 10<<30 || o.SweepInterval != time.Minute {
		t.Errorf("the relay is %+v", o)
	}
	if want := (sluicebox.PollOptions{Interval: 3 * time.Second, BatchSize: 9, Backoff: poll.Backoff{Threshold: 2, Multiplier: 5, Max: 90 * time.Second}}); o.Poll != want {
		t.Errorf("poll is %+v", o.Poll)
	}
	o = relay(t, load(t, least))
	if o.Poll.Backoff != poll.DefaultBackoff() {
		t.Errorf("the backoff is %+v, want the default", o.Poll.Backoff)
	}
	if o.TakeoverTimeout != 0 {
		t.Errorf("rows are taken over after %s, want at once", o.TakeoverTimeout)
	}
	o = relay(t, load(t, "source: {url: 'mariadb://u@db/shop', stream-url: 'mariadb://s@db/shop', server-id: 7, mode: poll}\nflowcatalyst: {api-base-url: https://p}\n"))
	if want := (mysql.Database{URL: "mariadb://u@db/shop", StreamURL: "mariadb://s@db/shop", ServerID: 7}); o.Database != want || o.Mode != sluicebox.ModePoll {
		t.Errorf("the database is %+v in mode %s", o.Database, o.Mode)
	}
	admin := load(t, least+"admin: {listen: '127.0.0.1:0', token: t, tokens: [{name: ada, role: viewer, token: a}]}\n").Admin(nil)
	if admin.Listen != "127.0.0.1:0" || admin.Token != "t" || fmt.Sprint(admin.Tokens) != "[{ada viewer a}]" {
		t.Errorf("admin listens on %s", admin.Listen)
	}
}

// claims is one key for all outboxes.
func TestComposeWithoutClaims(t *testing.T) {
	const rest = "outboxes:\n  - {table: a, layout: outbox-messages, sink: s}\n  - {table: b, layout: flowcatalyst, kind: EVENT, sink: s}\nsinks: {s: {type: flowcatalyst, api-base-url: https://p}}\n"
	for value, want := range map[string]bool{"on": false, "off": true} {
		for _, text := range []string{source + "dispatch: {claims: " + value + "}\n" + rest, source + rest} {
			cfg := load(t, text, "SLUICEBOX_DISPATCH_CLAIMS="+value)
			for _, o := range cfg.Outboxes() {
				if o.Layout.Unclaimed != want {
					t.Errorf("claims: %s: outbox %s is unclaimed %v", value, o.Name, o.Layout.Unclaimed)
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
	o := relay(t, cfg)
	if want := (mongo.Database{URL: "mongodb://u:p@db1,db2/shop?replicaSet=rs0", StreamURL: "mongodb://s@db1,db2/shop?replicaSet=rs0"}); o.Database != want ||
		o.Name != "relay_1" || o.TakeoverTimeout != time.Minute {
		t.Errorf("the relay is %+v", o)
	}
	for i, want := range []store.Outbox{
		{Table: "outbox_events", Kind: "EVENT", Layout: storemongo.FlowCatalyst()},
		{Table: "app.messages", Layout: storemongo.OutboxMessages()},
		{Table: "texts", Layout: storemongo.OutboxMessagesText()},
	} {
		want.Name = want.Table
		if got := o.Outboxes[i].Outbox; !reflect.DeepEqual(got, want) {
			t.Errorf("outbox %d is\n%+v, want\n%+v", i, got, want)
		}
	}
}

func TestComposeSQLite(t *testing.T) {
	cfg := load(t, "name: relay_1\nsource: {url: sqlite:shop.db}\ndispatch: {takeover: timeout, processing-timeout-seconds: 60}\nflowcatalyst: {api-base-url: https://p}\n")
	o := relay(t, cfg)
	if o.Database != (sqlite.Database{URL: "sqlite:shop.db"}) || o.Name != "relay_1" || len(o.Outboxes) != 2 || o.TakeoverTimeout != time.Minute {
		t.Errorf("the relay is %+v", o)
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

// A relay reopens the sink whose files changed, and no other.
func TestReloadFollowsFiles(t *testing.T) {
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "token")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(token, "first")
	cfg := load(t, `{source: {url: "sqlite:///x.db"}, outboxes: [{table: a, layout: outbox-messages, sink: s}],
sinks: {other: {type: webhook, url: "https://h"}, s: {type: webhook, url: "https://h", ca-file: '`+ca+`', token: '${file:`+token+`}'}}}`)
	o, err := cfg.Relay("agent")
	if err != nil {
		t.Fatal(err)
	}
	before := o.Sinks
	changed := func(want bool) {
		t.Helper()
		now, err := o.Reload.Sinks()
		if err != nil {
			t.Fatal(err)
		}
		if got := !reflect.DeepEqual(now["s"].Inputs, before["s"].Inputs); got != want {
			t.Errorf("the sink has changed: %t, want %t", got, want)
		}
		if !reflect.DeepEqual(now["other"].Inputs, before["other"].Inputs) {
			t.Error("the other sink has changed")
		}
		before = now
	}
	changed(false)
	write(token, "second")
	changed(true)
	changed(false)
	write(ca, "an authority")
	changed(true)
	if len(o.Reload.Files) != 2 {
		t.Errorf("files are %q", o.Reload.Files)
	}
}
