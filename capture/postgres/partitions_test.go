package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// partitionedBy is the outbox as a table partitioned by a key, without partitions.
func partitionedBy(key string) string {
	return "DROP TABLE outbox_events; " + strings.Replace(createTable, "id text PRIMARY KEY", "id text", 1) + " PARTITION BY " + key
}

// TestPartitionKeyWithWrittenColumn: a row that the relay's own UPDATE moves to another
// partition arrives as an insert, and would be sent twice. Such a table is refused before
// the first row, whatever the form and level of the key.
func TestPartitionKeyWithWrittenColumn(t *testing.T) {
	t.Parallel()
	const byID = "; CREATE TABLE part PARTITION OF outbox_events DEFAULT PARTITION BY "
	for name, c := range map[string]struct{ ddl, problem string }{
		"list":       {partitionedBy("LIST (status)"), `LIST (status), and the relay writes column "status" (columns.status)`},
		"range":      {partitionedBy("RANGE (created_at, processed_at)"), `the relay writes column "processed_at" (columns.claimed)`},
		"expression": {partitionedBy("HASH (id, (coalesce(retry_count, 0) + 1))"), `the relay writes column "retry_count"`},
		"second":     {partitionedBy("RANGE (id)") + byID + "LIST (status)", `LIST (status), and the relay writes column "status"`},
		"third":      {partitionedBy("RANGE (id)") + byID + "RANGE (created_at); CREATE TABLE leaf PARTITION OF part DEFAULT PARTITION BY LIST ((status = 'PENDING'))", `the relay writes column "status"`},
	} {
		t.Run(name, func(t *testing.T) {
			aVersion(t, func(t *testing.T, version int) {
				d := newDatabase(t, servers.Database(t, version))
				servers.Exec(t, d.url, c.ddl)
				err := openErr(t, d, d.config(), store.Checkpoint{})
				if !errors.As(err, new(*capture.NoStreamError)) {
					t.Fatalf("got %v, want a *capture.NoStreamError", err)
				}
				expectText(t, err, `outbox shop: table "public"."outbox_events" is partitioned by `, c.problem, "created_at or id, or poll")
			})
		})
	}
}

// TestPartitionKeyWithoutWrittenColumn: tables with other keys are streamed.
func TestPartitionKeyWithoutWrittenColumn(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		servers.Exec(t, d.url, partitionedBy("RANGE (created_at, (length(id)))"), "CREATE TABLE part PARTITION OF outbox_events DEFAULT PARTITION BY HASH (message_group)",
			"CREATE TABLE leaf PARTITION OF part FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
		f := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("a"), "UPDATE outbox_events SET status = 'COMPLETED', processed_at = now(), retry_count = 3", insert("b"))
		f.expect("a", "b")
	})
}

// TestChildTables: rows of tables that inherit from an outbox have other names in the
// WAL. A sweep would find them after younger ones. Such a table is refused, also if the
// first child is created during a stream; its rows can be polled.
func TestChildTables(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := watched(newDatabase(t, servers.Database(t, version)))
		f := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("a"))
		f.expect("a")
		servers.Exec(t, d.url, "CREATE TABLE child (extra int) INHERITS (outbox_events)", strings.Replace(insert("b"), "outbox_events", "child", 1))
		f.expectLost("tables inherit from", "(child)")
		err := openErr(t, d, d.config(), store.Checkpoint{})
		if !errors.As(err, new(*capture.NoStreamError)) {
			t.Fatalf("got %v, want a *capture.NoStreamError", err)
		}
		expectText(t, err, `outbox shop: tables inherit from "public"."outbox_events" (child)`, "PARTITION BY", "or poll")
		if items := pollOnce(t, d.views, d.outboxes("shop")); len(items) != 2 {
			t.Errorf("polled %+v", items)
		}
		servers.Exec(t, d.url, "DROP TABLE child")
		g := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("c"))
		g.expect("a", "c")
	})
}
