package blackbox

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// secretSinks are sinks whose receivers refuse every request and echo what it held. HTTP, REDIS, NATS,
// AMQP and KAFKA are their addresses. With the other configurations, they have every secret.
const secretSinks = `
  platform: {type: flowcatalyst, api-base-url: 'HTTP', token: '@platform.token@'}
  platform-key: {type: flowcatalyst, api-base-url: 'HTTP', cert-file: '<platform.cert-file>', key-file: '<platform.key-file>'}
  platform-oauth: {type: flowcatalyst, api-base-url: 'HTTP', oauth: {token-url: 'HTTP/token?api_key=%platform.token-url%', client-id: relay, client-secret: '@platform.client-secret@'}}
  hooks: {type: webhook, url: 'HTTP/%hooks.path%/x?key=%hooks.query%', token: '@hooks.token@', secrets: ['&hooks.signature&', '&hooks.second-signature&'], headers: {X-Api-Key: '@hooks.header@'}}
  hooks-basic: {type: webhook, url: 'HTTP', headers: {Authorization: 'Basic BASIC'}}
  hooks-oauth: {type: webhook, url: 'HTTP', oauth: {token-url: 'HTTP/token', client-id: relay, client-secret: '@hooks.client-secret@', client-auth: body}}
  hooks-key: {type: webhook, url: 'HTTP', cert-file: '<hooks.cert-file>', key-file: '<hooks.key-file>'}
  kafka: {type: kafka, brokers: KAFKA, topic: t, sasl: {mechanism: plain, user: relay, password: '@kafka.password@'}, headers: {X-Api-Key: '@kafka.header@'}}
  kafka-aws: {type: kafka, brokers: KAFKA, topic: t, sasl: {mechanism: aws-msk-iam, user: AKIA1, password: '@kafka.aws-password@', session-token: '@kafka.session-token@'}}
  kafka-token: {type: kafka, brokers: KAFKA, topic: t, sasl: {mechanism: oauthbearer}, token: '@kafka.token@'}
  kafka-oauth: {type: kafka, brokers: KAFKA, topic: t, sasl: {mechanism: oauthbearer}, oauth: {token-url: 'HTTP/token', client-id: relay, client-secret: '@kafka.client-secret@'}}
  kafka-key: {type: kafka, brokers: KAFKA, topic: t, tls: true, cert-file: '<kafka.cert-file>', key-file: '<kafka.key-file>'}
  nats: {type: nats, url: 'NATS', subject: s, user: relay, password: '@nats.password@', headers: {X-Api-Key: '@nats.header@'}}
  nats-token: {type: nats, url: 'NATS', subject: s, token: '@nats.token@'}
  nats-creds: {type: nats, url: 'NATS', subject: s, creds-file: '<nats.creds>'}
  nats-nkey: {type: nats, url: 'NATS', subject: s, nkey-file: '<nats.nkey>'}
  nats-key: {type: nats, url: 'NATS', subject: s, cert-file: '<nats.cert-file>', key-file: '<nats.key-file>'}
  rabbitmq: {type: rabbitmq, url: 'amqp://relay:%amqp.password%@AMQP', routing-key: k, headers: {X-Api-Key: '@amqp.header@'}}
  rabbitmq-key: {type: rabbitmq, url: 'amqps://AMQP', routing-key: k, cert-file: '<amqp.cert-file>', key-file: '<amqp.key-file>'}
  redis: {type: redis, url: 'redis://REDIS', stream: s, user: relay, password: '@redis.password@', headers: {X-Api-Key: '@redis.header@'}}
  redis-key: {type: redis, url: 'rediss://REDIS', stream: s, cert-file: '<redis.cert-file>', key-file: '<redis.key-file>'}
  camunda: {type: camunda, url: 'HTTP/%camunda.path%', time-to-live: 1h, name: n, user: relay, password: '@camunda.password@'}
  camunda-token: {type: camunda, url: 'HTTP', time-to-live: 1h, name: n, token: '@camunda.token@'}
  camunda-oauth: {type: camunda, url: 'HTTP', time-to-live: 1h, name: n, oauth: {token-url: 'HTTP/token', client-id: relay, client-secret: '@camunda.client-secret@'}}
  camunda-key: {type: camunda, url: 'HTTP', time-to-live: 1h, name: n, cert-file: '<camunda.cert-file>', key-file: '<camunda.key-file>'}
`

// secretRest is the rest of the file. Its source is PostgreSQL, which trusts any password here.
const secretRest = `
name: NAME
source: {mode: stream, url: 'DATABASE&sslpassword=%source.sslpassword%', stream-url: 'STREAM'}
admin: {listen: ADMIN, token: '@admin.token@', viewer-token: '@admin.viewer-token@', tokens: [{name: ada, role: viewer, token: '@admin.named-token@'}], profiling: true}
ingest: {listen: 'INGEST', clients: [{name: shop, token: '@ingest.token@', outboxes: [hooks]}]}
notices:
  raise-after: 0s
  webhook: {url: 'HTTP/%notices.path%', secrets: ['&notices.signature&'], token: '@notices.token@'}
  command: {argv: [/bin/sh, -c, 'cat >>"$0"; tr "\\0" " " </proc/$PPID/cmdline >>"$0"; tr "\\0" " " </proc/$$/cmdline >>"$0"', NOTICED]}
tracing: {endpoint: HTTP, headers: {authorization: 'Bearer @tracing.header@'}, sample-ratio: 1}
log: {level: debug}
dispatch: {max-retries: 0, backoff: {initial: 20ms, max: 200ms}}
`

// secretSources is a process whose sources all fail.
const secretSources = `
process: one
sources:
  - {name: shop, url: 'postgres://relay:%sources.pg%@SHOP/none?sslmode=disable', stream-url: 'postgres://relay:%sources.pg-stream%@SHOP/none?sslmode=disable'}
  - {name: billing, url: 'mysql://relay:%sources.mysql%@127.0.0.1:1/x', stream-url: 'mysql://relay:%sources.mysql-stream%@127.0.0.1:1/x'}
admin: {listen: ADMIN, token: '@sources.admin-token@'}
outboxes: [{table: letters, layout: outbox-messages, sink: all}]
sinks: {all: {type: log}}
`

// secretScale is a process with a topic that cannot be reached.
const secretScale = `
source: {url: 'postgres://relay:%scale.pg%@127.0.0.1:1/x?sslmode=disable'}
scale: {engine: kafka, brokers: '127.0.0.1:1', topic: t, partitions: 1, SCALE}
admin: {listen: ''}
outboxes: [{table: letters, layout: outbox-messages, sink: all}]
sinks: {all: {type: log}}
`

// otherSecrets are configurations with the secrets that cannot stand beside the others. They are not
// run with receivers.
func otherSecrets() []string {
	return []string{
		strings.ReplaceAll(secretSources, "SHOP", "127.0.0.1:1"),
		strings.ReplaceAll(secretScale, "SCALE", "sasl: {mechanism: aws-msk-iam, user: AKIA1, password: '@scale.password@', session-token: '@scale.session-token@'}"),
		strings.ReplaceAll(secretScale, "SCALE", "sasl: {mechanism: oauthbearer}, token: '@scale.token@'"),
		strings.ReplaceAll(secretScale, "SCALE", "cert-file: '<scale.cert-file>', key-file: '<scale.key-file>'"),
		"source: {url: 'mysql://relay:%mysql.password%@127.0.0.1:1/x'}\nflowcatalyst: {api-base-url: 'http://127.0.0.1:1', api-token: '@preset.token@'}\nadmin: {listen: ''}\n",
		"source: {url: 'mariadb://relay:%mariadb.password%@127.0.0.1:1/x', stream-url: 'mariadb://relay:%mariadb.stream%@127.0.0.1:1/x'}\nflowcatalyst: {api-base-url: 'http://127.0.0.1:1', oauth: {token-url: 'http://127.0.0.1:1/t?api_key=%preset.token-url%', client-id: relay, client-secret: '@preset.client-secret@'}}\nadmin: {listen: ''}\n",
		"source: {url: 'mongodb://relay:%mongo.password%@127.0.0.1:1/x?serverSelectionTimeoutMS=300'}\nflowcatalyst: {api-base-url: 'http://127.0.0.1:1'}\nadmin: {listen: ''}\n",
		"source: {url: 'postgres://relay:%pg.password%@127.0.0.1:1/x?sslmode=disable'}\nflowcatalyst: {api-base-url: 'http://127.0.0.1:1'}\nadmin: {listen: ''}\ningest: {listen: '127.0.0.1:0', tls: {cert-file: '<ingest.cert-file>', key-file: '<ingest.key-file>'}, clients: [{name: shop, token: '@ingest.other-token@', outboxes: [outbox_events]}]}\n",
	}
}

// TestNoSecretShows puts a canary into every secret that the schema of the configuration knows, so a
// new one needs a canary here. Every receiver refuses and echoes. No text of the program shows a
// canary: logs, rows, notices, the endpoints, the commands.
func TestNoSecretShows(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		h := postgresHost(version)
		database := h.database(t)
		c := &canaries{t: t, dir: t.TempDir(), all: map[string]string{}}
		noticed := filepath.Join(t.TempDir(), "noticed")
		text := secretConfig(t, c, database, noticed)
		var others []string
		for _, other := range otherSecrets() {
			others = append(others, c.fill(other))
		}
		c.expectComplete(append(others, text)...)

		sinks := sinkNames(t, text)
		for _, name := range sinks {
			h.kind.run(t, database, fmt.Sprintf(`CREATE TABLE %q (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), grp text DEFAULT 'g', body text NOT NULL DEFAULT '{}', sent_at timestamptz, dead_at timestamptz, why text)`, name))
		}
		r := start(t, text)
		r.waitFor("source connected")
		for _, name := range sinks {
			h.kind.run(t, database, fmt.Sprintf(`INSERT INTO %q DEFAULT VALUES`, name))
		}
		for _, name := range sinks {
			within(t, testTimeout, func() string {
				if r.failuresOf(name) == "" {
					return "no failure of sink " + name
				}
				return ""
			})
		}
		r.waitFor("notice")
		file := configFile(t, strings.ReplaceAll(text, adminKey, strings.TrimPrefix(r.admin, "http://")))
		c.expectHiddenByEndpoints(r)
		c.expectHiddenByCommands(file)
		conn := connect(t, database)
		failed := 0
		for _, name := range sinks {
			var row string
			if err := conn.row(fmt.Sprintf(`SELECT coalesce(why, '') || ' ' || id FROM %q`, name)).Scan(&row); err != nil {
				t.Fatal(err)
			}
			if why, id, _ := cut(row); why != "" {
				failed++
				out, stderr, _ := command(t, nil, "explain", "-c", file, name, id)
				c.expectHidden("explain "+name, out+stderr)
			}
			c.expectHidden("the row of "+name, row)
		}
		if failed < 5 {
			t.Errorf("%d rows have an error, want those of the receivers that answer", failed)
		}
		r.stop()
		c.expectHidden("the log", r.said())
		c.expectHiddenByShadow(text)
		for _, name := range []string{"platform", "platform-oauth", "hooks", "hooks-basic", "hooks-oauth", "kafka", "kafka-token", "kafka-oauth", "nats", "nats-token", "rabbitmq", "redis", "camunda", "camunda-token", "camunda-oauth"} {
			if !strings.Contains(r.failuresOf(name), "[redacted]") {
				t.Errorf("the receiver of %s has echoed no secret: %s", name, r.failuresOf(name))
			}
		}
		told, err := os.ReadFile(noticed)
		if err != nil || !strings.Contains(string(told), "/bin/sh -c") {
			t.Errorf("the notices command wrote %q, %v", told, err)
		}
		c.expectHidden("a notice", string(told))
		c.expectHiddenByErrors(append(others, strings.ReplaceAll(text, adminKey, "127.0.0.1:0")))
		c.expectHiddenByDoctor(others)
	})
}

// A process whose sources fail shows no secret of them.
func TestNoSecretOfSourcesShows(t *testing.T) {
	t.Parallel()
	aVersion(t, expectSourcesHidden)
}

// expectSourcesHidden reads what a process says of its sources.
func expectSourcesHidden(t *testing.T, version int) {
	t.Helper()
	server, err := url.Parse(postgresHost(version).database(t))
	if err != nil {
		t.Fatal(err)
	}
	c := &canaries{t: t, dir: t.TempDir(), all: map[string]string{}}
	r := start(t, c.fill(strings.ReplaceAll(secretSources, "SHOP", server.Host)))
	r.waitFor(`"source failed; restarting its relay" source=shop`)
	r.waitFor(`"database unreachable; retrying" source=billing`)
	for _, name := range []string{"shop", "billing"} {
		c.expectHiddenBy(r, "sources.admin-token", "/sources/"+name+"/", "/sources/"+name+"/readyz?verbose", "/sources/"+name+"/api/v1/status", "/sources/"+name+"/api/v1/config", "/sources/"+name+"/metrics")
	}
	c.expectHiddenBy(r, "sources.admin-token", "/", "/readyz?verbose", "/leader?verbose", "/metrics", "/api/v1/sources", "/api/v1/session")
	for _, args := range [][]string{{"status"}, {"status", "--source-name", "shop"}, {"config", "check"}, {"config", "check", "--json"}, {"doctor", "--source-name", "billing"}, {"lanes", "list"}} {
		out, stderr, _ := r.sluicebox(args...)
		if strings.Contains(stderr, "Usage:") || out+stderr == "" {
			t.Errorf("%v prints:\n%s%s", args, out, stderr)
		}
		c.expectHidden(strings.Join(args, " "), out+stderr)
	}
	r.stop()
	c.expectHidden("the log", r.said())
}

// cut splits "error text id" at its last blank.
func cut(row string) (why, id string, ok bool) {
	at := strings.LastIndexByte(row, ' ')
	return strings.TrimSpace(row[:at]), row[at+1:], true
}

// secretConfig returns the configuration of the relay.
func secretConfig(t *testing.T, c *canaries, database, noticed string) string {
	t.Helper()
	var outboxes strings.Builder
	for _, name := range sinkNames(t, "sinks:"+secretSinks) {
		fmt.Fprintf(&outboxes, "  - {table: %s, layout: custom, kind: EVENT, sink: %s, state: timestamps, order-by: [id], columns: {id: id, group: grp, payload: body, delivered: sent_at, failed: dead_at, error: why}}\n", name, name)
	}
	with := func(name string) string {
		return strings.Replace(database, "postgres://postgres@", "postgres://postgres:%"+name+"%@", 1)
	}
	echo := echoHTTP(t)
	return c.fill(strings.NewReplacer(
		"HTTP", echo, "REDIS", sinktest.Echo(t, sinktest.EchoRedis), "NATS", "nats://"+sinktest.Echo(t, sinktest.EchoNATS), "AMQP", sinktest.Echo(t, sinktest.EchoAMQP), "KAFKA", sinktest.Echo(t, sinktest.EchoKafka),
		"NAME", nameFor(database), "DATABASE", with("source.password"), "STREAM", with("source.stream-password"),
		"INGEST", freeAddress(t), "NOTICED", noticed, "BASIC", basicOf("relay", c.canary("hooks.basic")),
	).Replace(secretRest + "outboxes:\n" + outboxes.String() + "sinks:" + secretSinks))
}

// sinkNames returns the names of the sinks of a configuration.
func sinkNames(t *testing.T, text string) (names []string) {
	t.Helper()
	var parsed struct {
		Sinks yaml.Node `yaml:"sinks"`
	}
	if err := yaml.Unmarshal([]byte(text), &parsed); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(parsed.Sinks.Content); i += 2 {
		names = append(names, parsed.Sinks.Content[i].Value)
	}
	return names
}

// failuresOf returns the failures of a sink in the log.
func (r *relay) failuresOf(sink string) (lines string) {
	for line := range strings.Lines(r.said()) {
		if strings.Contains(line, " sink="+sink+" ") && (strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR")) {
			lines += line
		}
	}
	return lines
}

// expectHiddenByEndpoints reads every endpoint that prints something.
func (c *canaries) expectHiddenByEndpoints(r *relay) {
	c.t.Helper()
	c.expectHiddenBy(r, "admin.token",
		"/", "/livez", "/readyz?verbose", "/leader?verbose", "/metrics", "/api/v1/status?count=true", "/api/v1/lanes?limit=500", "/api/v1/routes",
		"/api/v1/deadletters?outbox=hooks&payload=true", "/api/v1/deadletters/count?outbox=hooks", "/api/v1/checkpoints", "/api/v1/actions", "/api/v1/figures", "/api/v1/config",
		"/api/v1/session", "/api/v1/replays", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2", "/debug/pprof/heap?debug=1",
	)
}

// expectHiddenBy reads endpoints with the token of a name.
func (c *canaries) expectHiddenBy(r *relay, token string, paths ...string) {
	c.t.Helper()
	for _, path := range paths {
		req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, r.admin+path, nil)
		if err != nil {
			c.t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+c.all[token])
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			c.t.Fatal(err)
		}
		body, err := httputil.DumpResponse(resp, true)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode >= 500 && !strings.Contains(path, "/readyz") && !strings.Contains(path, "/leader") || resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusBadRequest {
			c.t.Errorf("%s: %v\n%s", path, err, body)
		}
		c.expectHidden(path, string(body))
	}
}

// expectHiddenByCommands runs the commands that print something.
func (c *canaries) expectHiddenByCommands(file string) {
	c.t.Helper()
	for _, args := range [][]string{
		{"config", "check"}, {"config", "check", "--json"}, {"config", "test"}, {"init", "--print"}, {"doctor"}, {"doctor", "--json"}, {"status"}, {"status", "--json"},
		{"lanes", "list"}, {"routes", "list"}, {"routes", "lag"}, {"deadletters", "list"}, {"deadletters", "show", "--outbox", "hooks"}, {"deadletters", "list", "--json"},
		{"actions"}, {"checkpoint", "list"}, {"replay", "list"}, {"reload"},
		{"verify", "--settle", "0s", "--receipts", "kafka:kafka"},
	} {
		out, stderr, _ := command(c.t, nil, append(args, "-c", file)...)
		if strings.Contains(stderr, "Usage:") || out+stderr == "" {
			c.t.Errorf("%v prints:\n%s%s", args, out, stderr)
		}
		c.expectHidden(strings.Join(args, " "), out+stderr)
	}
}

// expectHiddenByShadow watches with the configuration instead of delivering.
func (c *canaries) expectHiddenByShadow(text string) {
	c.t.Helper()
	r := start(c.t, "mode: shadow\n"+text)
	r.waitFor("shadow started")
	file := configFile(c.t, strings.ReplaceAll(text, adminKey, strings.TrimPrefix(r.admin, "http://")))
	for _, args := range [][]string{{"status"}, {"status", "--json"}} {
		out, stderr, code := command(c.t, nil, append(args, "-c", file)...)
		if code != 0 {
			c.t.Errorf("%v of a shadow: exit code %d: %s", args, code, stderr)
		}
		c.expectHidden(strings.Join(args, " ")+" of a shadow", out+stderr)
	}
	r.stop()
	c.expectHidden("the log of a shadow", r.said())
}

// expectHiddenByErrors breaks every secret of the configurations: faults quote no secret.
func (c *canaries) expectHiddenByErrors(configs []string) {
	c.t.Helper()
	for i, form := range []string{"['%s']", "{'%s': 1}", `"%s\n"`, "'ftp://%s'", "'%s{'", "'${env:%s'", "'http://%s x'"} {
		for _, text := range configs {
			broken := c.secretScalars(text, func(value string) string { return fmt.Sprintf(form, value) })
			out, stderr, code := command(c.t, nil, "config", "check", "-c", configFile(c.t, broken))
			if code == 0 && i < 3 { // the others fit some of the keys
				c.t.Errorf("config check accepts secrets in the form %s:\n%s", form, out)
			}
			c.expectHidden("config check of "+form, out+stderr)
		}
	}
}

// expectHiddenByDoctor diagnoses databases that no one can reach.
func (c *canaries) expectHiddenByDoctor(configs []string) {
	c.t.Helper()
	for _, text := range configs {
		out, stderr, code := command(c.t, nil, "doctor", "-c", configFile(c.t, text))
		if code == 0 {
			c.t.Errorf("doctor finds no fault:\n%s", out)
		}
		c.expectHidden("doctor", out+stderr)
	}
}

// echoHTTP serves 400 with the request in its answer, as JSON that escapes slashes. Every second
// answer is plain text.
func echoHTTP(t *testing.T) (base string) {
	t.Helper()
	n := 0
	turns := make(chan int, 1)
	turns <- n
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		turn := <-turns
		turns <- turn + 1
		body, _ := io.ReadAll(req.Body)
		dump, _ := httputil.DumpRequest(req, false)
		user, password, _ := req.BasicAuth()
		text := fmt.Sprintf("you sent %s %s:%s %s %s %s", req.URL, user, password, req.Header.Get("Authorization"), body, dump)
		if turn%2 == 0 {
			quoted, _ := json.Marshal(map[string]string{"error": "invalid_request", "error_description": text})
			text = strings.ReplaceAll(string(quoted), "/", `\/`)
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}
