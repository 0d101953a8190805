package blackbox

import (
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// The relay does not read an idle outbox, and the traffic of another table does not make the
// server retain its log.
func TestIdleOutbox(t *testing.T) {
	t.Parallel()
	aPostgres(t, "", func(s *scene) {
		t, conn := s.t, s.conn
		servers.Exec(t, s.database, "CREATE TABLE other (n bigint)")
		r := s.run()
		write(t, s.database, load{transactions: 80, clients: 8, scripts: seedScripts(5)})()
		s.expectOnce()

		scans := func() int {
			return count(t, conn, `SELECT coalesce(sum(seq_scan + coalesce(idx_scan, 0)), 0)::int
				FROM pg_stat_user_tables WHERE relname LIKE 'outbox_%'`)
		}
		// A session reports its statistics up to 10 s after its last statement
		// (PGSTAT_IDLE_INTERVAL in the server's source).
		settled, since := scans(), time.Now()
		within(t, time.Minute, func() string {
			if now := scans(); now != settled {
				settled, since = now, time.Now()
			}
			if time.Since(since) < 12*time.Second {
				return "the statistics of the load still come in"
			}
			return ""
		})
		if settled == 0 {
			t.Fatal("the server counts no scans of the outbox at all")
		}
		began := time.Now()
		wait := write(t, s.database, load{seconds: 15, clients: 1, rate: 20, scripts: []script{{plain: "INSERT INTO other VALUES (1)"}}})
		wait()
		if now := scans(); now != settled {
			t.Errorf("%d scans of the outbox in %s without a row", now-settled, time.Since(began).Round(time.Second))
		}
		var head string // other tests keep writing after it
		if err := conn.row("SELECT pg_current_wal_lsn()::text").Scan(&head); err != nil {
			t.Fatal(err)
		}
		within(t, testTimeout, func() string {
			if n := count(t, conn, "SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND confirmed_flush_lsn >= $1::text::pg_lsn", head); n == 0 {
				return "the slot stays in front of " + head
			}
			return ""
		})
		expectStop(t, r)
	})
}
