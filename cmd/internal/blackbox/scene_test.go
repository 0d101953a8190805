package blackbox

import (
	"context"
	"fmt"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/raced"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// scene is a database with the two FlowCatalyst tables, a receiver, and a relay's configuration.
type scene struct {
	t        *testing.T
	kind     *kind
	database string
	conn     *conn
	to       *sinktest.Receiver
	config   string
}

// aScene runs a test on one of all servers, or on each if selected, in parallel. rest is the
// rest of the configuration.
func aScene(t *testing.T, rest string, test func(s *scene)) {
	scenes(t, servers.Spread(t, hosts()), rest, test)
}

// eachKind is aScene on PostgreSQL and on MySQL or MariaDB.
func eachKind(t *testing.T, rest string, test func(s *scene)) {
	scenes(t, kinds(t), rest, test)
}

// aPostgres is aScene on PostgreSQL only.
func aPostgres(t *testing.T, rest string, test func(s *scene)) {
	aVersion(t, func(t *testing.T, version int) { test(newScene(t, postgresHost(version), rest)) })
}

func scenes(t *testing.T, all []host, rest string, test func(s *scene)) {
	onHosts(t, all, func(t *testing.T, h host) { test(newScene(t, h, rest)) })
}

// newScene creates a scene in a database of its own on a shared server.
func newScene(t *testing.T, h host, rest string) *scene {
	t.Helper()
	return sceneIn(t, h, h.database(t), rest)
}

// sceneIn creates a scene in an existing empty database.
func sceneIn(t *testing.T, h host, database, rest string) *scene {
	t.Helper()
	h.kind.run(t, database, h.kind.tables, h.kind.truth)
	to := sinktest.NewReceiver(t)
	return &scene{t: t, kind: h.kind, database: database, conn: connect(t, database), to: to, config: preset(database, to.URL(), rest)}
}

// kinds returns a PostgreSQL and a MySQL or MariaDB, or all selected servers. With the race
// detector it returns one server, because the two stores have suites with the detector.
func kinds(t *testing.T) []host {
	t.Helper()
	if raced.Enabled {
		return servers.Spread(t, hosts())
	}
	var all []host
	for _, version := range servers.Spread(t, servers.Versions()) {
		all = append(all, postgresHost(version))
	}
	for _, f := range servers.Spread(t, servers.Flavours()) {
		all = append(all, mysqlHost(f))
	}
	return all
}

func onHosts(t *testing.T, all []host, test func(t *testing.T, h host)) {
	if len(all) == 0 {
		t.Skip("none of the selected servers")
	}
	for _, h := range all {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			test(t, h)
		})
	}
}

// eachVersion runs a test on each version of PostgreSQL, in parallel, if the versions differ in
// the tested behaviour.
func eachVersion(t *testing.T, test func(t *testing.T, version int)) {
	onVersions(t, servers.Chosen(servers.Versions()), test)
}

// aVersion runs a test on one version of PostgreSQL, or on each if selected, in parallel.
func aVersion(t *testing.T, test func(t *testing.T, version int)) {
	onVersions(t, servers.Spread(t, servers.Versions()), test)
}

func onVersions(t *testing.T, versions []int, test func(t *testing.T, version int)) {
	if len(versions) == 0 {
		t.Skip("none of the selected servers")
	}
	for _, version := range versions {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			test(t, version)
		})
	}
}

// anOwnPostgres is aPostgres with a server for this test. settings are the server's, rest is
// the rest of the configuration.
func anOwnPostgres(t *testing.T, settings map[string]string, rest string, test func(s *scene, server *servers.Server)) {
	aVersion(t, func(t *testing.T, version int) {
		server := servers.Start(t, version, settings)
		test(sceneIn(t, postgresHost(version), server.URL, rest), server)
	})
}

// anOwnScene is a scene on a server for this test, on one of the hosts. settings apply to
// PostgreSQL; the others start with durable commits, as in production.
func anOwnScene(t *testing.T, hosts []host, settings map[string]string, rest string, test func(s *scene, server ownServer)) {
	onHosts(t, hosts, func(t *testing.T, h host) {
		if !h.kind.postgres {
			settings = nil
		}
		database, server := h.start(t, settings)
		test(sceneIn(t, h, database, rest), server)
	})
}

// exec runs scripts.
func (s *scene) exec(scripts ...string) {
	s.t.Helper()
	s.kind.run(s.t, s.database, scripts...)
}

// run starts a relay and waits until it reads.
func (s *scene) run() *relay {
	s.t.Helper()
	r := start(s.t, s.config)
	r.waitFor("source connected")
	return r
}

// rows returns the number of rows in both tables.
func (s *scene) rows() int {
	s.t.Helper()
	return count(s.t, s.conn, "SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_dispatch_jobs)")
}

// expectAll waits until every row of both tables has arrived and is COMPLETED, and checks the
// order of first arrivals. It returns the number of rows and of repeated arrivals.
func (s *scene) expectAll() (rows, again int) {
	s.t.Helper()
	rows = s.rows()
	arrive(s.t, s.to, rows)
	settle(s.t, s.conn)
	taken := s.to.Accepted()
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

// expectSet waits until every row has arrived and is COMPLETED, in any order.
func (s *scene) expectSet() {
	s.t.Helper()
	arrive(s.t, s.to, s.rows())
	settle(s.t, s.conn)
}

// expectOnce is expectAll, and fails if a row arrived twice.
func (s *scene) expectOnce() (rows int) {
	s.t.Helper()
	rows, again := s.expectAll()
	if again > 0 {
		s.t.Errorf("%d of %d rows arrived more than once, want 0", again, rows)
	}
	return rows
}

// arrive waits until that many different rows have arrived. It fails after testTimeout without
// another arrival.
func arrive(t testing.TB, to *sinktest.Receiver, rows int) {
	t.Helper()
	for {
		before := to.Counts().Distinct
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		err := to.Wait(ctx, rows)
		cancel()
		if err == nil {
			return
		}
		if to.Counts().Distinct == before {
			t.Fatalf("in %s no row arrived: %v", testTimeout, err)
		}
	}
}

// settle waits until every row of the FlowCatalyst tables is COMPLETED and has a processed_at.
func settle(t *testing.T, c *conn) {
	t.Helper()
	awaitZero(t, "rows are not COMPLETED with processed_at", func() int {
		const open = " WHERE status <> 'COMPLETED' OR processed_at IS NULL"
		return count(t, c, "SELECT (SELECT count(*) FROM outbox_events"+open+") + (SELECT count(*) FROM outbox_dispatch_jobs"+open+")")
	})
}

// none returns "" if a query counts no rows, and else describes the count.
func none(t *testing.T, c *conn, what, sql string) string {
	t.Helper()
	if n := count(t, c, sql); n > 0 {
		return fmt.Sprintf("%d rows %s", n, what)
	}
	return ""
}

// expectStop stops a relay and expects a clean exit.
func expectStop(t *testing.T, r *relay) {
	t.Helper()
	if code := r.stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
}
