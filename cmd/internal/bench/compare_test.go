package bench

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

// configFile writes a configuration.
func configFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRelayFileKeepsWhatIsMeasured: the file of a real relay can be measured. Its database, its
// outboxes and its destination, with their secrets, are not used. The requests have the form that its sink gives
// them.
func TestRelayFileKeepsWhatIsMeasured(t *testing.T) {
	path := configFile(t, "relay.yaml", `name: shop
source: {url: 'postgres://me:secret@shop.example/shop', poll-interval: 2s, mode: poll}
dispatch: {max-retries: 7, claims: off}
checkpoint: {sweep-interval: 5m}
outboxes: [{table: orders, layout: flowcatalyst, kind: EVENT, sink: shop}]
sinks:
  shop: {type: webhook, url: 'https://shop.example/${env:SHOP_PATH_UNSET}', token: '${env:SHOP_TOKEN_UNSET}', max-concurrent-groups: 20, chain: true, format: cloudevents, cloudevents-source: /shop, headers: {x-key: secret}}
`)
	f, err := loadRelayFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"the database of source", "outboxes", "the destination of sinks.shop"}
	if !slices.Equal(f.unused, want) {
		t.Errorf("not used are %q, want %q", f.unused, want)
	}
	b := &bench{folder: t.TempDir(), opts: Options{Source: "postgres://bench@127.0.0.1/db", Layout: layoutWords}}
	b.use(f)
	if err := b.checkRelayFile(); err != nil {
		t.Error(err)
	}
	s := b.relaySettings(&benchDatabase{name: "sluicebox_bench_1", layout: layoutWords, table: outboxOf(layoutWords)}, "127.0.0.1:1", &receiver{url: "http://127.0.0.1:2", sink: config.Sink{Type: config.SinkFlowCatalyst, APIBaseURL: "http://127.0.0.1:2"}})
	sink := s.Sinks[receiverSink]
	if s.Dispatch.MaxRetries != 7 || s.Dispatch.Claims != "off" || s.Source.Mode != "poll" || s.Source.PollInterval != 2*time.Second ||
		s.Checkpoint.SweepInterval != 5*time.Minute || sink.MaxConcurrentGroups != 20 || sink.MaxRetries != 7 || b.opts.Senders != 20 || b.opts.Batch != 100 {
		t.Errorf("the relay has %+v", s)
	}
	if s.Name != "sluicebox_bench_1" || s.Source.URL != "" || len(s.Sinks) != 1 || sink.Token != "" || len(sink.Webhook.Headers) > 0 || s.Outboxes[0].Sink != receiverSink {
		t.Errorf("the relay has %+v", s)
	}
}

// TestRelayOfFileSendsItsRequests: a webhook stays one, with its chain and its format, and sends to the
// receiver of the benchmark. A receiver that is a topic keeps its own sink.
func TestRelayOfFileSendsItsRequests(t *testing.T) {
	f, err := loadRelayFile(configFile(t, "relay.yaml", "sinks: {shop: {type: webhook, url: 'https://shop.example/in', chain: true, format: json-array}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{folder: t.TempDir(), opts: Options{Source: "postgres://bench@127.0.0.1/db", Layout: layoutWords}}
	b.use(f)
	p := &benchDatabase{name: "sluicebox_bench_1", url: b.opts.Source.Reveal(), layout: layoutWords, table: outboxOf(layoutWords)}
	file, environ, err := b.writeRelayConfig(p, "127.0.0.1:1", &receiver{url: "http://127.0.0.1:2"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = config.Load(file, environ); err == nil || !strings.Contains(err.Error(), "chain") { // several rows share the headers of a request
		t.Fatalf("json-array with a chain: got %v, want an error about it", err)
	}
	f.settings.Sinks["shop"] = config.Sink{Type: config.SinkWebhook}
	if file, environ, err = b.writeRelayConfig(p, "127.0.0.1:1", &receiver{url: "http://127.0.0.1:2"}); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file, environ)
	if err != nil {
		t.Fatal(err)
	}
	if s := c.Settings.Sinks[receiverSink]; s.Type != config.SinkWebhook || !s.Chain || string(s.Webhook.URL) != "http://127.0.0.1:2/hook" {
		t.Errorf("the sink is a %s with chain %v to %s", s.Type, s.Chain, string(s.Webhook.URL))
	}
	topic := config.Sink{Type: config.SinkNATS}
	if s := f.sinkTo(&receiver{url: "nats://127.0.0.1:2", topic: "rows", sink: topic}); s.Type != config.SinkNATS {
		t.Errorf("of a receiver that reads a topic, the sink is a %s", s.Type)
	}
}

// TestRelayFileErrorsNameTheUsersFile: not the file that the benchmark writes.
func TestRelayFileErrorsNameTheUsersFile(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"unknown key":           {"dispatch:\n  claimz: off\n", ":2: dispatch.claimz: unknown key; did you mean claims?"},
		"another type":          {"dispatch: {max-retries: many}\n", ":1: dispatch.max-retries: "},
		"unknown section":       {"dispach: {}\n", ":1: dispach: unknown key"},
		"out of range":          {"dispatch: {api-batch-size: 0}\n", ": dispatch.api-batch-size: is 0"},
		"out of range, of sink": {"sinks: {shop: {type: webhook, max-concurrent-groups: -1}}\n", ": sinks.shop.max-concurrent-groups: is -1"},
		"several sinks":         {"sinks: {a: {type: webhook}, b: {type: webhook}}\n", ": sinks: has a, b, but the benchmark has one outbox"},
	} {
		t.Run(name, func(t *testing.T) {
			path := configFile(t, "relay.yaml", tc.text)
			b := &bench{folder: t.TempDir(), opts: Options{Source: "postgres://bench@127.0.0.1/db", Layout: layoutWords}}
			f, err := loadRelayFile(path)
			if err == nil {
				b.use(f)
				err = b.checkRelayFile()
			}
			if err == nil || !strings.HasPrefix(err.Error(), path+tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %s%s", err, path, tc.want)
			}
		})
	}
}

// TestCompareTakesTwoFiles: --compare A.yaml B.yaml, in any place of the command line.
func TestCompareTakesTwoFiles(t *testing.T) {
	for _, tc := range []struct {
		args string
		want Files
		err  string
	}{
		{"--compare a.yaml b.yaml --source postgres://x", Files{"a.yaml", "b.yaml"}, ""},
		{"--source postgres://x --compare=a.yaml b.yaml", Files{"a.yaml", "b.yaml"}, ""},
		{"--source postgres://x", Files{}, ""},
		{"--source postgres://x --compare a.yaml", Files{}, "needs two configuration files"},
		{"--compare a.yaml --source postgres://x", Files{}, "needs two configuration files"},
		{"--source postgres://x --compare a.yaml b.yaml c.yaml", Files{}, "unexpected argument c.yaml"},
	} {
		var o Options
		parser, err := kong.New(&o, kong.Exit(func(int) {}), kong.Writers(io.Discard, io.Discard))
		if err != nil {
			t.Fatal(err)
		}
		_, err = parser.Parse(strings.Fields(tc.args))
		if tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) || tc.err == "" && (err != nil || o.Compare != tc.want) {
			t.Errorf("%s: %+v, %v", tc.args, o.Compare, err)
		}
	}
}

// TestComparisonIsOfBToA: the table has A before B, the ratio of B to A, and its range.
func TestComparisonIsOfBToA(t *testing.T) {
	a, c := configFile(t, "a.yaml", ""), configFile(t, "b.yaml", "dispatch: {claims: off}\n")
	o := Options{Source: "postgres://bench@127.0.0.1/db", Scenario: "latency", Repeat: 3, Layout: layoutWords, Compare: Files{a, c}}
	b := &bench{folder: t.TempDir(), opts: o, env: Environment{Stderr: io.Discard}, server: &postgresServer{}}
	var err error
	if b.scenario, err = b.comparing(findScenario("latency"), o.Compare); err != nil {
		t.Fatal(err)
	}
	res := b.result([][]figures{ // B, then A
		{{p50: 2, cpuPerRow: 5}, {p50: 3, cpuPerRow: 5}, {p50: 40, cpuPerRow: 5}},
		{{p50: 1, cpuPerRow: 10}, {p50: 1, cpuPerRow: 10}, {p50: 40, cpuPerRow: 10}},
	}, time.Second, 0)
	if len(res.Measures) != 2 {
		t.Fatalf("there are %d measures, want p50 and CPU per row once: %+v", len(res.Measures), res.Measures)
	}
	if m := res.Measures[0]; m.Name != p50 || m.Side != sideB || m.Against != sideA || m.Ratio != 2 || m.Goal != "" {
		t.Errorf("p50 is %+v", m)
	}
	var text strings.Builder
	if err := res.writeText(&text); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(text.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	for _, want := range []string{"A: " + a, "B: " + c, "A B B / A of the turns", "p50 1 ms 3 ms 2.00 1.00 to 3.00", "CPU per row 10.0 µs 5 µs 0.50 0.50 to 0.50"} {
		if !slices.Contains(lines, want) {
			t.Errorf("%q is not in the table:\n%s", want, text.String())
		}
	}
}

// TestClaimsOfASideDoNotStay: a turn with claims on does not change the next one.
func TestClaimsOfASideDoNotStay(t *testing.T) {
	b := &bench{opts: Options{Claims: "late"}}
	var during string
	_, err := withClaims(func(_ context.Context, turn *bench) (figures, error) {
		during = turn.opts.Claims
		return nil, nil
	})(t.Context(), b)
	if err != nil || during != "on" || b.opts.Claims != "late" {
		t.Errorf("claims were %q and are %q, %v", during, b.opts.Claims, err)
	}
}
