package quickstart

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

// configFormat is the relay's configuration. Keys that it does not set have their
// defaults.
const configFormat = `# Written by "sluicebox quickstart". "sluicebox run -c" accepts it unchanged.
name: %[1]s
source:
  url: %[2]s
%[3]s
dispatch:
  backoff: {initial: 20ms, max: 200ms}   # the defaults, 200ms and 30s, suit real receivers
admin:
  listen: ''   # none, so that no port is needed
`

// receiverKeys are the sections of the configuration for the receiver.
const receiverKeys = `flowcatalyst:
  api-base-url: %s
  events-table: %s
  dispatch-jobs-table: ''   # the quickstart has none`

// topicKeys are the sections of the configuration for a topic, up to the keys of its sink.
const topicKeys = `outboxes:
  - {table: %s, layout: flowcatalyst, kind: EVENT, sink: broker}
sinks:
  broker:
    %s`

// writeConfig writes the relay's configuration into a folder and returns the
// file's path and its parsed settings. Only the owner may read the file, because
// the URL may hold a password. It is parsed as "sluicebox run" parses it, but
// without environment overrides: those are meant for another relay.
func writeConfig(folder string, at databaseInfo, to *destination) (string, *config.Config, error) {
	delivery := fmt.Sprintf(receiverKeys, config.Quote(to.url), config.Quote(at.table))
	if to.topic != nil {
		delivery = fmt.Sprintf(topicKeys, config.Quote(at.table), strings.Join(to.topic.Keys(), "\n    "))
	}
	text := fmt.Sprintf(configFormat, at.name, config.Quote(at.url), delivery)
	path := filepath.Join(folder, "sluicebox.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", nil, fmt.Errorf("write configuration: %w", err)
	}
	cfg, err := config.Load(path, nil)
	return path, cfg, err
}
