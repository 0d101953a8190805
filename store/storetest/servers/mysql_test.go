package servers_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func eachFlavour(t *testing.T, test func(t *testing.T, f servers.Flavour)) {
	t.Parallel()
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			test(t, f)
		})
	}
}

func ask[T any](t *testing.T, db *sql.DB, query string, args ...any) (value T) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query, args...).Scan(&value); err != nil {
		t.Fatalf("%v, in: %s", err, query)
	}
	return value
}

func TestMySQLDatabaseIsDropped(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		server := servers.OpenMySQL(t, f.Shared(t))
		var name string
		t.Run("inner", func(t *testing.T) {
			url := f.Database(t)
			busy := servers.OpenMySQL(t, url)
			name = ask[string](t, busy, "SELECT database()")
			servers.ExecMySQL(t, url, "CREATE TABLE held (id int); INSERT INTO held VALUES (1)")
			tx, err := busy.BeginTx(context.WithoutCancel(t.Context()), nil)
			if err != nil {
				t.Fatal(err)
			}
			// Nothing ends this transaction, which would block the drop.
			if _, err := tx.ExecContext(t.Context(), "INSERT INTO held VALUES (2)"); err != nil {
				t.Fatal(err)
			}
			other := f.Database(t)
			servers.ExecMySQL(t, other, "CREATE TABLE held (id int)")
		})

		if n := ask[int](t, server, "SELECT count(*) FROM information_schema.schemata WHERE schema_name = ?", name); n != 0 {
			t.Errorf("database %s is still there", name)
		}
	})
}

func TestSharedMySQLIsLikeAUsers(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		db := servers.OpenMySQL(t, f.Shared(t))
		settings := map[string]string{
			"log_bin": "1", "binlog_format": "ROW", "binlog_row_image": "FULL", "sync_binlog": "1", "innodb_flush_log_at_trx_commit": "1",
		}
		version := "9."
		switch f {
		case servers.MySQL:
			settings["gtid_mode"], settings["binlog_row_metadata"] = "ON", "MINIMAL"
		case servers.MariaDB:
			settings["gtid_strict_mode"], settings["binlog_row_metadata"] = "1", "NO_LOG"
			version = "10.11."
		}

		for setting, want := range settings {
			if got := ask[string](t, db, "SELECT @@global."+setting); got != want {
				t.Errorf("%s = %s, want %s", setting, got, want)
			}
		}

		if got := ask[string](t, db, "SELECT version()"); !strings.HasPrefix(got, version) {
			t.Errorf("version %s, want %s…", got, version)
		}
	})
}

func TestMySQLCrashRestart(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		s := f.Start(t, map[string]string{"binlog-row-metadata": "FULL", "max-connections": "77"})
		db := servers.OpenMySQL(t, s.Database())
		if got := ask[string](t, db, "SELECT @@global.binlog_row_metadata"); got != "FULL" {
			t.Errorf("binlog_row_metadata = %s, want FULL", got)
		}
		if _, err := db.ExecContext(t.Context(), "CREATE TABLE kept SELECT 1 AS n"); err != nil {
			t.Fatal(err)
		}

		t.Logf("crashed in %v", s.Stop("immediate"))
		if err := db.PingContext(t.Context()); err == nil {
			t.Fatal("the stopped server takes connections")
		}
		if took := s.Stop("fast"); took != 0 {
			t.Errorf("stopping a stopped server took %v", took)
		}

		s.Restart(map[string]string{"binlog-row-image": "MINIMAL"})
		if !strings.Contains(strings.ToLower(s.Log()), "crash recovery") {
			t.Errorf("the restart recovered nothing:\n%s", s.Log())
		}
		if got := ask[string](t, db, "SELECT concat(@@global.binlog_row_image, @@global.max_connections)"); got != "MINIMAL77" {
			t.Errorf("binlog_row_image and max_connections = %s, want MINIMAL77", got)
		}
		if got := ask[int](t, db, "SELECT n FROM kept"); got != 1 {
			t.Errorf("the row is %d, want 1", got)
		}

		t.Logf("stopped in %v", s.Stop("fast"))
	})
}

func TestMySQLServersAreApart(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		identity := "@@global.server_uuid"
		if f == servers.MariaDB {
			identity = "@@global.port" // it has no other
		}
		one, other := f.Start(t, nil), f.Start(t, nil)
		a := ask[string](t, servers.OpenMySQL(t, one.URL), "SELECT "+identity)
		b := ask[string](t, servers.OpenMySQL(t, other.URL), "SELECT "+identity)
		if a == b {
			t.Errorf("two servers have the %s %s", identity, a)
		}
	})
}

func TestMySQLTLS(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		s := f.Start(t, nil)
		authority, err := os.ReadFile(s.TLS())
		if err != nil {
			t.Fatal(err)
		}

		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(authority)
		cfg := mysql.NewConfig()
		cfg.User, cfg.Net, cfg.Addr = "root", "tcp", host(t, s.URL)
		cfg.TLS = &tls.Config{RootCAs: roots, ServerName: "localhost"}
		connector, err := mysql.NewConnector(cfg)
		if err != nil {
			t.Fatal(err)
		}

		db := sql.OpenDB(connector)
		defer func() { _ = db.Close() }()
		var name, cipher string
		if err := db.QueryRowContext(t.Context(), "SHOW STATUS LIKE 'Ssl_cipher'").Scan(&name, &cipher); err != nil {
			t.Fatal(err)
		}
		if cipher == "" {
			t.Error("the verified connection has no TLS")
		}
	})
}

func host(t *testing.T, text string) string {
	t.Helper()
	at, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return at.Host
}

func TestMissingMySQL(t *testing.T) {
	if testing.Short() {
		t.Skip("a short run skips in CI too")
	}

	t.Setenv("CI", "")
	for _, f := range servers.Flavours() {
		t.Setenv("SLUICEBOX_TEST_"+strings.ToUpper(string(f))+"_URL", "")
		o := &outcome{TB: t}
		func() {
			defer func() { _ = recover() }()
			f.Shared(o)
		}()
		if !strings.Contains(o.skipped, string(f)) || !strings.Contains(o.skipped, "make test") {
			t.Errorf("%+v", o)
		}
	}
}
