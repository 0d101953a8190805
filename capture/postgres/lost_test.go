package postgres_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// script returns a way to lose the log by statements, in which @NAME@ is the relay's
// name.
func script(statements ...string) func(*testing.T, capturetest.Database) {
	return func(t *testing.T, db capturetest.Database) {
		d := db.(*database)
		for _, s := range statements {
			servers.Exec(t, d.url, strings.ReplaceAll(s, "@NAME@", d.name))
		}
	}
}

const (
	dropSlot = `DO $$ BEGIN LOOP
	PERFORM pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = '@NAME@' AND active;
	BEGIN PERFORM pg_drop_replication_slot('@NAME@'); RETURN; EXCEPTION WHEN object_in_use THEN END; END LOOP; END $$`
	remakeSlot = `SELECT pg_create_logical_replication_slot('@NAME@', 'pgoutput')`
	publish    = `CREATE PUBLICATION @NAME@ FOR TABLE outbox_events WITH (publish = 'insert', publish_via_partition_root = true)`
	// swapTable replaces the outbox by another table with all its rows.
	swapTable = `BEGIN; LOCK TABLE outbox_events; CREATE TABLE next (LIKE outbox_events INCLUDING ALL); INSERT INTO next SELECT * FROM outbox_events;
	ALTER TABLE outbox_events RENAME TO last; ALTER TABLE next RENAME TO outbox_events; COMMIT`
	partition = `BEGIN; LOCK TABLE outbox_events; CREATE TABLE next (LIKE outbox_events INCLUDING ALL) PARTITION BY HASH (id);
	ALTER TABLE outbox_events RENAME TO last; ALTER TABLE next RENAME TO outbox_events;
	CREATE TABLE part_1 PARTITION OF outbox_events FOR VALUES WITH (MODULUS 2, REMAINDER 1); CREATE TABLE part_0 PARTITION OF outbox_events FOR VALUES WITH (MODULUS 2, REMAINDER 0);
	INSERT INTO outbox_events SELECT * FROM last; COMMIT`
)

// losses are ways to lose the log that the relay's role may repair.
func losses() map[string]func(*testing.T, capturetest.Database) {
	return map[string]func(*testing.T, capturetest.Database){
		"slot dropped":                         script(dropSlot),
		"slot dropped and recreated":           script(dropSlot, remakeSlot),
		"publication dropped":                  script("DROP PUBLICATION @NAME@"),
		"publication dropped and recreated":    script("DROP PUBLICATION @NAME@; " + publish),
		"table removed and added back":         script("ALTER PUBLICATION @NAME@ DROP TABLE outbox_events; ALTER PUBLICATION @NAME@ ADD TABLE outbox_events"),
		"table removed":                        script("ALTER PUBLICATION @NAME@ DROP TABLE outbox_events"),
		"publish changed and changed back":     script("ALTER PUBLICATION @NAME@ SET (publish = 'delete')", "ALTER PUBLICATION @NAME@ SET (publish = 'insert')"),
		"row filter, removed again":            script("ALTER PUBLICATION @NAME@ SET TABLE outbox_events WHERE (retry_count = 7)", "ALTER PUBLICATION @NAME@ SET TABLE outbox_events"),
		"column list, removed again":           script("ALTER PUBLICATION @NAME@ SET TABLE outbox_events (id)", "ALTER PUBLICATION @NAME@ SET TABLE outbox_events"),
		"column list with all that is needed":  script("ALTER PUBLICATION @NAME@ SET TABLE outbox_events (id, message_group, payload, retry_count)"),
		"published by its schema":              script("ALTER PUBLICATION @NAME@ SET TABLES IN SCHEMA public"),
		"published by its schema, and no more": script("ALTER PUBLICATION @NAME@ SET TABLES IN SCHEMA public", "ALTER PUBLICATION @NAME@ SET TABLE unrelated"),
		"table replaced":                       script(swapTable),
		"table replaced by a partitioned one":  script(partition),
	}
}

// faults are problems that the role may not fix, or that it leaves to the operator.
func faults() []capturetest.Fault {
	whole := script(`ALTER PUBLICATION "@NAME@" DROP TABLE "public"."outbox_events"; ALTER PUBLICATION "@NAME@" ADD TABLE "public"."outbox_events";`)
	return []capturetest.Fault{
		{
			Name: "row filter", Break: script("ALTER PUBLICATION @NAME@ SET TABLE outbox_events WHERE (retry_count = 7)"),
			Fix: whole, Remedy: `DROP TABLE "public"."outbox_events"; ALTER PUBLICATION`,
		},
		{
			Name: "column list", Break: script("ALTER PUBLICATION @NAME@ SET TABLE outbox_events (id, created_at)"),
			Fix: whole, Remedy: "omits layout columns",
		},
		{
			Name: "publish changed", Break: script("ALTER PUBLICATION @NAME@ SET (publish = 'update')"),
			Fix:    script("ALTER PUBLICATION @NAME@ SET (publish = 'insert', publish_via_partition_root = true)"),
			Remedy: "SET (publish = 'insert', publish_via_partition_root = true);",
		},
	}
}

// faultsOfRole are problems of a role that owns neither the table nor the publication.
func faultsOfRole() []capturetest.Fault {
	return []capturetest.Fault{
		{
			Name: "publication of another owner dropped", Break: script("DROP PUBLICATION @NAME@"),
			Fix: script(publish), Remedy: "run `CREATE PUBLICATION",
		},
		{
			Name: "table of another owner removed", Break: script("ALTER PUBLICATION @NAME@ SET TABLE unrelated"),
			Fix: script("ALTER PUBLICATION @NAME@ ADD TABLE outbox_events"), Remedy: "ADD TABLE",
		},
		{
			Name: "REPLICATION revoked", Break: func(t *testing.T, db capturetest.Database) {
				d := db.(*database)
				servers.Exec(t, d.url, "ALTER ROLE "+d.role+" NOREPLICATION")
				d.Disconnect(t)
			},
			Fix: func(t *testing.T, db capturetest.Database) {
				d := db.(*database)
				servers.Exec(t, d.url, "ALTER ROLE "+d.role+" REPLICATION")
			},
			Remedy: "REPLICATION;`",
		},
	}
}

// faultsOfServer affect more than one database.
func faultsOfServer() []capturetest.Fault {
	return []capturetest.Fault{
		{
			Name: "old transaction in the way", Break: func(t *testing.T, db capturetest.Database) {
				d := db.(*database)
				d.old = servers.Connect(t, d.url)
				if _, err := d.old.Exec(t.Context(), "BEGIN; INSERT INTO unrelated VALUES (1)", pgx.QueryExecModeSimpleProtocol); err != nil {
					t.Fatal(err)
				}
				script(dropSlot)(t, db)
			},
			Fix: func(t *testing.T, db capturetest.Database) {
				if _, err := db.(*database).old.Exec(t.Context(), "COMMIT"); err != nil {
					t.Fatal(err)
				}
			},
			Remedy: "waits for the transaction of pid",
		},
	}
}
