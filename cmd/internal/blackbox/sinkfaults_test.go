package blackbox

import (
	"strings"
	"testing"
)

// A sink that speaks the first API cannot get the rows of today's table: all commands
// name the key and its line, and exit with 78, before a row is lost to it.
func TestTheWireOfAnotherTable(t *testing.T) {
	t.Parallel()
	config := configFile(t, `source: {url: "sqlite:///nowhere/at-all.db"}
outboxes:
  - {table: outbox_messages, layout: outbox-messages, sink: platform}
sinks:
  platform:
    type: flowcatalyst
    wire: array
    api-base-url: http://127.0.0.1:1
`)
	for _, args := range [][]string{{"config", "check"}, {"run"}, {"doctor"}} {
		out, stderr, code := command(t, nil, append(args, "-c", config)...)
		said := strings.Join(strings.Fields(out+stderr), " ")
		if code != 78 || !strings.Contains(said, "yaml:7: sinks.platform.wire: is array, but the outbox outbox_messages has the layout outbox-messages") {
			t.Errorf("%v exits with %d: %s", args, code, said)
		}
	}
}
