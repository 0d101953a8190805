package app

import (
	"path/filepath"
	"reflect"
	"testing"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

func loadConfig(t *testing.T, yaml string) *config.Config {
	t.Helper()
	path := t.TempDir() + "/sluicebox.yaml"
	writeFile(t, path, yaml)
	cfg, err := config.Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

const twoSinks = `
source: {url: "sqlite:///none.db"}
outboxes:
  - {table: orders, layout: outbox-messages, sink: near}
  - {table: bills, layout: outbox-messages, sink: far}
sinks:
  near: {type: flowcatalyst, wire: items, api-base-url: "https://near"}
  far: {type: flowcatalyst, wire: items, api-base-url: "https://far"}
`

// A relay reopens the sink whose files changed, and no other.
func TestReloadFollowsFiles(t *testing.T) {
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "token")
	writeFile(t, token, "first")
	o, err := relayOptions(loadConfig(t, `{source: {url: "sqlite:///x.db"}, outboxes: [{table: a, layout: outbox-messages, sink: s}],
sinks: {other: {type: webhook, url: "https://h"}, s: {type: webhook, url: "https://h", ca-file: '`+ca+`', token: '${file:`+token+`}'}}}`), "1")
	if err != nil {
		t.Fatal(err)
	}
	before := o.Sinks
	changed := func(want bool) {
		t.Helper()
		now, err := o.Reload.Sinks()
		if err != nil {
			t.Fatal(err)
		}
		if got := !reflect.DeepEqual(now["s"].Inputs, before["s"].Inputs); got != want {
			t.Errorf("the sink has changed: %t, want %t", got, want)
		}
		if !reflect.DeepEqual(now["other"].Inputs, before["other"].Inputs) {
			t.Error("the other sink has changed")
		}
		before = now
	}
	changed(false)
	writeFile(t, token, "second")
	changed(true)
	changed(false)
	writeFile(t, ca, "an authority")
	changed(true)
	if len(o.Reload.Files) != 2 {
		t.Errorf("files are %q", o.Reload.Files)
	}
}
