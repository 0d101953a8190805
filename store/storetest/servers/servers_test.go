package servers_test

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// each runs a test on every version.
func each(t *testing.T, test func(t *testing.T, version int)) {
	t.Parallel()
	for _, version := range servers.Versions() {
		t.Run(strconv.Itoa(version), func(t *testing.T) {
			t.Parallel()
			test(t, version)
		})
	}
}

func query[T any](t *testing.T, url, sql string, args ...any) T {
	t.Helper()
	rows, err := servers.Connect(t, url).Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	value, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestDatabaseIsDropped(t *testing.T) {
	each(t, func(t *testing.T, version int) {
		server := servers.Postgres(t, version)
		var name string
		t.Run("inner", func(t *testing.T) {
			url := servers.Database(t, version)
			name = query[string](t, url, "SELECT current_database()::text")
			servers.Exec(t, url,
				"CREATE TABLE rows (id int); CREATE PUBLICATION p FOR TABLE rows",
				"SELECT pg_create_logical_replication_slot(current_database() || '_idle', 'pgoutput')",
				"SELECT pg_create_logical_replication_slot(current_database() || '_busy', 'pgoutput')")
			stream(t, url, name+"_busy", "p")
		})
		if n := query[int](t, server, "SELECT count(*)::int FROM pg_database WHERE datname = $1", name); n != 0 {
			t.Errorf("database %s is still there", name)
		}
		if n := query[int](t, server, "SELECT count(*)::int FROM pg_replication_slots WHERE database = $1", name); n != 0 {
			t.Errorf("%d slots of database %s are still there", n, name)
		}
	})
}

// stream reads from a slot and never closes the connection.
func stream(t *testing.T, url, slot, publication string) {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), url+"&replication=database")
	if err != nil {
		t.Fatal(err)
	}

	conn.Frontend().Send(&pgproto3.Query{String: "START_REPLICATION SLOT " + slot +
		" LOGICAL 0/0 (proto_version '1', publication_names '" + publication + "')"})
	if err := conn.Frontend().Flush(); err != nil {
		t.Fatal(err)
	}

	for {
		message, err := conn.ReceiveMessage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, streaming := message.(*pgproto3.CopyBothResponse); streaming {
			return
		}
	}
}

func TestDatabasesAreApart(t *testing.T) {
	each(t, func(t *testing.T, version int) {
		one, other := servers.Database(t, version), servers.Database(t, version)
		servers.Exec(t, one, "CREATE TABLE here ()")
		if query[bool](t, other, "SELECT to_regclass('here') IS NOT NULL") {
			t.Error("a table of one database is in the other")
		}
	})
}

func TestSharedServerIsLikeAUsers(t *testing.T) {
	each(t, func(t *testing.T, version int) {
		url := servers.Postgres(t, version)
		for setting, want := range map[string]string{
			"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "wal_level": "logical", "wal_sender_timeout": "1min",
		} {
			if got := query[string](t, url, "SELECT current_setting($1)", setting); got != want {
				t.Errorf("%s = %s, want %s", setting, got, want)
			}
		}
		if got := query[int](t, url, "SELECT current_setting('server_version_num')::int / 10000"); got != version {
			t.Errorf("version %d, want %d", got, version)
		}
	})
}

func TestStartCrashRestart(t *testing.T) {
	each(t, func(t *testing.T, version int) {
		s := servers.Start(t, version, map[string]string{"wal_level": "replica", "max_wal_senders": "7"})
		if got := query[string](t, s.URL, "SHOW wal_level"); got != "replica" {
			t.Errorf("wal_level = %s, want replica", got)
		}

		servers.Exec(t, s.URL, "CREATE TABLE kept AS SELECT 1 AS n")
		url := s.URL

		t.Logf("crashed in %v", s.Stop("immediate"))
		if _, err := pgconn.Connect(t.Context(), url); err == nil {
			t.Fatal("the stopped server takes connections")
		}
		if took := s.Stop("fast"); took != 0 {
			t.Errorf("stopping a stopped server took %v", took)
		}

		s.Restart(map[string]string{"wal_level": "logical"})
		if !strings.Contains(s.Log(), "not properly shut down") {
			t.Errorf("the restart recovered nothing:\n%s", s.Log())
		}
		if got := query[string](t, url, "SHOW wal_level") + query[string](t, url, "SHOW max_wal_senders"); got != "logical7" {
			t.Errorf("wal_level and max_wal_senders = %s, want logical7", got)
		}
		if got := query[int](t, url, "SELECT n FROM kept"); got != 1 {
			t.Errorf("the row is %d, want 1", got)
		}

		t.Logf("stopped in %v", s.Stop("fast"))
	})
}

func TestTLSAndHBA(t *testing.T) {
	each(t, func(t *testing.T, version int) {
		s := servers.Start(t, version, nil)
		ca := s.TLS()
		s.HBA("hostnossl all all all reject")
		if _, err := pgconn.Connect(t.Context(), s.URL); err == nil {
			t.Error("a connection without TLS was let in")
		}
		verified := strings.Replace(s.URL, "sslmode=disable", "sslmode=verify-full&sslrootcert="+ca, 1)
		if !query[bool](t, verified, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") {
			t.Error("the verified connection has no TLS")
		}
	})
}

func TestStandby(t *testing.T) {
	each(t, func(t *testing.T, version int) {
		const failover = 17 // the first version with failover slots
		primary := servers.Start(t, version, nil)
		servers.Exec(t, primary.URL, "CREATE TABLE rows AS SELECT 1 AS n")
		standby := servers.Standby(t, primary, map[string]string{"max_connections": "101"})
		if got := query[string](t, standby.URL, "SHOW max_connections"); got != "101" {
			t.Errorf("max_connections = %s, want 101", got)
		}
		if !query[bool](t, standby.URL, "SELECT pg_is_in_recovery()") {
			t.Error("the standby is none")
		}

		if version >= failover {
			servers.Exec(t, primary.URL, "SELECT pg_create_logical_replication_slot('kept', 'pgoutput', false, false, true)")
			standby.SyncSlot("kept")
		}

		servers.Exec(t, primary.URL, "INSERT INTO rows VALUES (2)")
		standby.CatchUp()
		if n := query[int](t, standby.URL, "SELECT count(*)::int FROM rows"); n != 2 {
			t.Errorf("the standby has %d rows, want 2", n)
		}

		primary.Stop("immediate")
		standby.Promote()
		servers.Exec(t, standby.URL, "INSERT INTO rows VALUES (3)")
		standby.Restart(nil)
		if n := query[int](t, standby.URL, "SELECT count(*)::int FROM rows"); n != 3 {
			t.Errorf("the promoted server has %d rows after a restart, want 3", n)
		}
		if n := query[int](t, standby.URL, "SELECT count(*)::int FROM pg_replication_slots WHERE slot_name = 'kept'"); version >= failover && n != 1 {
			t.Error("the slot is gone")
		}
	})
}

func TestPooler(t *testing.T) {
	each(t, func(t *testing.T, version int) {
		through := servers.Pooler(t, servers.Database(t, version), "session", "statement_timeout")
		if _, err := pgconn.Connect(t.Context(), through+"&lock_timeout=1s"); err == nil || !strings.Contains(err.Error(), "lock_timeout") {
			t.Errorf("with a parameter that it does not know: %v", err)
		}
		if n := query[int](t, through+"&statement_timeout=1s", "SELECT 1"); n != 1 {
			t.Errorf("it answers %d", n)
		}
		if in := query[string](t, through, "SELECT current_database()::text"); !strings.HasPrefix(in, "t_") {
			t.Errorf("it leads to database %s", in)
		}
	})
}

func TestPgbench(t *testing.T) {
	t.Parallel()
	path, env := servers.Pgbench(t)
	cmd := exec.Command(path, "-i", "-q", "-s1", servers.Database(t, 15))
	cmd.Env = env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// outcome is a test that records how it would end.
type outcome struct {
	testing.TB
	skipped, failed string
}

func (o *outcome) Helper() {}

func (o *outcome) Skip(args ...any) {
	o.skipped, _ = args[0].(string)
	panic(o)
}

func (o *outcome) Fatal(args ...any) {
	o.failed, _ = args[0].(string)
	panic(o)
}

func TestMissingServer(t *testing.T) {
	if testing.Short() {
		t.Skip("a short run skips in CI too")
	}

	ask := func() (o *outcome) {
		o = &outcome{TB: t}
		defer func() { _ = recover() }()
		servers.Postgres(o, 15)
		return o
	}

	t.Setenv("SLUICEBOX_TEST_PG15_URL", "")
	for ci, wanted := range map[string]func(*outcome) string{
		"":     func(o *outcome) string { return o.skipped },
		"true": func(o *outcome) string { return o.failed },
	} {
		t.Setenv("CI", ci)
		o := ask()
		if got := wanted(o); !strings.Contains(got, "PostgreSQL 15") || !strings.Contains(got, "make test") {
			t.Errorf("with CI=%q: %+v", ci, o)
		}
	}
}
