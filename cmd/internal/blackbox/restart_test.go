package blackbox

import (
	"testing"
	"time"
)

// A day of log lies behind the checkpoint, most of it settled by another session. The unsettled
// rows are sent in order from the start on, and the settled ones take no memory. By hand:
//
//	SLUICEBOX_TEST_ROWS=1000000 … -run TestADayOfLog
func TestADayOfLog(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		rows := many(s.t, 12_000)
		r := s.run()
		s.number(1, 10, "'group-' || (i % 10)")
		s.expectNumbered(10)
		expectStop(s.t, r)

		const each = 10_000
		for from := 11; from <= rows; from += each {
			s.number(from, min(from+each-1, rows), "'group-' || (i % 1000)")
		}
		settle := "UPDATE outbox_events SET status = 'COMPLETED', processed_at = now() WHERE status = 'PENDING' AND right(id, 2) NOT IN ('00', '50')"
		if _, err := s.conn.exec(settle); err != nil {
			s.t.Fatal(err)
		}
		waiting := count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE status = 'PENDING'")

		began := time.Now()
		r = s.run()
		reading := time.Since(began)
		arrive(s.t, s.to, 10+1)
		first := time.Since(began)
		arrive(s.t, s.to, 10+waiting)
		all := time.Since(began)
		within(s.t, time.Minute, func() string {
			return none(s.t, s.conn, "are not COMPLETED", "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED'")
		})
		if again := checkNumbered(s.t, s.to.Accepted()); again > 0 {
			s.t.Errorf("%d rows arrived more than once, want 0", again)
		}
		if n := len(s.to.Accepted()); n != 10+waiting {
			s.t.Errorf("%d rows arrived, %d waited", n, 10+waiting)
		}
		s.t.Logf("%d rows in the log, %d of them unsettled: reading after %s, the first sent after %s, the last after %s",
			rows, waiting, reading.Round(time.Millisecond), first.Round(time.Millisecond), all.Round(time.Millisecond))
		r.expectSmall()
		expectStop(s.t, r)
	})
}
