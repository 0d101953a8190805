package blackbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// toFile routes the events of a scene to a file.
const toFile = `
name: %s
source: {url: %q}
outboxes:
  - {table: outbox_events, layout: flowcatalyst, kind: EVENT, sink: file}
sinks:
  file: {type: log, output: %q, backoff: {initial: 20ms, max: 200ms}}
admin: {listen: %s}
`

// lead lets a link lead to a path, in one step.
func lead(t testing.TB, link, to string) {
	t.Helper()
	if err := os.Symlink(to, link+".next"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+".next", link); err != nil {
		t.Fatal(err)
	}
}

// The disk is full, the file is rotated, and the relay is killed, while rows are written. All rows
// are lines, the first ones of each group in order, and none has paid for it.
func TestLogFaults(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		dir := s.t.TempDir()
		link, files := filepath.Join(dir, "log"), []string{filepath.Join(dir, "1"), filepath.Join(dir, "2")}
		lead(s.t, link, files[0])
		s.config = fmt.Sprintf(toFile, nameFor(s.database), s.database, link, adminKey)
		if d, text, code := doctor(s.t, s.config); code != 0 {
			s.t.Errorf("doctor ends with %d: %s\n%+v", code, text, d)
		}
		r := s.run()
		const each, groups = 500, "i % 50"
		s.number(1, each, groups)
		s.untilCompleted("")

		const failures = `sluicebox_delivery_attempts_total{outcome="unavailable",sink="file"}`
		lead(s.t, link, "/dev/full")
		s.number(each+1, 2*each, groups)
		within(s.t, testTimeout, func() string {
			if r.metric(failures) == 0 {
				return "no delivery fails"
			}
			return ""
		})
		lead(s.t, link, files[0])
		s.untilCompleted("")

		lead(s.t, link, files[1])
		s.number(2*each+1, 3*each, groups)
		within(s.t, testTimeout, func() string {
			if info, err := os.Stat(files[1]); err != nil || info.Size() == 0 {
				return "the new file is empty"
			}
			return ""
		})
		r.kill()
		r = s.run()
		s.untilCompleted("")

		var stored []sinktest.Received
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				s.t.Fatal(err)
			}
			for line := range bytes.Lines(content) {
				var row struct {
					ID   string          `json:"id"`
					Data json.RawMessage `json:"data"`
				}
				if json.Unmarshal(line, &row) == nil { // a kill may cut off a line
					stored = append(stored, sinktest.Received{ID: row.ID, Payload: row.Data})
				}
			}
		}
		if again := checkNumbered(s.t, stored); len(stored)-again != 3*each {
			s.t.Errorf("%d lines are there, %d of them again, want %d", len(stored), again, 3*each)
		}
		if left := none(s.t, s.conn, "paid for the faults", "SELECT count(*) FROM outbox_events WHERE retry_count > 0"); left != "" {
			s.t.Error(left)
		}
		expectStop(s.t, r)
	})
}
