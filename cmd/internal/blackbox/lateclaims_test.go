package blackbox

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// warm writes rows until one is sent before it is claimed: its only write is its outcome. It
// returns the number of the next row.
func (s *scene) warm(from int) (next int) {
	s.t.Helper()
	within(s.t, testTimeout, func() string {
		s.number(from, from, "'warm'")
		from++
		arrive(s.t, s.to, from-1)
		settle(s.t, s.conn)
		return none(s.t, s.conn, "of the last row is no outcome",
			fmt.Sprintf("SELECT count(*) FROM writes WHERE id = '%s' AND status <> 'COMPLETED'", numbered(from-1)))
	})
	return from
}

// hangAt makes requests with a row hang until release is called. insert inserts the row alone;
// hangAt waits until its request is there, so later rows wait behind it.
func hangAt(t testing.TB, to *sinktest.Receiver, id string, insert func()) (release func()) {
	t.Helper()
	hang, arrived := make(chan struct{}), make(chan struct{})
	var once sync.Once
	to.Script(func(q *sinktest.Request) sinktest.Answer {
		if slices.ContainsFunc(q.Items, func(it sinktest.Received) bool { return it.ID == id }) {
			once.Do(func() { close(arrived) })
			return sinktest.Answer{Release: hang}
		}
		return sinktest.Answer{}
	})
	insert()
	select {
	case <-arrived:
	case <-time.After(testTimeout):
		t.Fatalf("row %s did not arrive within %s", id, testTimeout)
	}
	return func() { close(hang) }
}

// staleAfter is how long after its commit a row is no longer fresh, which takes a second.
const staleAfter = 1200 * time.Millisecond

// hangTimeout is the limit for PROCESSING of a row whose request hangs. It is 200 ms without other
// tests on the machine.
func hangTimeout() time.Duration { return 200*time.Millisecond + slack()/4 }

// A fresh row is written once, with its outcome. A row whose request hangs is PROCESSING soon, and
// COMPLETED in the end. A row that waits behind it is claimed before it is sent: cancelled or
// deleted in the meantime, it is not sent.
func TestLateClaims(t *testing.T) {
	t.Parallel()
	eachKind(t, "", func(s *scene) {
		s.exec(s.kind.writes)
		r := s.run()
		n := s.warm(1)
		hanging, cancelled, deleted, last := numbered(n), numbered(n+1), numbered(n+2), n+3
		release := hangAt(s.t, s.to, hanging, func() { s.number(n, n, "'g'") })
		sent := time.Now()
		s.number(n+1, last, "'g'")
		wrote := time.Now()
		within(s.t, hangTimeout(), func() string {
			if f := s.rowState(hanging); f.status != "PROCESSING" {
				return "the row whose request hangs is " + f.status
			}
			return ""
		})
		s.t.Logf("PROCESSING was seen %s after its request arrived", time.Since(sent).Round(time.Millisecond))
		<-time.After(time.Until(wrote.Add(staleAfter)))
		s.exec("UPDATE outbox_events SET status = 'COMPLETED' WHERE id = '"+cancelled+"'", "DELETE FROM outbox_events WHERE id = '"+deleted+"'")
		release()
		s.expectNumbered(last, cancelled, deleted)
		expectStop(s.t, r)
	})
}

// The same on MongoDB.
func TestMongoLateClaims(t *testing.T) {
	t.Parallel()
	aMongo(t, "", func(s *mongoScene) {
		events := s.db.Collection("outbox_events")
		insert := func(id string) {
			s.t.Helper()
			doc := bson.M{"_id": id, "type": "EVENT", "messageGroup": "g", "payload": fmt.Sprintf(`{"id": %q}`, id), "status": "PENDING", "createdAt": time.Now()}
			if _, err := events.InsertOne(s.t.Context(), doc); err != nil {
				s.t.Fatal(err)
			}
		}
		r := s.run()
		for n := range 20 { // the first ones ask for the marker that makes later ones fresh
			insert(numbered(n))
			arrive(s.t, s.to, n+1)
		}
		claims := r.metric(`sluicebox_claim_rows_total{result="claimed"}`)
		if claims >= 20 {
			s.t.Errorf("%v of 20 documents were claimed, want fewer", claims)
		}
		release := hangAt(s.t, s.to, "hanging", func() { insert("hanging") })
		sent := time.Now()
		insert("cancelled")
		insert("last")
		wrote := time.Now()
		within(s.t, hangTimeout(), func() string {
			if s.count(bson.M{"_id": "hanging", "status": "PROCESSING"}, "outbox_events") == 1 {
				return ""
			}
			return "the document whose request hangs is not PROCESSING"
		})
		s.t.Logf("PROCESSING was seen %s after its request arrived", time.Since(sent).Round(time.Millisecond))
		<-time.After(time.Until(wrote.Add(staleAfter)))
		if _, err := events.UpdateByID(s.t.Context(), "cancelled", bson.M{"$set": bson.M{"status": "COMPLETED"}}); err != nil {
			s.t.Fatal(err)
		}
		release()
		arrive(s.t, s.to, 22)
		awaitZero(s.t, "documents are not COMPLETED", func() int { return s.count(bson.M{"status": bson.M{"$ne": "COMPLETED"}}, "outbox_events") })
		for _, got := range s.to.Accepted() {
			if got.ID == "cancelled" {
				s.t.Error("the cancelled document was sent")
			}
		}
		expectStop(s.t, r)
	})
}

// A row that the transaction which inserts it also deletes is in the log. It is sent while it is
// fresh, and not if every row is claimed first.
func TestRowDeletedByItsTransaction(t *testing.T) {
	t.Parallel()
	for mode, rest := range map[string]string{"late": "", "on": withClaims} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			aScene(t, rest, func(s *scene) {
				r := s.run()
				deleted := 0
				insert := func() {
					deleted++
					tx, err := s.conn.BeginTx(t.Context(), nil)
					if err != nil {
						t.Fatal(err)
					}
					for _, text := range []string{
						"INSERT INTO outbox_events (id, type, message_group, payload, status, created_at) VALUES ('deleted %[1]d', 'EVENT', 'g', '{\"id\": \"deleted %[1]d\"}', 'PENDING', now())",
						"DELETE FROM outbox_events WHERE id = 'deleted %d'",
					} {
						if _, err := tx.ExecContext(t.Context(), fmt.Sprintf(text, deleted)); err != nil {
							t.Fatal(err)
						}
					}
					if err := tx.Commit(); err != nil {
						t.Fatal(err)
					}
				}
				sent := func() int {
					return len(slices.DeleteFunc(slices.Clone(s.to.Accepted()), func(it sinktest.Received) bool { return !strings.HasPrefix(it.ID, "deleted ") }))
				}
				if mode == "late" {
					within(s.t, testTimeout, func() string {
						if insert(); sent() == 0 {
							return "no deleted row was sent"
						}
						return ""
					})
				} else {
					for range 20 {
						insert()
					}
				}
				s.number(1, 1, "'g'") // behind them
				within(s.t, testTimeout, func() string {
					return none(s.t, s.conn, "are not COMPLETED", "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED'")
				})
				if n := sent(); (n > 0) != (mode == "late") {
					s.t.Errorf("%d of %d deleted rows were sent", n, deleted)
				}
				expectStop(s.t, r)
			})
		})
	}
}

// The database becomes read-only under a load, and answers pings as before. The relay soon sends
// nothing, because it claims rows first. So a kill repeats few rows, and not all of a second.
func TestLateClaimsOfAReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	// What 4 senders send in lanes.ClaimAfter, what is unwritten and in flight, and the time that
	// the server and a crowded machine take.
	const most, backlog = 80, 1500
	// read_only of MariaDB spares the account of the test.
	all := slices.DeleteFunc(kinds(t), func(h host) bool { return h.name == "mariadb" })
	onHosts(t, all, func(t *testing.T, h host) {
		set := func(on bool) []string {
			if h.kind.postgres {
				return []string{fmt.Sprintf("ALTER SYSTEM SET default_transaction_read_only = %v", on), "SELECT pg_reload_conf()"}
			}
			return []string{fmt.Sprintf("SET GLOBAL super_read_only = %v", on), fmt.Sprintf("SET GLOBAL read_only = %v", on)}
		}
		database, _ := h.start(t, nil)
		s := sceneIn(t, h, database, "dispatch: {max-concurrent-groups: 4, api-batch-size: 1}\n")
		s.exec(s.kind.writes)
		r := s.run()
		n := s.warm(1)
		s.to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Delay: 5 * time.Millisecond} })
		s.number(n, n+backlog-1, "i") // one transaction: all rows are fresh at once
		arrive(s.t, s.to, n+50)
		s.exec(set(true)...)
		if taken := s.to.Counts().Distinct; taken > n+backlog/2 {
			s.t.Logf("%d of %d rows arrived before the database was read-only", taken, backlog)
		}
		quiet(s.t, s.to)
		sent := s.to.Counts().Distinct
		r.kill()
		s.exec(set(false)...)
		s.disconnected()
		completed := n + backlog - 1 - len(s.open())
		r = start(s.t, s.config)
		rows := n + backlog - 1
		arrive(s.t, s.to, rows)
		settle(s.t, s.conn)
		again := checkNumbered(s.t, s.to.Accepted())
		s.t.Logf("%d rows were sent and %d COMPLETED when the relay was killed, %d arrived again", sent, completed, again)
		if again > sent-completed || again > most {
			s.t.Errorf("%d rows arrived again, want at most %d, and at most %d", again, sent-completed, most)
		}
		expectStop(s.t, r)
	})
}

// quiet waits until a receiver gets nothing for a second.
func quiet(t testing.TB, to *sinktest.Receiver) {
	t.Helper()
	last, since := to.Counts().Requests, time.Now()
	within(t, testTimeout, func() string {
		if now := to.Counts().Requests; now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) < time.Second {
			return "rows are still sent"
		}
		return ""
	})
}

// SQLite with late claims: each row arrives once and in order, and most are written once.
func TestLateClaimsOnSQLite(t *testing.T) {
	t.Parallel()
	const rows = 600
	source, db := seedFile(t)
	run(t, db, `CREATE TABLE writes (id, status)`)
	run(t, db, `CREATE TRIGGER note AFTER UPDATE ON outbox_events BEGIN INSERT INTO writes VALUES (NEW.id, NEW.status); END`)
	to := sinktest.NewReceiver(t)
	r := start(t, preset(source, to.URL(), ""))
	r.waitFor("source connected")
	for i := 1; i <= rows; i += 3 {
		insertNumbered(t, db, i, i+2)
		arrive(t, to, i+2)
	}
	expectStop(t, r)
	if again := checkNumbered(t, to.Accepted()); again > 0 {
		t.Errorf("%d rows arrived more than once, want 0", again)
	}
	var all, completed int
	err := db.QueryRowContext(t.Context(), "SELECT count(*), count(*) FILTER (WHERE status = 'COMPLETED') FROM writes").Scan(&all, &completed)
	if err != nil || completed != rows || all > rows*3/2 {
		t.Errorf("%d writes into %d rows, %d of them COMPLETED, want at most half of the rows claimed: %v", all, rows, completed, err)
	}
	t.Logf("%d writes into %d rows", all, rows)
}
