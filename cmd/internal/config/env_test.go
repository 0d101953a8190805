package config_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

func TestEnvironmentAlone(t *testing.T) {
	cfg, err := config.Load("", []string{
		"SLUICEBOX_SOURCE_URL=postgres://relay@db/shop",
		"SLUICEBOX_FLOWCATALYST_API_BASE_URL=https://platform",
		"SLUICEBOX_FLOWCATALYST_API_TOKEN=secret",
		"SLUICEBOX_FLOWCATALYST_DISPATCH_JOBS_TABLE=",
		"SLUICEBOX_DISPATCH_MAX_RETRIES=9",
		"SLUICEBOX_DISPATCH_BACKOFF_INITIAL=1ms",
		"SLUICEBOX_DISPATCH_BUFFER_BYTES=1MiB",
		"SLUICEBOX_CHECKPOINT_MAX_HOLD=1MiB",
		"SLUICEBOX_CHECKPOINT_MAX_KEPT=20GiB",
		"PATH=/bin", "HOME=/",
	})
	if err != nil {
		t.Fatal(err)
	}
	s := cfg.Settings
	if len(s.Outboxes) != 1 || s.Outboxes[0].Table != "outbox_events" {
		t.Errorf("outboxes are %+v, want the events alone", s.Outboxes)
	}
	sink := s.Sinks["flowcatalyst"]
	if string(sink.Token) != "secret" || sink.MaxRetries != 9 || sink.Backoff.Initial != time.Millisecond || sink.BufferBytes != 1<<20 {
		t.Errorf("the sink is %+v", sink)
	}
	if s.Checkpoint.MaxHold != 1<<20 || s.Checkpoint.MaxKept != 20<<30 {
		t.Errorf("the checkpoint is %+v", s.Checkpoint)
	}
}

func TestVariablesOverrideTheFile(t *testing.T) {
	text := source + `
dispatch: {max-retries: 1, api-batch-size: 7}
outboxes:
  - {table: a, layout: outbox-messages, sink: my-sink}
sinks:
  my-sink: {type: flowcatalyst, api-base-url: "https://p", api-token: file, max-retries: 2}
  other: {type: flowcatalyst, api-base-url: "https://q", api-token: file}
`
	cfg := load(t, text,
		"SLUICEBOX_NAME=changed",
		"SLUICEBOX_DISPATCH_API_BATCH_SIZE=8",
		"SLUICEBOX_DISPATCH_MAX_CONCURRENT_GROUPS=3",
		"SLUICEBOX_SINKS_MY_SINK_MAX_RETRIES=5",
		"SLUICEBOX_SINKS_MY_SINK_TOKEN=variable",
		"SLUICEBOX_SINKS_OTHER_API_TOKEN=variable",
		"SLUICEBOX_OUTBOXES_0_TABLE=b",
		"SLUICEBOX_TEST_PG15_URL=anything",
		"SLUICEBOX_CONFIG=elsewhere",
	)
	s := cfg.Settings
	mine, other := s.Sinks["my-sink"], s.Sinks["other"]
	if s.Name != "changed" || s.Outboxes[0].Table != "b" || s.Outboxes[0].Name != "b" {
		t.Errorf("name %s, outboxes %+v", s.Name, s.Outboxes)
	}
	if mine.MaxRetries != 5 || mine.APIBatchSize != 8 || mine.MaxConcurrentGroups != 3 || string(mine.Token) != "variable" {
		t.Errorf("my-sink is %+v with token %q", mine, string(mine.Token))
	}
	if other.MaxRetries != 1 || string(other.Token) != "variable" {
		t.Errorf("other is %+v with token %q", other, string(other.Token))
	}
}

func TestListsFromVariables(t *testing.T) {
	environ := []string{
		"SLUICEBOX_SOURCE_URL=postgres://db/shop",
		"SLUICEBOX_OUTBOXES=[{table: a, layout: outbox-messages, sink: p}]",
		"SLUICEBOX_SINKS={p: {type: flowcatalyst, wire: items, api-base-url: 'https://p'}}",
		"SLUICEBOX_SINKS_P_TOKEN=secret",
	}
	cfg, err := config.Load("", environ)
	if err != nil {
		t.Fatal(err)
	}
	if p := cfg.Settings.Sinks["p"]; p.Wire != "items" || string(p.Token) != "secret" {
		t.Errorf("sink is %+v", p)
	}
	_, err = config.Load("", append(environ, "SLUICEBOX_OUTBOXES=[{table: a,\nlayuot: outbox-messages, sink: p}]"))
	if want := "SLUICEBOX_OUTBOXES:2: outboxes[0].layuot: unknown key; did you mean layout?"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	_, err = config.Load("", append(environ, "SLUICEBOX_OUTBOXES=[{"))
	if err == nil || !strings.HasPrefix(err.Error(), "SLUICEBOX_OUTBOXES: outboxes: ") {
		t.Errorf("got %v", err)
	}
}

func TestVariableFaults(t *testing.T) {
	tests := []struct{ variable, want string }{
		{"SLUICEBOX_DISPATCH_MAX_RETRY=3", "SLUICEBOX_DISPATCH_MAX_RETRY: no key has this variable; did you mean SLUICEBOX_DISPATCH_MAX_RETRIES?"},
		{"SLUICEBOX_UMBRELLA=red", "SLUICEBOX_UMBRELLA: no key has this variable; see `sluicebox config schema` for the keys, or unset it"},
		{"SLUICEBOX_SINKS_PLATFORM_TOKEN=canary", "SLUICEBOX_SINKS_PLATFORM_TOKEN: no key has this variable; the entry must exist in the file, or in SLUICEBOX_SINKS and SLUICEBOX_OUTBOXES as YAML"},
		{"SLUICEBOX_DISPATCH_MAX_RETRIES=many", `SLUICEBOX_DISPATCH_MAX_RETRIES: dispatch.max-retries: is "many", must be a whole number such as 100`},
		{"SLUICEBOX_DISPATCH_MAX_RETRIES=-1", "SLUICEBOX_DISPATCH_MAX_RETRIES: dispatch.max-retries: is -1, must be at least 0"},
		{"SLUICEBOX_SOURCE_MODE=push", `SLUICEBOX_SOURCE_MODE: source.mode: is "push", must be one of auto, stream, poll`},
		{"SLUICEBOX_SOURCE_URL=", "SLUICEBOX_SOURCE_URL: source.url: is required; write postgres://user@host:port/database, mysql://, mariadb:// or mongodb:// in the same way, or sqlite:///path/to/file.db (or set SLUICEBOX_SOURCE_URL)"},
		{"SLUICEBOX_ADMIN_LISTEN=0.0.0.0:1", "SLUICEBOX_ADMIN_LISTEN: admin.listen: is 0.0.0.0:1, which other machines can reach: set admin.token (or SLUICEBOX_ADMIN_TOKEN), or listen on 127.0.0.1"},
		{"SLUICEBOX_ADMIN_TOKEN=${env:NONE}", "SLUICEBOX_ADMIN_TOKEN: admin.token: refers to the variable NONE, which is not set"},
	}
	for _, tt := range tests {
		got := faults(t, least, tt.variable)
		if !slices.Equal(got, []string{tt.want}) {
			t.Errorf("%s: got %q, want %q", tt.variable, got, tt.want)
		}
	}
}

// TestKubernetesServiceLinks: Kubernetes sets variables in every container for a Service
// named sluicebox or sluicebox-admin.
func TestKubernetesServiceLinks(t *testing.T) {
	load(t, least,
		"SLUICEBOX_SERVICE_HOST=10.0.0.1", "SLUICEBOX_SERVICE_PORT=8090", "SLUICEBOX_SERVICE_PORT_HTTP_METRICS=8090",
		"SLUICEBOX_PORT=tcp://10.0.0.1:8090", "SLUICEBOX_PORT_8090_TCP=tcp://10.0.0.1:8090",
		"SLUICEBOX_PORT_8090_TCP_PROTO=tcp", "SLUICEBOX_PORT_8090_TCP_PORT=8090", "SLUICEBOX_PORT_8090_TCP_ADDR=10.0.0.1",
		"SLUICEBOX_ADMIN_SERVICE_HOST=10.0.0.2", "SLUICEBOX_ADMIN_PORT_8090_TCP=tcp://10.0.0.2:8090",
	)
	for _, name := range []string{"SLUICEBOX_PORT_HTTP", "SLUICEBOX_SERVICE", "SLUICEBOX_PORT_8090"} {
		if got := faults(t, least, name+"=1"); len(got) != 1 || !strings.HasPrefix(got[0], name+": no key has this variable") {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

// leaves returns the paths of all scalar keys in a schema, with entries of lists and maps
// as [0] and .NAME.
func leaves(schema map[string]any, path string) []string {
	var paths []string
	if properties, ok := schema["properties"].(map[string]any); ok {
		for name, s := range properties {
			for _, variant := range variantsOf(schema, name, s.(map[string]any)) {
				paths = append(paths, leaves(variant, strings.TrimPrefix(path+"."+name, "."))...)
			}
		}
		slices.Sort(paths)
		return slices.Compact(paths)
	}
	if forms, ok := schema["anyOf"].([]any); ok { // one value or a list
		return leaves(forms[0].(map[string]any), path)
	}
	if items, ok := schema["items"].(map[string]any); ok {
		return leaves(items, path+"[0]")
	}
	if entries, ok := schema["additionalProperties"].(map[string]any); ok {
		return leaves(entries, path+".NAME")
	}
	return []string{path}
}

// variantsOf returns the schemas of a key: s, or its variants, which depend on other keys of the section.
func variantsOf(section map[string]any, name string, s map[string]any) (all []map[string]any) {
	choices, _ := section["allOf"].([]any)
	for _, choice := range choices {
		then := choice.(map[string]any)["then"].(map[string]any)["properties"].(map[string]any)
		if variant, ok := then[name].(map[string]any); ok {
			all = append(all, variant)
		}
	}
	if all == nil {
		return []map[string]any{s}
	}
	return all
}

func parseSchema(t *testing.T) map[string]any {
	t.Helper()
	var schema map[string]any
	if err := json.Unmarshal(config.Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	return schema
}

// TestEveryKeyHasAVariable sets the variable of every key to a value that no key accepts.
func TestEveryKeyHasAVariable(t *testing.T) {
	const entries = source + `
outboxes:
  - {table: a, layout: outbox-messages, sink: name, order-by: [b], columns: {attributes: [c]}, record: {name: d},
     routes: [{name: r, sink: name, when: {attributes: {name: c}, tags-all: [d], tags-any: [e], tags-exact: [f]}}]}
ingest: {clients: [{tenants: [1], outboxes: [a]}]}
admin: {hosts: [p], tokens: [{name: n}]}
notices: {webhook: {secrets: [d]}, command: {argv: [p]}}
tracing: {headers: {name: c}}
sinks:
  name: {type: flowcatalyst, api-base-url: "https://p", headers: {name: c}, variables: {name: c}, secrets: [d], metadata-headers: [kind], allow-hosts: [e]}
`
	paths := leaves(parseSchema(t), "")
	if len(paths) < 50 {
		t.Fatalf("the schema has only %d keys: %v", len(paths), paths)
	}
	for _, path := range paths {
		name := "SLUICEBOX_" + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_", "[", "_", "]", "").Replace(path))
		text := entries
		if strings.HasPrefix(path, "flowcatalyst.") {
			text = strings.Replace(least, `platform"}`, `platform", order-by: [b]}`, 1)
		}
		if strings.HasPrefix(path, "source.password-command") {
			text = strings.Replace(text, "{url:", "{password-command: [a], url:", 1)
		}
		if strings.HasPrefix(path, "sources") {
			text = strings.Replace(text, "source: {url:", "sources: [{name: n, outboxes: [a], password-command: [a], url:", 1)
			text = strings.Replace(text, "}\n", "}]\n", 1)
		}
		// An unresolved reference is an error in every text key, and not a value of any
		// other key.
		got := faults(t, text, name+"=${env:NOWHERE}")
		want := name + ": " + strings.ReplaceAll(path, "NAME", "name") + ": "
		if !slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, want) }) {
			t.Errorf("%s has no effect on %s: %q", name, path, got)
		}
	}
}

func TestPrintedConfigurationLoadsAgain(t *testing.T) {
	for _, file := range examples() {
		environ := examplesEnviron()
		first, err := config.Load(file, environ)
		if err != nil {
			t.Fatal(err)
		}
		for _, print := range []func() ([]byte, error){first.YAML, first.JSON} {
			text, err := print()
			if err != nil {
				t.Fatal(err)
			}
			second := loadText(t, text)
			// Secrets come back as placeholders, so compare the printed form.
			again, err := second.YAML()
			if err != nil {
				t.Fatal(err)
			}
			once, _ := first.YAML()
			if string(once) != string(again) {
				t.Errorf("%s: printed\n%s\nand, read again,\n%s", file, once, again)
			}
		}
	}
}

func loadText(t *testing.T, text []byte) *config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "printed.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path, nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return cfg
}

func TestPlaceholdersInPrintedTextAreNoReferences(t *testing.T) {
	cfg := load(t, least, "SLUICEBOX_FLOWCATALYST_CA_FILE=$${x}")
	text, err := cfg.YAML()
	if err != nil {
		t.Fatal(err)
	}
	again := loadText(t, text)
	if got := again.Settings.Sinks["flowcatalyst"].CAFile; got != "${x}" {
		t.Errorf("ca-file is %q, want ${x}", got)
	}
	if !reflect.DeepEqual(cfg.Outboxes(), again.Outboxes()) {
		t.Error("the outboxes changed")
	}
}
