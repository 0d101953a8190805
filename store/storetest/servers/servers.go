// Package servers provides real database servers to tests.
//
// The script servers.sh fetches and starts them; make test runs it. It passes their
// addresses and programs in environment variables:
//
//	SLUICEBOX_TEST_PG15_URL  running server, shared by all tests
//	SLUICEBOX_TEST_PG15_BIN  directory of its programs
//	SLUICEBOX_TEST_PG15_LIB  LD_LIBRARY_PATH of the programs, if needed
//	SLUICEBOX_TEST_TMP       directory of temporary files
//	SLUICEBOX_TEST_VERSIONS  all: run each test on all versions, even if one suffices;
//	                         names, for example pg15,mysql: only on these
//
// The other servers have the same variables with PG18, MYSQL, MARIADB or MONGO; PGBOUNCER
// and REDIS have _BIN and _LIB, NATS and NATS29 have _BIN, and SLUICEBOX_TEST_KAFKA_BIN is the directory
// of its jars. SLUICEBOX_TEST_PG15_DATA and so on (except MONGO) are data directories to copy
// for new servers. SLUICEBOX_TEST_PYMONGO_BIN is the PYTHONPATH of pymongo, and JAVA_BIN,
// PYTHON_BIN and NODE_BIN are the directories of these languages' libraries. To use other
// servers, set these variables. A test without its server is skipped by name; with CI=true it
// fails, so that no test is skipped unnoticed.
//
// Most tests use a Database in a shared server. Tests that need other settings, TLS, or a
// server crash use a private server from Start, and a standby of it from Standby. Pooler
// puts a connection pooler in front of any of them. For MySQL and MariaDB the same
// functions are methods of a Flavour; for MongoDB they have Mongo in their name.
package servers

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	connectTimeout = 30 * time.Second
	dropTimeout    = time.Minute
	dropTries      = 10
)

// Versions returns the PostgreSQL major versions to test against.
func Versions() []int { return []int{15, 18} }

// Spread returns the server to use for a test that needs only one of several. It is chosen
// by the test's name, so that a suite as a whole uses them all. With
// SLUICEBOX_TEST_VERSIONS=all Spread returns all servers, and with names the named ones.
func Spread[S any](tb testing.TB, all []S) []S {
	tb.Helper()
	if os.Getenv(versionsVariable) != "" {
		return Chosen(all)
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(tb.Name()))
	at := int(h.Sum32()>>1) % len(all)
	return all[at : at+1]
}

const versionsVariable = "SLUICEBOX_TEST_VERSIONS"

// Chosen returns the servers named in SLUICEBOX_TEST_VERSIONS, for example mysql,mariadb.
// The names are as formatted by fmt.Sprint; pg18 and 18 are equal. It returns all servers
// if the variable is empty or "all".
func Chosen[S any](all []S) []S {
	chosen := os.Getenv(versionsVariable)
	if chosen == "" || chosen == "all" {
		return all
	}
	names := strings.Split(strings.ToLower(strings.ReplaceAll(chosen, "pg", "")), ",")
	return slices.DeleteFunc(slices.Clone(all), func(s S) bool {
		return !slices.Contains(names, strings.TrimPrefix(strings.ToLower(fmt.Sprint(s)), "pg"))
	})
}

// Crowd raises the number of parallel tests above the number of processors, unless
// -parallel sets it, because tests with servers mostly wait. TestMain calls it.
func Crowd() error {
	const parallel = "4"
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return nil
	}
	return flag.Set("test.parallel", parallel)
}

// Postgres returns the URL of the shared server of a major version. Its user is a
// superuser. The test is skipped if there is no such server.
func Postgres(tb testing.TB, version int) string {
	tb.Helper()
	return require(tb, version, "URL")
}

// Pgbench returns the path of pgbench and its environment.
func Pgbench(tb testing.TB) (path string, env []string) {
	tb.Helper()
	const version = 15
	return filepath.Join(require(tb, version, "BIN"), "pgbench"), environment(variable(version, "LIB"))
}

// Database creates an empty database in the shared server of a major version and returns
// its URL. options are appended to CREATE DATABASE. The end of the test ends the database's
// sessions, drops its replication slots and drops it.
func Database(tb testing.TB, version int, options ...string) string {
	tb.Helper()
	server := Postgres(tb, version)
	at, err := url.Parse(server)
	if err != nil || at.Scheme == "" {
		tb.Fatalf("%s must be a URL", variable(version, "URL"))
	}

	name := databaseName(tb)
	at.Path = "/" + name
	// template0 has no sessions, so that copies never wait. file_copy costs half as much as
	// a copy through the WAL, which every running relay would have to read.
	Exec(tb, server, "CREATE DATABASE "+name+" TEMPLATE template0 STRATEGY file_copy "+strings.Join(options, " "))
	tb.Cleanup(func() {
		if err := dropDatabase(server, name); err != nil {
			tb.Errorf("dropping the test's database: %v", err)
		}
	})
	return at.String()
}

// Connect opens a connection that is closed when the test ends.
func Connect(tb testing.TB, url string) *pgx.Conn {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), connectTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closeConn(conn) })
	return conn
}

// Exec runs statements in order, on a separate connection.
func Exec(tb testing.TB, url string, statements ...string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), connectTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		tb.Fatal(err)
	}
	defer closeConn(conn)
	for _, statement := range statements {
		// The simple protocol accepts scripts of several statements too.
		if _, err := conn.Exec(context.WithoutCancel(ctx), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			tb.Fatalf("%v, in: %s", err, statement)
		}
	}
}

// Begin begins a transaction on a connection of its own. end ends both, and the test fails if it cannot. A
// failure to begin fails the test too, and tx is nil.
func Begin(tb testing.TB, url string) (tx pgx.Tx, end func(commit bool)) {
	tb.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		tb.Error(err)
		return nil, func(bool) {}
	}
	if tx, err = conn.Begin(ctx); err != nil {
		tb.Error(err)
		return nil, func(bool) { closeConn(conn) }
	}
	return tx, func(commit bool) {
		end := tx.Rollback
		if commit {
			end = tx.Commit
		}
		if err := errors.Join(end(ctx), conn.Close(ctx)); err != nil {
			tb.Error(err)
		}
	}
}

// closeConn closes a connection within a second. It does not use the test's context, which
// has ended when cleanups run.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the server may be down
}

func variable(version int, what string) string {
	return fmt.Sprintf("SLUICEBOX_TEST_PG%d_%s", version, what)
}

func require(tb testing.TB, version int, what string) string {
	tb.Helper()
	if !slices.Contains(Versions(), version) {
		tb.Fatalf("PostgreSQL %d is none of the versions tested, %v", version, Versions())
	}
	return requireEnv(tb, variable(version, what), fmt.Sprintf("PostgreSQL %d", version))
}

// Libraries returns the directory with the libraries of deploy/writers for a language: java, python
// or node; or the directory of the program browser.
func Libraries(tb testing.TB, language string) string {
	tb.Helper()
	return requireEnv(tb, "SLUICEBOX_TEST_"+strings.ToUpper(language)+"_BIN", "the program or a library of "+language)
}

// requireEnv returns the value of an environment variable. It skips the test if the variable is
// not set.
func requireEnv(tb testing.TB, name, whose string) string {
	tb.Helper()
	value := os.Getenv(name)
	if value != "" {
		return value
	}
	missing := fmt.Sprintf("%s is not there: %s is not set; make test starts it", whose, name)
	if os.Getenv("CI") == "true" && !testing.Short() {
		tb.Fatal(missing)
	}
	tb.Skip(missing)
	return ""
}

// environment returns the environment of programs. libraries is the variable with their
// LD_LIBRARY_PATH.
func environment(libraries string) []string {
	env := append(os.Environ(), "LC_ALL=C") // messages in English
	if lib := os.Getenv(libraries); lib != "" {
		env = append(env, "LD_LIBRARY_PATH="+lib)
	}
	return env
}

// databaseName returns a unique name that contains the test's name and needs no quotes.
func databaseName(tb testing.TB) string {
	tb.Helper()
	const maxLength = 40 // PostgreSQL truncates names at 63 bytes
	var suffix [6]byte
	if _, err := rand.Read(suffix[:]); err != nil {
		tb.Fatal(err)
	}

	plain := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(tb.Name()))

	return "t_" + plain[:min(len(plain), maxLength)] + "_" + hex.EncodeToString(suffix[:])
}

// dropDatabase retries, because a session that was just starting may acquire a slot after
// the other sessions were ended.
func dropDatabase(server, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	if _, err := conn.Exec(ctx, "ALTER DATABASE "+name+" ALLOW_CONNECTIONS false"); err != nil {
		return err
	}

	for range dropTries {
		if err = dropOnce(ctx, conn, name); err == nil {
			return nil
		}
	}

	return err
}

func dropOnce(ctx context.Context, conn *pgx.Conn, name string) error {
	// With a timeout, pg_terminate_backend returns when the session has ended, so its slot
	// is free.
	const (
		endSessions = `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = $1`
		dropSlots   = `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1`
	)

	for _, statement := range []string{endSessions, dropSlots} {
		if _, err := conn.Exec(ctx, statement, name); err != nil {
			return err
		}
	}

	_, err := conn.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
	return err
}
