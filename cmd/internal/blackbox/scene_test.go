package blackbox

import (
	"context"
	"fmt"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// scene is a database with the seed's two tables, a receiver, and the
// configuration of a relay between them.
type scene struct {
	t        *testing.T
	kind     *kind
	database string
	conn     *conn
	to       *sinktest.Receiver
	config   string
}

// aScene runs a test beside one of all servers, or each if that is asked for, in
// parallel. rest is the rest of the configuration.
func aScene(t *testing.T, rest string, test func(s *scene)) {
	scenes(t, servers.Spread(t, hosts()), rest, test)
}

// eachKind is aScene beside a PostgreSQL and beside MySQL or MariaDB.
func eachKind(t *testing.T, rest string, test func(s *scene)) {
	scenes(t, kinds(t), rest, test)
}

// aPostgres is aScene for what only PostgreSQL has.
func aPostgres(t *testing.T, rest string, test func(s *scene)) {
	aVersion(t, func(t *testing.T, version int) { test(newScene(t, postgresHost(version), rest)) })
}

func scenes(t *testing.T, all []host, rest string, test func(s *scene)) {
	onHosts(t, all, func(t *testing.T, h host) { test(newScene(t, h, rest)) })
}

// newScene makes a scene in a database of its own in a shared server.
func newScene(t *testing.T, h host, rest string) *scene {
	t.Helper()
	return sceneIn(t, h, h.database(t), rest)
}

// sceneIn makes a scene in a database that is there and empty.
func sceneIn(t *testing.T, h host, database, rest string) *scene {
	t.Helper()
	h.kind.run(t, database, h.kind.tables, h.kind.truth)
	to := sinktest.NewReceiver(t)
	return &scene{t: t, kind: h.kind, database: database, conn: connect(t, database), to: to, config: preset(database, to.URL(), rest)}
}

// kinds are a PostgreSQL and a MySQL or MariaDB, or all servers if they are asked for.
func kinds(t *testing.T) []host {
	t.Helper()
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
		t.Skip("none of the servers that were asked for")
	}
	for _, h := range all {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			test(t, h)
		})
	}
}

// eachVersion runs a test beside each version of PostgreSQL, in parallel: what the
// versions do differently needs that.
func eachVersion(t *testing.T, test func(t *testing.T, version int)) {
	onVersions(t, servers.Chosen(servers.Versions()), test)
}

// aVersion runs a test beside one version of PostgreSQL, or each if that is asked
// for, in parallel.
func aVersion(t *testing.T, test func(t *testing.T, version int)) {
	onVersions(t, servers.Spread(t, servers.Versions()), test)
}

func onVersions(t *testing.T, versions []int, test func(t *testing.T, version int)) {
	if len(versions) == 0 {
		t.Skip("none of the servers that were asked for")
	}
	for _, version := range versions {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			test(t, version)
		})
	}
}

// anOwnPostgres is aPostgres with a server that the test has to itself. settings are
// those of the server, rest is the rest of the configuration.
func anOwnPostgres(t *testing.T, settings map[string]string, rest string, test func(s *scene, server *servers.Server)) {
	aVersion(t, func(t *testing.T, version int) {
		server := servers.Start(t, version, settings)
		test(sceneIn(t, postgresHost(version), server.URL, rest), server)
	})
}

// anOwnScene is a scene on a server that the test has to itself, of some hosts.
// settings are those of PostgreSQL; the others begin as durable as a user has them.
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
func settle(t *testing.T, c *conn) {
	t.Helper()
	dwindle(t, "rows are not COMPLETED with processed_at", func() int {
		const open = " WHERE status <> 'COMPLETED' OR processed_at IS NULL"
		return count(t, c, "SELECT (SELECT count(*) FROM outbox_events"+open+") + (SELECT count(*) FROM outbox_dispatch_jobs"+open+")")
	})
}

// none says how many rows a query finds that should find none.
func none(t *testing.T, c *conn, what, sql string) string {
	t.Helper()
	if n := count(t, c, sql); n > 0 {
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
