package quickstart

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

// configFormat is the relay's configuration. Keys that it does not set have their
// defaults.
const configFormat = `# Written by "sluicebox quickstart". "sluicebox run -c" accepts it unchanged.
name: %[1]s
source:
  url: %[2]s
flowcatalyst:
  api-base-url: %[3]s
  events-table: %[4]s
  dispatch-jobs-table: ''   # the quickstart has none
dispatch:
  backoff: {initial: 20ms, max: 200ms}   # the defaults, 200ms and 30s, suit real receivers
admin:
  listen: ''   # none, so that no port is needed
`

// writeConfig writes the relay's configuration into a folder and returns the
// file's path and its parsed settings. Only the owner may read the file, because
// the URL may hold a password. It is parsed as "sluicebox run" parses it, but
// without environment overrides: those are meant for another relay.
func writeConfig(folder string, at databaseInfo, receiver string) (string, *config.Config, error) {
	text := fmt.Sprintf(configFormat, at.name, config.Quote(at.url), config.Quote(receiver), config.Quote(at.table))
	path := filepath.Join(folder, "sluicebox.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", nil, fmt.Errorf("write configuration: %w", err)
	}
	cfg, err := config.Load(path, nil)
	return path, cfg, err
}
