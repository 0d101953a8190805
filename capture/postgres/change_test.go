package postgres_test

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// databaseOf returns a database of another encoding.
func databaseOf(t *testing.T, version int, encoding string) *database {
	t.Helper()
	srv := servers.Start(t, version, nil)
	servers.Exec(t, srv.URL, "CREATE DATABASE other TEMPLATE template0 ENCODING '"+encoding+"' LC_COLLATE 'C' LC_CTYPE 'C'")
	at, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	at.Path = "/other"
	d := newDatabase(t, at.String())
	d.private = true
	return d
}

// TestInvalidUTF8: a database with encoding SQL_ASCII accepts any bytes. A payload
// of such bytes is relayed unchanged. A row whose id or group is not UTF-8 ends the
// stream with its name, and no other row is lost.
func TestInvalidUTF8(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := databaseOf(t, version, "SQL_ASCII")
		r := run(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("a"), `INSERT INTO outbox_events (id, payload) VALUES ('payload', E'x\377y')`)
		r.next()
		if it := r.next().Items[0]; it.ID != "payload" || string(it.Payload) != "x\xffy" {
			t.Errorf("row %q with payload %q", it.ID, it.Payload)
		}
		servers.Exec(t, d.url, "UPDATE outbox_events SET status = 'COMPLETED'",
			`INSERT INTO outbox_events (id, message_group, payload) VALUES ('group', E'\377', 'p')`, insert("b"))
		err := r.runError()
		var lost *capture.LostError
		if !errors.As(err, &lost) {
			t.Fatalf("the run ended with %v", err)
		}
		expectText(t, err, `table public.outbox_events: row "group"`, `column "message_group" is "\xff", which is not UTF-8`, "SQL_ASCII")
		servers.Exec(t, d.url, "UPDATE outbox_events SET message_group = 'fixed' WHERE id = 'group'")
		f := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("c"))
		f.expect("group", "b", "c")
	})
}

// TestUnreadableLog: a row that the server cannot convert to UTF-8 stops its stream
// at the same position each time. The source does not treat that as a lost connection
// forever.
func TestUnreadableLog(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := databaseOf(t, version, "EUC_CN")
		f := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("a"), `INSERT INTO outbox_events (id, payload) VALUES ('bad', E'\242\241')`, insert("b"))
		began := time.Now()
		f.expectLost("is unreadable after 7 attempts", `has no equivalent in encoding "UTF8"`)
		if took := time.Since(began); took > testTimeout {
			t.Errorf("losing the log took %s", took)
		}
		if n := len(f.disconnects()); n < 3 || n > 10 {
			t.Errorf("%d failures were reported: %v", n, f.disconnects())
		}
		expectText(t, f.disconnects()[1], "read log after", "2 consecutive failures")
		servers.Exec(t, d.url, "UPDATE outbox_events SET payload = 'fixed' WHERE id = 'bad'")
		g := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("c"))
		g.expect("a", "bad", "b", "c")
	})
}

// TestRowWithoutID: a row without an id cannot be settled. It ends the stream, and a
// snapshot continues after it.
func TestRowWithoutID(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		servers.Exec(t, d.url, "ALTER TABLE outbox_events DROP CONSTRAINT outbox_events_pkey", "ALTER TABLE outbox_events ALTER id DROP NOT NULL")
		f := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("a"), "INSERT INTO outbox_events (payload) VALUES ('p')", insert("b"))
		f.expectLost("NULL in its id column", "public.outbox_events")
		g := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("c"))
		g.expect("a", "b", "c")
	})
}

// TestTableRecreated: a table that is dropped and recreated is another table.
func TestTableRecreated(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		f := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("a"))
		f.expect("a")
		servers.Exec(t, d.url, "DROP TABLE outbox_events", createTable, insert("b"))
		f.expectLost("recreated")
		servers.Exec(t, d.url, insert("c"))
		g := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("d"))
		g.expect("b", "c", "d")
	})
}

func TestTableDropped(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		f := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, "DROP TABLE outbox_events")
		f.expectLost("changed")
		err := openErr(t, d, d.config(), store.Checkpoint{})
		var setup *store.SetupError
		if !errors.As(err, &setup) || errors.As(err, new(*capture.NoStreamError)) {
			t.Errorf("a table that is gone can be polled: %v", err)
		}
		expectText(t, err, `table "outbox_events" does not exist`)
	})
}

// TestTableRenamedAndBack: a table that is renamed and gets its name back is read
// throughout, for longer than the check of the publication takes. The table with its name
// meanwhile is not an outbox.
func TestTableRenamedAndBack(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		cfg := d.config()
		cfg.HeartbeatInterval = 100 * time.Millisecond // checks as often
		f := follow(t, d, cfg, store.Checkpoint{})
		looks := func() { awaitHeartbeats(t, f, 5) }
		servers.Exec(t, d.url, insert("a"), "ALTER TABLE outbox_events RENAME TO away", "INSERT INTO away (id, payload) VALUES ('b', 'p')")
		f.expect("a", "b")
		looks()
		servers.Exec(t, d.url, "ALTER TABLE away RENAME TO outbox_events", insert("c"))
		f.expect("a", "b", "c")
		looks()
		servers.Exec(t, d.url, insert("d"))
		f.expect("a", "b", "c", "d")
		if lost := f.disconnects(); len(lost) > 0 {
			t.Errorf("connections were lost: %v", lost)
		}
		servers.Exec(t, d.url, "ALTER TABLE outbox_events RENAME TO away", "CREATE VIEW outbox_events AS TABLE away")
		f.expectLost("changed")
		expectText(t, openErr(t, d, cfg, store.Checkpoint{}), "is not a table")
	})
}

// awaitHeartbeats returns after the log has brought n positions without rows. A check of
// the publication follows each heartbeat.
func awaitHeartbeats(t *testing.T, f *following, n int) {
	t.Helper()
	timeout := time.After(testTimeout)
	for range n {
		select {
		case b := <-f.out:
			f.take(b)
		case err := <-f.done:
			f.done = nil
			t.Fatalf("the source ended with %v", err)
		case <-timeout:
			t.Fatal("no heartbeat arrived")
		}
	}
}

// TestColumnsRetyped: columns change their types during the stream, also to types created
// after the source opened.
func TestColumnsRetyped(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		servers.Exec(t, d.url, "DROP TABLE outbox_events", strings.Replace(createTable, "id text", "id int", 1))
		f := follow(t, d, d.config(), store.Checkpoint{})
		var want []string
		for i, ddl := range []string{
			"SELECT 1", "ALTER TABLE outbox_events ALTER id TYPE bigint", "ALTER TABLE outbox_events ALTER id TYPE text",
			"ALTER TABLE outbox_events ALTER payload TYPE jsonb USING '{\"k\": 1}'::jsonb", "ALTER TABLE outbox_events REPLICA IDENTITY FULL",
			"ALTER TABLE outbox_events ADD COLUMN extra bytea DEFAULT 'x', ADD COLUMN more int NOT NULL DEFAULT 1", "ALTER TABLE outbox_events DROP COLUMN extra",
			"ALTER TABLE outbox_events ALTER retry_count TYPE bigint", "CREATE DOMAIN body AS bytea; CREATE DOMAIN blob AS body; ALTER TABLE outbox_events ALTER payload TYPE blob USING 'x'::bytea",
			"VACUUM FULL outbox_events", "CLUSTER outbox_events USING outbox_events_pkey",
		} {
			want = append(want, fmt.Sprint(i))
			payload := `'{"k": 1}'`
			servers.Exec(t, d.url, ddl, fmt.Sprintf("INSERT INTO outbox_events (id, payload) VALUES ('%d', %s)", i, payload))
			b := f.next()
			if b.Items[0].ID != want[i] || string(b.Items[0].Payload) != `{"k": 1}` || len(b.Items) != 1 {
				t.Errorf("after %s: %+v with payload %s", ddl, b.Items, b.Items[0].Payload)
			}
		}
		f.expect(want...)
		if lost := f.disconnects(); len(lost) > 0 {
			t.Errorf("connections were lost: %v", lost)
		}
	})
}

// TestColumnRenamed: a column that the layout needs is renamed, and the stream ends with
// its name. Once it is back, a snapshot brings the rows that the WAL cannot.
func TestColumnRenamed(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		f := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("a"))
		f.expect("a")
		servers.Exec(t, d.url, "ALTER TABLE outbox_events RENAME payload TO body", "INSERT INTO outbox_events (id, body) VALUES ('b', 'p')")
		err := f.waitForEnd()
		var setup *store.SetupError
		if !errors.As(err, &setup) || errors.As(err, new(*capture.NoStreamError)) {
			t.Fatalf("the source ended with %v", err)
		}
		expectText(t, err, `without column "payload"`)
		servers.Exec(t, d.url, "ALTER TABLE outbox_events RENAME body TO payload", insert("c"))
		// The relay restarts at its checkpoint: the WAL still has the other name.
		follow(t, d, d.config(), store.Checkpoint{Origin: f.o.Origin, Position: f.o.From}).expectLost("without payload, which it has by now")
		g := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("d"))
		g.expect("a", "b", "c", "d")
	})
}

// TestColumnBecomesGenerated: a column that becomes a generated one is missing from the
// WAL, but the table can be polled.
func TestColumnBecomesGenerated(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		f := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, "ALTER TABLE outbox_events DROP message_group",
			"ALTER TABLE outbox_events ADD message_group text GENERATED ALWAYS AS (substr(payload, 1, 1)) STORED",
			"INSERT INTO outbox_events (id, payload) VALUES ('a', 'p')")
		f.expectLost("without message_group, which it has by now")
		var no *capture.NoStreamError
		if err := openErr(t, d, d.config(), store.Checkpoint{}); !errors.As(err, &no) {
			t.Errorf("got %v, want a *capture.NoStreamError", err)
		}
	})
}

// TestSelectRevoked: SELECT on the outbox belongs to the store. The stream continues
// without it, and a snapshot reports the missing privilege and leaves no slot.
func TestSelectRevoked(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		d.role = d.newRole(t, "app", "REPLICATION")
		script(publish, "GRANT SELECT ON outbox_events TO "+d.role)(t, d)
		f := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("a"), "REVOKE SELECT ON outbox_events FROM "+d.role, insert("b"))
		f.expect("a", "b")
	})
}
