// Package servers gives tests real database servers.
//
// The script servers.sh beside it fetches and starts them; make test runs it.
// It hands their addresses and programs over in the environment:
//
//	SLUICEBOX_TEST_PG15_URL  a running server, shared by all tests
//	SLUICEBOX_TEST_PG15_BIN  the folder of its programs
//	SLUICEBOX_TEST_PG15_LIB  what they need as LD_LIBRARY_PATH, if anything
//	SLUICEBOX_TEST_TMP       where temporary folders go
//	SLUICEBOX_TEST_VERSIONS  all: what one version is enough for runs on each;
//	                         names, such as pg15,mysql: only beside these
//
// and the same for PG18, MYSQL, MARIADB and MONGO, and _BIN and _LIB for PGBOUNCER.
// SLUICEBOX_TEST_PG15_DATA and so on, but for MONGO, are data folders that new servers
// begin with, SLUICEBOX_TEST_PYMONGO_BIN is what Python finds pymongo by. Whoever has
// servers of their own sets these variables instead. A test whose server is not there
// is skipped by name; where CI=true it fails, so that nothing is left out unseen.
//
// Most tests take a Database of their own in a shared server. Tests that need
// other settings, TLS, or a server that dies take a private one with Start, and
// a standby of that with Standby. Pooler puts a connection pooler in front of any
// of them. For MySQL and MariaDB the same functions are methods of a Flavour, and for
// MongoDB they have its name.
package servers

import (
	"context"
	"crypto/rand"
	"encoding/hex"
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

// Versions returns the major versions of PostgreSQL to test against.
func Versions() []int { return []int{15, 18} }

// Spread returns the one of several servers that a test runs beside where one is
// enough: the test's name decides, so that a suite as a whole meets them all. With
// SLUICEBOX_TEST_VERSIONS=all it is all of them, and with names those of the names.
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

// Chosen returns those of several servers that SLUICEBOX_TEST_VERSIONS names, as
// fmt.Sprint writes them, pg18 or 18 being one: mysql,mariadb. Without it, or where
// it is all, it returns them all.
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

// Crowd lets more tests run beside each other than there are processors, unless
// -parallel says how many: tests beside servers mostly wait. TestMain calls it.
func Crowd() error {
	const most = "6"
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return nil
	}
	return flag.Set("test.parallel", most)
}

// Postgres returns the URL of the shared server of a major version. Its user
// may do everything. The test is skipped if there is no such server.
func Postgres(tb testing.TB, version int) string {
	tb.Helper()
	return require(tb, version, "URL")
}

// Pgbench returns the path of pgbench and the environment to run it in.
func Pgbench(tb testing.TB) (path string, env []string) {
	tb.Helper()
	const version = 15
	return filepath.Join(require(tb, version, "BIN"), "pgbench"), environment(variable(version, "LIB"))
}

// Database makes an empty database in the shared server of a major version and
// returns its URL. options are further ones of CREATE DATABASE. When the test ends, its sessions are ended, its replication
// slots are dropped, and then the database.
func Database(tb testing.TB, version int, options ...string) string {
	tb.Helper()
	server := Postgres(tb, version)
	at, err := url.Parse(server)
	if err != nil || at.Scheme == "" {
		tb.Fatalf("%s must be a URL", variable(version, "URL"))
	}
	name := databaseName(tb)
	at.Path = "/" + name
	// template0: nobody is connected to it, so copies never wait. A copy of its files costs
	// half as much as one by way of the log, which every relay beside would have to read.
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

// Exec runs statements, one after the other, on a connection of its own.
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
		// The simple protocol takes scripts of several statements too.
		if _, err := conn.Exec(context.WithoutCancel(ctx), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			tb.Fatalf("%v, in: %s", err, statement)
		}
	}
}

// closeConn says goodbye for a second and then hangs up. The test's own context
// has ended by the time of its cleanups.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the server may be gone
}

func variable(version int, what string) string {
	return fmt.Sprintf("SLUICEBOX_TEST_PG%d_%s", version, what)
}

func require(tb testing.TB, version int, what string) string {
	tb.Helper()
	if !slices.Contains(Versions(), version) {
		tb.Fatalf("PostgreSQL %d is none of the versions tested, %v", version, Versions())
	}
	return demand(tb, variable(version, what), fmt.Sprintf("PostgreSQL %d", version))
}

// demand returns the value of a variable without which the test is skipped.
func demand(tb testing.TB, name, whose string) string {
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

// environment is what programs run in that need the libraries a variable names.
func environment(libraries string) []string {
	env := append(os.Environ(), "LC_ALL=C") // messages in English
	if lib := os.Getenv(libraries); lib != "" {
		env = append(env, "LD_LIBRARY_PATH="+lib)
	}
	return env
}

// databaseName is unique, tells whose it is, and needs no quotes.
func databaseName(tb testing.TB) string {
	tb.Helper()
	const most = 40 // PostgreSQL cuts names at 63 bytes
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
	return "t_" + plain[:min(len(plain), most)] + "_" + hex.EncodeToString(suffix[:])
}

// dropDatabase tries more than once: a session that was just being let in may
// take a slot after the others were ended.
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
	// With a time-out pg_terminate_backend returns when the session has ended,
	// so its slot is free.
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
