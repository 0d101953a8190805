package blackbox

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// script is one kind of transaction of a load: a service's business data, then the outbox row
// as its application writes it. A plain script has only the outbox statement.
type script struct {
	table, outbox, kind string
	groups              int
	// ungrouped: all rows are counted together. late: the service pauses between BEGIN, which
	// sets created_at, and its first lock. ownGroups: each writer has its own groups, so a
	// group's created_at is in commit order.
	ungrouped, late, ownGroups bool
	plain                      string
}

// seedScripts write into the two FlowCatalyst tables.
func seedScripts(groups int) []script {
	return []script{
		{table: "outbox_events", outbox: "events", kind: "EVENT", groups: groups},
		{table: "outbox_dispatch_jobs", outbox: "jobs", kind: "DISPATCH_JOB", groups: groups},
	}
}

// messageScripts write into the outbox-messages table.
func messageScripts(groups int) []script {
	return []script{{table: "outbox_messages", outbox: "messages", kind: "EVENT", groups: groups}}
}

// load describes a load.
type load struct {
	seconds, transactions int // one of them is set
	clients, rate         int // rate in transactions per second; 0 is unlimited
	scripts               []script
	broken                bool // the server fails during the load; only committed transactions count
}

// mostWritten is the time that a load may take beyond its duration.
const mostWritten = 3 * time.Minute

// most returns the time that the load may take.
func (l *load) most() time.Duration { return time.Duration(l.seconds)*time.Second + mostWritten }

// write starts a load and returns a function that waits for its end. Each of its
// transactions has committed or failed by then.
func write(t testing.TB, database string, l load) (wait func()) {
	t.Helper()
	return kindOf(database).write(t, database, l)
}

// prepare creates the tables and the counters in a database.
func prepare(t testing.TB, h host, tables func(k *kind) string) (database string, c *conn) {
	t.Helper()
	database = h.database(t)
	h.kind.run(t, database, tables(h.kind), h.kind.truth)
	return database, connect(t, database)
}

// seedTables are the two FlowCatalyst tables.
func seedTables(k *kind) string { return k.tables }

// oracle has the committed counts, by kind and group.
type oracle struct {
	kind, outbox string
}

// checkOrder compares the first arrivals of each group with its counter: all numbers from 1 to
// the counter must arrive in order. It returns the number of rows and of repeated arrivals.
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

// groups returns the group of each id, group-1 for none. If delivered rows are deleted, it
// reads a copy that a trigger kept.
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
