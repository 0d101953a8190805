package blackbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// oddGroups are similar message groups as SQL. Each is a lane of its own.
func oddGroups() []string {
	return []string{
		"NULL", "''", "repeat('long', 2500)", "repeat('long', 2500) || 'er'",
		"'Case'", "'case'", "'case '", "' case'", "E'case\\t'", "'NULL'", "'straße'", "'STRASSE'",
	}
}

// The rows that are changed while they are spilled.
const (
	deletedRow = 30 + iota // the position in the group
	changedRow
	settledRow
	movedRow
	failedRow
	eachGroup = 60
)

// Spilled rows are deleted, changed, settled by another session or moved to another group, in
// groups with odd names.
//   - A deleted or settled row is not sent.
//   - A changed row is sent with its new content.
//   - A moved row is sent in order in its original group.
//
// This also holds if the relay is stopped or killed in between. By hand:
//
//	go test -v -run 'TestSpilledRowsThatChange' ./cmd/internal/blackbox
func TestSpilledRowsThatChange(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(r *relay){
		"meanwhile": nil, "the relay is stopped": func(r *relay) { expectStop(r.t.(*testing.T), r) }, "the relay is killed": (*relay).kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			aPostgres(t, "dispatch: {global-buffer-size: 100, api-batch-size: 10, backoff: {max: 1s}}\ncheckpoint: {max-hold: 1MiB}\n", func(s *scene) {
				servers.Exec(s.t, s.database, pgBusiness, "ALTER TABLE outbox_events ALTER message_group TYPE text, ALTER id TYPE text",
					// A group of 10 kB does not fit an entry of the outbox's index.
					"DROP INDEX idx_outbox_events_status", "CREATE INDEX ON outbox_events (status, md5(message_group), created_at)")
				s.to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Status: http.StatusServiceUnavailable} })
				r := s.run()
				rows := s.oddRows()
				s.expectSpilled(rows - 2*100)
				s.parkPlaces()
				if end != nil {
					end(r)
				}
				s.change()
				if end != nil {
					r = s.run()
				}
				s.to.Script(nil)
				gone := 3 * len(oddGroups())
				arrive(s.t, s.to, rows-gone)
				within(s.t, testTimeout, func() string {
					return none(s.t, s.conn, "are not settled", "SELECT count(*) FROM outbox_events WHERE status NOT IN ('COMPLETED', 'FAILED')")
				})
				s.expectChanged(rows-gone, end != nil)
				s.expectNoneSpilled(r)
				expectStop(s.t, r)
			})
		})
	}
}

// oddRows writes rows of all groups in turn and returns their number.
func (s *scene) oddRows() int {
	s.t.Helper()
	for n := 1; n <= eachGroup; n++ {
		var values []string
		for lane, group := range oddGroups() {
			id := fmt.Sprintf("%02d-%03d", lane, n)
			values = append(values, fmt.Sprintf(`('%s', 'EVENT', %s, '{"id": "%s"}', 'PENDING', now())`, id, group, id))
		}
		servers.Exec(s.t, s.database, "INSERT INTO outbox_events (id, type, message_group, payload, status, created_at) VALUES "+strings.Join(values, ", "))
		s.business(100_000)
	}
	return eachGroup * len(oddGroups())
}

// places are the changed rows of each group.
func places() []int { return []int{deletedRow, changedRow, settledRow, movedRow, failedRow} }

// parkPlaces writes unrelated log until those rows are spilled and the checkpoint has passed them.
// Until then a restart would read them from the log again.
func (s *scene) parkPlaces() {
	s.t.Helper()
	within(s.t, testTimeout, func() string {
		for _, n := range places() {
			place := fmt.Sprintf("-%03d", n)
			if ids := count(s.t, s.conn, "SELECT count(*) FROM sluicebox.queue WHERE right(convert_from(id, 'UTF8'), 4) = $1 AND n <= (SELECT (body->>'seq')::bigint FROM sluicebox.record WHERE key = 'checkpoint')", place); ids < len(oddGroups()) {
				s.business(500_000)
				return fmt.Sprintf("%d of the rows %s are spilled behind the checkpoint, want %d", ids, place, len(oddGroups()))
			}
		}
		return ""
	})
}

// change applies all changes to spilled rows of each group.
func (s *scene) change() {
	s.t.Helper()
	for n, statement := range map[int]string{
		deletedRow: "DELETE FROM outbox_events WHERE",
		changedRow: `UPDATE outbox_events SET payload = '{"id": "' || id || '", "changed": true}' WHERE`,
		settledRow: "UPDATE outbox_events SET status = 'COMPLETED', processed_at = now() WHERE",
		movedRow:   "UPDATE outbox_events SET message_group = 'elsewhere' WHERE",
		failedRow:  "UPDATE outbox_events SET status = 'FAILED', error_message = 'by hand' WHERE",
	} {
		place := fmt.Sprintf("-%03d", n)
		rows, err := s.conn.exec(statement+" right(id, 4) = $1", place)
		if err != nil || rows != len(oddGroups()) {
			s.t.Fatalf("%s: %d rows, %v", statement, rows, err)
		}
	}
}

// expectChanged compares the arrivals with the changes. A running relay may have reloaded a
// row before its change; a restarted one has not.
func (s *scene) expectChanged(rows int, began bool) {
	s.t.Helper()
	last := map[string]string{}
	taken := s.to.Accepted()
	for _, got := range taken {
		lane, place, _ := strings.Cut(got.ID, "-")
		if got.ID <= last[lane] {
			s.t.Errorf("group %s: row %s arrived after row %s", lane, got.ID, last[lane])
		}
		last[lane] = got.ID
		var n int
		if _, err := fmt.Sscanf(place, "%d", &n); err != nil {
			s.t.Fatalf("row %q: %v", got.ID, err)
		}
		if slices.Contains([]int{deletedRow, settledRow, failedRow}, n) {
			s.t.Errorf("row %s was sent", got.ID)
		}
		var p struct{ Changed bool }
		if err := json.Unmarshal(got.Payload, &p); err != nil || p.Changed != (n == changedRow) && (began || n != changedRow) {
			s.t.Errorf("row %s was sent as %s: %v", got.ID, got.Payload, err)
		}
	}
	if len(taken) != rows {
		s.t.Errorf("%d arrivals, want %d", len(taken), rows)
	}
	if n := count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE status = 'FAILED' AND error_message = 'by hand'"); n != len(oddGroups()) {
		s.t.Errorf("%d of the rows that were FAILED by hand are as they were, want %d", n, len(oddGroups()))
	}
}
