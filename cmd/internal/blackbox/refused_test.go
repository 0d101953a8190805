package blackbox

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// theRefused is the id of the row whose COMPLETED the table refuses.
const theRefused = "X000000000001"

// A table refuses COMPLETED of one row for the whole test. The retained log stays within twice
// its limit, or three times beside other tests, because the relay and its database wait for the
// processor then. Without the fix it is all that was written, nine times the limit. No other row is
// spilled while the log is far from its limit, and the relay stays ready and names the row. After a
// kill the row is sent once more. Once the table accepts it, it is COMPLETED and its spilled
// row is deleted.
func TestARefusedOutcomeKeepsNoLog(t *testing.T) {
	t.Parallel()
	const maxHold = 4 << 20
	rest := fmt.Sprintf("checkpoint: {max-hold: %d}\n", maxHold)
	eachKind(t, rest, func(s *scene) {
		rows, limit := many(s.t, 15_000), float64(3*maxHold)
		if rows > 15_000 { // by hand, on an idle machine
			limit = 2 * maxHold
		}
		s.exec(fmt.Sprintf(s.kind.object, theRefused))
		r := s.run()
		s.exec("INSERT INTO outbox_events (id, type, message_group, payload, status, created_at) VALUES ('" + theRefused +
			"', 'EVENT', 'refused', '{\"id\": \"" + theRefused + "\", \"group\": \"refused\"}', 'PENDING', now())")
		r.waitFor("row refused by its table")
		began, most := time.Now(), r.numbersUnder(s, 1, rows)
		s.t.Logf("%d rows in %s, at most %.0f KiB of log kept", rows, time.Since(began).Round(time.Millisecond), most/1024)
		if most > limit {
			s.t.Errorf("%.0f bytes of log retained, want at most %.0f", most, limit)
		}
		r.expectRefused("not this one")
		// A machine too slow to settle in time brings the log near its limit, and then all lanes spill.
		if n := r.metric(`sluicebox_rows_spilled_total{sink="flowcatalyst"}`); n != 1 && !strings.Contains(r.said(), "retained log near limit") {
			s.t.Errorf("%.0f rows were spilled, want only the refused one", n)
		}
		within(s.t, testTimeout, func() string {
			return none(s.t, s.conn, "wait for their outcome", "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED' AND id <> '"+theRefused+"'")
		})
		r.kill()
		s.disconnected()
		r = s.run()
		within(s.t, testTimeout, func() string {
			if n := s.to.Counts().Duplicates; n != 1 {
				return fmt.Sprintf("%d rows were sent again, want the refused one", n)
			}
			return ""
		})
		r.waitFor("row refused by its table")
		r.expectRefused("not this one")
		s.exec(s.kind.unobject)
		settle(s.t, s.conn)
		s.expectNoneSpilled(r)
		within(s.t, testTimeout, func() string {
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

// numbersUnder writes rows as fast as they are delivered, and returns the peak of the
// retained log.
func (r *relay) numbersUnder(s *scene, from, to int) (most float64) {
	s.t.Helper()
	before, log := s.to.Counts().Distinct, &logWatch{s: s}
	for at := from; at <= to; at += 500 {
		s.number(at, min(at+499, to), "i % 200")
		within(s.t, testTimeout, func() string {
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
func (r *relay) expectRefused(reason string) {
	r.t.Helper()
	body := ""
	within(r.t, testTimeout, func() string { // logged before the rest of its batch is written
		if body = r.readiness(200); !strings.Contains(body, "refused rows") {
			return body
		}
		return ""
	})
	for _, part := range []string{"[+] database ok", "[!] refused rows of sink flowcatalyst warning: 1,", "row " + theRefused + " of outbox_events since ", reason} {
		if !strings.Contains(body, part) {
			r.t.Errorf("readiness has no %q:\n%s", part, body)
		}
	}
	if n := r.metric(`sluicebox_refused_rows{outbox="outbox_events",sink="flowcatalyst"}`); n != 1 {
		r.t.Errorf("%.0f rows are refused by the metrics, want 1", n)
	}
	if l := r.lane("refused"); l.State != "writing" || l.Head != theRefused || !strings.Contains(l.Error, reason) {
		r.t.Errorf("the lane is %+v", l)
	}
}

// refuser is a database whose outbox refuses COMPLETED of theRefused.
type refuser struct {
	config   string
	to       *sinktest.Receiver
	reason   string      // the database's error text
	insert   func()      // inserts theRefused
	write    func(n int) // inserts n other rows
	unobject func()
	open     func() int // counts the rows that are not COMPLETED
	gone     func()     // waits until the server has ended a killed relay's sessions
}

// On MongoDB and SQLite, too, only the refused row is spilled, and it is named. After a kill
// it is sent once more, and it is COMPLETED once the database accepts it.
func (f *refuser) test(t *testing.T) {
	const rows = 300
	r := start(t, f.config)
	r.waitFor("source connected")
	f.insert()
	r.waitFor("row refused by its table")
	f.write(rows)
	arrive(t, f.to, rows+1)
	r.expectRefused(f.reason)
	if n := r.metric(`sluicebox_rows_spilled_total{sink="flowcatalyst"}`); n != 1 {
		t.Errorf("%.0f rows were spilled, want only the refused one", n)
	}
	awaitZero(t, "rows are not COMPLETED beside the refused one", func() int { return f.open() - 1 })
	r.kill()
	f.gone()
	r = start(t, f.config)
	r.waitFor("row refused by its table")
	r.expectRefused(f.reason)
	f.unobject()
	awaitZero(t, "rows are not COMPLETED", f.open)
	awaitZero(t, "rows are parked", func() int { return int(r.metric(`sluicebox_spilled_rows{sink="flowcatalyst"}`)) })
	if c := f.to.Counts(); c.Duplicates != 1 || c.Distinct != rows+1 {
		t.Errorf("%+v of %d rows", c, rows+1)
	}
	expectStop(t, r)
}

func TestARefusedOutcomeOnSQLite(t *testing.T) {
	t.Parallel()
	source, db := seedFile(t)
	run(t, db, `CREATE TRIGGER object BEFORE UPDATE ON outbox_events WHEN NEW.id = '`+theRefused+`' AND NEW.status = 'COMPLETED'
		BEGIN SELECT RAISE(ABORT, 'not this one'); END`)
	to := sinktest.NewReceiver(t)
	(&refuser{
		config: preset(source, to.URL(), ""), to: to, reason: "not this one",
		insert: func() {
			run(t, db, "INSERT INTO outbox_events (id, type, message_group, payload, status, created_at) VALUES ('"+theRefused+
				"', 'EVENT', 'refused', '{\"id\": \""+theRefused+"\"}', 'PENDING', strftime('%Y-%m-%d %H:%M:%f', 'now'))")
		},
		write:    func(n int) { insertNumbered(t, db, 1, n) },
		unobject: func() { run(t, db, "DROP TRIGGER object") },
		open: func() (n int) {
			if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED'").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		},
		gone: func() {},
	}).test(t)
}

func TestMongoARefusedOutcome(t *testing.T) {
	t.Parallel()
	aMongo(t, "", func(s *mongoScene) {
		validate := func(filter bson.M) {
			s.must(s.db.RunCommand(t.Context(), bson.D{{Key: "collMod", Value: "outbox_events"}, {Key: "validator", Value: filter}}).Err())
		}
		validate(bson.M{"$nor": bson.A{bson.M{"_id": theRefused, "status": "COMPLETED"}}})
		insert := func(id, group string) {
			_, err := s.db.Collection("outbox_events").InsertOne(t.Context(), bson.M{
				"_id": id, "type": "EVENT", "messageGroup": group, "status": "PENDING", "retryCount": 0,
				"createdAt": bson.DateTime(1767225600000), "payload": `{"id": "` + id + `"}`,
			})
			s.must(err)
		}
		(&refuser{
			config: s.config, to: s.to, reason: "validation",
			insert: func() { insert(theRefused, "refused") },
			write: func(n int) {
				for i := range n {
					insert(numbered(i+1), fmt.Sprint(i%20))
				}
			},
			unobject: func() { validate(bson.M{}) },
			open:     func() int { return s.count(bson.M{"status": bson.M{"$ne": "COMPLETED"}}, "outbox_events") },
			gone:     s.disconnected,
		}).test(t)
	})
}
