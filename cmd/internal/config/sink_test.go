package config_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/flowcatalyst"
	"github.com/sluicebox/sluicebox/dispatch/sink/kafka"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
)

func TestComposeSinks(t *testing.T) {
	cfg, err := config.Load("testdata/custom.yaml", examplesEnviron())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"hooks": config.SinkWebhook, "events": config.SinkWebhook, "platform": config.SinkFlowCatalyst} {
		if got := cfg.Settings.Sinks[name].Type; got != want {
			t.Errorf("%s is of type %s", name, got)
		}
		if got := relay(t, cfg).Sinks[name].RequestTimeout; got != 30*time.Second {
			t.Errorf("%s has a time-out of %s", name, got)
		}
	}
	hooks := webhook.Config{
		URL: "https://hooks.example/T000/h", Method: "PUT",
		Secrets: []sink.Secret{"whsec_ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4", "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3"},
		Format:  webhook.FormatRaw, ContentType: "application/json",
		Headers:         map[string]sink.Secret{"X-Api-Key": "k", "X-Team": "shop"},
		MetadataHeaders: []string{"kind", "group", "attempt"}, IDPrefix: "shop-", Treat409AsDelivered: true,
		References: []sink.Secret{"h", "k"},
		HTTP: webhook.HTTP{
			Token: "k", RequestTimeout: 30 * time.Second, MaxConnections: 64, MaxRequestBytes: 1 << 20,
			UserAgent: "shop/1", ErrorDetail: sink.ErrorDetailStatus,
		},
	}
	if got := cfg.Webhook("hooks"); !reflect.DeepEqual(got, hooks) {
		t.Errorf("hooks is\n%#v, want\n%#v", got, hooks)
	}
	events := webhook.Config{
		URL: "http://events.example:8080", Method: "POST", Format: webhook.FormatCloudEvents, ContentType: "application/xml",
		CloudEventsSource: "/shop/invoices", CloudEventsType: "com.example.{kind}", CloudEventsSubject: "{kind}/{id}", HTTP: webhook.HTTP{
			ErrorDetail: sink.ErrorDetailBody, RequestTimeout: 30 * time.Second, MaxConnections: 64, CertFile: "/etc/ssl/relay.pem", KeyFile: "/etc/ssl/relay.key",
		},
	}
	if got := cfg.Webhook("events"); !reflect.DeepEqual(got, events) {
		t.Errorf("events is\n%#v, want\n%#v", got, events)
	}
	oauth := flowcatalyst.OAuth{
		TokenURL: "https://login.example/token?tenant=shop", ClientID: "relay", ClientSecret: "k",
		Scope: "events.write jobs.write", Audience: "platform", ClientAuth: flowcatalyst.AuthBody,
	}
	if got := cfg.FlowCatalyst("platform").OAuth; got != oauth {
		t.Errorf("the client is %+v", got)
	}
	if got := load(t, least).FlowCatalyst("flowcatalyst").OAuth; got != (flowcatalyst.OAuth{}) {
		t.Errorf("without a section the client is %+v", got)
	}
}

func TestComposeDispatch(t *testing.T) {
	cfg, err := config.Load("testdata/custom.yaml", examplesEnviron())
	if err != nil {
		t.Fatal(err)
	}
	type choice struct {
		onFailed  dispatch.OnFailed
		ungrouped dispatch.Ungrouped
		compat    dispatch.Compat
		giveUp    time.Duration
		takeover  time.Duration
	}
	for name, want := range map[string]choice{
		"hooks":    {dispatch.Block, dispatch.Parallel, dispatch.CompatFlowCatalyst, 24 * time.Hour, 2 * time.Second},
		"events":   {dispatch.Continue, dispatch.FIFO, dispatch.CompatPostbox, 0, 2 * time.Second},
		"platform": {dispatch.Continue, dispatch.FIFO, dispatch.CompatNone, 0, 2 * time.Second},
	} {
		c := cfg.Dispatch(name)
		if got := (choice{c.OnFailed, c.Ungrouped, c.Retry.Compat, c.GiveUpAfter, c.TakeoverWait}); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		if err := c.Validate(); err != nil {
			t.Error(err)
		}
	}
}

// TestPresetOAuth checks that the preset has the section, also through variables only.
func TestPresetOAuth(t *testing.T) {
	cfg := load(t, source,
		"SLUICEBOX_FLOWCATALYST_API_BASE_URL=https://p",
		"SLUICEBOX_FLOWCATALYST_OAUTH_CLIENT_ID=relay", "SLUICEBOX_FLOWCATALYST_OAUTH_CLIENT_SECRET=s")
	want := flowcatalyst.OAuth{ClientID: "relay", ClientSecret: "s"}
	if got := cfg.FlowCatalyst("flowcatalyst").OAuth; got != want {
		t.Errorf("the client is %+v", got)
	}
	const preset = source + "flowcatalyst:\n  api-base-url: https://p\n"
	for _, tt := range []struct {
		text string
		want []string
	}{
		{preset + "  oauth:\n", []string{
			"relay.yaml:4: flowcatalyst.oauth.client-id: is required; set the OAuth client id (or set SLUICEBOX_FLOWCATALYST_OAUTH_CLIENT_ID)",
			"relay.yaml:4: flowcatalyst.oauth.client-secret: is required"}},
		{preset + "  oauth:\n    client-id: relay\n    client-secret: s\n    token-url: ftp://canary\n    client-auth: post\n", []string{
			"relay.yaml:7: flowcatalyst.oauth.token-url: has scheme",
			`relay.yaml:8: flowcatalyst.oauth.client-auth: is "post", must be one of auto, basic, body`}},
		{preset + "  api-token: t\n  oauth: {client-id: relay, client-secret: s}\n", []string{
			"relay.yaml:4: flowcatalyst.api-token: and oauth are both set; keep one"}},
	} {
		compare(t, faults(t, tt.text), tt.want)
	}
}

// Braces of a secret are no fields; those of the file are.
func TestSecretWithBraces(t *testing.T) {
	cfg := load(t, source+"outboxes: [{table: a, layout: flowcatalyst, kind: EVENT, sink: h}]\nsinks:\n  h:\n    type: webhook\n"+
		"    url: https://h/${env:KEY}/{kind}\n    headers: {X-A: '${env:KEY}-{id}'}\n", "KEY=a{id}b}")
	s := cfg.Webhook("h")
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
	if string(s.URL) != "https://h/a{{id}}b}}/{kind}" || string(s.Headers["X-A"]) != "a{{id}}b}}-{id}" {
		t.Errorf("url %q, header %q", string(s.URL), string(s.Headers["X-A"]))
	}
}

// A webhook and a Camunda sink have more senders than others, unless the file says how many all have.
func TestWebhookSenders(t *testing.T) {
	const text = source + "outboxes: [{table: a, layout: flowcatalyst, kind: EVENT, sink: h}]\n" +
		"sinks: {h: {type: webhook, url: 'https://h'%[1]s}, c: {type: camunda, url: 'https://h', time-to-live: 1h, name: paid%[1]s}, p: {type: flowcatalyst, api-base-url: 'https://p'}}\n%[2]s"
	for _, tt := range []struct {
		own, all string
		h, p     int
	}{
		{"", "", 64, 10}, {", max-concurrent-groups: 7", "", 7, 10}, {"", "dispatch: {max-concurrent-groups: 5}\n", 5, 5},
		{", max-concurrent-groups: 7", "dispatch: {max-concurrent-groups: 5}\n", 7, 5},
	} {
		cfg := load(t, fmt.Sprintf(text, tt.own, tt.all))
		if c := cfg.Dispatch("c").MaxConcurrentGroups; c != tt.h {
			t.Errorf("%q, %q: %d senders to Camunda, want %d", tt.own, tt.all, c, tt.h)
		}
		if h, p := cfg.Dispatch("h").MaxConcurrentGroups, cfg.Dispatch("p").MaxConcurrentGroups; h != tt.h || p != tt.p {
			t.Errorf("%q, %q: %d and %d senders, want %d and %d", tt.own, tt.all, h, p, tt.h, tt.p)
		}
	}
}

// Kafka takes more rows a request than other sinks, unless the file says how many all take.
func TestKafkaBatch(t *testing.T) {
	const text = source + "outboxes: [{table: a, layout: flowcatalyst, kind: EVENT, sink: k}]\n" +
		"sinks: {k: {type: kafka, brokers: 'k1:9092', topic: orders%s}, p: {type: flowcatalyst, api-base-url: 'https://p'}}\n%s"
	for _, tt := range []struct {
		own, all string
		k, p     int
	}{
		{"", "", 500, 100}, {", api-batch-size: 7", "", 7, 100}, {"", "dispatch: {api-batch-size: 5}\n", 5, 5},
	} {
		cfg := load(t, fmt.Sprintf(text, tt.own, tt.all))
		if k, p := cfg.Dispatch("k").APIBatchSize, cfg.Dispatch("p").APIBatchSize; k != tt.k || p != tt.p {
			t.Errorf("%q, %q: %d and %d rows, want %d and %d", tt.own, tt.all, k, p, tt.k, tt.p)
		}
	}
}

func TestWebhookFaults(t *testing.T) {
	const hooks = source + "outboxes:\n- {table: a, layout: flowcatalyst, kind: any kind, sink: hooks}\nsinks:\n  hooks:\n    type: webhook\n"
	for _, tt := range []struct {
		name, keys string
		want       []string
	}{
		{"no address", "", []string{"relay.yaml:5: sinks.hooks.url: is required; write https://host[:port]/path (or set SLUICEBOX_SINKS_HOOKS_URL)"}},
		{"a bad address", "    url: ftp://canary/x\n", []string{"relay.yaml:7: sinks.hooks.url: "}},
		{"no key to sign with", "    url: https://h/x\n    secrets:\n    - whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3\n    - canary\n", []string{"relay.yaml:10: sinks.hooks.secrets[1]: "}},
		{"a number for a key", "    url: https://h/x\n    secrets: [17]\n", []string{"relay.yaml:8: sinks.hooks.secrets[0]: must be a text; put it in quotes"}},
		{"one key", "    url: https://h/x\n    secrets: canary\n", []string{"relay.yaml:8: sinks.hooks.secrets: must hold a list, each entry behind a - or all of them in [ ]"}},
		{"a header of the relay", "    url: https://h/x\n    headers:\n      X-Ok: a\n      Webhook-Id: canary\n", []string{"relay.yaml:10: sinks.hooks.headers.Webhook-Id: cannot be set"}},
		{"a list of headers", "    url: https://h/x\n    headers: [canary]\n", []string{"relay.yaml:8: sinks.hooks.headers: must hold names, each with its value"}},
		{"a header twice", "    url: https://h/x\n    headers: {A: canary, A: canary}\n", []string{"relay.yaml:8: sinks.hooks.headers.A: is a duplicate of line 8"}},
		{"unknown metadata", "    url: https://h/x\n    metadata-headers: [kind, grupe]\n", []string{
			`relay.yaml:8: sinks.hooks.metadata-headers[1]: is "grupe", must be one of kind, group, type, time, attempt; did you mean group?`}},
		{"cloudevents without a source", "    url: https://h/x\n    format: cloudevents\n", []string{"relay.yaml:5: sinks.hooks.cloudevents-source: is not set"}},
		{"a source without cloudevents", "    url: https://h/x\n    cloudevents-source: /shop\n", []string{"relay.yaml:8: sinks.hooks.cloudevents-source: is only for a format of CloudEvents"}},
		{"keys of another type", "    url: https://h/x\n    wire: items\n    api-base-url: https://h\n", []string{
			"relay.yaml:8: sinks.hooks.wire: needs type: flowcatalyst, but this is type: webhook; remove it, or change the type",
			"relay.yaml:9: sinks.hooks.api-base-url: needs type: flowcatalyst"}},
		{"half a client", "    url: https://h/x\n    oauth: {client-id: a}\n", []string{
			"relay.yaml:8: sinks.hooks.oauth.client-secret: is required", "relay.yaml:8: sinks.hooks.oauth.token-url: is not set; set it to the address of the token endpoint"}},
		{"a token twice", "    url: https://h/x\n    token: canary\n    oauth: {client-id: a, client-secret: canary, token-url: 'https://h/t'}\n", []string{
			"relay.yaml:8: sinks.hooks.token: and oauth are both set; keep one"}},
		{"a certificate without its key", "    url: https://h/x\n    cert-file: c.pem\n", []string{"relay.yaml:5: sinks.hooks.key-file: is not set; cert-file needs it"}},
		{"no rate", "    url: https://h/x\n    rate-limit: 100\n", []string{`relay.yaml:8: sinks.hooks.rate-limit: "100" is not a rate such as 100/s, 600/m or 1000/h`}},
		{"a slow rate", "    url: https://h/x\n    rate-limit: 0.5/h\n", []string{"relay.yaml:8: sinks.hooks.rate-limit: is 0.000138888888889/s, must be at least 1/h"}},
		{"an unknown field", "    url: https://h/{kynd}\n", []string{"relay.yaml:7: sinks.hooks.url: has a brace alone or an unknown field in braces; the fields are {id}, "}},
		{"metadata of several rows", "    url: https://h/x\n    format: json-array\n    metadata-headers: [kind]\n", []string{
			"relay.yaml:9: sinks.hooks.metadata-headers: is for one row a request; format: json-array has several"}},
		{"a range", "    url: https://h/x\n    max-concurrent-groups: 0\n    request-timeout: 0s\n    give-up-after: -5s\n", []string{
			"relay.yaml:8: sinks.hooks.max-concurrent-groups: is 0, must be at least 1",
			"relay.yaml:9: sinks.hooks.request-timeout: is 0s, must be above 0", "relay.yaml:10: sinks.hooks.give-up-after: is -5s, must not be below 0s"}},
		{"a chain without a header", "    url: https://h/x\n    format: json-array\n    chain: true\n", []string{"relay.yaml:9: sinks.hooks.chain: is true, but the sink's messages have no header for each row; set chain: false here, or choose another type or format"}},
		{"a chain in several rows", "    url: https://h/x\n    format: cloudevents-batch\n    cloudevents-source: /s\n    chain: true\n", []string{"relay.yaml:10: sinks.hooks.chain: is true, but the sink's messages have no header for each row"}},
		{"a key of all sinks", "    url: https://h/x\n    takeover-wait: 1s\n", []string{"relay.yaml:8: sinks.hooks.takeover-wait: applies to all sinks: set it under dispatch"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := faults(t, hooks+tt.keys)
			compare(t, got, tt.want)
			mustHide(t, strings.Join(got, "\n"))
		})
	}
	got := faults(t, source+"outboxes:\n- {table: a, layout: outbox-messages, sink: p}\nsinks:\n  p:\n    type: flowcatalyst\n    api-base-url: https://p\n    headers: {A: canary}\n    secrets: [canary]\n")
	compare(t, got, []string{"relay.yaml:9: sinks.p.secrets: needs type: webhook, but this is type: flowcatalyst", "relay.yaml:8: sinks.p.headers: needs type: "})
	// The kind is required, with any value.
	compare(t, faults(t, source+"outboxes:\n- {table: a, layout: flowcatalyst, sink: h}\nsinks:\n  h: {type: webhook, url: https://h}\n"),
		[]string{"relay.yaml:3: outboxes[0].kind: is required: the flowcatalyst layout has no column for it; set the kind of its rows, for example kind: order"})
}

func TestVariablesOfWebhooks(t *testing.T) {
	const text = source + "outboxes:\n- {table: a, layout: outbox-messages, sink: my-hooks}\nsinks:\n  my-hooks: {type: webhook, url: https://h, headers: {X-Api-Key: file, X-B: b}}\n"
	cfg := load(t, text,
		"SLUICEBOX_SINKS_MY_HOOKS_SECRETS=['${env:KEY}']", "KEY=whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3",
		"SLUICEBOX_SINKS_MY_HOOKS_HEADERS_X_API_KEY=variable", "SLUICEBOX_SINKS_MY_HOOKS_METADATA_HEADERS=[group]",
		"SLUICEBOX_SINKS_MY_HOOKS_TREAT_409_AS_DELIVERED=true", "SLUICEBOX_SINKS_MY_HOOKS_RETRY_COMPAT=postbox")
	c := cfg.Webhook("my-hooks")
	if len(c.Secrets) != 1 || string(c.Secrets[0]) != "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3" || string(c.Headers["X-Api-Key"]) != "variable" ||
		string(c.Headers["X-B"]) != "b" || len(c.MetadataHeaders) != 1 || !c.Treat409AsDelivered || cfg.Dispatch("my-hooks").Retry.Compat != dispatch.CompatPostbox {
		t.Errorf("the sink is %#v", c)
	}
	c = load(t, text, "SLUICEBOX_SINKS_MY_HOOKS_HEADERS={X-C: c}").Webhook("my-hooks")
	if len(c.Headers) != 1 || string(c.Headers["X-C"]) != "c" {
		t.Errorf("the headers are %v", c.Headers)
	}
	for _, variable := range []string{"SLUICEBOX_SINKS_MY_HOOKS_SECRETS=[canary", "SLUICEBOX_SINKS_MY_HOOKS_SECRETS=canary", "SLUICEBOX_SINKS_MY_HOOKS_HEADERS={A: \"can\\nary\"}"} {
		mustHide(t, strings.Join(faults(t, text, variable), "\n"))
	}
}

// TestPrintedSinksHideSecrets checks that placeholders load again (see
// TestPrintedConfigurationLoadsAgain) and reveal nothing.
func TestPrintedSinksHideSecrets(t *testing.T) {
	const key = "whsec_Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5"
	cfg := load(t, source+`outboxes:
- {table: a, layout: outbox-messages, sink: h}
- {table: b, layout: outbox-messages, sink: p}
sinks:
  h: {type: webhook, url: "https://h/canary?canary", secrets: [`+key+`], headers: {X-Key: canary}, token: canary}
  p: {type: flowcatalyst, api-base-url: https://p, oauth: {client-id: a, client-secret: canary, token-url: "https://t/?secret=canary"}}
`)
	asYAML, err := cfg.YAML()
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := cfg.JSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{string(asYAML), string(asJSON)} {
		mustHide(t, text)
		if strings.Contains(text, key) {
			t.Errorf("the key shows: %s", text)
		}
		for _, want := range []string{"https://xxxxx", "whsec_xxxx", "X-Key", "https://t/?secret=xxxxx", "treat-409-as-delivered"} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in\n%s", want, text)
			}
		}
	}
	if printed := string(asYAML); strings.Count(printed, "wire:") != 1 || strings.Contains(printed, "numbers:") {
		t.Errorf("keys that have no place are printed:\n%s", printed)
	}
}

// A sink is opened anew if one of its credential files changes, so the relay watches them.
func TestFilesOfCredentials(t *testing.T) {
	cfg := load(t, source+"outboxes: [{table: a, layout: flowcatalyst, kind: EVENT, sink: a}]\nsinks:\n"+
		"  a: {type: nats, url: 'nats://n', subject: s, creds-file: /a.creds, ca-file: /ca.pem}\n"+
		"  b: {type: nats, url: 'nats://n', subject: s, nkey-file: /b.nk}\n")
	if got, want := cfg.Files(), []string{"/a.creds", "/b.nk", "/ca.pem"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The mechanisms of SASL have the spelling of the protocol too. A mechanism that is none gets one
// error, and none about the keys that it may need.
func TestSpellingOfMechanisms(t *testing.T) {
	const text = `source: {url: "postgres://db/shop"}
outboxes: [{table: a, layout: flowcatalyst, kind: EVENT, sink: bus}]
sinks: {bus: {type: kafka, brokers: 'k1:9093', topic: orders, sasl: {mechanism: %s, user: relay, password: p}}}
`
	for given, want := range map[string]kafka.Mechanism{
		"PLAIN": kafka.MechanismPlain, "SCRAM-SHA-256": kafka.MechanismSCRAM256, "SCRAM-SHA-512": kafka.MechanismSCRAM512, "AWS_MSK_IAM": kafka.MechanismAWS, "scram-sha-256": kafka.MechanismSCRAM256,
	} {
		if got := load(t, fmt.Sprintf(text, given)).Settings.Sinks["bus"].Kafka.SASL.Mechanism; got != want {
			t.Errorf("%s is %s, want %s", given, got, want)
		}
	}
	if got := faults(t, fmt.Sprintf(text, "SCRAM-SHA-1")); len(got) != 1 || !strings.Contains(got[0], "sinks.bus.sasl.mechanism: ") {
		t.Errorf("the errors are %q, want one of the mechanism", got)
	}
}
