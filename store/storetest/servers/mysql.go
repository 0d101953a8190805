package servers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// Flavour is a server with MySQL's protocol. Its value is the server's name.
type Flavour string

// Flavours. The environment variables of their servers are SLUICEBOX_TEST_MYSQL_… and
// SLUICEBOX_TEST_MARIADB_….
const (
	MySQL   Flavour = "MySQL"
	MariaDB Flavour = "MariaDB"
)

// Flavours returns the servers to test against: MySQL 9 and MariaDB 10.11.
func Flavours() []Flavour { return []Flavour{MySQL, MariaDB} }

func (f Flavour) variable(what string) string {
	return "SLUICEBOX_TEST_" + strings.ToUpper(string(f)) + "_" + what
}

// scheme returns the scheme of the servers' URLs.
func (f Flavour) scheme() string { return strings.ToLower(string(f)) }

func (f Flavour) require(tb testing.TB, what string) string {
	tb.Helper()
	return requireEnv(tb, f.variable(what), string(f))
}

// Shared returns the URL of the shared server, mysql://root@127.0.0.1:port/?tls=false or
// mariadb://…. Its user has all privileges, and its binlog contains the transactions of all
// tests. The test is skipped if there is no such server.
func (f Flavour) Shared(tb testing.TB) string {
	tb.Helper()
	return f.require(tb, "URL")
}

// Database creates an empty database in the shared server and returns its URL. The end of
// the test ends the database's sessions and drops it.
func (f Flavour) Database(tb testing.TB) string {
	tb.Helper()
	server := f.Shared(tb)
	at, err := url.Parse(server)
	if err != nil || at.Scheme == "" {
		tb.Fatalf("%s must be a URL", f.variable("URL"))
	}

	name := databaseName(tb)
	at.Path = "/" + name
	ExecMySQL(tb, server, "CREATE DATABASE "+name)
	tb.Cleanup(func() {
		if err := f.dropDatabase(server, name); err != nil {
			tb.Errorf("dropping the test's database: %v", err)
		}
	})
	return at.String()
}

// ClientMySQL returns a command of the mariadb client for a database of either flavour. It
// runs the statements of its standard input, stops at the first failure, and prints only
// results.
func ClientMySQL(tb testing.TB, database string) *exec.Cmd {
	tb.Helper()
	at, err := url.Parse(database)
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(MariaDB.require(tb, "BIN"), "mariadb"), "--no-defaults", "--batch", "--silent", "--unbuffered",
		"--host="+at.Hostname(), "--port="+at.Port(), "--user="+at.User.Username(), strings.TrimPrefix(at.Path, "/"))
	cmd.Env = MariaDB.environment(tb.TempDir())
	return cmd
}

// OpenMySQL opens a session pool that is closed when the test ends. A statement may be a
// script of several. The URL may set sql_mode for the sessions.
func OpenMySQL(tb testing.TB, url string) *sql.DB {
	tb.Helper()
	db, err := openMySQL(url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = db.Close() }) // the server may be down
	return db
}

// ExecMySQL runs statements in order, in a separate session.
func ExecMySQL(tb testing.TB, url string, statements ...string) {
	tb.Helper()
	db, err := openMySQL(url)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), connectTimeout)
	defer cancel()
	conn, err := db.Conn(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for _, statement := range statements {
		if _, err := conn.ExecContext(context.WithoutCancel(ctx), statement); err != nil {
			tb.Fatalf("%v, in: %s", err, statement)
		}
	}
}

// openMySQL creates a pool, which connects later.
func openMySQL(text string) (*sql.DB, error) {
	at, err := url.Parse(text)
	if err != nil {
		return nil, err
	}

	cfg := mysql.NewConfig()
	cfg.User = at.User.Username()
	cfg.Passwd, _ = at.User.Password()
	cfg.Net, cfg.Addr, cfg.DBName = "tcp", at.Host, strings.TrimPrefix(at.Path, "/")
	cfg.Timeout = connectTimeout
	cfg.MultiStatements = true
	if mode := at.Query().Get("sql_mode"); mode != "" {
		cfg.Params = map[string]string{"sql_mode": "'" + mode + "'"}
	}

	cfg.Logger = &mysql.NopLogger{} // errors are returned
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}

	return sql.OpenDB(connector), nil
}

func (f Flavour) dropDatabase(server, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
	defer cancel()
	db, err := openMySQL(server)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	// An open transaction would block the drop.
	if err := f.endSessions(ctx, db, name); err != nil {
		return err
	}

	_, err = db.ExecContext(ctx, "DROP DATABASE IF EXISTS "+name)
	return err
}

// endSessions ends the sessions of a database.
func (f Flavour) endSessions(ctx context.Context, db *sql.DB, name string) error {
	list := "information_schema.processlist"
	if f == MySQL {
		list = "performance_schema.processlist" // information_schema.processlist is deprecated
	}

	rows, err := db.QueryContext(ctx, "SELECT id FROM "+list+" WHERE db = ?", name)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	var ids []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return err
		}
		ids = append(ids, id)
	}

	if err := rows.Err(); err != nil {
		return err
	}

	const noSuchThread = 1094 // ER_NO_SUCH_THREAD
	for _, id := range ids {
		_, err := db.ExecContext(ctx, fmt.Sprintf("KILL %d", id))
		var gone *mysql.MySQLError
		if err != nil && (!errors.As(err, &gone) || gone.Number != noSuchThread) {
			return err
		}
	}

	return nil
}

// environment returns the environment of the flavour's programs. tmp must be private,
// because a starting server deletes other servers' files in a shared temporary directory.
func (f Flavour) environment(tmp string) []string {
	return append(environment(f.variable("LIB")), "TMPDIR="+tmp, "TZ=UTC")
}

// template returns a data directory to copy, "" if there is none.
func (f Flavour) template() string { return os.Getenv(f.variable("DATA")) }
