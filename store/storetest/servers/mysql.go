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

// Flavour is a kind of server that speaks MySQL's protocol, by its name.
type Flavour string

// The flavours. Their servers' variables are SLUICEBOX_TEST_MYSQL_… and
// SLUICEBOX_TEST_MARIADB_….
const (
	MySQL   Flavour = "MySQL"
	MariaDB Flavour = "MariaDB"
)

// Flavours returns the kinds of servers to test against: MySQL 9 and MariaDB
// 10.11.
func Flavours() []Flavour { return []Flavour{MySQL, MariaDB} }

func (f Flavour) variable(what string) string {
	return "SLUICEBOX_TEST_" + strings.ToUpper(string(f)) + "_" + what
}

// scheme is that of the servers' URLs.
func (f Flavour) scheme() string { return strings.ToLower(string(f)) }

func (f Flavour) require(tb testing.TB, what string) string {
	tb.Helper()
	return demand(tb, f.variable(what), string(f))
}

// Shared returns the URL of the shared server, mysql://root@127.0.0.1:port/?tls=false
// or mariadb://…. Its user may do everything. The test is skipped if there is no
// such server. Whoever reads its log sees the transactions of all tests.
func (f Flavour) Shared(tb testing.TB) string {
	tb.Helper()
	return f.require(tb, "URL")
}

// Database makes an empty database in the shared server and returns its URL. When
// the test ends, its sessions are ended and then it is dropped.
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

// ClientMySQL returns a command of the client mariadb, which runs the statements of
// its standard input on a database of either flavour, ends at the first that fails,
// and prints nothing else.
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

// OpenMySQL opens a pool of sessions that is closed when the test ends. A
// statement may be a script of several. The URL may have a parameter sql_mode for
// the sessions.
func OpenMySQL(tb testing.TB, url string) *sql.DB {
	tb.Helper()
	db, err := openMySQL(url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = db.Close() }) // the server may be gone
	return db
}

// ExecMySQL runs statements, one after the other, on a session of its own.
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

// openMySQL connects to nothing yet.
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
	cfg.Logger = &mysql.NopLogger{} // what goes wrong is in the errors
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
	// An open transaction would keep the tables.
	if err := f.endSessions(ctx, db, name); err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "DROP DATABASE IF EXISTS "+name)
	return err
}

// endSessions ends the sessions that use a database.
func (f Flavour) endSessions(ctx context.Context, db *sql.DB, name string) error {
	list := "information_schema.processlist"
	if f == MySQL {
		list = "performance_schema.processlist" // the other is about to go
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

// environment is what the flavour's programs run in. A starting server deletes
// what others have in a shared folder for temporary files, so tmp must be its own.
func (f Flavour) environment(tmp string) []string {
	return append(environment(f.variable("LIB")), "TMPDIR="+tmp, "TZ=UTC")
}

// template returns a data folder to copy, "" if there is none.
func (f Flavour) template() string { return os.Getenv(f.variable("DATA")) }
