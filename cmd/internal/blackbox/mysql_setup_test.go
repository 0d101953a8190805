package blackbox

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// seedTablesMySQL are the two FlowCatalyst tables, as the application creates them on MySQL.
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

// aFlavour runs a test on MySQL or MariaDB, or on each if selected, in parallel.
func aFlavour(t *testing.T, test func(t *testing.T, f servers.Flavour)) {
	on := servers.Spread(t, servers.Flavours())
	if len(on) == 0 {
		t.Skip("none of the selected servers")
	}
	for _, f := range on {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			test(t, f)
		})
	}
}

// userURL is the database's URL for another account, without a password.
func userURL(database, user string) string {
	return strings.Replace(database, "://root@", "://"+user+"@", 1)
}

// site is a scene in a MySQL or MariaDB database without tables.
type site struct {
	*scene
	flavour servers.Flavour
	name    string // of the database
}

// newSite creates a site on an empty database, as the administrator. rest is the rest of the
// configuration.
func newSite(t *testing.T, f servers.Flavour, database, rest string) *site {
	t.Helper()
	to := sinktest.NewReceiver(t)
	s := &site{flavour: f, scene: &scene{
		t: t, kind: mysqlKind(), database: database, conn: connect(t, database), to: to, config: preset(database, to.URL(), rest),
	}}
	if err := s.conn.row("SELECT DATABASE()").Scan(&s.name); err != nil {
		t.Fatal(err)
	}
	return s
}

// sql runs statements as the administrator.
func (s *site) sql(statements ...string) {
	s.t.Helper()
	servers.ExecMySQL(s.t, s.database, statements...)
}

// client runs a script with the client program, as an account.
func (s *site) client(url, script string) {
	s.t.Helper()
	cmd := servers.ClientMySQL(s.t, url)
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		s.t.Fatalf("%v, in:\n%s\n%s", err, script, out)
	}
}

// count returns the number that a query selects.
func (s *site) count(query string, args ...any) (n int) {
	s.t.Helper()
	return count(s.t, s.conn, query, args...)
}

// number writes the rows from..to in one transaction. group returns the message group of row
// i.
func (s *site) number(from, to int, group func(i int) int) {
	s.t.Helper()
	var rows []string
	for i := from; i <= to; i++ {
		rows = append(rows, fmt.Sprintf(`('%s', 'EVENT', '%d', '{"id": "%[1]s", "group": "%[2]d"}', 'PENDING', NOW())`, numbered(i), group(i)))
	}
	s.sql("INSERT INTO outbox_events (id, type, message_group, payload, status, created_at) VALUES " + strings.Join(rows, ", "))
}

// nine distributes rows over nine groups.
func nine(i int) int { return i % 9 }
