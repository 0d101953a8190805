package postgres_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// archiveBox is flowBox with an archive.
func archiveBox() store.Outbox {
	box := flowBox
	box.Retention, box.ArchiveSchema, box.Archive = time.Hour, "old", "events"
	return box
}

// TestArchiveColumns: no column is lost, whatever the types are, and also if it is added
// while the relay runs.
func TestArchiveColumns(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable+"CREATE SCHEMA old; CREATE TABLE old.events (LIKE outbox_events);", 0, archiveBox())
		r.exec(t, "ALTER TABLE outbox_events ADD extra jsonb, ADD size int GENERATED ALWAYS AS (length(payload)) STORED, DROP COLUMN retry_count")
		r.exec(t, "ALTER TABLE outbox_events ADD retry_count int NOT NULL DEFAULT 0")
		fill := func() {
			r.exec(t, `INSERT INTO outbox_events (id, type, payload, status, created_at, processed_at, extra)
SELECT i, 'EVENT', repeat('x', i), 'COMPLETED', now(), '2024-01-01', jsonb_build_object('n', i) FROM generate_series(1, 1000) i`)
		}
		fill()
		p := store.PruneRequest{Outbox: "events", Before: time.Now(), Limit: 10_000}
		if done, err := r.store.Prune(ctx(t), r.epoch, p); err == nil || done.Rows != 0 {
			t.Errorf("an archive without the columns: got %+v, error %v", done, err)
		}
		fixes := remedies(t, r.store.Check(ctx(t)))
		if len(fixes) != 2 || fixes[0] != `ALTER TABLE "old"."events" ADD COLUMN "extra" jsonb;` {
			t.Fatalf("remedies: %q", fixes)
		}
		servers.Exec(t, url, fixes...)
		if err := r.store.Check(ctx(t)); err != nil {
			t.Fatal(err)
		}
		if n, refused := r.prune(t, 300); n != 1000 || refused != nil {
			t.Errorf("moved %d rows, %v", n, refused)
		}
		if n := ask[int](t, r.conn, `SELECT count(*) FROM old.events WHERE size = length(payload) AND size = id::int AND extra ->> 'n' = id
AND retry_count = 0 AND processed_at = '2024-01-01' AND status = 'COMPLETED'`); n != 1000 {
			t.Errorf("%d rows are in the archive as they were", n)
		}

		r.exec(t, "ALTER TABLE old.events ADD archived_at timestamptz DEFAULT now(); ALTER TABLE old.events ALTER type TYPE text")
		if err := r.store.Check(ctx(t)); err == nil || !strings.Contains(err.Error(), "column type has type text in archive") {
			t.Errorf("another type: got error %v", err)
		}
		r.exec(t, `ALTER TABLE old.events ALTER type TYPE varchar(20);
CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN CASE WHEN new.id = ''7'' THEN NULL ELSE new END; END';
CREATE TRIGGER skip BEFORE INSERT ON old.events FOR EACH ROW EXECUTE FUNCTION skip()`)
		fill()
		var refused *store.RefusedError
		done, err := r.store.Prune(ctx(t), r.epoch, p)
		if !errors.As(err, &refused) || done.Rows != 0 || !strings.Contains(err.Error(), "999 of 1000") {
			t.Errorf("an archive that skips a row: got %+v, error %v", done, err)
		}
		if left := ask[int](t, r.conn, "SELECT count(*) FROM outbox_events"); left != 1000 {
			t.Errorf("%d rows are left, want all", left)
		}
	})
}

// TestArchiveRights: the check names what the role lacks, and its statements fix it.
func TestArchiveRights(t *testing.T) {
	aVersion(t, func(t *testing.T, admin string) {
		servers.Exec(t, admin, flowTable)
		owner := openStore(t, admin, 0, flowBox)
		if err := owner.Install(ctx(t)); err != nil {
			t.Fatal(err)
		}
		role := asRole(t, admin, "relay_archive")
		servers.Exec(t, admin, "CREATE SCHEMA old; GRANT USAGE ON SCHEMA sluicebox, old TO relay_archive", "GRANT ALL ON ALL TABLES IN SCHEMA sluicebox TO relay_archive",
			"GRANT SELECT, UPDATE, DELETE ON outbox_events TO relay_archive")
		relay := openStore(t, role, 0, archiveBox())
		fixes := remedies(t, relay.Check(ctx(t)))
		if len(fixes) != 1 || !strings.HasPrefix(fixes[0], `CREATE TABLE "old"."events" (LIKE "outbox_events");`) {
			t.Fatalf("without the table: %q", fixes)
		}
		servers.Exec(t, admin, `CREATE TABLE old.events (LIKE outbox_events)`)
		fixes = remedies(t, relay.Check(ctx(t)))
		if len(fixes) != 1 || !strings.Contains(fixes[0], "GRANT INSERT") {
			t.Fatalf("without the right: %q", fixes)
		}
		servers.Exec(t, admin, fixes...)
		if err := relay.Check(ctx(t)); err != nil {
			t.Errorf("with the right: got error %v", err)
		}

		box := archiveBox()
		box.Retention = 0
		if _, err := postgres.New(postgres.Config{URL: role, Name: "rig", Outboxes: []store.Outbox{box}}); err == nil || !strings.Contains(err.Error(), "archived after their retention") {
			t.Errorf("an archive without a retention: got error %v", err)
		}
	})
}
