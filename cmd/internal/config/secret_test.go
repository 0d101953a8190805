package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// canary is part of every secret in these tests.
const canary = "canary"

func mustHide(t *testing.T, text string) {
	t.Helper()
	for _, form := range []string{canary, fmt.Sprintf("%x", canary), fmt.Sprintf("%X", canary), fmt.Sprintf("% x", canary), "99 97 110 97 114 121"} {
		if strings.Contains(text, form) {
			t.Errorf("the secret shows: %s", text)
		}
	}
}

func TestSecretsHide(t *testing.T) {
	type holder struct {
		Secret sink.Secret
		URL    config.URL
		Map    map[string]sink.Secret
	}
	h := holder{canary, "postgres://u:" + canary + "@db/shop", map[string]sink.Secret{"a": canary}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%t", "%T %v"} {
		for _, value := range []any{h, &h, h.Secret, &h.Secret, h.URL, []sink.Secret{canary}} {
			args := []any{value}
			if strings.Count(verb, "%") == 2 {
				args = append(args, value)
			}
			mustHide(t, fmt.Sprintf(verb, args...))
		}
	}
	mustHide(t, h.Secret.String()+h.URL.String())
	asJSON, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	mustHide(t, string(asJSON))
	asYAML, err := yaml.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	mustHide(t, string(asYAML))
	var logged bytes.Buffer
	for _, handler := range []slog.Handler{slog.NewTextHandler(&logged, nil), slog.NewJSONHandler(&logged, nil)} {
		slog.New(handler).Info("x", "secret", h.Secret, "url", h.URL, "all", h)
	}
	mustHide(t, logged.String())
	if !strings.Contains(logged.String(), "postgres://u:xxxxx@db/shop") {
		t.Errorf("the log does not show where the URL points: %s", logged.String())
	}
	if string(h.Secret) != canary || sink.Secret("").String() != "" {
		t.Error("Reveal must give the secret, and no secret must show as none")
	}
}

func TestRedact(t *testing.T) {
	tests := []struct{ url, want string }{
		{"", ""},
		{"postgres://u:canary@db:5432/shop?sslmode=require", "postgres://u:xxxxx@db:5432/shop?sslmode=require"},
		{"postgres://u@db/shop", "postgres://u@db/shop"},
		{"postgres://db/shop?user=u&password=canary&sslmode=x", "postgres://db/shop?user=u&password=xxxxx&sslmode=x"},
		{"postgres://db/shop?sslPassword=canary", "postgres://db/shop?sslPassword=xxxxx"},
		{"https://p/?api_key=canary&token=canary", "https://p/?api_key=xxxxx&token=xxxxx"},
		{"https://p/?%70assword=canary", "https://p/?%70assword=xxxxx"},
		{"https://p/?%zzpassword=canary", "https://p/?%zzpassword=xxxxx"},
		{"postgres://u:can@ary:canary@db/shop", "postgres://u:xxxxx@db/shop"},
		{"postgres://u:canary@db1:5432,db2:5433/shop?x=1", "postgres://u:xxxxx@db1:5432,db2:5433/shop?x=1"},
		{"postgres://u:canary@db1,[::1]:5433/shop", "postgres://u:xxxxx@db1,[::1]:5433/shop"},
		{"mongodb://u:canary@db1:27017,db2:27018,[::1]:27019/shop?replicaSet=rs0", "mongodb://u:xxxxx@db1:27017,db2:27018,[::1]:27019/shop?replicaSet=rs0"},
		{"mongodb+srv://u:canary@db/shop?authMechanismProperties=AWS_SESSION_TOKEN:canary", "mongodb+srv://u:xxxxx@db/shop?authMechanismProperties=xxxxx"},
		{"mongodb://u:12/canary@db1,db2/shop", "mongodb://xxxxx"},
		{"postgres://u:can,ary@db1,db2:5433/shop", "postgres://u:xxxxx@db1,db2:5433/shop"},
		{"postgres://u:1,2/canary@db1,db2/shop", "postgres://xxxxx"},
		{"postgres://u:1,2#canary@db1,db2/shop", "postgres://xxxxx"},
		{"postgres://u:12#canary@db/shop", "postgres://xxxxx"},
		{"postgres://u:12?canary@db/shop", "postgres://xxxxx"},
		{"postgres://u:12/canary@db/shop", "postgres://xxxxx"},
		{"postgres://u:12@x/canary@db/shop", "postgres://xxxxx"},
		{"postgres://u:canary#@db/shop", "xxxxx"},
		{"postgres:u:canary@db/shop", "xxxxx"},
		{"host=db password=canary", "xxxxx"},
		{"canary", "xxxxx"},
		{"https://platform/v1", "https://platform/v1"},
		{"sqlite:///var/a@b/shop.db", "sqlite:///var/a@b/shop.db"},
		{"sqlite:shop.db", "sqlite:shop.db"},
		{"sqlite:shop.db?key=canary", "sqlite:shop.db?key=xxxxx"},
		{"sqlite://u:canary@db/shop", "sqlite://u:xxxxx@db/shop"},
	}
	for _, tt := range tests {
		got := config.Redact(tt.url)
		mustHide(t, got)
		if got != tt.want {
			t.Errorf("Redact(%q) is %q, want %q", tt.url, got, tt.want)
		}
	}
}

// full is a configuration in which every secret contains the canary.
const full = `source:
  url: postgres://u:${env:PASSWORD}@db/shop?sslpassword=${env:PASSWORD}
  stream-url: postgres://s:canary@db/shop
outboxes:
  - {table: a, layout: outbox-messages, sink: p}
sinks:
  p:
    type: flowcatalyst
    api-base-url: https://p
    token: "canary${file:token}"
admin:
  listen: 0.0.0.0:1
  token: canary
`

func TestPrintedConfigurationHidesSecrets(t *testing.T) {
	path := write(t, full)
	if err := os.WriteFile("token", []byte("canary\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path, []string{"PASSWORD=canary"})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(cfg.Settings.Sinks["p"].Token); got != "canarycanary" {
		t.Errorf("token is %q, want the file's text without its line break", got)
	}
	if got := cfg.Settings.Source.URL.Reveal(); got != "postgres://u:canary@db/shop?sslpassword=canary" {
		t.Errorf("url is %q", got)
	}
	asYAML, err := cfg.YAML()
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := cfg.JSON()
	if err != nil {
		t.Fatal(err)
	}
	var logged bytes.Buffer
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("x", "config", cfg)
	for _, text := range []string{string(asYAML), string(asJSON), logged.String(), fmt.Sprintf("%v %+v %#v", cfg, cfg, *cfg)} {
		mustHide(t, text)
		if !strings.Contains(text, "xxxxx") {
			t.Errorf("nothing stands in the secrets' places: %s", text)
		}
	}
	if !json.Valid(asJSON) {
		t.Errorf("no JSON: %s", asJSON)
	}
}

func TestErrorsHideSecrets(t *testing.T) {
	for _, text := range []string{
		least + "admin: {token: [canary]}\n",
		least + "admin: {token: 'canary canary'}\n",
		least + "admin:\n  token: {canary: 1}\n",
		source + "flowcatalyst: {api-base-url: 'https://p:canary'}\n",
		source + "flowcatalyst: {api-base-url: 'canary'}\n",
		source + "flowcatalyst: {api-base-url: 'https://u:can\\nary@p'}\n",
		least + "dispatch: {max-retries: '${env:SECRET}'}\n",
		least + "log: {level: '${env:SECRET}'}\n",
		least + "dispatch: {proof-wait: '${env:SECRET}'}\n",
	} {
		for _, line := range faults(t, text, "SECRET=canary") {
			mustHide(t, line)
		}
	}
}

func TestReferences(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte("from-file\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	environ := []string{"A=one", "EMPTY=", "LOOP=${env:A}"}
	tests := []struct{ value, want string }{
		{"${env:A}", "one"},
		{"x${env:A}y${env:A}z", "xoneyonez"},
		{"${file:" + file + "}", "from-file"},
		{"$${env:A}", "${env:A}"},
		{"a$${b}$c", "a${b}$c"},
		{"${env:EMPTY}", ""},
		{"${env:LOOP}", "${env:A}"}, // not resolved again
		{"$", "$"},
	}
	for _, tt := range tests {
		cfg := load(t, least+"admin: {token: '"+tt.value+"'}\n", environ...)
		if got := string(cfg.Settings.Admin.Token); got != tt.want {
			t.Errorf("%s is %q, want %q", tt.value, got, tt.want)
		}
		cfg = load(t, least, append(environ, "SLUICEBOX_ADMIN_TOKEN="+tt.value)...)
		if got := string(cfg.Settings.Admin.Token); got != tt.want {
			t.Errorf("%s in a variable is %q, want %q", tt.value, got, tt.want)
		}
	}
	for value, want := range map[string]string{
		"${env:NONE}":         "relay.yaml:4: admin.token: refers to the variable NONE, which is not set",
		"${file:/none/token}": "relay.yaml:4: admin.token: refers to the file /none/token: no such file or directory",
		"${file:" + dir + "}": "relay.yaml:4: admin.token: refers to the file " + dir + ": is a directory",
		"${vault:x}":          "relay.yaml:4: admin.token: has ${vault:x}, which is neither ${env:NAME} nor ${file:/path}",
		"${env:A":             "relay.yaml:4: admin.token: has a reference without its closing }",
		"${file:/dev/zero}":   "relay.yaml:4: admin.token: refers to the file /dev/zero: larger than 64KiB",
	} {
		compare(t, faults(t, least+"admin:\n  token: '"+value+"'\n", environ...), []string{want})
	}
}

// TestReferencesOfSink: a webhook sink knows the texts of its URL and headers that come from
// variables, so that no failure reason shows them.
func TestReferencesOfSink(t *testing.T) {
	cfg := load(t, `
source: {url: postgres://u@db/shop}
outboxes: [{table: orders_outbox, layout: postbox, sink: hooks}]
sinks:
  hooks: {type: webhook, url: 'https://h/${env:KEY}', headers: {x-team: '${env:TEAM}', x-env: prod}}
`, "KEY=sesame", "TEAM=blue{x}")
	var got []string
	for _, s := range cfg.Webhook("hooks").References {
		got = append(got, string(s))
	}
	if len(got) != 2 || got[0] != "blue{x}" || got[1] != "sesame" {
		t.Errorf("got %q", got)
	}
}
