package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox"
)

// changing is a configuration with a key of each class.
const changing = `
name: shop
source: {url: "postgres://relay:secret@db.example/shop"}
dispatch: {max-retries: 5, takeover: at-once, claims: late}
admin: {listen: "127.0.0.1:8090", token: one, tokens: [{name: ada, role: operator, token: hers}]}
log: {level: info, format: text}
outboxes:
  - table: orders
    layout: custom
    kind: order
    state: words
    words: {pending: P, completed: C, failed: F}
    columns: {id: id, payload: body, status: state, type: type, claimed: at, settled: done}
    retention: 7d
    unmatched: fail
    routes:
      - {name: hooks, sink: hooks, when: {type: a.*}}
  - {table: mails, layout: outbox-messages, sink: hooks}
sinks:
  hooks: {type: webhook, url: "https://hooks.example/a", token: first, max-concurrent-groups: 4}
`

// TestChanges: each changed key is found under the name that the file has for it, with its line, and
// those are fixed that a running relay cannot change.
func TestChanges(t *testing.T) {
	dir := t.TempDir()
	load := func(text string, environ ...string) *Config {
		t.Helper()
		file := filepath.Join(dir, "sluicebox.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(file, environ)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	before := load(changing)
	for _, c := range []struct {
		from, to string
		want     string // keys; ! marks a fixed one
	}{
		{"x", "x", ""},
		{"name: shop", "name: shop2", "!name"},
		{"db.example", "db2.example", "!source.url"},
		{"relay:secret@", "relay:other@", "!source.url"},
		{"max-retries: 5", "max-retries: 4", "dispatch.max-retries"},
		{"max-retries: 5, ", "", "dispatch.max-retries"},
		{"takeover: at-once", "takeover: timeout", "!dispatch.takeover"},
		{"claims: late", "claims: on", "dispatch.claims"},
		{"claims: late", "claims: 'off'", "!dispatch.claims"},
		{"8090", "8091", "!admin.listen"},
		{"token: one", "token: two", "admin.token"},
		{"token: hers", "token: other", "admin.tokens[0].token"},
		{"[{name: ada, role: operator, token: hers}]", "[]", "admin.tokens"},
		{"level: info", "level: debug", "log.level"},
		{"format: text", "format: json", "!log.format"},
		{"table: orders", "table: orders2", "!outboxes[0].table"},
		{"retention: 7d", "retention: 8d", "outboxes[0].retention"},
		{"retention: 7d", "retention: 0s", "!outboxes[0].retention"},
		{"unmatched: fail", "unmatched: hold", "outboxes[0].unmatched"},
		{"type: a.*", "type: b.*", "outboxes[0].routes[0].when.type"},
		{"name: hooks,", "name: hooks2,", "!outboxes[0].routes[0].name"},
		{"  - {table: mails, layout: outbox-messages, sink: hooks}\n", "", "!outboxes"},
		{"hooks.example/a", "hooks.example/b", "sinks.hooks.url"},
		{"max-concurrent-groups: 4", "max-concurrent-groups: 5", "sinks.hooks.max-concurrent-groups"},
		{"\nlog:", "\ntracing: {endpoint: 'http://127.0.0.1:4318'}\nlog:", "!tracing"},
		{"\nlog:", "\nnotices: {command: {argv: [page]}}\nlog:", "notices"},
		{"\nsinks:\n", "\nsinks:\n  far: {type: log, output: /tmp/x}\n", "sinks.far"},
	} {
		if !strings.Contains(changing, c.from) && c.from != "x" {
			t.Fatalf("no %q", c.from)
		}
		now := load(strings.Replace(changing, c.from, c.to, 1))
		var got []string
		for _, change := range before.Changes(now) {
			key := change.Key
			if change.Fixed {
				key = "!" + key
			}
			if !strings.HasPrefix(change.Where, dir) {
				t.Errorf("%s is at %q", key, change.Where)
			}
			got = append(got, key)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%q for %q: %q, want %q", c.to, c.from, got, c.want)
		}
	}

	environ := load(changing, "SLUICEBOX_LOG_LEVEL=debug")
	if got := before.Changes(environ); len(got) != 1 || got[0].Where != "SLUICEBOX_LOG_LEVEL" {
		t.Errorf("a variable: %+v", got)
	}
}

// TestChangesInPlace: what only makes the connection changes within a session. What says which rows
// share a request or a circuit breaker does not.
func TestChangesInPlace(t *testing.T) {
	inputs := func(sink string) sluicebox.InPlace {
		t.Helper()
		c, err := parse("f", fmt.Appendf(nil, "source: {url: 'postgres://u@h/d'}\noutboxes: [{table: t, layout: custom, kind: k, state: words, words: {pending: P, completed: C, failed: F}, columns: {id: id, payload: body, status: state, type: type}, sink: s}]\nsinks: {s: {%s}}\n", sink), nil, readSecretFile)
		if err != nil {
			t.Fatal(err)
		}
		return c.relaySinks("agent")["s"].Inputs.(sluicebox.InPlace)
	}
	const hook = "type: webhook, url: 'https://h/a', token: t"
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{hook, hook, true},
		{hook, "type: webhook, url: 'https://h2/b', token: u, ca-file: /etc/ca.pem", true},
		{hook, hook + ", headers: {x-key: v}", true},
		{hook, hook + ", error-detail: status", true},
		{hook, "type: webhook, url: 'https://h/{type}', token: t", false},
		{"type: webhook, url: 'https://h/{type}'", "type: webhook, url: 'https://h/{kind}'", false},
		{hook, hook + ", format: json-array", false},
		{hook, "type: nats, url: 'nats://h', subject: s", false},
		{"type: nats, url: 'nats://h', subject: s, user: u, password: p", "type: nats, url: 'nats://h2', subject: s, user: u, password: q", true},
		{"type: nats, url: 'nats://h', subject: s", "type: nats, url: 'nats://h', subject: other", false},
	} {
		if got := inputs(c.to).ChangesInPlace(inputs(c.from)); got != c.want {
			t.Errorf("%s\n→ %s: in place %t, want %t", c.from, c.to, got, c.want)
		}
	}
}
