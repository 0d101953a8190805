package blackbox

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/deploy/inbox"
)

// Each route has receipts of its own: a row is due on the routes that it matches, and on no other.
func TestVerifyRoutes(t *testing.T) {
	t.Parallel()
	aPostgres(t, "", func(s *scene) {
		s.exec("ALTER TABLE outbox_events ADD COLUMN client TEXT")
		var sinks, paths [2]string
		for i := range sinks {
			paths[i] = filepath.Join(s.t.TempDir(), "receipts")
			file, err := os.OpenFile(paths[i], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			if err != nil {
				s.t.Fatal(err)
			}
			defer func() { _ = file.Close() }()
			receiver := httptest.NewServer(inbox.Receipts(file, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
			defer receiver.Close()
			sinks[i] = fmt.Sprintf("{type: webhook, url: %q}", receiver.URL)
		}
		s.config = fmt.Sprintf(`
name: %s
source: {url: %q, mode: stream}
outboxes:
  - table: outbox_events
    layout: custom
    state: words
    order-by: [created_at]
    kind: EVENT
    columns: {id: id, group: message_group, payload: payload, status: status, claimed: processed_at, retry-count: retry_count, error: error_message, attributes: [client]}
    words: {pending: PENDING, processing: PROCESSING, completed: COMPLETED, failed: FAILED}
    routes: [{name: all, sink: a}, {name: some, sink: b, when: {attributes: {client: [c1]}}}]
sinks: {a: %s, b: %s}
admin: {listen: %s}
`, nameFor(s.database), s.database, sinks[0], sinks[1], adminKey)
		r := s.run()
		s.add(1, 20, "PENDING")
		s.untilCompleted("")
		expectStop(s.t, r)
		s.exec("UPDATE outbox_events SET client = 'c1' WHERE id <= '0000000000005'") // the routes were decided without it
		v := s.verify(0, "--receipts", "all="+paths[0])
		if got := v.Targets[0]; got.Rows != 20 || got.Arrived != 20 {
			s.t.Errorf("route all: %+v, want 20 rows", got)
		}
		v = s.verify(1, "--receipts", "outbox_events/some="+paths[1], "--receipts", "all="+paths[0])
		if all, some := v.Targets[0], v.Targets[1]; all.Arrived != 20 || some.Rows != 5 || some.FalseCompleted != 5 {
			s.t.Errorf("got %+v, want 5 rows of the route some without an arrival", v)
		}
		if _, stderr, code := s.verifyText("--receipts", "other="+paths[0]); code != 64 || !strings.Contains(stderr, "outbox_events/some") {
			s.t.Errorf("unknown route: exit code %d, %s", code, stderr)
		}
	})
}

// verifyText runs `sluicebox verify` without a check.
func (s *scene) verifyText(args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "sluicebox.yaml")
	writeFile(s.t, file, strings.ReplaceAll(s.config, adminKey, "127.0.0.1:1"))
	return command(s.t, nil, append([]string{"verify", "-c", file, "--settle", "1s"}, args...)...)
}
