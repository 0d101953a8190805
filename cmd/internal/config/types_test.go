package config_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/dispatch/sink"
)

const typed = source + "outboxes: [{table: a, layout: outbox-messages, sink: s}]\nsinks:\n  s:\n"

// Two types have keys of the same name, and each sink its own.
func TestKeysOfTwoTypes(t *testing.T) {
	const text = typed + "    type: log\n    format: row\n    headers: {x: '${env:KEY}'}\n  w:\n    type: webhook\n    url: https://h\n    format: cloudevents\n    cloudevents-source: /s\n    headers: {y: b}\n"
	cfg := load(t, text, "KEY=k", "SLUICEBOX_SINKS_S_FORMAT=raw", "SLUICEBOX_SINKS_S_HEADERS_X=", "SLUICEBOX_SINKS_S_FORMAT=row", "SLUICEBOX_SINKS_S_HEADERS_X=a${env:KEY}")
	s, w := cfg.Settings.Sinks["s"], cfg.Settings.Sinks["w"]
	if s.Log.Format != "row" || string(s.Log.Headers["x"]) != "ak" || len(s.Webhook.Headers) != 0 || s.Webhook.Format != "raw" {
		t.Errorf("the log is %+v, beside it %+v", s.Log, s.Webhook)
	}
	if w.Webhook.Format != "cloudevents" || len(w.Webhook.Headers) != 1 || w.Log.Headers != nil || w.Log.Format != "row" {
		t.Errorf("the webhook is %+v, beside it %+v", w.Webhook, w.Log)
	}
	if len(s.References) != 1 || string(s.References[0]) != "k" || w.References != nil {
		t.Errorf("the references are %q and %q", s.References, w.References)
	}
	asYAML, err := cfg.YAML()
	if err != nil {
		t.Fatal(err)
	}
	printed := string(asYAML)
	for key, want := range map[string]int{"format: row": 1, "format: cloudevents\n": 1, "format:": 3, "headers:": 2, "output: stdout": 1, "url:": 2, "ca-file:": 1, "token:": 2} {
		if got := strings.Count(printed, " "+key); got != want {
			t.Errorf("%q is printed %d times, want %d:\n%s", key, got, want, printed)
		}
	}
	loadText(t, asYAML)

	for name, limits := range map[string]sink.Mode{"s": sink.Ordered, "w": sink.Atomic} {
		if got := relay(t, cfg).Sinks[name].Limits("k").Mode; got != limits {
			t.Errorf("sink %s has mode %d, want %d", name, got, limits)
		}
	}
}

func TestFaultsOfTypes(t *testing.T) {
	for name, tt := range map[string]struct {
		keys string
		want []string
	}{
		"a value of another type": {"type: log, format: json-array", []string{`relay.yaml:4: sinks.s.format: is "json-array", must be one of row, raw, cloudevents-structured`}},
		"a key of one other type": {"type: log, method: PUT", []string{
			"relay.yaml:4: sinks.s.method: needs type: webhook, but this is type: log; remove it, or change the type"}},
		"a key of two other types": {"type: flowcatalyst, api-base-url: 'https://p', headers: {a: b}", []string{
			"relay.yaml:4: sinks.s.headers: needs type: "}},
		"a key of the network": {"type: log, ca-file: a", []string{"relay.yaml:4: sinks.s.ca-file: does not apply to type: log; remove it"}},
		"a token":              {"type: log, token: canary", []string{"relay.yaml:4: sinks.s.token: needs type: camunda, "}},
		"no type": {"format: json-array, headers: {a: b}", []string{
			"relay.yaml:4: sinks.s.type: is required; write type: and one of ", "relay.yaml:4: sinks.s.format: needs type: ", "relay.yaml:4: sinks.s.headers: needs type: "}},
		"a wrong type": {"type: logg, format: xml, output: a", []string{`relay.yaml:4: sinks.s.type: is "logg", must be one of `}},
		"an unknown key of the type": {"type: log, uotput: a", []string{
			"relay.yaml:4: sinks.s.uotput: unknown key; did you mean output?"}},
		"an unknown key near one of another type": {"type: log, methood: PUT", []string{
			"relay.yaml:4: sinks.s.methood: unknown key; the keys here are type, format, content-type, "}},
		"its own check": {"type: log, fsync: true", []string{"relay.yaml:4: sinks.s.fsync: is only for a file; set output to a path"}},
		"a field that no row has": {"type: log, headers: {a: '{attr.x}'}", []string{
			"relay.yaml:4: sinks.s.headers.a: has {attr.x}, which rows of a cannot have; the layout outbox-messages has no column for it"}},
	} {
		got := faults(t, strings.Replace(typed, "  s:\n", "  s: {"+tt.keys+"}\n", 1))
		t.Run(name, func(t *testing.T) {
			compare(t, got, tt.want)
			mustHide(t, strings.Join(got, "\n"))
		})
	}
}

// The schema has the values of each type behind its condition.
func TestSchemaOfTypes(t *testing.T) {
	var schema struct {
		Properties struct {
			Sinks struct {
				AdditionalProperties struct {
					AllOf []struct {
						If struct {
							Properties struct{ Type struct{ Enum []string } }
							Required   []string
						}
						Then struct {
							Properties map[string]struct{ Enum []string }
						}
					}
				}
			}
		}
	}
	if err := json.Unmarshal(config.Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	formats := map[string][]string{}
	for _, choice := range schema.Properties.Sinks.AdditionalProperties.AllOf {
		if p, has := choice.Then.Properties["format"]; has && len(choice.If.Required) == 1 {
			formats[choice.If.Properties.Type.Enum[0]] = append(formats[choice.If.Properties.Type.Enum[0]], p.Enum...)
		}
	}
	if got := strings.Join(formats["log"], ","); got != "row,raw,cloudevents-structured" || len(formats["webhook"]) != 5 {
		t.Errorf("the formats are %v", formats)
	}
}
