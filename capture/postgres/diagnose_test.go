package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/postgres"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// expectFinding runs a diagnosis and expects one finding of a subject and grade whose
// text and remedy contain the parts.
func expectFinding(t *testing.T, cfg postgres.Config, subject string, grade store.Grade, parts ...string) {
	t.Helper()
	src := newSource(t, cfg)
	defer src.Close()
	found, err := src.Diagnose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(found, func(f store.Finding) bool { return f.Subject == subject && f.Grade == grade })
	if i < 0 {
		t.Errorf("no finding of %s has grade %s: %+v", subject, grade, found)
		return
	}
	for _, part := range parts {
		if !strings.Contains(found[i].Text+"\n"+found[i].Remedy, part) {
			t.Errorf("%s lacks %q: %+v", subject, part, found[i])
		}
	}
}

// TestDiagnoseBeforeFirstStart: a diagnosis distinguishes objects that the relay will
// create from objects that an operator must create, and creates nothing itself.
func TestDiagnoseBeforeFirstStart(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		cfg := d.config()
		statement := `CREATE PUBLICATION "` + d.name + `" FOR TABLE "public"."outbox_events" WITH (publish = 'insert', publish_via_partition_root = true);`
		expectFinding(t, cfg, "publication", store.GradeAdvice, "\n"+statement)
		expectFinding(t, cfg, "stream", store.GradeOK)
		expectFinding(t, cfg, "slot", store.GradeOK, "does not exist yet")
		cfg.MayCreate = false
		expectFinding(t, cfg, "publication", store.GradeFault, "-- as the owner\n"+statement)
		expectNoSlot(t, d)
		other := cfg
		other.StreamURL = servers.Database(t, version)
		expectFinding(t, other, "stream", store.GradeFault, "source.stream-url leads to database")
		absent := cfg
		absent.StreamURL = strings.Replace(d.url, "postgres@", "nobody_at_all@", 1)
		expectFinding(t, absent, "stream", store.GradeFault, "cannot open a replication session", "check the user and password")
		cfg.URL = absent.StreamURL
		expectFinding(t, cfg, "connection", store.GradeFault, "refuses the login")
	})
}

// TestDiagnoseOldTransaction: an old transaction that delays a slot is named.
func TestDiagnoseOldTransaction(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := privateDatabase(t, servers.Start(t, version, nil))
		cfg := d.config()
		cfg.SlotTimeout = time.Nanosecond
		expectFinding(t, cfg, "transactions", store.GradeOK)
		end := d.Begin(t, capturetest.Row{ID: "open"})
		expectFinding(t, cfg, "transactions", store.GradeAdvice, "the transaction of pid", "the slot cannot be created before it ends", "SELECT pg_terminate_backend(")
		end(true)
		expectFinding(t, cfg, "transactions", store.GradeOK)
	})
}

// TestDiagnoseHiddenTransaction: a role that may not see the age of transactions gets the
// current one in each diagnosis, and the grant that shows more.
func TestDiagnoseHiddenTransaction(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := privateDatabase(t, servers.Start(t, version, nil))
		servers.Exec(t, d.url, "CREATE ROLE blind LOGIN REPLICATION", "GRANT SELECT ON ALL TABLES IN SCHEMA public TO blind")
		cfg := d.config()
		cfg.URL, cfg.StreamURL = strings.Replace(d.url, "postgres@", "blind@", 1), ""
		cfg.SlotTimeout = time.Millisecond
		expectFinding(t, cfg, "transactions", store.GradeOK)
		for _, exists := range []bool{false, true} {
			if exists { // then transactions older than 10 minutes count
				run(t, d, d.config(), store.Checkpoint{}).close()
			}
			end := d.Begin(t, capturetest.Row{ID: fmt.Sprint("open", exists)})
			expectFinding(t, cfg, "transactions", store.GradeAdvice, "may not see its start", `"blind" may not see it`, `GRANT pg_read_all_stats TO "blind";`)
			end(true)
		}
		expectFinding(t, cfg, "transactions", store.GradeOK)
		servers.Exec(t, d.url, "GRANT pg_read_all_stats TO blind")
		end := d.Begin(t, capturetest.Row{ID: "young"})
		expectFinding(t, cfg, "transactions", store.GradeOK)
		end(true)
	})
}

// TestDiagnoseLockedTable: the diagnosis does not wait for a locked table.
func TestDiagnoseLockedTable(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		run(t, d, d.config(), store.Checkpoint{}).close()
		conn := servers.Connect(t, d.url)
		if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE", pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
		subject, grade, part := "publication", store.GradeOK, ""
		if version >= 16 { // which opens a table to show its published columns
			subject, grade, part = "tables", store.GradeAdvice, "a session holds a lock"
		}
		expectFinding(t, d.config(), subject, grade, part)
	})
}

// TestDiagnoseHeldSlot: the reader of the slot is reported. A relay of the name is fine,
// any other program is a fault.
func TestDiagnoseHeldSlot(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		r := run(t, d, d.config(), store.Checkpoint{})
		reads := func(id string) {
			servers.Exec(t, d.url, insert(id))
			if b := r.next(); b.Items[0].ID != id {
				t.Errorf("row %s", b.Items[0].ID)
			}
		}
		reads("a") // so it has the slot
		expectFinding(t, d.config(), "slot", store.GradeOK, "is read by a relay of this name")
		reads("b") // during the diagnosis
		r.close()
		d.Disconnect(t) // the server notices the closed connection later
		expectFinding(t, d.config(), "slot", store.GradeOK, " is at ")
		if version >= 17 {
			expectFinding(t, d.config(), "failover", store.GradeOK, "is a failover slot")
			servers.Exec(t, d.url, fmt.Sprintf("SELECT pg_drop_replication_slot('%[1]s'), pg_create_logical_replication_slot('%[1]s', 'pgoutput')", d.name))
			expectFinding(t, d.config(), "failover", store.GradeAdvice, "is not a failover slot", "SELECT pg_drop_replication_slot('"+d.name+"');")
		}
		conn, err := pgconn.Connect(t.Context(), d.url+"&replication=database&application_name=thief")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(context.Background()) }()
		err = pglogrepl.StartReplication(t.Context(), conn, d.name, 0, pglogrepl.StartReplicationOptions{
			PluginArgs: []string{"proto_version '1'", "publication_names '" + d.name + "'"},
		})
		if err != nil {
			t.Fatal(err)
		}
		expectFinding(t, d.config(), "slot", store.GradeFault, `"thief"`, fmt.Sprintf("\nSELECT pg_terminate_backend(%d);", conn.PID()))
	})
}

// TestDiagnoseStandby: a standby is reported as such, and its WAL is not checked.
func TestDiagnoseStandby(t *testing.T) {
	version := servers.Versions()[0]
	primary := servers.Start(t, version, nil)
	d := newDatabase(t, primary.URL)
	cfg := d.config()
	cfg.URL = servers.Standby(t, primary, nil).URL
	cfg.StreamURL = ""
	expectFinding(t, cfg, "server", store.GradeFault, "server is a standby")
}
