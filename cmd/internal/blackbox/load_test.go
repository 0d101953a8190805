package blackbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// seedTables are the two tables of the FlowCatalyst outbox processor, with its
// indices.
const seedTables = `
CREATE TABLE outbox_events (
    id VARCHAR(13) PRIMARY KEY,
    type VARCHAR(20) NOT NULL,
    message_group VARCHAR(255),
    payload TEXT NOT NULL,
    status VARCHAR(20) NOT NULL,
    retry_count INT NOT NULL DEFAULT 0,
    created_at TIMESTAMP NOT NULL,
    processed_at TIMESTAMP,
    error_message TEXT
);
CREATE INDEX idx_outbox_events_status ON outbox_events(status, message_group, created_at);
CREATE TABLE outbox_dispatch_jobs (
    id VARCHAR(13) PRIMARY KEY,
    type VARCHAR(20) NOT NULL,
    message_group VARCHAR(255),
    payload TEXT NOT NULL,
    status VARCHAR(20) NOT NULL,
    retry_count INT NOT NULL DEFAULT 0,
    created_at TIMESTAMP NOT NULL,
    processed_at TIMESTAMP,
    error_message TEXT
);
CREATE INDEX idx_outbox_dispatch_jobs_status ON outbox_dispatch_jobs(status, message_group, created_at);
`

// messagesTable is the table that FlowCatalyst's SDKs write today.
const messagesTable = `
CREATE TABLE outbox_messages (
    id VARCHAR(26) PRIMARY KEY,
    type VARCHAR(20) NOT NULL,
    message_group VARCHAR(255),
    payload TEXT NOT NULL,
    status SMALLINT NOT NULL DEFAULT 0,
    retry_count SMALLINT NOT NULL DEFAULT 0,
    created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    error_message TEXT,
    client_id VARCHAR(26),
    payload_size INT,
    headers JSONB
);
CREATE INDEX ON outbox_messages (status, message_group, created_at) WHERE status IN (0, 9);
`

// truthTables give each group of each outbox a counter. A writer holds its row to
// the commit, so the numbers in the payloads are the order of the commits.
const truthTables = `
CREATE SEQUENCE row_ids;
CREATE TABLE truth (outbox text, grp int, n bigint NOT NULL DEFAULT 0, PRIMARY KEY (outbox, grp)) WITH (fillfactor = 20);
INSERT INTO truth SELECT o, g FROM unnest(ARRAY['events', 'jobs', 'messages']) o, generate_series(1, 200) g;
`

// insertSeed is a transaction of a service: business data, then the outbox row
// as the seed's application writes it. %[1]s is the table, %[2]s its counter's
// name, %[3]s the type, %[4]d the number of groups.
const insertSeed = `\set g random(1, %[4]d)
BEGIN;
UPDATE truth SET n = n + 1 WHERE outbox = '%[2]s' AND grp = :g RETURNING n AS n \gset
SELECT lpad(nextval('row_ids')::text, 13, '0') AS id \gset
INSERT INTO %[1]s (id, type, message_group, payload, status, created_at) VALUES (':id', '%[3]s', 'group-:g', '{"id": ":id", "type": "order.created", "n": :n}', 'PENDING', now());
COMMIT;
`

// insertMessage is the same for the table of today.
const insertMessage = `\set g random(1, %[1]d)
BEGIN;
UPDATE truth SET n = n + 1 WHERE outbox = 'messages' AND grp = :g RETURNING n AS n \gset
SELECT lpad(nextval('row_ids')::text, 13, '0') AS id \gset
INSERT INTO outbox_messages (id, type, message_group, payload) VALUES (':id', 'EVENT', 'group-:g', '{"id": ":id", "type": "order.created", "n": :n}');
COMMIT;
`

func seedScripts(groups int) []string {
	return []string{
		fmt.Sprintf(insertSeed, "outbox_events", "events", "EVENT", groups),
		fmt.Sprintf(insertSeed, "outbox_dispatch_jobs", "jobs", "DISPATCH_JOB", groups),
	}
}

// load is one run of pgbench.
type load struct {
	seconds, transactions int // one of them
	clients, rate         int // transactions a second; 0 is as fast as it goes
	scripts               []string
	broken                bool // the server ends under it: what it committed counts
}

// write starts pgbench and returns a function that waits for its end. Every
// transaction it began has committed or failed then.
func write(t testing.TB, database string, l load) (wait func()) {
	t.Helper()
	path, env := servers.Pgbench(t)
	args := []string{"-n", "-c", fmt.Sprint(l.clients), "-j", "2"}
	if l.transactions > 0 {
		args = append(args, "-t", fmt.Sprint(l.transactions/l.clients))
	} else {
		args = append(args, "-T", fmt.Sprint(l.seconds))
	}
	if l.rate > 0 {
		args = append(args, "-R", fmt.Sprint(l.rate))
	}
	for i, script := range l.scripts {
		file := filepath.Join(t.TempDir(), fmt.Sprintf("script%d.sql", i))
		if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "-f", file)
	}
	cmd := exec.Command(path, append(args, database)...)
	cmd.Env = env
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return func() {
		t.Helper()
		select {
		case err := <-done:
			if failed := err != nil || !strings.Contains(out.String(), "number of failed transactions: 0"); failed != l.broken {
				t.Fatalf("pgbench: %v\n%s", err, out.String())
			}
		case <-time.After(3 * time.Minute):
			t.Fatalf("pgbench does not end:\n%s", out.String())
		}
	}
}

// prepare makes a database with tables and the counters.
func prepare(t testing.TB, version int, tables string) (database string, conn *pgx.Conn) {
	t.Helper()
	database = servers.Database(t, version)
	servers.Exec(t, database, tables, truthTables)
	return database, servers.Connect(t, database)
}

// count returns the number that a query gives.
func count(t testing.TB, conn *pgx.Conn, sql string, args ...any) int {
	t.Helper()
	var n int
	if err := conn.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// oracle is what a load committed, by kind and group.
type oracle struct {
	kind, outbox string
}

// checkOrder holds the first arrivals of each group against the counters: all
// numbers from 1 to the counter, each after the one before it. It returns how
// many rows there are and how many arrived again.
func (o oracle) checkOrder(t testing.TB, conn *pgx.Conn, taken []sinktest.Received) (rows, again int) {
	t.Helper()
	want := map[string]int{}
	rs, err := conn.Query(context.Background(), "SELECT grp, n FROM truth WHERE outbox = $1", o.outbox)
	if err != nil {
		t.Fatal(err)
	}
	for rs.Next() {
		var g, n int
		if err := rs.Scan(&g, &n); err != nil {
			t.Fatal(err)
		}
		want[fmt.Sprint("group-", g)] = n
		rows += n
	}
	if err := rs.Err(); err != nil {
		t.Fatal(err)
	}
	groups := o.groups(t, conn)
	seen, last := map[string]bool{}, map[string]int{}
	for _, r := range taken {
		if r.Kind != o.kind {
			continue
		}
		if seen[r.ID] {
			again++
			continue
		}
		seen[r.ID] = true
		var p struct{ N int }
		if err := json.Unmarshal(r.Payload, &p); err != nil {
			t.Fatalf("payload %q: %v", r.Payload, err)
		}
		g := groups[r.ID]
		if p.N != last[g]+1 {
			t.Errorf("%s %s: row %d arrived after row %d", o.outbox, g, p.N, last[g])
		}
		last[g] = p.N
	}
	for g, n := range want {
		if last[g] != n {
			t.Errorf("%s %s: %d of %d rows arrived", o.outbox, g, last[g], n)
		}
	}
	return rows, again
}

// groups returns the group of each id, group-1 for none; for a table that deletes delivered rows,
// from a copy that a trigger kept.
func (o oracle) groups(t testing.TB, conn *pgx.Conn) map[string]string {
	t.Helper()
	table := map[string]string{"events": "outbox_events", "jobs": "outbox_dispatch_jobs", "messages": "outbox_messages_copy"}[o.outbox]
	rs, err := conn.Query(context.Background(), "SELECT id, coalesce(message_group, 'group-1') FROM "+table)
	if err != nil {
		t.Fatal(err)
	}
	groups := map[string]string{}
	for rs.Next() {
		var id, g string
		if err := rs.Scan(&id, &g); err != nil {
			t.Fatal(err)
		}
		groups[id] = g
	}
	if err := rs.Err(); err != nil {
		t.Fatal(err)
	}
	return groups
}

// copyOfMessages keeps what outbox_messages had, whose rows are deleted.
const copyOfMessages = `
CREATE TABLE outbox_messages_copy (id varchar(26) PRIMARY KEY, message_group varchar(255));
CREATE FUNCTION keep_message() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN INSERT INTO outbox_messages_copy VALUES (NEW.id, NEW.message_group); RETURN NEW; END';
CREATE TRIGGER keep AFTER INSERT ON outbox_messages FOR EACH ROW EXECUTE FUNCTION keep_message();
`
