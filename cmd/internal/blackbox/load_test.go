package blackbox

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// script is one kind of transaction of a load: a service's business data, then the
// outbox row as its application writes it. Of plain it is nothing but the statement.
type script struct {
	table, outbox, kind string
	groups              int
	// ungrouped rows are all those of one counter. late is a service that works
	// between its begin, when created_at is, and its first lock. ownGroups are
	// those of one writer, so that a group's created_at are in the order of its
	// commits.
	ungrouped, late, ownGroups bool
	plain                      string
}

// seedScripts write into the seed's two tables.
func seedScripts(groups int) []script {
	return []script{
		{table: "outbox_events", outbox: "events", kind: "EVENT", groups: groups},
		{table: "outbox_dispatch_jobs", outbox: "jobs", kind: "DISPATCH_JOB", groups: groups},
	}
}

// messageScripts write into the table of today.
func messageScripts(groups int) []script {
	return []script{{table: "outbox_messages", outbox: "messages", kind: "EVENT", groups: groups}}
}

// load is what writers write.
type load struct {
	seconds, transactions int // one of them
	clients, rate         int // transactions a second; 0 is as fast as it goes
	scripts               []script
	broken                bool // the server ends under it: what it committed counts
}

// mostWritten is how long a load may take longer than it should.
const mostWritten = 3 * time.Minute

// write starts a load and returns a function that waits for its end. Every
// transaction that it began has committed or failed then.
func write(t testing.TB, database string, l load) (wait func()) {
	t.Helper()
	return kindOf(database).write(t, database, l)
}

// prepare makes a database with the counters and other tables.
func prepare(t testing.TB, h host, tables func(k *kind) string) (database string, c *conn) {
	t.Helper()
	database = h.database(t)
	h.kind.run(t, database, tables(h.kind), h.kind.truth)
	return database, connect(t, database)
}

// seedTables are the two tables of the seed.
func seedTables(k *kind) string { return k.tables }

// oracle is what a load committed, by kind and group.
type oracle struct {
	kind, outbox string
}

// checkOrder holds the first arrivals of each group against the counters: all
// numbers from 1 to the counter, each after the one before it. It returns how
// many rows there are and how many arrived again.
func (o oracle) checkOrder(t testing.TB, c *conn, taken []sinktest.Received) (rows, again int) {
	t.Helper()
	want := map[string]int{}
	err := c.each("SELECT grp, n FROM truth WHERE outbox = $1", []any{o.outbox}, func(scan func(...any) error) error {
		var g, n int
		err := scan(&g, &n)
		want[fmt.Sprint("group-", g)] = n
		rows += n
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	groups := o.groups(t, c)
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
func (o oracle) groups(t testing.TB, c *conn) map[string]string {
	t.Helper()
	table := map[string]string{"events": "outbox_events", "jobs": "outbox_dispatch_jobs", "messages": "outbox_messages_copy"}[o.outbox]
	groups := map[string]string{}
	err := c.each("SELECT id, coalesce(message_group, 'group-1') FROM "+table, nil, func(scan func(...any) error) error {
		var id, g string
		err := scan(&id, &g)
		groups[id] = g
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return groups
}
