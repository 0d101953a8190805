package blackbox

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// host is a server that scenes are beside.
type host struct {
	name string // in the names of tests
	kind *kind
	// database makes an empty database in the shared server.
	database func(t testing.TB) string
	// start starts a server that the test has to itself, and returns the URL of an
	// empty database in it.
	start func(t testing.TB, settings map[string]string) (database string, server ownServer)
}

// ownServer is a server that a test has to itself; see servers.Server.
type ownServer interface {
	Stop(mode string) time.Duration
	Restart(settings map[string]string)
}

func (h host) String() string { return h.name }

// kind is what a test says to one kind of server otherwise than to another.
type kind struct {
	postgres bool // else MySQL or MariaDB
	// tables are those of the FlowCatalyst outbox processor, with its indices;
	// truth gives each group of each outbox a counter, and what else the tests'
	// statements need. A writer holds its counter's row to the commit, so the
	// numbers in the payloads are the order of the commits.
	tables, truth string
	// messages is the table that FlowCatalyst's SDKs write today; copyOfMessages
	// keeps its rows' groups, for delivered rows are deleted.
	messages, copyOfMessages string
	// numbers is a table expression with the numbers i from %[1]d to %[2]d, asText
	// makes a text of %s, and n is the number in a payload.
	numbers, asText, n string
	// audit notes who writes what in which epoch, writes what is written into the
	// outboxes; business is a table that has nothing to do with them.
	audit, writes, business string
	// object has the table of events refuse to complete the row %s, unobject ends that.
	object, unobject string
	// like makes a table %[1]s of the form of %[2]s.
	like string
	// waiting counts the sessions that wait for a lock with a statement like $1.
	waiting string
	// sessions is a query that counts the sessions of relays in a database; end ends
	// them.
	sessions func(database string) string
	end      func(t testing.TB, s *scene)

	// shutdown is how long the server may take to end in order.
	shutdown time.Duration

	// as is the database's URL for a relay of its own name, and the name that the
	// audit notes.
	as func(t testing.TB, database, who string) (url, noted string)
	// run runs scripts, each of any number of statements.
	run func(t testing.TB, database string, scripts ...string)
	// pool is a pool of sessions, write writes a load.
	pool  func(t testing.TB, database string) *sql.DB
	write func(t testing.TB, database string, l load) (wait func())
}

func kindOf(database string) *kind {
	if scheme, _, _ := strings.Cut(database, ":"); scheme == "mysql" || scheme == "mariadb" {
		return mysqlKind()
	}
	return postgresKind()
}

// hosts are all servers that scenes are beside.
func hosts() []host {
	var all []host
	for _, version := range servers.Versions() {
		all = append(all, postgresHost(version))
	}
	for _, f := range servers.Flavours() {
		all = append(all, mysqlHost(f))
	}
	return all
}

// conn asks a database, whatever its kind. In a statement, $1, $2, … stand for the
// arguments, || joins texts, and sluicebox.NAME is a table of the relay.
type conn struct {
	*sql.DB
	kind *kind
}

// connect opens a pool that is closed when the test ends.
func connect(t testing.TB, database string) *conn {
	t.Helper()
	k := kindOf(database)
	return &conn{DB: k.pool(t, database), kind: k}
}

var (
	argument = regexp.MustCompile(`\$\d+`)
	ownTable = regexp.MustCompile(`\bsluicebox\.(\w+)`)
)

// text is a statement as the database has it, with its arguments.
func (c *conn) text(sql string, args []any) (string, []any) {
	if c.kind.postgres {
		return sql, args
	}
	var in []any
	sql = argument.ReplaceAllStringFunc(sql, func(place string) string {
		n, _ := strconv.Atoi(place[1:]) // it matches digits
		in = append(in, args[n-1])
		return "?"
	})
	return ownTable.ReplaceAllString(sql, "sluicebox_$1"), in
}

func (c *conn) exec(sql string, args ...any) (rows int, err error) {
	sql, args = c.text(sql, args)
	result, err := c.ExecContext(context.Background(), sql, args...)
	if err != nil {
		return 0, fmt.Errorf("%w, in: %s", err, sql)
	}
	n, err := result.RowsAffected()
	return int(n), err
}

func (c *conn) row(sql string, args ...any) *sql.Row {
	sql, args = c.text(sql, args)
	return c.QueryRowContext(context.Background(), sql, args...)
}

// texts returns the first column of a result.
func (c *conn) texts(sql string, args ...any) (list []string, err error) {
	err = c.each(sql, args, func(row func(...any) error) error {
		var s string
		err := row(&s)
		list = append(list, s)
		return err
	})
	return list, err
}

// each calls take for each row of a result.
func (c *conn) each(sql string, args []any, take func(scan func(...any) error) error) error {
	sql, args = c.text(sql, args)
	rows, err := c.QueryContext(context.Background(), sql, args...)
	if err != nil {
		return fmt.Errorf("%w, in: %s", err, sql)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := take(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// count returns the number that a query gives.
func count(t testing.TB, c *conn, sql string, args ...any) int {
	t.Helper()
	var n int
	if err := c.row(sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// quoted is a list of texts in a statement, which is never empty.
func quoted(texts ...string) string {
	return "'" + strings.Join(append([]string{""}, texts...), "', '") + "'"
}
