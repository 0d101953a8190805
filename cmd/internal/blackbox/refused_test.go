package blackbox

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// theRefused is the id of the row whose COMPLETED the table refuses.
const theRefused = "X000000000001"

// A table refuses COMPLETED of one row, for as long as the test lasts. The log that the
// database keeps stays within twice its bound, no other row is parked, and the relay
// stays ready and names the row. After a kill the row is sent once more, and once the
// table takes it, it is COMPLETED and forgotten.
func TestARefusedOutcomeKeepsNoLog(t *testing.T) {
	t.Parallel()
	const maxHold = 4 << 20
	rest := fmt.Sprintf("checkpoint: {max-hold: %d}\n", maxHold)
	eachKind(t, rest, func(s *scene) {
		rows := many(s.t, 15_000)
		s.exec(fmt.Sprintf(s.kind.object, theRefused))
		r := s.run()
		s.exec("INSERT INTO outbox_events (id, type, message_group, payload, status, created_at) VALUES ('" + theRefused +
			"', 'EVENT', 'refused', '{\"id\": \"" + theRefused + "\", \"group\": \"refused\"}', 'PENDING', now())")
		r.waitFor("row refused by its table")
		began, most := time.Now(), r.numbersUnder(s, 1, rows)
		s.t.Logf("%d rows in %s, at most %.0f KiB of log kept", rows, time.Since(began).Round(time.Millisecond), most/1024)
		if most > 2*maxHold {
			s.t.Errorf("%.0f bytes of log were kept, want at most twice %d", most, maxHold)
		}
		r.expectRefused(s)
		if n := r.metric(`sluicebox_rows_parked_total{sink="flowcatalyst"}`); n != 1 {
			s.t.Errorf("%.0f rows were parked, want the refused one alone", n)
		}
		within(s.t, patience, func() string {
			return none(s.t, s.conn, "wait for their outcome", "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED' AND id <> '"+theRefused+"'")
		})
		r.kill()
		s.disconnected()
		r = s.run()
		within(s.t, patience, func() string {
			if n := s.to.Counts().Duplicates; n != 1 {
				return fmt.Sprintf("%d rows were sent again, want the refused one", n)
			}
			return ""
		})
		r.waitFor("row refused by its table")
		r.expectRefused(s)
		s.exec(s.kind.unobject)
		settle(s.t, s.conn)
		s.expectNoneParked(r)
		within(s.t, patience, func() string {
			if body := r.readiness(200); strings.Contains(body, "refused") {
				return body
			}
			return ""
		})
		if c := s.to.Counts(); c.Duplicates != 1 || c.Distinct != rows+1 {
			s.t.Errorf("%+v of %d rows", c, rows+1)
		}
		expectStop(s.t, r)
	})
}

// numbersUnder writes rows as fast as they are delivered, and returns the most log that
// was kept meanwhile.
func (r *relay) numbersUnder(s *scene, from, to int) (most float64) {
	s.t.Helper()
	before, log := s.to.Counts().Distinct, &logWatch{s: s}
	for at := from; at <= to; at += 500 {
		s.number(at, min(at+499, to), "i % 200")
		within(s.t, patience, func() string {
			log.look()
			most = max(most, float64(log.most), r.metric("sluicebox_source_retained_bytes"))
			if n := s.to.Counts().Distinct - before; n < at-from {
				return fmt.Sprintf("%d rows have arrived", n)
			}
			return ""
		})
	}
	return most
}

// expectRefused expects the relay to name the refused row and to be ready.
func (r *relay) expectRefused(s *scene) {
	s.t.Helper()
	body := ""
	within(s.t, patience, func() string { // it is logged before the rest of its statement is written
		if body = r.readiness(200); !strings.Contains(body, "refused rows") {
			return body
		}
		return ""
	})
	for _, part := range []string{"[+] database ok", "[!] refused rows of sink flowcatalyst warning: 1,", "row " + theRefused + " of outbox_events since ", "not this one"} {
		if !strings.Contains(body, part) {
			s.t.Errorf("readiness has no %q:\n%s", part, body)
		}
	}
	if n := r.metric(`sluicebox_refused_rows{outbox="outbox_events",sink="flowcatalyst"}`); n != 1 {
		s.t.Errorf("%.0f rows are refused by the metrics", n)
	}
	if l := r.lane("refused"); l.State != "writing" || l.Head != theRefused || !strings.Contains(l.Error, "not this one") {
		s.t.Errorf("the lane is %+v", l)
	}
}
