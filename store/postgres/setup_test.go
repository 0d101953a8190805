package postgres_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func withDatabase(t *testing.T, raw, name string) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

// asRole creates a role that may only log in, and returns a URL for it.
func asRole(t *testing.T, raw, role string) string {
	t.Helper()
	servers.Exec(t, raw, "DROP ROLE IF EXISTS "+role, "CREATE ROLE "+role+" LOGIN")
	t.Cleanup(func() { cleanUp(t, raw, "DROP OWNED BY "+role, "DROP ROLE "+role) })
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(role)
	return u.String()
}

// cleanUp runs statements after the test's own context has ended.
func cleanUp(t *testing.T, raw string, statements ...string) {
	c, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	conn, err := pgx.Connect(c, raw)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = conn.Close(c) }()
	for _, statement := range statements {
		if _, err := conn.Exec(c, statement); err != nil {
			t.Errorf("%v, in: %s", err, statement)
		}
	}
}

// remedies returns the statements among the lines of an error's remedy.
func remedies(t *testing.T, err error) []string {
	t.Helper()
	var setup *store.SetupError
	if !errors.As(err, &setup) {
		t.Fatalf("got %v, want a *store.SetupError", err)
	}
	var list []string
	for line := range strings.Lines(setup.Remedy) {
		if line = strings.TrimSpace(line); strings.HasSuffix(line, ";") {
			list = append(list, line)
		}
	}
	return list
}

// TestGrants starts with a role without privileges, runs the statements from the errors,
// and ends with a working relay. The table's names need quotes.
func TestGrants(t *testing.T) {
	aVersion(t, func(t *testing.T, admin string) {
		recording := store.FlowCatalyst()
		recording.Record = []store.RecordColumn{{Receipt: "topic", Column: "kafka topic"}}
		for _, box := range []store.Outbox{
			{Name: "events", Schema: "Shop", Table: `out"box`, Kind: "EVENT", Layout: recording},
			{Name: "events", Schema: "Shop", Table: "outbox_messages", Layout: store.OutboxMessages()},
		} {
			t.Run(box.Layout.Name, func(t *testing.T) { testGrants(t, admin, box) })
		}
	})
}

func testGrants(t *testing.T, admin string, box store.Outbox) {
	table := postgres.TableName(&box)
	servers.Exec(t, admin, `DROP SCHEMA IF EXISTS sluicebox CASCADE; DROP SCHEMA IF EXISTS "Shop" CASCADE; CREATE SCHEMA "Shop"`)
	servers.Exec(t, admin, append(dialect().Create(&box), "ALTER TABLE "+table+" ADD secret text")...)
	relay := openStore(t, asRole(t, admin, "relay_"+strings.ReplaceAll(box.Layout.Name, "-", "_")), 0, box)
	err := relay.Install(ctx(t))
	grants := remedies(t, err)
	if !strings.Contains(err.Error(), "sluicebox init --print") || len(grants) != 5 {
		t.Fatalf("install without rights: %v", err)
	}
	// The remedy: the script as another role, then the grants.
	servers.Exec(t, admin, relay.Script())
	err = relay.Check(ctx(t))
	for _, want := range []string{"sluicebox", `"Shop"`, "SELECT", "UPDATE", table} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("check does not name %s: %v", want, err)
		}
	}
	if deletes := strings.Contains(err.Error(), "GRANT DELETE ON "+table); deletes != box.Layout.DeleteDelivered {
		t.Errorf("Check requires DELETE: got %t, in %v", deletes, err)
	}
	if names := strings.Contains(err.Error(), `"kafka topic"`); names != (len(box.Layout.Record) > 0) {
		t.Errorf("Check requires UPDATE of the column for receipts: got %t, in %v", names, err)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("Check requires a column that the layout does not name: %v", err)
	}
	servers.Exec(t, admin, remedies(t, err)...)
	if err := relay.Check(ctx(t)); err != nil {
		t.Fatalf("after the grants: %v", err)
	}
	if err := relay.Install(ctx(t)); err != nil {
		t.Errorf("Install on installed tables: %v", err)
	}
	exerciseRelay(t, admin, relay, box)
}

// exerciseRelay takes three rows through every operation of a relay.
func exerciseRelay(t *testing.T, admin string, relay *postgres.Store, box store.Outbox) {
	t.Helper()
	c := box.Layout.Columns
	names, values := c.ID+", "+c.Payload+", "+c.Status+", created_at", "'{}', '"+box.Layout.Words[store.Pending]+"', now()"
	if box.Layout.State == store.StateNumbers {
		values = "'{}', 0, now()"
	}
	servers.Exec(t, admin, "INSERT INTO "+postgres.TableName(&box)+" ("+names+") SELECT id, "+values+" FROM unnest('{1,2,3}'::text[]) id")
	epoch, err := relay.AcquireLeadership(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	view, err := relay.View(ctx(t), "")
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	if items, err := view.Unsettled(ctx(t), store.UnsettledQuery{Outbox: box.Name, Limit: 9}); err != nil || len(items) != 3 {
		t.Errorf("view: %v, %v", items, err)
	}
	if _, err := relay.Claim(ctx(t), epoch, origin, []store.ClaimRow{row("1"), row("2"), row("3")}); err != nil {
		t.Error(err)
	}
	outcomes := []store.Outcome{outcome("1", store.Completed), outcome("2", store.Failed), outcome("3", store.Pending), outcome("4", store.Completed)}
	if _, err := relay.Settle(ctx(t), epoch, outcomes); err != nil {
		t.Error(err)
	}
	if err := relay.SaveCheckpoint(ctx(t), epoch, store.Checkpoint{Position: "p"}); err != nil {
		t.Error(err)
	}
	if cp, err := relay.LoadCheckpoint(ctx(t)); err != nil || cp.Position != "p" {
		t.Errorf("checkpoint %+v, %v", cp, err)
	}
	for what, err := range rigs.Replay(ctx(t), relay, epoch, box.Name) {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestBeforeInit: without the relay's tables each call returns the remedy, except Lock.
// Several relays may then create them at once.
func TestBeforeInit(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		servers.Exec(t, url, flowTable)
		r := &rig{url: url, conn: servers.Connect(t, url), store: openStore(t, url, 0, flowBox)}
		r.insert(t, "1")
		_, holds := r.store.LoadHolds(ctx(t))
		_, checkpoint := r.store.LoadCheckpoint(ctx(t))
		_, leader := r.store.Leader(ctx(t))
		_, lead := r.store.AcquireLeadership(ctx(t))
		calls := rigs.Replay(ctx(t), r.store, 41, "events")
		delete(calls, "states") // they are in the outbox
		calls["check"], calls["holds"], calls["checkpoint"], calls["leader"], calls["lead"] = r.store.Check(ctx(t)), holds, checkpoint, leader, lead
		for what, err := range calls {
			rigs.WantSetup(t, what, err, "sluicebox init")
		}
		if lock, err := r.store.Lock(ctx(t)); err != nil {
			t.Errorf("lock: %v", err)
		} else {
			_, err := openStore(t, url, 0, flowBox).Lock(ctx(t))
			if !errors.As(err, new(*store.LockedError)) {
				t.Errorf("a second lock: %v", err)
			}
			lock.Release()
		}

		c := ctx(t)
		installed := make(chan error, 3)
		for range cap(installed) {
			st := openStore(t, url, 0, flowBox)
			go func() { installed <- st.Install(c) }()
		}
		for range cap(installed) {
			if err := <-installed; err != nil {
				t.Error(err)
			}
		}
		r.install(t)
		r.failRows(t, "2")
		if n := r.holds(t); n != 1 {
			t.Errorf("%d holds", n)
		}
	})
}

func TestNewerVersion(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		r.exec(t, "UPDATE sluicebox.meta SET version = 99")
		for name, err := range map[string]error{"install": r.store.Install(ctx(t)), "check": r.store.Check(ctx(t))} {
			var setup *store.SetupError
			if !errors.As(err, &setup) || !strings.Contains(err.Error(), "version 99") || !strings.Contains(err.Error(), "newer release") {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestUnreleasedTables: tables of an unreleased version are not taken for current ones.
func TestUnreleasedTables(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		for _, version := range []string{"1", "6"} {
			servers.Exec(t, url, "DROP SCHEMA IF EXISTS sluicebox CASCADE", "CREATE SCHEMA sluicebox",
				"CREATE TABLE sluicebox.meta (one boolean PRIMARY KEY DEFAULT true, version integer NOT NULL)",
				"CREATE TABLE sluicebox.leader (name text PRIMARY KEY, epoch bigint NOT NULL, raised_at timestamptz NOT NULL)",
				"INSERT INTO sluicebox.meta (version) VALUES ("+version+")")
			st := openStore(t, url, 0, flowBox)
			rigs.WantSetup(t, "install", st.Install(ctx(t)), "sluicebox.record", "DROP SCHEMA sluicebox CASCADE", "sluicebox init")
			rigs.WantSetup(t, "check", st.Check(ctx(t)), "sluicebox.record", "DROP SCHEMA sluicebox CASCADE")
			_, err := st.LoadCheckpoint(ctx(t))
			rigs.WantSetup(t, "load", err, "sluicebox.record", "sluicebox init")
			if may, err := st.MayInstall(ctx(t)); may || err != nil {
				t.Errorf("version %s may be installed: %t, %v", version, may, err)
			}
		}
	})
}

// TestScriptIsWhatInstallRuns compares the tables that both create.
func TestScriptIsWhatInstallRuns(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		const schema = `
SELECT string_agg(line, E'\n' ORDER BY line) FROM (
  SELECT format('%s.%s %s %s', table_name, column_name, data_type, is_nullable) AS line
  FROM information_schema.columns WHERE table_schema = 'sluicebox'
  UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'sluicebox'
  UNION ALL SELECT 'version ' || version FROM sluicebox.meta) l`
		installed := ask[string](t, r.conn, schema)
		r.exec(t, "DROP SCHEMA sluicebox CASCADE")
		servers.Exec(t, url, r.store.Script())
		if printed := ask[string](t, r.conn, schema); printed != installed {
			t.Errorf("script creates\n%s\nInstall creates\n%s", printed, installed)
		}
	})
}

func TestCheckReportsFaults(t *testing.T) {
	aVersion(t, func(t *testing.T, admin string) {
		servers.Exec(t, admin, flowTable)
		relayURL := asRole(t, admin, "relay_check")
		boot := openStore(t, admin, 0, flowBox)
		if err := boot.Install(ctx(t)); err != nil {
			t.Fatal(err)
		}
		servers.Exec(t, admin, "GRANT ALL ON SCHEMA sluicebox TO relay_check", "GRANT ALL ON ALL TABLES IN SCHEMA sluicebox, public TO relay_check")
		for _, c := range []struct {
			name, change, undo string
			want               []string
		}{
			{"no index", "ALTER TABLE outbox_events DROP CONSTRAINT outbox_events_pkey", "ALTER TABLE outbox_events ADD PRIMARY KEY (id)",
				[]string{"no unique index", "CREATE UNIQUE INDEX CONCURRENTLY ON \"outbox_events\" (\"id\");"}},
			{"row-level security", "ALTER TABLE outbox_events ENABLE ROW LEVEL SECURITY", "ALTER TABLE outbox_events DISABLE ROW LEVEL SECURITY",
				[]string{"row-level security", "BYPASSRLS"}},
			{"a short status", "ALTER TABLE outbox_events ALTER status TYPE varchar(9)", "ALTER TABLE outbox_events ALTER status TYPE varchar(20)",
				[]string{`"PROCESSING"`, "character varying(9)"}},
			{"a time of another type", "ALTER TABLE outbox_events ALTER processed_at TYPE text", "ALTER TABLE outbox_events ALTER processed_at TYPE timestamp USING NULL",
				[]string{"processed_at", "text", "timestamp"}},
			{"a count of another type", "ALTER TABLE outbox_events ALTER retry_count TYPE text", "ALTER TABLE outbox_events ALTER retry_count TYPE int USING 0",
				[]string{"retry_count", "integer"}},
			{"a column renamed", "ALTER TABLE outbox_events RENAME error_message TO err", "ALTER TABLE outbox_events RENAME err TO error_message",
				[]string{"no column error_message", "its columns are id, type, message_group, payload, status, retry_count, created_at, processed_at, err"}},
			{"an own table lost", "ALTER TABLE sluicebox.queue RENAME TO gone", "ALTER TABLE sluicebox.gone RENAME TO queue",
				[]string{"sluicebox.queue does not exist", "sluicebox init"}},
			{"the records lost", "ALTER TABLE sluicebox.record RENAME TO gone", "ALTER TABLE sluicebox.gone RENAME TO record",
				[]string{"no table sluicebox.record", "DROP SCHEMA sluicebox CASCADE", "sluicebox init"}},
			{"an older version", "UPDATE sluicebox.meta SET version = 0", "UPDATE sluicebox.meta SET version = 1",
				[]string{"version 0; this program needs 1", "sluicebox init"}},
			{"a view", "ALTER TABLE outbox_events RENAME TO t; CREATE VIEW outbox_events AS SELECT * FROM t", "DROP VIEW outbox_events; ALTER TABLE t RENAME TO outbox_events",
				[]string{"is not a table"}},
		} {
			servers.Exec(t, admin, c.change)
			relay := openStore(t, relayURL, 0, flowBox)
			err := relay.Check(ctx(t))
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: Check error lacks %q: %v", c.name, want, err)
				}
			}
			servers.Exec(t, admin, c.undo)
			if err := relay.Check(ctx(t)); err != nil {
				t.Errorf("%s, undone: %v", c.name, err)
			}
		}
	})
}

func TestConfigValidate(t *testing.T) {
	good := postgres.Config{URL: "postgres://u@h/d?sslmode=disable", Name: "a_1", Outboxes: []store.Outbox{flowBox}}
	st, err := postgres.New(good)
	if err != nil {
		t.Fatal(err)
	}
	st.Close()
	noTime := flowBox
	noTime.Layout.Columns.Claimed = ""
	bad := flowBox
	bad.Layout.Columns.ID = ""
	for want, change := range map[string]func(*postgres.Config){
		"not of the form postgres://": func(c *postgres.Config) { c.URL = "mysql://x" },
		`name "A"`:                    func(c *postgres.Config) { c.Name = "A" },
		`name ""`:                     func(c *postgres.Config) { c.Name = "" },
		"1 to 40":                     func(c *postgres.Config) { c.Name = strings.Repeat("a", 41) },
		"must not be negative":        func(c *postgres.Config) { c.TakeoverTimeout = -1 },
		"no outbox":                   func(c *postgres.Config) { c.Outboxes = nil },
		"configured twice":            func(c *postgres.Config) { c.Outboxes = []store.Outbox{flowBox, flowBox} },
		"has no name":                 func(c *postgres.Config) { c.Outboxes = []store.Outbox{{Table: "t", Layout: flowBox.Layout}} },
		"no table":                    func(c *postgres.Config) { c.Outboxes = []store.Outbox{{Name: "n", Layout: flowBox.Layout}} },
		"columns.id is not set":       func(c *postgres.Config) { c.Outboxes = []store.Outbox{bad} },
		"claim time column": func(c *postgres.Config) {
			c.TakeoverTimeout, c.Outboxes = 1, []store.Outbox{noTime}
		},
	} {
		c := good
		change(&c)
		if _, err := postgres.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
