package app

import (
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
