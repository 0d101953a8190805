package blackbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// The slot is dropped. The relay takes a new snapshot, but is killed before it has delivered
// those rows, so the next relay must find them again. The rows cannot be spilled in the
// meantime, because otherwise the new position could be saved.
func TestInterruptedSnapshotIsRepeated(t *testing.T) {
	t.Parallel()
	for how, end := range map[string]func(*relay){"stopped": func(r *relay) { r.stop() }, "killed": (*relay).kill} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			aPostgres(t, "", func(s *scene) {
				r := s.run()
				write(s.t, s.database, load{transactions: 16, clients: 8, scripts: seedScripts(3)})()
				rows := s.expectOnce()
				expectStop(s.t, r)
				s.dropSlot(nameFor(s.database))
				s.load(40)
				servers.Exec(s.t, s.database, "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''not now''; END'",
					"CREATE TRIGGER refuse BEFORE INSERT ON sluicebox.queue FOR EACH ROW EXECUTE FUNCTION refuse()")

				away := s.config
				s.config = strings.Replace(s.config, s.to.URL(), "http://127.0.0.1:1", 1)
				s.config += "dispatch: {request-timeout: 2s}\n" // a stop waits for spill writes, too
				r = s.run()
				// The reason is not logged if other tests' transactions delayed the new slot.
				r.waitFor(fmt.Sprintf("backlog=%d reason=", s.rows()-rows))
				r.waitFor("request failed")
				end(r)
				servers.Exec(s.t, s.database, "DROP TRIGGER refuse ON sluicebox.queue")
				s.config = away
				r = s.run()
				r.waitFor(`reason="there is no checkpoint yet"`)
				write(s.t, s.database, load{transactions: 16, clients: 8, scripts: seedScripts(3)})()
				s.expectOnce()
			})
		})
	}
}

// The server crashes at random moments under eight writers and a live relay, and loses
// COMPLETED updates that were committed asynchronously. The relay finds those rows unsettled
// and delivers them again, each group in order. No row stays PROCESSING.
func TestTheServerCrashes(t *testing.T) {
	t.Parallel()
	const rest = "dispatch: {api-batch-size: 5, max-concurrent-groups: 4}\n"
	anOwnScene(t, kinds(t), map[string]string{"fsync": "on", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}, rest, func(s *scene, server ownServer) {
		t, to := s.t, s.to
		to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Delay: 5 * time.Millisecond} })
		r := s.run()
		times := crashes(t, 2)
		for i := range times {
			before, wait := to.Counts().Distinct, func() {}
			if i%2 == 0 {
				wait = write(t, s.database, load{seconds: 60, clients: 8, rate: 600, scripts: lateScripts(50), broken: true})
				<-time.After(time.Duration(rand.Int64N(int64(round * 2 / 3)))) // at random
			} else { // crash amid outcomes that no writer's commit has flushed
				write(t, s.database, load{transactions: 1000, clients: 8, scripts: seedScripts(50)})()
				arrive(t, to, before+900)
			}
			server.Stop("immediate")
			wait()
			server.Restart(nil)
		}
		rows, again := s.expectAll()
		if again == 0 && s.kind.postgres { // only here outcomes are committed asynchronously
			t.Error("no row arrived again: the test is inconclusive")
		}
		t.Logf("%d rows under %d crashes of the server, first arrivals in order; %d were created before one that committed earlier; %d arrived again",
			rows, times, s.reordered(), again)
		expectStop(t, r)
	})
}

// A row whose table refuses its outcome, and a row that another session keeps locked, delay
// only themselves.
func TestRefusedAndLockedRowsDelayOnlyThemselves(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		s.exec(fmt.Sprintf(s.kind.object, "X000000000001"))
		r := s.run()
		hold := make(chan struct{})
		s.to.Script(func(req *sinktest.Request) sinktest.Answer {
			if req.Items[0].ID == "X000000000002" {
				return sinktest.Answer{Release: hold}
			}
			return sinktest.Answer{}
		})
		insert := "INSERT INTO outbox_events (id, type, message_group, payload, status, created_at) VALUES ('%[1]s', 'EVENT', '%[1]s', '{\"id\": \"%[1]s\"}', 'PENDING', now())"
		s.exec(fmt.Sprintf(insert, "X000000000001"), fmt.Sprintf(insert, "X000000000002"))
		arrive(s.t, s.to, 1)
		within(s.t, testTimeout, func() string {
			if n := count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE id = 'X000000000002' AND status = 'PROCESSING'"); n != 1 {
				return "the second row is not claimed"
			}
			return ""
		})
		unlock := s.lock("outbox_events WHERE id = 'X000000000002'")
		close(hold)
		r.waitFor("not this one")
		write(s.t, s.database, load{transactions: 400, clients: 8, scripts: seedScripts(20)})()
		arrive(s.t, s.to, 402)
		within(s.t, testTimeout, func() string {
			return none(s.t, s.conn, "wait for the two", "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED' AND id NOT LIKE 'X%'")
		})
		unlock()
		s.exec(s.kind.unobject)
		settle(s.t, s.conn)
		if c := s.to.Counts(); c.Duplicates > 0 || c.Distinct != 402 {
			s.t.Errorf("%+v of 402 rows", c)
		}
		expectStop(s.t, r)
	})
}

// The slot, the publication or the table is dropped or changed, with the relay running or
// stopped. Every row is delivered.
func TestTheLogIsLost(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(s *scene, name string){
		"slot made anew": func(s *scene, name string) {
			within(s.t, testTimeout, func() string {
				_, err := s.conn.exec("SELECT pg_terminate_backend(active_pid, 1000) FROM pg_replication_slots WHERE slot_name = $1 AND active", name)
				if err == nil {
					_, err = s.conn.ExecContext(context.Background(), fmt.Sprintf("SELECT pg_drop_replication_slot('%[1]s'); SELECT pg_create_logical_replication_slot('%[1]s', 'pgoutput')", name), pgx.QueryExecModeSimpleProtocol)
				}
				return failure(err)
			})
		},
		"publication made anew": func(s *scene, name string) {
			servers.Exec(s.t, s.database, "DROP PUBLICATION "+name)
			s.load(20)
			s.unlessThere("CREATE PUBLICATION " + name + " FOR TABLE outbox_events, outbox_dispatch_jobs WITH (publish = ''insert'', publish_via_partition_root = true)")
		},
		"table taken out and put back": func(s *scene, name string) {
			servers.Exec(s.t, s.database, "ALTER PUBLICATION "+name+" DROP TABLE outbox_events")
			s.load(20)
			s.unlessThere("ALTER PUBLICATION " + name + " ADD TABLE outbox_events")
		},
	} {
		for _, when := range []string{"running", "stopped"} {
			t.Run(name+", "+when, func(t *testing.T) {
				t.Parallel()
				aPostgres(t, "", func(s *scene) {
					r := s.run()
					s.load(20)
					s.expectOnce()
					if when == "stopped" {
						expectStop(s.t, r)
					}
					s.to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Status: 503} })
					s.load(20) // neither settled nor acknowledged
					spoil(s, nameFor(s.database))
					s.load(20)
					s.to.Script(nil)
					if when == "stopped" {
						s.run()
					}
					s.expectSet()
				})
			})
		}
	}
}

// unlessThere runs a statement unless the relay has created the object already. The
// statement's quotes are doubled.
func (s *scene) unlessThere(statement string) {
	s.t.Helper()
	servers.Exec(s.t, s.database, "DO 'BEGIN "+statement+"; EXCEPTION WHEN duplicate_object THEN NULL; END'")
}

func failure(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}

// A column is renamed, rows are written, and it is renamed back. The log of that time is
// unreadable, but the rows are delivered.
func TestAColumnIsRenamedAndRenamedBack(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		r := s.run()
		s.exec("ALTER TABLE outbox_events RENAME COLUMN message_group TO grp",
			"INSERT INTO outbox_events (id, type, grp, payload, status, created_at) VALUES ('X000000000001', 'EVENT', 'x', '{\"id\": \"X000000000001\"}', 'PENDING', now())")
		if code := r.exitCode(); code != 78 || !strings.Contains(r.said(), "message_group") {
			s.t.Errorf("exit code %d, want 78: %s", code, r.said())
		}
		s.exec("ALTER TABLE outbox_events RENAME COLUMN grp TO message_group")
		s.run()
		s.load(20)
		s.expectSet()
	})
}

// A fast shutdown of the server is not delayed by rows in flight, nor by a receiver that
// accepts none.
func TestAFastShutdownIsNotHeldUp(t *testing.T) {
	t.Parallel()
	anOwnScene(t, servers.Spread(t, hosts()), nil, "", func(s *scene, server ownServer) {
		t, to := s.t, s.to
		r := s.run()
		answers, longest := []sinktest.Answer{{Delay: 20 * time.Millisecond}, {Status: 503}}, time.Duration(0)
		times := crashes(t, 2)
		for i := range times {
			to.Script(func(*sinktest.Request) sinktest.Answer { return answers[i%2] })
			wait := write(t, s.database, load{seconds: 60, clients: 8, rate: tempo(300), scripts: seedScripts(20), broken: true})
			<-time.After(round / 3) // under load
			took := server.Stop("fast")
			wait()
			if longest = max(longest, took); took > s.kind.shutdown {
				t.Errorf("the server's shutdown took %s", took)
			}
			server.Restart(nil)
		}
		to.Script(nil)
		rows, again := s.expectAll()
		t.Logf("%d rows under %d shutdowns of %s at most; %d arrived again", rows, times, longest, again)
		expectStop(t, r)
	})
}
