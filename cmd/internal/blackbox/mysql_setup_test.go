package blackbox

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// seedTablesMySQL are the seed's two tables, as its application makes them on MySQL.
const seedTablesMySQL = `
CREATE TABLE outbox_events (
    id VARCHAR(13) PRIMARY KEY,
    type VARCHAR(20) NOT NULL,
    message_group VARCHAR(255),
    payload LONGTEXT NOT NULL,
    status VARCHAR(20) NOT NULL,
    retry_count INT NOT NULL DEFAULT 0,
    created_at TIMESTAMP NOT NULL,
    processed_at TIMESTAMP NULL,
    error_message TEXT,
    INDEX idx_outbox_events_status (status, message_group, created_at)
);
CREATE TABLE outbox_dispatch_jobs (
    id VARCHAR(13) PRIMARY KEY,
    type VARCHAR(20) NOT NULL,
    message_group VARCHAR(255),
    payload LONGTEXT NOT NULL,
    status VARCHAR(20) NOT NULL,
    retry_count INT NOT NULL DEFAULT 0,
    created_at TIMESTAMP NOT NULL,
    processed_at TIMESTAMP NULL,
    error_message TEXT,
    INDEX idx_outbox_dispatch_jobs_status (status, message_group, created_at)
)`

// eachFlavour runs a test beside MySQL and beside MariaDB, in parallel.
func eachFlavour(t *testing.T, test func(t *testing.T, f servers.Flavour)) {
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			test(t, f)
		})
	}
}

// userURL is the database's URL for another account, which has no password.
func userURL(database, user string) string {
	return strings.Replace(database, "://root@", "://"+user+"@", 1)
}

// site is a database of MySQL or MariaDB, a receiver, and a relay's configuration.
type site struct {
	t        *testing.T
	flavour  servers.Flavour
	database string // as the administrator
	name     string // of the database
	db       *sql.DB
	to       *sinktest.Receiver
	config   string
}

// newSite takes an empty database. rest is the rest of the configuration.
func newSite(t *testing.T, f servers.Flavour, database, rest string) *site {
	t.Helper()
	s := &site{t: t, flavour: f, database: database, db: servers.OpenMySQL(t, database), to: sinktest.NewReceiver(t)}
	if err := s.db.QueryRowContext(t.Context(), "SELECT DATABASE()").Scan(&s.name); err != nil {
		t.Fatal(err)
	}
	s.config = preset(database, s.to.URL(), rest)
	return s
}

// sql runs statements as the administrator.
func (s *site) sql(statements ...string) {
	s.t.Helper()
	servers.ExecMySQL(s.t, s.database, statements...)
}

// client runs a script with the client, as an account.
func (s *site) client(url, script string) {
	s.t.Helper()
	cmd := servers.ClientMySQL(s.t, url)
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		s.t.Fatalf("%v, in:\n%s\n%s", err, script, out)
	}
}

// run starts a relay and waits until it reads.
func (s *site) run() *relay {
	s.t.Helper()
	r := start(s.t, s.config)
	r.waitFor("reading")
	return r
}

// count returns the number that a query gives.
func (s *site) count(query string, args ...any) (n int) {
	s.t.Helper()
	if err := s.db.QueryRowContext(s.t.Context(), query, args...).Scan(&n); err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// number writes the rows from..to in one transaction. group gives the message group of
// the row i.
func (s *site) number(from, to int, group func(i int) int) {
	s.t.Helper()
	var rows []string
	for i := from; i <= to; i++ {
		rows = append(rows, fmt.Sprintf(`('%s', 'EVENT', '%d', '{"id": "%[1]s", "group": "%[2]d"}', 'PENDING', NOW())`, numbered(i), group(i)))
	}
	s.sql("INSERT INTO outbox_events (id, type, message_group, payload, status, created_at) VALUES " + strings.Join(rows, ", "))
}

// nine spreads rows over nine groups.
func nine(i int) int { return i % 9 }

// settled waits until every row but some is COMPLETED.
func (s *site) settled(but ...string) {
	s.t.Helper()
	dwindle(s.t, "rows are not COMPLETED", func() int {
		return s.count("SELECT COUNT(*) FROM outbox_events WHERE status <> 'COMPLETED' AND NOT FIND_IN_SET(id, ?)", strings.Join(but, ","))
	})
}

// expectNumbered waits until the rows 1..n have arrived but for some, and are COMPLETED,
// and expects each once and every group in order.
func (s *site) expectNumbered(n int, but ...string) {
	s.t.Helper()
	arrive(s.t, s.to, n-len(but))
	s.settled(but...)
	if again := checkNumbered(s.t, s.to.Taken()); again > 0 {
		s.t.Errorf("%d rows arrived more than once", again)
	}
}
