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

// host is a database server for scenes.
type host struct {
	name string // for test names
	kind *kind
	// database creates an empty database on the shared server.
	database func(t testing.TB) string
	// start starts a server for one test and returns the URL of an empty database on it.
	start func(t testing.TB, settings map[string]string) (database string, server ownServer)
}

// ownServer is a server for one test; see servers.Server.
type ownServer interface {
	Stop(mode string) time.Duration
	Restart(settings map[string]string)
}

func (h host) String() string { return h.name }

// kind has the statements and functions in which the kinds of servers differ.
type kind struct {
	postgres bool // else MySQL or MariaDB
	// tables creates the tables of the FlowCatalyst outbox processor with their indexes.
	// truth adds a counter for each group of each outbox, and helpers of the tests. A writer
	// locks its counter's row until its commit, so the numbers in the payloads are in commit
	// order.
	tables, truth string
	// messages creates the outbox-messages table. copyOfMessages keeps the groups of its rows,
	// because delivered rows are deleted.
	messages, copyOfMessages string
	// numbers is a table expression with the numbers i from %[1]d to %[2]d, asText converts %s
	// to text, and n is the number in a payload.
	numbers, asText, n string
	// audit records who writes in which epoch, writes records all updates of outbox rows, and
	// business is an unrelated table.
	audit, writes, business string
	// object makes the events table refuse COMPLETED of row %s; unobject ends that.
	object, unobject string
	// spilled is the table or view of the spilled rows. checkpoint is a table expression with
	// the position of the saved checkpoint, and checkpoints the table that it is in.
	spilled, checkpoint, checkpoints string
	// like creates a table %[1]s like %[2]s.
	like string
	// waiting counts the sessions that wait for a lock with a statement like $1.
	waiting string
	// sessions returns a query that counts the sessions of relays in a database. end kills
	// them.
	sessions func(database string) string
	end      func(t testing.TB, s *scene)

	// shutdown limits an orderly shutdown of the server.
	shutdown time.Duration

	// as returns the database's URL for a relay with its own account name, and the name that
	// audit records.
	as func(t testing.TB, database, who string) (url, noted string)
	// run runs scripts, each of one or more statements.
	run func(t testing.TB, database string, scripts ...string)
	// pool opens a session pool; write writes a load.
	pool  func(t testing.TB, database string) *sql.DB
	write func(t testing.TB, database string, l load) (wait func())
}

func kindOf(database string) *kind {
	if scheme, _, _ := strings.Cut(database, ":"); scheme == "mysql" || scheme == "mariadb" {
		return mysqlKind()
	}
	return postgresKind()
}

// hosts returns all servers for scenes.
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

// conn queries a database of any kind. In a statement, $1, $2, … are the arguments, || is
// concatenation, and sluicebox.NAME is a table of the relay.
type conn struct {
	*sql.DB
	kind *kind
}

// connect opens a pool that is closed at the end of the test.
func connect(t testing.TB, database string) *conn {
	t.Helper()
	k := kindOf(database)
	return &conn{DB: k.pool(t, database), kind: k}
}

var (
	argument = regexp.MustCompile(`\$\d+`)
	ownTable = regexp.MustCompile(`\bsluicebox\.(\w+)`)
)

// text translates a statement to the database's dialect, with its arguments.
func (c *conn) text(sql string, args []any) (string, []any) {
	if c.kind.postgres {
		return sql, args
	}
	var in []any
	sql = argument.ReplaceAllStringFunc(sql, func(place string) string {
		n, _ := strconv.Atoi(place[1:]) // the pattern matches digits
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

// count returns the number that a query selects.
func count(t testing.TB, c *conn, sql string, args ...any) int {
	t.Helper()
	var n int
	if err := c.row(sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// quoted formats a non-empty list of texts for a statement.
func quoted(texts ...string) string {
	return "'" + strings.Join(append([]string{""}, texts...), "', '") + "'"
}
