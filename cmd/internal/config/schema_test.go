package config_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

func TestSchemaDescribesEveryKey(t *testing.T) {
	schema := parseSchema(t)
	if schema["$schema"] != config.SchemaID || schema["additionalProperties"] != false {
		t.Errorf("$schema is %v, additionalProperties %v", schema["$schema"], schema["additionalProperties"])
	}
	described := 0
	var walk func(path string, s map[string]any)
	walk = func(path string, s map[string]any) {
		if path != "" && !strings.HasSuffix(path, "]") && !strings.HasSuffix(path, ".NAME") {
			described++
			if text, _ := s["description"].(string); len(text) < 10 || !strings.HasSuffix(text, ".") {
				t.Errorf("%s has the description %q, want a sentence", path, text)
			}
		}
		if properties, ok := s["properties"].(map[string]any); ok {
			if s["additionalProperties"] != false {
				t.Errorf("%s lets unknown keys pass", path)
			}
			for name, p := range properties {
				walk(path+"."+name, p.(map[string]any))
			}
		}
		if items, ok := s["items"].(map[string]any); ok {
			walk(path+"[]", items)
		}
		if entries, ok := s["additionalProperties"].(map[string]any); ok {
			walk(path+".NAME", entries)
		}
	}
	walk("", schema)
	if described < 120 {
		t.Errorf("only %d keys are described", described)
	}
}

// examples returns files that together contain every key.
func examples() []string {
	return []string{"testdata/complete.yaml", "testdata/outboxes.yaml", "testdata/custom.yaml", "testdata/documents.yaml", "testdata/states.yaml", "testdata/brokers.yaml", "testdata/routes.yaml", "testdata/sources.yaml", "testdata/scale.yaml", "testdata/scale-token.yaml"}
}

func examplesEnviron() []string {
	return []string{"DB_PASSWORD=p", "API_TOKEN=t", "ADMIN_TOKEN=a", "API_KEY=k", "HOOK_KEY=h",
		"SIGNING_KEY=whsec_ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4"}
}

// TestExamplesHaveEveryKey checks that the files in testdata load and together contain
// exactly the keys of the schema. So Load accepts every key of the schema; TestFaults
// checks that it accepts no other.
func TestExamplesHaveEveryKey(t *testing.T) {
	written := map[string]bool{}
	for _, file := range examples() {
		if _, err := config.Load(file, examplesEnviron()); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var root any
		if err := yaml.Unmarshal(data, &root); err != nil {
			t.Fatal(err)
		}
		keysOf("", root, written)
	}
	for _, path := range leaves(parseSchema(t), "") {
		if !written[path] {
			t.Errorf("the schema has %s, the examples do not", path)
		}
		delete(written, path)
		delete(written, path+"[0]") // of a key with one value or a list
	}
	for path := range written {
		t.Errorf("the examples have %s, the schema does not", path)
	}
}

func keysOf(path string, v any, keys map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			if path == "sinks" || strings.HasSuffix(path, ".headers") || strings.HasSuffix(path, ".variables") || strings.HasSuffix(path, ".record") || strings.HasSuffix(path, ".when.attributes") {
				name = "NAME"
			}
			keysOf(strings.TrimPrefix(path+"."+name, "."), value, keys)
		}
	case []any:
		for _, value := range v {
			keysOf(path+"[0]", value, keys)
		}
	default:
		keys[path] = true
	}
}

func TestSchemaDefaultsAndEnums(t *testing.T) {
	at := func(path ...string) map[string]any {
		s := parseSchema(t)
		for _, name := range path {
			if name == "*" {
				s = s["additionalProperties"].(map[string]any)
				continue
			}
			s = s["properties"].(map[string]any)[name].(map[string]any)
		}
		return s
	}
	for _, tt := range []struct {
		path []string
		want any
	}{
		{[]string{"dispatch", "max-retries"}, 3.0},
		{[]string{"dispatch", "backoff", "initial"}, "200ms"},
		{[]string{"dispatch", "buffer-bytes"}, "64MiB"},
		{[]string{"checkpoint", "max-hold"}, "1GiB"},
		{[]string{"checkpoint", "max-kept"}, "10GiB"},
		{[]string{"sinks", "*", "proof-wait"}, "5m"},
		{[]string{"flowcatalyst", "events-table"}, "outbox_events"},
		{[]string{"source", "url"}, nil},
		{[]string{"dispatch", "on-failed"}, "continue"},
		{[]string{"dispatch", "ungrouped"}, "fifo"},
		{[]string{"dispatch", "retry", "compat"}, "none"},
		{[]string{"dispatch", "give-up-after"}, "0s"},
		{[]string{"sinks", "*", "treat-409-as-delivered"}, false},
		{[]string{"sinks", "*", "method"}, "POST"},
		{[]string{"sinks", "*", "oauth", "client-id"}, nil},
	} {
		if got := at(tt.path...)["default"]; got != tt.want {
			t.Errorf("default of %v is %v, want %v", tt.path, got, tt.want)
		}
	}
	modes := at("source", "mode")["enum"].([]any)
	if !slices.Equal(modes, []any{"auto", "stream", "poll"}) {
		t.Errorf("modes are %v", modes)
	}
}
