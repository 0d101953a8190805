package blackbox

import (
	"context"
	"fmt"
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
