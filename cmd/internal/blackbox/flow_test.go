package blackbox

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// loadSeconds is how long the loads of real input last.
const loadSeconds = 30

// eachVersion runs a test beside each version of the server, in parallel.
func eachVersion(t *testing.T, test func(t *testing.T, version int)) {
	for _, version := range servers.Versions() {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			test(t, version)
		})
	}
}

// arrive waits until so many different rows have arrived.
func arrive(t *testing.T, to *sinktest.Receiver, rows int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := to.Wait(ctx, rows); err != nil {
		t.Fatal(err)
	}
}

// A service writes into both tables of the seed; every row arrives once, in
// commit order within its group, and is COMPLETED.
func TestRealInput(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, version int) {
		database, conn := prepare(t, version, seedTables)
		to := sinktest.NewReceiver(t)
		r := start(t, preset(database, to.URL(), ""))
		r.waitFor("reading")
		write(t, database, load{seconds: loadSeconds, clients: 8, rate: 300, scripts: seedScripts(50)})()

		rows := count(t, conn, "SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_dispatch_jobs)")
		arrive(t, to, rows)
		within(t, 10*time.Second, func() string { return unsettled(t, conn) })
		taken := to.Taken()
		events, again := oracle{"EVENT", "events"}.checkOrder(t, conn, taken)
		jobs, againJobs := oracle{"DISPATCH_JOB", "jobs"}.checkOrder(t, conn, taken)
		if events+jobs != rows || rows < loadSeconds*200 {
			t.Errorf("%d events and %d jobs of %d rows", events, jobs, rows)
		}
		if again+againJobs > 0 {
			t.Errorf("%d rows arrived more than once", again+againJobs)
		}
		t.Logf("%d rows, each once and in order; not yet visible at the first claim: %.0f", rows, r.metric(`sluicebox_claims_total{result="not_yet_visible"}`))
		if code := r.stop(); code != 0 {
			t.Errorf("exit code %d after SIGTERM", code)
		}
	})
}

// unsettled says which rows of the seed's tables are not COMPLETED with a
// processed_at, "" if there are none.
func unsettled(t *testing.T, conn *pgx.Conn) string {
	for _, table := range []string{"outbox_events", "outbox_dispatch_jobs"} {
		if n := count(t, conn, "SELECT count(*) FROM "+table+" WHERE status <> 'COMPLETED' OR processed_at IS NULL"); n > 0 {
			return fmt.Sprintf("%d rows of %s are not COMPLETED with processed_at", n, table)
		}
	}
	return ""
}

// The same through today's table and wire: delivered rows are deleted.
func TestRealInputOfToday(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, version int) {
		database, conn := prepare(t, version, messagesTable+copyOfMessages)
		to := sinktest.NewReceiver(t)
		r := start(t, fmt.Sprintf(`
name: %s
source: {url: %q}
outboxes:
  - {table: outbox_messages, layout: outbox-messages, sink: platform}
sinks:
  platform: {type: flowcatalyst, wire: items, api-base-url: %q}
admin: {listen: %s}
`, nameFor(database), database, to.URL(), adminKey))
		r.waitFor("reading")
		write(t, database, load{seconds: loadSeconds, clients: 8, rate: 300, scripts: []string{fmt.Sprintf(insertMessage, 50)}})()

		rows := count(t, conn, "SELECT count(*) FROM outbox_messages_copy")
		arrive(t, to, rows)
		within(t, 10*time.Second, func() string {
			if n := count(t, conn, "SELECT count(*) FROM outbox_messages"); n > 0 {
				return fmt.Sprintf("%d rows were not deleted", n)
			}
			return ""
		})
		n, again := oracle{"EVENT", "messages"}.checkOrder(t, conn, to.Taken())
		if n != rows || rows < loadSeconds*200 || again > 0 {
			t.Errorf("%d of %d rows, %d more than once", n, rows, again)
		}
		if code := r.stop(); code != 0 {
			t.Errorf("exit code %d after SIGTERM", code)
		}
	})
}

// The relay is killed five times under load: everything arrives, and the first
// arrivals of each group are in order.
func TestKilledUnderLoad(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, version int) {
		database, conn := prepare(t, version, seedTables)
		to := sinktest.NewReceiver(t)
		config := preset(database, to.URL(), "")
		r := start(t, config)
		r.waitFor("reading")
		wait := write(t, database, load{seconds: loadSeconds, clients: 8, rate: 300, scripts: seedScripts(50)})
		for kill := 1; kill <= 5; kill++ {
			arrive(t, to, kill*loadSeconds*300/6)
			r.kill()
			r = start(t, config)
			r.waitFor("reading")
		}
		wait()
		rows := count(t, conn, "SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_dispatch_jobs)")
		arrive(t, to, rows)
		within(t, 20*time.Second, func() string { return unsettled(t, conn) })
		taken := to.Taken()
		events, again := oracle{"EVENT", "events"}.checkOrder(t, conn, taken)
		jobs, againJobs := oracle{"DISPATCH_JOB", "jobs"}.checkOrder(t, conn, taken)
		if events+jobs != rows {
			t.Errorf("%d events and %d jobs of %d rows", events, jobs, rows)
		}
		t.Logf("%d rows under 5 kills, first arrivals in order; %d arrived again", rows, again+againJobs)
	})
}

// Eight writers at full speed: the log is ahead of what statements see, and no
// row is dropped for it.
func TestClaimedStraightBehindTheStream(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, version int) {
		const rows = 25_000
		database, conn := prepare(t, version, seedTables)
		to := sinktest.NewReceiver(t)
		r := start(t, preset(database, to.URL(), ""))
		r.waitFor("reading")
		write(t, database, load{transactions: rows, clients: 8, scripts: seedScripts(200)})()
		arrive(t, to, rows)
		within(t, 20*time.Second, func() string { return unsettled(t, conn) })
		taken := to.Taken()
		events, again := oracle{"EVENT", "events"}.checkOrder(t, conn, taken)
		jobs, againJobs := oracle{"DISPATCH_JOB", "jobs"}.checkOrder(t, conn, taken)
		if events+jobs != rows || again+againJobs > 0 {
			t.Errorf("%d of %d rows, %d more than once", events+jobs, rows, again+againJobs)
		}
		if gone := r.metric(`sluicebox_claims_total{result="gone"}`); gone > 0 {
			t.Errorf("%.0f rows were taken for gone", gone)
		}
		t.Logf("%d rows; %.0f claims found a row not yet visible, none was dropped", rows, r.metric(`sluicebox_claims_total{result="not_yet_visible"}`))
	})
}

// The stream has a role of its own, which may read the log and no table; the
// relay's other role may not stream.
func TestRoleForTheStream(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, version int) {
		database, conn := prepare(t, version, seedTables)
		who := role(t, version, database)
		relayURL := roleURL(database, who)
		servers.Exec(t, database, "CREATE ROLE "+who+"_stream LOGIN REPLICATION",
			"CREATE PUBLICATION "+nameFor(relayURL)+" FOR TABLE outbox_events, outbox_dispatch_jobs WITH (publish = 'insert', publish_via_partition_root = true)")
		t.Cleanup(func() { servers.Exec(t, database, "DROP ROLE "+who+"_stream") })
		to := sinktest.NewReceiver(t)
		yaml := preset(relayURL, to.URL(), "")
		r := start(t, strings.Replace(yaml, "source: {", fmt.Sprintf("source: {mode: stream, stream-url: %q, ", roleURL(database, who+"_stream")), 1))
		r.waitFor("reading")
		write(t, database, load{transactions: 80, clients: 8, scripts: seedScripts(5)})()
		arrive(t, to, 80)
		within(t, 10*time.Second, func() string { return unsettled(t, conn) })
		if code := r.stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	})
}

// Rows that were there before the first start come first, in created_at order,
// whether they were PENDING or left in PROCESSING; settled ones are left alone.
func TestBacklogOfTheFirstStart(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, version int) {
		database, conn := prepare(t, version, seedTables)
		servers.Exec(t, database, `INSERT INTO outbox_events (id, type, message_group, payload, status, created_at)
			SELECT 'B' || lpad(i::text, 12, '0'), 'EVENT', 'g', format('{"id": "B%s"}', lpad(i::text, 12, '0')),
				CASE WHEN i % 3 = 0 THEN 'PROCESSING' WHEN i % 7 = 0 THEN 'COMPLETED' ELSE 'PENDING' END, timestamp '2026-01-01' + (500 - i) * interval '1 s'
			FROM generate_series(1, 400) i`)
		to := sinktest.NewReceiver(t)
		wait := write(t, database, load{seconds: 3, clients: 4, rate: 200, scripts: seedScripts(10)})
		r := start(t, preset(database, to.URL(), ""))
		wait()
		rows := count(t, conn, "SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_dispatch_jobs)") -
			count(t, conn, "SELECT count(*) FROM outbox_events WHERE message_group = 'g' AND processed_at IS NULL AND status = 'COMPLETED'")
		arrive(t, to, rows)
		last := ""
		for _, got := range to.Taken() {
			if !strings.HasPrefix(got.ID, "B") {
				continue
			}
			if last != "" && got.ID >= last {
				t.Errorf("row %s arrived after %s, which is younger", got.ID, last)
			}
			last = got.ID
		}
		if c := to.Counts(); c.Duplicates > 0 || c.Distinct != rows {
			t.Errorf("%+v of %d rows", c, rows)
		}
		within(t, 10*time.Second, func() string {
			if n := count(t, conn, "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED'"); n > 0 {
				return fmt.Sprintf("%d rows are not COMPLETED", n)
			}
			return ""
		})
		if code := r.stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	})
}

// More rows than the buffer holds are refused by name, and no slot is left
// behind to keep the server's log.
func TestBacklogLargerThanTheBuffer(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, version int) {
		database, conn := prepare(t, version, seedTables)
		servers.Exec(t, database, `INSERT INTO outbox_events (id, type, payload, status, created_at)
			SELECT i::text, 'EVENT', '{}', 'PENDING', now() FROM generate_series(1, 101) i`)
		expectEnd(t, preset(database, "http://127.0.0.1:1", "dispatch: {global-buffer-size: 100}\n"), 78,
			"more than 100 unsettled rows", "outbox_events", "global-buffer-size")
		if n := count(t, conn, "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"); n > 0 {
			t.Error("a slot is left behind")
		}
	})
}

// A clean stop in the middle of a load leaves no row PROCESSING, and nothing
// arrives twice after the next start.
func TestCleanStopUnderLoad(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, version int) {
		database, conn := prepare(t, version, seedTables)
		to := sinktest.NewReceiver(t)
		config := preset(database, to.URL(), "")
		r := start(t, config)
		r.waitFor("reading")
		wait := write(t, database, load{seconds: 6, clients: 8, rate: 500, scripts: seedScripts(20)})
		for stop := 1; stop <= 3; stop++ {
			arrive(t, to, stop*500)
			if code := r.stop(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if n := count(t, conn, "SELECT count(*) FROM outbox_events WHERE status = 'PROCESSING'"); n > 0 {
				t.Errorf("%d rows are left PROCESSING by a clean stop", n)
			}
			r = start(t, config)
			r.waitFor("reading")
		}
		wait()
		rows := count(t, conn, "SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_dispatch_jobs)")
		arrive(t, to, rows)
		within(t, 10*time.Second, func() string { return unsettled(t, conn) })
		events, again := oracle{"EVENT", "events"}.checkOrder(t, conn, to.Taken())
		jobs, againJobs := oracle{"DISPATCH_JOB", "jobs"}.checkOrder(t, conn, to.Taken())
		if events+jobs != rows || again+againJobs > 0 {
			t.Errorf("%d of %d rows, %d more than once", events+jobs, rows, again+againJobs)
		}
		r.kill()
	})
}

// A poisoned row is FAILED with its reason after its retries; its group goes on,
// in order.
func TestAPoisonedRowIsFailed(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, version int) {
		database, conn := prepare(t, version, seedTables)
		to := sinktest.NewReceiver(t)
		to.Script(func(r *sinktest.Request) sinktest.Answer {
			for _, it := range r.Items {
				if it.ID == "0000000000050" {
					return sinktest.Answer{Status: 400, Body: []byte(`{"error":"schema: no such type"}`)}
				}
			}
			return sinktest.Answer{}
		})
		r := start(t, preset(database, to.URL(), "dispatch: {max-retries: 2, backoff: {initial: 20ms}}\n"))
		r.waitFor("reading")
		servers.Exec(t, database, `INSERT INTO outbox_events (id, type, message_group, payload, status, created_at)
			SELECT lpad(i::text, 13, '0'), 'EVENT', 'g', format('{"id": "%s"}', lpad(i::text, 13, '0')), 'PENDING', now()
			FROM generate_series(1, 100) i`)
		arrive(t, to, 99)
		r.waitFor("a row is FAILED")
		var status, reason string
		var retries int
		within(t, 10*time.Second, func() string {
			err := conn.QueryRow(context.Background(), "SELECT status, retry_count, coalesce(error_message, '') FROM outbox_events WHERE id = '0000000000050'").Scan(&status, &retries, &reason)
			if err != nil || status != "FAILED" || retries != 2 || !strings.Contains(reason, "no such type") {
				return fmt.Sprintf("the row is %s after %d retries: %s %v", status, retries, reason, err)
			}
			return ""
		})
		var last string
		for _, got := range to.Taken() {
			if got.ID <= last {
				t.Errorf("row %s arrived after %s", got.ID, last)
			}
			last = got.ID
		}
		if n := to.Counts().Requests; n > 40 {
			t.Errorf("%d requests for 100 rows with one poisoned", n)
		}
		if n := count(t, conn, "SELECT count(*) FROM outbox_events WHERE status = 'COMPLETED' AND retry_count = 0"); n != 99 {
			t.Errorf("%d of 99 rows are COMPLETED without a retry", n)
		}
	})
}

// An outbox that is added to the configuration later has rows from before; they
// are delivered too.
func TestAnOutboxAddedLater(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, version int) {
		database, conn := prepare(t, version, seedTables)
		to := sinktest.NewReceiver(t)
		both := preset(database, to.URL(), "")
		r := start(t, strings.Replace(both, "flowcatalyst: {", "flowcatalyst: {dispatch-jobs-table: '', ", 1))
		r.waitFor("reading")
		write(t, database, load{transactions: 160, clients: 8, scripts: seedScripts(5)})()
		events := count(t, conn, "SELECT count(*) FROM outbox_events")
		arrive(t, to, events)
		within(t, 10*time.Second, func() string {
			if n := count(t, conn, "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED'"); n > 0 {
				return fmt.Sprintf("%d events are not COMPLETED", n)
			}
			return ""
		})
		if code := r.stop(); code != 0 {
			t.Fatalf("exit code %d", code)
		}
		start(t, both).waitFor("reading")
		arrive(t, to, 160)
		within(t, 10*time.Second, func() string { return unsettled(t, conn) })
		if c := to.Counts(); c.Duplicates > 0 {
			t.Errorf("%d rows arrived more than once", c.Duplicates)
		}
	})
}
