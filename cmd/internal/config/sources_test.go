package config

import (
	"slices"
	"strings"
	"testing"
)

const twoSources = `
sources:
  - {name: shop, url: "postgres://u:p@h/shop"}
  - {name: bills, url: "mysql://u:p@h/bills", mode: poll, outboxes: [invoices]}
outboxes:
  - {table: orders, layout: outbox-messages, sink: near}
  - {table: invoices, layout: outbox-messages, sink: near}
sinks:
  near: {type: webhook, url: "https://near.example"}
`

func parseSources(t *testing.T, text string, environ ...string) (*Config, string) {
	t.Helper()
	c, err := parse("f", []byte(text), environ, func(string) ([]byte, error) { return nil, nil })
	if err != nil {
		return nil, err.Error()
	}
	return c, ""
}

// Each entry is the configuration of a relay: its database, its outboxes, and all else of the file.
func TestSources(t *testing.T) {
	c, fault := parseSources(t, twoSources, "SLUICEBOX_SOURCES_1_POLL_INTERVAL=7s", "SLUICEBOX_DISPATCH_MAX_RETRIES=4")
	if fault != "" {
		t.Fatal(fault)
	}
	all := c.Sources()
	if len(all) != 2 || !slices.Equal(c.SourceNames(), []string{"shop", "bills"}) || c.SourceName() != "" {
		t.Fatalf("%d sources, names %v", len(all), c.SourceNames())
	}
	shop, bills := all[0], all[1]
	if shop.SourceName() != "shop" || !shop.Settings.Source.URL.Postgres() || len(shop.Outboxes()) != 2 || shop.Settings.Source.Mode != "auto" {
		t.Errorf("shop: %+v", shop.Settings)
	}
	if bills.Settings.Name != "bills" || !bills.Settings.Source.URL.MySQL() || bills.Settings.Source.Mode != "poll" || bills.Settings.Source.PollInterval.String() != "7s" {
		t.Errorf("bills: %+v", bills.Settings.Source)
	}
	if boxes := bills.Outboxes(); len(boxes) != 1 || boxes[0].Name != "invoices" || bills.Dispatch("near").MaxRetries != 4 {
		t.Errorf("bills has %+v", boxes)
	}
	again, err := bills.Reread()
	if err != nil || again.SourceName() != "bills" {
		t.Errorf("read again: %v, %v", again, err)
	}
	text, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if printed, fault := parseSources(t, string(text)); fault != "" || len(printed.Sources()) != 2 {
		t.Errorf("the printed configuration does not load: %s\n%s", fault, text)
	}
}

// A file with source has one configuration, which prints none of the keys of several.
func TestOneSource(t *testing.T) {
	c, fault := parseSources(t, strings.Replace(twoSources[strings.Index(twoSources, "outboxes:\n"):], "outboxes", "source: {url: \"postgres://u:p@h/shop\"}\noutboxes", 1))
	if fault != "" {
		t.Fatal(fault)
	}
	text, err := c.YAML()
	if err != nil || c.Sources()[0] != c || strings.Contains(string(text), "sources:") || strings.Contains(string(text), "password-command") {
		t.Errorf("%v\n%s", err, text)
	}
}

// A fault names the entry and its key as the file has them, and a fault of what all share is listed once.
func TestSourcesFaults(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"name: bills", "name: shop", `f:4: sources[1].name: is "shop", which sources[0] has`},
		{"name: bills, ", "", "sources[1].name: is required"},
		{"name: bills", "name: B", "sources[1].name: is \"B\", must be 1 to 40"},
		{"url: \"mysql://u:p@h/bills\", ", "", "f:4: sources[1].url: is required; write"},
		{"mode: poll", "mode: pull", "f:4: sources[1].mode: is \"pull\", must be one of"},
		{"[invoices]", "[invoice]", "sources[1].outboxes: names \"invoice\", which is no outbox; did you mean invoices?"},
		{"invoices, layout: outbox-messages", "invoices, layout: outbox-massages", "f:7: outboxes[1].layout: is"},
		{"\nsources:", "\nname: x\nsources:", "f:2: name: excludes sources"},
		{"\nsources:", "\nsource: {mode: poll}\nsources:", "f:2: source: excludes sources"},
		{"\nsources:", "\nmode: shadow\nsources:", "mode: is shadow, which needs one source"},
		{"type: webhook", "type: webhok", "sinks.near.type: is"},
	} {
		_, fault := parseSources(t, strings.Replace(twoSources, c.from, c.to, 1))
		if !strings.Contains(fault, c.want) {
			t.Errorf("%s: got %s, want %s", c.to, fault, c.want)
		}
		if first, _, _ := strings.Cut(c.want, " is"); strings.Count(fault, first) > 1 {
			t.Errorf("%s: listed twice: %s", c.to, fault)
		}
	}
	if _, fault := parseSources(t, "sources: []"); !strings.Contains(fault, "sources: has no entry") {
		t.Error(fault)
	}
}
