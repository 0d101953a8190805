package postgres_test

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestParseURLHosts: several hosts in one URL, in every form that libpq accepts.
func TestParseURLHosts(t *testing.T) {
	for raw, want := range map[string]string{
		"postgres://u@h1/db":                                                 "h1:5432 tls any",
		"postgres://u@h1:5433/db?sslmode=disable":                            "h1:5433 any",
		"postgres://u@h1:5432,h2:5433/db?sslmode=disable":                    "h1:5432 h2:5433 chosen",
		"postgres://u@h1:5433,h2/db?sslmode=disable":                         "h1:5433 h2:5432 chosen",
		"postgresql://u:p%40w@h1,h2,h3/db?sslmode=disable":                   "h1:5432 h2:5432 h3:5432 chosen",
		"postgres://u@[::1]:5433,[fe80::2]/db?sslmode=disable":               "::1:5433 fe80::2:5432 chosen",
		"postgres://h1:5433,h2:5434?sslmode=disable&user=u":                  "h1:5433 h2:5434 chosen",
		"postgres://u@h1,h2/db?sslmode=disable&target_session_attrs=any":     "h1:5432 h2:5432 any",
		"postgres://u@h1,h2/db?sslmode=disable&target_session_attrs=primary": "h1:5432 h2:5432 chosen",
		"postgres://u@h1,h2/db":                                              "h1:5432 tls h2:5432 tls chosen",
		"postgres://u@localhost/db":                                          "localhost:5432 tls localhost:5432 any",
		"postgres://u@127.0.0.2/db":                                          "127.0.0.2:5432 tls 127.0.0.2:5432 any",
		"postgres://u@[::1]:5433/db":                                         "::1:5433 tls ::1:5433 any",
		"postgres://u@localhost/db?sslmode=verify-full":                      "localhost:5432 tls any",
		"postgres://u@localhost/db?sslnegotiation=direct":                    "localhost:5432 tls any",
		"postgres://u@localhost,h2/db":                                       "localhost:5432 tls h2:5432 tls chosen",
		"postgres://u@/db?host=/run/postgresql":                              "/run/postgresql:5432 any",
		"postgres://u@/db?host=h1":                                           "h1:5432 tls any",
	} {
		cfg, err := postgres.ParseURL(raw, "test")
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if got := hostsOf(cfg); got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
		if strings.Contains(raw, "p%40w") && cfg.Password != "p@w" {
			t.Errorf("the password is %q", cfg.Password)
		}
	}
	for _, raw := range []string{
		"postgres://u:secret@h1:5432,h2:x/db", "postgres://u:secret@h1:1,h2:2,h3/db?port=1,2", "postgres://u:secret@h1,%zz/db",
	} {
		_, err := postgres.ParseURL(raw, "test")
		if !errors.As(err, new(*store.SetupError)) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

// hostsOf lists the hosts of a configuration, and whether it validates the connection.
func hostsOf(cfg *pgx.ConnConfig) string {
	var all strings.Builder
	add := func(host string, port uint16, tls bool) {
		fmt.Fprintf(&all, "%s:%d ", host, port)
		if tls {
			all.WriteString("tls ")
		}
	}
	add(cfg.Host, cfg.Port, cfg.TLSConfig != nil)
	for _, f := range cfg.Fallbacks {
		add(f.Host, f.Port, f.TLSConfig != nil)
	}
	if cfg.ValidateConnect == nil {
		return all.String() + "any"
	}
	return all.String() + "chosen"
}

// TestParseURLPicksHost: of several hosts, the relay uses the reachable one that accepts
// writes.
func TestParseURLPicksHost(t *testing.T) {
	aVersion(t, func(t *testing.T, raw string) {
		at, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		closed, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_ = closed.Close()
		list := strings.Replace(raw, at.Host, closed.Addr().String()+","+at.Host, 1)
		newRig(t, list, flowTable, 0, flowBox).insert(t, "a")

		role := "readers_" + strings.TrimPrefix(at.Path, "/t_")
		reader := asRole(t, raw, role)
		servers.Exec(t, raw, "ALTER ROLE "+role+" SET default_transaction_read_only = on")
		refused := openStore(t, strings.Replace(reader, at.Host, at.Host+","+at.Host, 1), 0, flowBox)
		if _, err := refused.AcquireLeadership(ctx(t)); err == nil || !strings.Contains(err.Error(), "read only") {
			t.Errorf("read-only server: got error %v", err)
		}
	})
}

// TestExplainMissingGrant: a missing privilege names the scripts that have the grants.
func TestExplainMissingGrant(t *testing.T) {
	var setup *store.SetupError
	if !errors.As(postgres.Explain(&pgconn.PgError{Code: "42501", Message: "permission denied for schema shop"}), &setup) {
		t.Fatal("got no *store.SetupError")
	}
	if setup.Problem != "permission denied for schema shop" {
		t.Errorf("got problem %q", setup.Problem)
	}
	for _, script := range []string{"roles.sql", "own.sql", "outbox.sql", "reader.sql"} {
		if _, err := os.Stat("../../deploy/postgres/" + script); err != nil || !strings.Contains(setup.Remedy, script) {
			t.Errorf("remedy %q: want it to name %s (%v)", setup.Remedy, script, err)
		}
	}
}
