package blackbox

import (
	"net/http"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// The log becomes unreadable while rows are spilled. With mode auto the relay delivers them
// and new rows by polling, in order, and streams again once it can. With mode stream they
// stay spilled until then and are delivered after that. By hand:
//
//	SLUICEBOX_TEST_ROWS=50000 go test -v -run 'TestPollingWithSpilledRows' ./cmd/internal/blackbox
func TestPollingWithSpilledRows(t *testing.T) {
	t.Parallel()
	for _, back := range []string{"while polling", "after polling"} {
		t.Run("the receiver is back "+back, func(t *testing.T) {
			t.Parallel()
			aPostgres(t, "", func(s *scene) {
				s.exec(s.kind.business)
				who := role(s.t, s.database)
				url := roleURL(s.database, who)
				name := nameFor(url)
				publish := "CREATE PUBLICATION " + name + " FOR TABLE outbox_events, outbox_dispatch_jobs WITH (publish = 'insert', publish_via_partition_root = true)"
				servers.Exec(s.t, s.database, "ALTER ROLE "+who+" REPLICATION", publish)
				s.config = preset(url, s.to.URL(), "dispatch: {global-buffer-size: 200, api-batch-size: 10, backoff: {max: 1s}}\ncheckpoint: {max-hold: 1MiB}\n")
				s.auto()
				dead := func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Status: http.StatusServiceUnavailable} }

				rows := many(s.t, 3000)
				r := s.run()
				expectMode(s.t, r, "stream") // a transaction in another database may keep the slot waiting
				s.number(1, 100, "i % 50")
				arrive(s.t, s.to, 100)
				s.to.Script(dead)
				for from := 101; from <= rows; from += 500 {
					s.number(from, min(from+499, rows), "i % 50")
					s.business(1 << 20)
				}
				s.expectSpilled(rows - 2*200 - 100)
				servers.Exec(s.t, s.database, "DROP PUBLICATION "+name)
				expectLoss(s.t, r, "log lost; taking a new snapshot", "log unreadable; polling", "CREATE PUBLICATION")
				expectMode(s.t, r, "poll")
				s.number(rows+1, rows+500, "i % 50") // also in groups with spilled rows
				if back == "while polling" {
					s.to.Script(nil)
					s.expectNumbered(rows + 500)
					s.expectNoneSpilled(r)
				}
				servers.Exec(s.t, s.database, publish)
				expectMode(s.t, r, "stream")
				s.number(rows+501, rows+1000, "i % 50")
				s.to.Script(nil)
				began := time.Now()
				s.expectNumbered(rows + 1000)
				s.t.Logf("all were delivered %s after the log was read again", time.Since(began).Round(time.Millisecond))
				s.expectUncounted(r)
				s.expectNoneSpilled(r)
				expectStop(s.t, r)
			})
		})
	}
}
