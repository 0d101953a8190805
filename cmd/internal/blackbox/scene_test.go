package blackbox

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// scene is a database with the seed's two tables, a receiver, and the
// configuration of a relay between them.
type scene struct {
	t        *testing.T
	database string
	conn     *pgx.Conn
	to       *sinktest.Receiver
	config   string
}

// aScene runs a test beside one version of the server, or each if that is asked
// for, in parallel. rest is the rest of the configuration.
func aScene(t *testing.T, rest string, test func(s *scene)) {
	aVersion(t, func(t *testing.T, version int) {
		database, conn := prepare(t, version, seedTables)
		to := sinktest.NewReceiver(t)
		test(&scene{t: t, database: database, conn: conn, to: to, config: preset(database, to.URL(), rest)})
	})
}

// eachVersion runs a test beside each version of the server, in parallel: what the
// versions do differently needs that.
func eachVersion(t *testing.T, test func(t *testing.T, version int)) {
	onVersions(t, servers.Versions(), test)
}

// aVersion runs a test beside one version of the server, or each if that is asked
// for, in parallel.
func aVersion(t *testing.T, test func(t *testing.T, version int)) {
	onVersions(t, servers.Spread(t, servers.Versions()), test)
}

func onVersions(t *testing.T, versions []int, test func(t *testing.T, version int)) {
	for _, version := range versions {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			test(t, version)
		})
	}
}

// anOwnScene is aScene with a server that the test has to itself. settings are
// those of the server, rest is the rest of the configuration.
func anOwnScene(t *testing.T, settings map[string]string, rest string, test func(s *scene, server *servers.Server)) {
	aVersion(t, func(t *testing.T, version int) {
		server := servers.Start(t, version, settings)
		servers.Exec(t, server.URL, seedTables, truthTables)
		to := sinktest.NewReceiver(t)
		test(&scene{t: t, database: server.URL, conn: servers.Connect(t, server.URL), to: to, config: preset(server.URL, to.URL(), rest)}, server)
	})
}

// run starts a relay and waits until it reads.
func (s *scene) run() *relay {
	s.t.Helper()
	r := start(s.t, s.config)
	r.waitFor("reading")
	return r
}

// rows is how many rows both tables have.
func (s *scene) rows() int {
	s.t.Helper()
	return count(s.t, s.conn, "SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_dispatch_jobs)")
}

// expectAll waits until every row of both tables has arrived and is COMPLETED,
// and holds the order of the first arrivals against the truth. It returns how
// many rows there are and how many arrived again.
func (s *scene) expectAll() (rows, again int) {
	s.t.Helper()
	rows = s.rows()
	arrive(s.t, s.to, rows)
	settle(s.t, s.conn)
	taken := s.to.Taken()
	events, againEvents := oracle{"EVENT", "events"}.checkOrder(s.t, s.conn, taken)
	jobs, againJobs := oracle{"DISPATCH_JOB", "jobs"}.checkOrder(s.t, s.conn, taken)
	if events+jobs != rows {
		s.t.Errorf("%d events and %d jobs of %d rows", events, jobs, rows)
	}
	return rows, againEvents + againJobs
}

// load commits transactions, one after the other.
func (s *scene) load(transactions int) {
	s.t.Helper()
	write(s.t, s.database, load{transactions: transactions, clients: 1, scripts: seedScripts(3)})()
}

// expectSet waits until every row has arrived and is COMPLETED, in whatever
// order.
func (s *scene) expectSet() {
	s.t.Helper()
	arrive(s.t, s.to, s.rows())
	settle(s.t, s.conn)
}

// expectOnce is expectAll where nothing may arrive twice.
func (s *scene) expectOnce() (rows int) {
	s.t.Helper()
	rows, again := s.expectAll()
	if again > 0 {
		s.t.Errorf("%d of %d rows arrived more than once", again, rows)
	}
	return rows
}

// arrive waits until so many different rows have arrived. It fails once none more
// has arrived for as long as patience.
func arrive(t testing.TB, to *sinktest.Receiver, rows int) {
	t.Helper()
	for {
		before := to.Counts().Distinct
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err := to.Wait(ctx, rows)
		cancel()
		if err == nil {
			return
		}
		if to.Counts().Distinct == before {
			t.Fatalf("in %s no row arrived: %v", patience, err)
		}
	}
}

// settle waits until every row of the seed's tables is COMPLETED and has a
// processed_at.
func settle(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	dwindle(t, "rows are not COMPLETED with processed_at", func() int {
		const open = " WHERE status <> 'COMPLETED' OR processed_at IS NULL"
		return count(t, conn, "SELECT (SELECT count(*) FROM outbox_events"+open+") + (SELECT count(*) FROM outbox_dispatch_jobs"+open+")")
	})
}

// none says how many rows a query finds that should find none.
func none(t *testing.T, conn *pgx.Conn, what, sql string) string {
	t.Helper()
	if n := count(t, conn, sql); n > 0 {
		return fmt.Sprintf("%d rows %s", n, what)
	}
	return ""
}

// expectStop ends a relay cleanly.
func expectStop(t *testing.T, r *relay) {
	t.Helper()
	if code := r.stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}
