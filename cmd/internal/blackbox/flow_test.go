package blackbox

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// realTransactions is the length of a load that looks like a service's.
const realTransactions = 1500

// A service writes into both FlowCatalyst tables. Every row arrives once, in the commit order
// of its group, and is COMPLETED.
func TestRealInput(t *testing.T) {
	t.Parallel()
	eachKind(t, "", func(s *scene) {
		r := s.run()
		write(s.t, s.database, load{transactions: realTransactions, clients: 8, rate: 300, scripts: seedScripts(50)})()
		rows := s.expectOnce()
		s.t.Logf("%d rows, each once and in order; not yet visible at the first claim: %.0f", rows, r.metric(`sluicebox_claim_rows_total{result="not_yet_visible"}`))
		expectStop(s.t, r)
	})
}

// The same for the outbox-messages table with the default wire. Delivered rows are deleted.
func TestRealInputOfOutboxMessages(t *testing.T) {
	t.Parallel()
	onHosts(t, servers.Spread(t, hosts()), func(t *testing.T, h host) {
		database, conn := prepare(t, h, func(k *kind) string { return k.messages + k.copyOfMessages })
		to := sinktest.NewReceiver(t)
		to.Script(func(r *sinktest.Request) sinktest.Answer { // a receiver without the old wire
			if !strings.HasPrefix(string(r.Body), `{"items":[`) {
				return sinktest.Answer{Status: http.StatusBadRequest}
			}
			return sinktest.Answer{}
		})
		r := start(t, fmt.Sprintf(`
name: %s
source: {url: %q}
outboxes:
  - {table: outbox_messages, layout: outbox-messages, sink: platform}
sinks:
  platform: {type: flowcatalyst, api-base-url: %q}
admin: {listen: %s}
`, nameFor(database), database, to.URL(), adminKey))
		r.waitFor("source connected")
		write(t, database, load{transactions: realTransactions, clients: 8, rate: 300, scripts: messageScripts(50)})()

		rows := count(t, conn, "SELECT count(*) FROM outbox_messages_copy")
		arrive(t, to, rows)
		within(t, testTimeout, func() string {
			return none(t, conn, "were not deleted", "SELECT count(*) FROM outbox_messages")
		})
		n, again := oracle{"EVENT", "messages"}.checkOrder(t, conn, to.Accepted())
		if n != rows || rows == 0 || again > 0 {
			t.Errorf("%d of %d rows, %d more than once", n, rows, again)
		}
		expectStop(t, r)
	})
}

// Eight writers at full speed: the log is ahead of the visibility of its rows, but no row is
// dropped as gone.
func TestLogAheadOfVisibility(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		const rows = 10_000
		r := s.run()
		write(s.t, s.database, load{transactions: rows, clients: 8, scripts: seedScripts(200)})()
		if n := s.expectOnce(); n != rows {
			s.t.Errorf("the load wrote %d rows", n)
		}
		if gone := r.metric(`sluicebox_claim_rows_total{result="gone"}`); gone > 0 {
			s.t.Errorf("%.0f rows were counted as vanished, want 0", gone)
		}
		s.t.Logf("%d rows; %.0f claims found a row not yet visible, none was dropped", rows, r.metric(`sluicebox_claim_rows_total{result="not_yet_visible"}`))
	})
}

// A clean stop under load leaves no row PROCESSING, and nothing arrives twice after the next
// start.
func TestCleanStopUnderLoad(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		r := s.run()
		wait := write(s.t, s.database, load{transactions: 3000, clients: 8, rate: 500, scripts: seedScripts(20)})
		for stop := 1; stop <= 3; stop++ {
			arrive(s.t, s.to, stop*500)
			expectStop(s.t, r)
			if left := none(s.t, s.conn, "are left PROCESSING by a clean stop", "SELECT count(*) FROM outbox_events WHERE status = 'PROCESSING'"); left != "" {
				s.t.Error(left)
			}
			r = s.run()
		}
		wait()
		s.expectOnce()
	})
}

// Rows from before the first start arrive first, in created_at order, whether they are
// PENDING or left in PROCESSING. Settled rows are not sent.
func TestBacklogOfTheFirstStart(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		var values []string
		for i := 1; i <= 400; i++ {
			status := "PENDING"
			if i%3 == 0 {
				status = "PROCESSING"
			} else if i%7 == 0 {
				status = "COMPLETED"
			}
			born := time.Date(2026, 1, 1, 0, 0, 500-i, 0, time.UTC).Format(time.DateTime)
			values = append(values, fmt.Sprintf(`('B%012[1]d', 'EVENT', 'g', '{"id": "B%012[1]d"}', '%s', '%s')`, i, status, born))
		}
		s.exec("INSERT INTO outbox_events (id, type, message_group, payload, status, created_at) VALUES " + strings.Join(values, ", "))
		wait := write(s.t, s.database, load{seconds: 3, clients: 4, rate: 200, scripts: seedScripts(10)})
		r := start(s.t, s.config)
		wait()
		rows := s.rows() - count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE message_group = 'g' AND processed_at IS NULL AND status = 'COMPLETED'")
		arrive(s.t, s.to, rows)
		last := ""
		for _, got := range s.to.Accepted() {
			if !strings.HasPrefix(got.ID, "B") {
				continue
			}
			if last != "" && got.ID >= last {
				s.t.Errorf("row %s arrived after %s, which is younger", got.ID, last)
			}
			last = got.ID
		}
		if c := s.to.Counts(); c.Duplicates > 0 || c.Distinct != rows {
			s.t.Errorf("%+v of %d rows", c, rows)
		}
		within(s.t, testTimeout, func() string {
			return none(s.t, s.conn, "are not COMPLETED", "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED'")
		})
		expectStop(s.t, r)
	})
}

// An outbox is added to the configuration later. Its existing rows are delivered, too.
func TestAnOutboxAddedLater(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		both := s.config
		s.config = strings.Replace(both, "flowcatalyst: {", "flowcatalyst: {dispatch-jobs-table: '', ", 1)
		r := s.run()
		write(s.t, s.database, load{transactions: 160, clients: 8, scripts: seedScripts(5)})()
		arrive(s.t, s.to, count(s.t, s.conn, "SELECT count(*) FROM outbox_events"))
		within(s.t, testTimeout, func() string {
			return none(s.t, s.conn, "are not COMPLETED", "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED'")
		})
		expectStop(s.t, r)
		s.config = both
		s.run()
		arrive(s.t, s.to, 160)
		settle(s.t, s.conn)
		if c := s.to.Counts(); c.Duplicates > 0 {
			s.t.Errorf("%d rows arrived more than once, want 0", c.Duplicates)
		}
	})
}

// A poisoned row is FAILED with its reason after its retries. Its group continues in order.
func TestAPoisonedRowIsFailed(t *testing.T) {
	t.Parallel()
	const poisoned = "0000000000050"
	aScene(t, "dispatch: {max-retries: 2, backoff: {initial: 20ms}}\n", func(s *scene) {
		s.to.Script(func(r *sinktest.Request) sinktest.Answer {
			for _, it := range r.Items {
				if it.ID == poisoned {
					return sinktest.Answer{Status: 400, Body: []byte(`{"error":"schema: no such type"}`)}
				}
			}
			return sinktest.Answer{}
		})
		r := s.run()
		s.number(1, 100, "'g'")
		arrive(s.t, s.to, 99)
		r.waitFor("row marked FAILED")
		within(s.t, testTimeout, func() string {
			if f := s.rowState(poisoned); f.status != "FAILED" || f.retries != 2 || !strings.Contains(f.reason, "no such type") {
				return fmt.Sprintf("the row is %+v", f)
			}
			return ""
		})
		last := ""
		for _, got := range s.to.Accepted() {
			if got.ID <= last {
				s.t.Errorf("row %s arrived after %s", got.ID, last)
			}
			last = got.ID
		}
		if n := s.to.Counts().Requests; n > 40 {
			s.t.Errorf("%d requests for 100 rows with one poisoned, want at most 40", n)
		}
		within(s.t, testTimeout, func() string {
			if n := count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE status = 'COMPLETED' AND retry_count = 0"); n != 99 {
				return fmt.Sprintf("%d of 99 rows are COMPLETED without a retry", n)
			}
			return ""
		})
	})
}
