package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

// least is the shortest configuration; cases append to it.
const least = `source: {url: "postgres://relay@db/shop"}
flowcatalyst: {api-base-url: "https://platform"}
`

// write creates the file relay.yaml with the text and makes its folder the working
// directory, so that messages contain only the file name.
func write(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "relay.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	return "relay.yaml"
}

func load(t *testing.T, text string, environ ...string) *config.Config {
	t.Helper()
	cfg, err := config.Load(write(t, text), environ)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// faults returns the problems of a configuration that must have some.
func faults(t *testing.T, text string, environ ...string) []string {
	t.Helper()
	cfg, err := config.Load(write(t, text), environ)
	var e *config.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v and error %v, want a *config.Error", cfg, err)
	}
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return lines
}

func TestDefaults(t *testing.T) {
	cfg := load(t, least)
	s := cfg.Settings
	if s.Name != "sluicebox" || s.Source.Mode != "auto" || s.Source.PollInterval != time.Second || s.Source.PollBatchSize != 500 {
		t.Errorf("source defaults: %+v", s.Source)
	}
	d := s.Dispatch
	if d.APIBatchSize != 100 || d.MaxConcurrentGroups != 10 || d.BufferRows != 10000 || d.BufferBytes != 64<<20 ||
		d.MaxRetries != 3 || d.Backoff.Initial != 200*time.Millisecond || d.Backoff.Max != 30*time.Second ||
		d.RequestTimeout != 30*time.Second || d.ProcessingTimeoutSeconds != 300 || d.Takeover != "at-once" || d.Claims != "late" {
		t.Errorf("dispatch defaults: %+v", d)
	}
	if s.Checkpoint.MaxHold != 1<<30 || s.Checkpoint.MaxKept != 10<<30 || s.Checkpoint.SweepInterval != time.Minute {
		t.Errorf("checkpoint defaults: %+v", s.Checkpoint)
	}
	if s.Admin.Listen != "127.0.0.1:8090" || s.Log.Level != "info" || s.Log.Format != "text" {
		t.Errorf("admin %+v, log %+v", s.Admin, s.Log)
	}
	if s.FlowCatalyst != nil || len(s.Outboxes) != 2 || s.Outboxes[0].Table != "outbox_events" || s.Outboxes[1].Kind != "DISPATCH_JOB" {
		t.Errorf("the preset came to %+v", s.Outboxes)
	}
	if got := s.Sinks["flowcatalyst"]; got.Wire != "array" || got.APIBaseURL.Reveal() != "https://platform" || got.APIBatchSize != 100 {
		t.Errorf("the preset's sink is %+v", got)
	}
}

func TestEmptySectionsAndComments(t *testing.T) {
	cfg := load(t, "# a comment ${env:NOT_SET}\ndispatch:\n  # max-retries: 7\nlog:\n"+least)
	if cfg.Settings.Dispatch.MaxRetries != 3 {
		t.Errorf("max-retries is %d, want the default", cfg.Settings.Dispatch.MaxRetries)
	}
}

func TestAlias(t *testing.T) {
	cfg := load(t, `source: {url: "postgres://db/shop"}
outboxes:
  - {table: a, layout: flowcatalyst, kind: EVENT, sink: one}
  - {table: b, layout: flowcatalyst, kind: EVENT, sink: two}
sinks:
  one: &one {type: flowcatalyst, api-base-url: "https://platform", max-retries: 8}
  two: *one
`)
	if got := cfg.Settings.Sinks["two"].MaxRetries; got != 8 {
		t.Errorf("max-retries of the alias is %d, want 8", got)
	}
}

func TestFaults(t *testing.T) {
	tests := []struct {
		name, text string
		want       []string // parts of each problem, in order; "|" separates parts of one
	}{
		{"unknown key with a suggestion", least + "dispatch:\n  max-retry: 3\n",
			[]string{"relay.yaml:4: dispatch.max-retry: unknown key; did you mean max-retries?"}},
		{"other spelling of a key", least + "dispatch:\n  apiBatchSize: 3\n",
			[]string{"relay.yaml:4: dispatch.apiBatchSize: unknown key; did you mean api-batch-size?"}},
		{"unknown key far from all", least + "log:\n  colour: red\n",
			[]string{"relay.yaml:4: log.colour: unknown key; the keys here are level, format"}},
		{"key of a later version", least + "dispatch:\n  partitions: 4\n",
			[]string{"relay.yaml:4: dispatch.partitions: unknown key; the keys here are api-batch-size"}},
		{"section of a later version", least + "replay: {rate: 100}\n",
			[]string{"relay.yaml:3: replay: unknown key; the keys here are name, mode, source"}},
		{"key written twice", least + "name: a\nname: b\n",
			[]string{"relay.yaml:4: name: is a duplicate of line 3"}},
		{"section written twice", least + "log: {level: info}\nlog: {format: json}\n",
			[]string{"relay.yaml:4: log: is a duplicate of line 3"}},
		{"second document", least + "---\nname: b\n",
			[]string{"relay.yaml:3: second document; a file holds one configuration"}},
		{"no YAML", "source: [\nname: b\n",
			[]string{"relay.yaml:3: is not YAML: did not find expected ',' or ']'; look from line 1 on"}},
		{"tab", "source:\n\turl: x\n",
			[]string{"relay.yaml:2: is not YAML: |; indent with spaces, not tabs"}},
		{"reference in braces", "flowcatalyst: {api-token: ${file:/x}}\n",
			[]string{"relay.yaml:1: is not YAML: |inside { } a value with ${…} needs quotes"}},
		{"no mapping", "just a text\n",
			[]string{"relay.yaml:1: must hold keys and values", "|source.url: is required", "|nothing to relay"}},
		{"merge key", "<<: {name: x}\n" + least,
			[]string{"relay.yaml:1: merge keys (<<) are not supported"}},
		{"text for a number", least + "dispatch:\n  max-retries: \"3\"\n",
			[]string{"relay.yaml:4: dispatch.max-retries: must be a whole number, without quotes"}},
		{"fraction for a number", least + "dispatch:\n  max-retries: 3.5\n",
			[]string{"relay.yaml:4: dispatch.max-retries: must be a whole number"}},
		{"hex for a number", least + "dispatch:\n  max-retries: 0x10\n",
			[]string{`relay.yaml:4: dispatch.max-retries: is "0x10", must be a whole number such as 100`}},
		{"number for a text", least + "name: 17\n",
			[]string{"relay.yaml:3: name: must be a text; put it in quotes"}},
		{"no value", least + "name:\n",
			[]string{"relay.yaml:3: name: has no value; omit the key for its default"}},
		{"list for a value", least + "name: [a]\n",
			[]string{"relay.yaml:3: name: must be one value, not a list or a section"}},
		{"value for a section", least + "log: debug\n",
			[]string{"relay.yaml:3: log: must hold keys and values"}},
		{"section for a list", least + "outboxes: {a: b}\n",
			[]string{"relay.yaml:3: outboxes: must hold a list, each entry behind a -"}},
		{"fraction of a day", least + "checkpoint: {sweep-interval: 1.5d}\n",
			[]string{`relay.yaml:3: checkpoint.sweep-interval: is "1.5d", must be a time with its unit, such as 200ms, 30s, 5m or 7d`}},
		{"more days than there are", least + "checkpoint: {sweep-interval: 9999999999999999999d}\n",
			[]string{`relay.yaml:3: checkpoint.sweep-interval: is "9999999999999999999d", must be a time`}},
		{"back-off that shrinks", "flowcatalyst: {api-base-url: \"https://platform\"}\nsource:\n  url: postgres://relay@db/shop\n  poll-interval: -1d\n  poll-backoff: {threshold: 0, multiplier: 0, max: 0s}\n", []string{
			"relay.yaml:4: source.poll-interval: is -24h0m0s, must be above 0", "relay.yaml:5: source.poll-backoff.threshold: is 0, must be at least 1",
			"relay.yaml:5: source.poll-backoff.multiplier: is 0, must be at least 1", "relay.yaml:5: source.poll-backoff.max: is 0s, must be above 0",
		}},
		{"time without a unit", least + "source: {poll-interval: 30}\n",
			[]string{"relay.yaml:3: source: is a duplicate of"}},
		{"backoff without a unit", least + "dispatch:\n  backoff:\n    max: 30\n",
			[]string{`relay.yaml:5: dispatch.backoff.max: is "30", must be a time with its unit, such as 200ms`}},
		{"size", least + "dispatch:\n  buffer-bytes: 64 mega\n",
			[]string{`relay.yaml:4: dispatch.buffer-bytes: "64 mega" is not a size such as 64MiB`}},
		{"huge size", least + "dispatch:\n  buffer-bytes: 99999999999GiB\n",
			[]string{"relay.yaml:4: dispatch.buffer-bytes: |exceeds the largest size"}},
		{"less log than a few transactions write", least + "checkpoint:\n  sweep-interval: 1m\n  max-hold: 1023KiB\n",
			[]string{"relay.yaml:5: checkpoint.max-hold: is 1023KiB, must be at least 1MiB"}},
		{"no log at all", least + "checkpoint: {max-hold: 0}\n",
			[]string{"relay.yaml:3: checkpoint.max-hold: is 0B, must be at least 1MiB"}},
		{"no kept log at all", least + "checkpoint: {max-kept: 0}\n",
			[]string{"relay.yaml:3: checkpoint.max-kept: is 0B, must be at least 1MiB"}},
		{"log that is no size", least + "checkpoint: {max-hold: 1 gig}\n",
			[]string{`relay.yaml:3: checkpoint.max-hold: "1 gig" is not a size such as 64MiB`}},
		{"enum with a suggestion", least + "log: {level: inof}\n",
			[]string{`relay.yaml:3: log.level: is "inof", must be one of debug, info, warn, error; did you mean info?`}},
		{"range", least + "dispatch:\n  api-batch-size: 0\n  max-retries: -1\n  backoff: {initial: 2s, max: 1s}\n",
			[]string{
				"relay.yaml:4: dispatch.api-batch-size: is 0, must be at least 1",
				"relay.yaml:5: dispatch.max-retries: is -1, must be at least 0",
				"relay.yaml:6: dispatch.backoff.max: is 1s, must not be below backoff.initial (2s)",
			}},
		{"other ranges", least + "dispatch:\n  request-timeout: 0s\n  processing-timeout-seconds: 0\n  proof-wait: -1s\n  retry-after-max: 0s\n",
			[]string{
				"relay.yaml:4: dispatch.request-timeout: is 0s, must be above 0",
				"relay.yaml:5: dispatch.processing-timeout-seconds: is 0, must be at least 1",
				"relay.yaml:6: dispatch.proof-wait: is -1s, must be above 0",
				"relay.yaml:7: dispatch.retry-after-max: is 0s, must be above 0",
			}},
		{"times below 0", least + "dispatch:\n  give-up-after: -1s\n  takeover-wait: -2s\n",
			[]string{"relay.yaml:4: dispatch.give-up-after: is -1s, must not be below 0s", "relay.yaml:5: dispatch.takeover-wait: is -2s, must not be below 0s"}},
		{"no claims beside another processor", least + "dispatch:\n  takeover: timeout\n  claims: off\n",
			[]string{"relay.yaml:5: dispatch.claims: is off, but dispatch.takeover: timeout needs claims to tell whose row it is; use claims: on or takeover: at-once"}},
		{"words of the dispatcher", least + "dispatch:\n  on-failed: blok\n  ungrouped: any\n  retry: {compat: postbocks}\n",
			[]string{
				`relay.yaml:4: dispatch.on-failed: is "blok", must be one of continue, block; did you mean block?`,
				`relay.yaml:5: dispatch.ungrouped: is "any", must be one of fifo, parallel`,
				`relay.yaml:6: dispatch.retry.compat: is "postbocks", must be one of none, flowcatalyst, postbox`,
			}},
		{"name", least + "name: My-Relay\n",
			[]string{`relay.yaml:3: name: is "My-Relay", must be 1 to 40 of the characters a-z, 0-9 and _`}},
		{"nothing", "",
			[]string{"relay.yaml: source.url: is required; write postgres://user@host:port/database, mysql://, mariadb:// or mongodb:// in the same way, or sqlite:///path/to/file.db (or set SLUICEBOX_SOURCE_URL)",
				"relay.yaml: nothing to relay; add a section flowcatalyst"}},
		{"open address without a token", least + "admin:\n  listen: 0.0.0.0:8090\n",
			[]string{"relay.yaml:4: admin.listen: is 0.0.0.0:8090, which other machines can reach: set admin.token (or SLUICEBOX_ADMIN_TOKEN)"}},
		{"address of all without a token", least + "admin:\n  listen: :8090\n",
			[]string{"relay.yaml:4: admin.listen: is :8090, which other machines can reach"}},
		{"named tokens", least + "admin:\n  token: t\n  tokens:\n    - {name: ada, role: operator, token: a}\n    - {name: ada, role: viewer, token: t}\n    - {name: viewer, role: owner, token: b}\n    - {name: a b, token: c d}\n    - {name: eve, role: viewer}\n",
			[]string{
				`relay.yaml:7: admin.tokens[1].token: is the same as another token; choose another`,
				`relay.yaml:7: admin.tokens[1].name: is "ada", which another token has, or one of operator, viewer and local; choose another`,
				`relay.yaml:8: admin.tokens[2].role: is "owner", must be one of operator, viewer`,
				`relay.yaml:8: admin.tokens[2].name: is "viewer", which another token has`,
				`relay.yaml:9: admin.tokens[3].token: holds a blank`,
				`relay.yaml:9: admin.tokens[3].role: is required`,
				`relay.yaml:9: admin.tokens[3].name: is "a b", must be 1 to 60 letters, digits and . _ @ -`,
				`relay.yaml:10: admin.tokens[4].token: is required`,
			}},
		{"named tokens without a token", least + "admin:\n  tokens: [{name: ada, role: operator, token: a}]\n",
			[]string{"relay.yaml:4: admin.tokens[0]: is set without admin.token, so that everybody may act: set admin.token, or remove it"}},
		{"address without a port", least + "admin:\n  listen: localhost\n",
			[]string{`relay.yaml:4: admin.listen: is "localhost", must be host:port`}},
		{"all at once, in the order of the lines", "nam: x\nlog: {level: loud}\nsource: {mode: push}\n",
			[]string{"relay.yaml:1: nam: unknown key; did you mean name?", "relay.yaml:2: log.level", "relay.yaml:3: source.mode",
				"relay.yaml:3: source.url: is required", "|nothing to relay"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			compare(t, faults(t, tt.text), tt.want)
		})
	}
}

// compare checks that each problem starts with the first wanted part and contains the
// others. Problems without a line come first.
func compare(t *testing.T, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d problems, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
	}
	used := make([]bool, len(got))
	for _, w := range want {
		parts := strings.Split(w, "|")
		found := false
		for i, g := range got {
			if used[i] || !strings.HasPrefix(g, parts[0]) {
				continue
			}
			all := true
			for _, part := range parts[1:] {
				all = all && strings.Contains(g, part)
			}
			if all {
				used[i], found = true, true
				break
			}
		}
		if !found {
			t.Errorf("no problem %q among:\n%s", w, strings.Join(got, "\n"))
		}
	}
}

func TestProblemsAreInTheOrderOfTheirLines(t *testing.T) {
	got := faults(t, least+"log: {level: loud}\nname: X\ndispatch: {max-retries: -1}\n")
	for i, want := range []string{"relay.yaml:3:", "relay.yaml:4:", "relay.yaml:5:"} {
		if i >= len(got) || !strings.HasPrefix(got[i], want) {
			t.Fatalf("problem %d of %q, want %s", i, got, want)
		}
	}
}

func TestUnreadableFile(t *testing.T) {
	_, err := config.Load(filepath.Join(t.TempDir(), "none.yaml"), nil)
	var e *config.Error
	if !errors.As(err, &e) || !strings.HasSuffix(err.Error(), "none.yaml: cannot read the configuration file: no such file or directory") {
		t.Errorf("got %v", err)
	}
}

func TestFileTooLarge(t *testing.T) {
	_, err := config.Load(write(t, strings.Repeat("# padding\n", 200_000)), nil)
	if err == nil || !strings.Contains(err.Error(), "larger than 1MiB") {
		t.Errorf("got %v", err)
	}
}

func TestStandardInput(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdin := os.Stdin
	os.Stdin = r
	t.Cleanup(func() { os.Stdin = stdin; _ = r.Close() })
	if _, err := w.WriteString(least + "nam: x\n"); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = config.Load("-", nil)
	if err == nil || !strings.HasPrefix(err.Error(), "standard input:3: nam: unknown key") {
		t.Errorf("got %v", err)
	}
}
