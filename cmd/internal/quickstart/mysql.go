package quickstart

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
	mysqlstore "github.com/sluicebox/sluicebox/store/mysql"
)

// sessionTimeoutSeconds is the wait_timeout of the quickstart's sessions. It is longer
// than a quickstart takes and replaces the server's, which may be shorter.
const sessionTimeoutSeconds = "7200"

// mysqlDatabase is the quickstart's own database on a MySQL or MariaDB server. The
// relay's tables are in it too.
type mysqlDatabase struct {
	name       string        // of the database and the relay
	config     *mysql.Config // of the server, without a database
	endTimeout time.Duration // demodb.EndTimeout, but shorter in tests

	// lock is a session that holds the user-level lock of the name. Any account can
	// see from the lock that the quickstart is running. It ends with the session.
	lock *demodb.SQL
	// created is set once the server may have objects to remove.
	created bool
}

// newMySQL prepares a database on the server of a URL, without connecting. It does
// not use the database that the URL names.
func newMySQL(raw, name string) (*mysqlDatabase, databaseInfo, error) {
	u, err := url.Parse(raw)
	if err != nil {
		_, err = mysqlstore.ParseURL(raw, "") // its error shows no password
		return nil, databaseInfo{}, err
	}

	u.Path, u.RawPath = "/"+name, ""
	cfg, err := mysqlstore.ParseURL(u.String(), "sluicebox quickstart "+name)
	if err != nil {
		return nil, databaseInfo{}, err
	}

	cfg.DBName = "" // it does not exist yet
	cfg.InterpolateParams = true
	cfg.Params = map[string]string{"wait_timeout": sessionTimeoutSeconds}
	client := mysqlClient(u)
	return &mysqlDatabase{name: name, config: cfg, endTimeout: demodb.EndTimeout}, databaseInfo{
		name: name, url: u.String(), table: "outbox_events",
		description:    fmt.Sprintf("database %s on %s", name, cfg.Addr),
		inspectCommand: client + " -e 'SELECT status, count(*), max(retry_count) FROM " + name + ".outbox_events GROUP BY status'",
		removeCommand:  client + " -e " + shellWord(mysqlRemoval(name)[0]),
	}, nil
}

func (m *mysqlDatabase) setUp(ctx context.Context) (note string, err error) {
	if m.lock, err = demodb.OpenMySQL(ctx, m.config); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := acquireLock(ctx, m.lock.Conn, m.name, 0); err != nil { // names are unique, so the lock is free
		return "", fmt.Errorf("acquire lock %s: %w", m.name, err)
	}
	if note, err = m.leftovers(ctx); err != nil {
		return "", err
	}
	if err := m.checkPrivileges(ctx); err != nil {
		return "", err
	}

	statements := tables(layouts.MySQL, m.name+".")
	for i, statement := range append([]string{"CREATE DATABASE " + m.name + " DEFAULT CHARACTER SET utf8mb4"}, statements...) {
		m.created = true
		if _, err := m.lock.ExecContext(ctx, statement); err != nil {
			m.created = i > 0 || demodb.ErrorNumber(err) == 0 // a refused statement has created nothing
			return "", m.explain(ctx, err)
		}
	}
	return note, nil
}

// acquireLock acquires the user-level lock of a name, which the session then holds
// until it ends. It waits for another holder, in whole seconds (rounded up), and
// reports whether it acquired the lock.
func acquireLock(ctx context.Context, conn *sql.Conn, name string, wait time.Duration) (bool, error) {
	var got sql.NullBool
	err := conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, ?)", name, ceilSeconds(wait)).Scan(&got)
	return got.Bool, err
}

func ceilSeconds(t time.Duration) int { return int((t + time.Second - 1) / time.Second) }

// Server errors, the same in MySQL and MariaDB; see
// https://dev.mysql.com/doc/mysql-errors/9.0/en/server-error-reference.html.
const (
	codeDatabaseDenied = 1044 // ER_DBACCESS_DENIED_ERROR
	codeTableDenied    = 1142 // ER_TABLEACCESS_DENIED_ERROR
)

func isDenied(err error) bool {
	return slices.Contains([]int{codeDatabaseDenied, codeTableDenied}, demodb.ErrorNumber(err))
}

// checkPrivileges verifies the privileges that the quickstart and its relay need. It
// runs before anything is created, because without one of them the objects might not
// be removable. Its statements name a table that does not exist: a server checks the
// privilege before it looks for the table.
func (m *mysqlDatabase) checkPrivileges(ctx context.Context) error {
	table := m.name + ".nothing"
	for _, statement := range []string{
		"SELECT 1 FROM " + table, "INSERT INTO " + table + " VALUES (1)", "UPDATE " + table + " SET a = 1",
		"DELETE FROM " + table, "DROP TABLE IF EXISTS " + table,
	} {
		if _, err := m.lock.ExecContext(ctx, statement); isDenied(err) {
			return m.explain(ctx, err)
		} else if demodb.ErrorNumber(err) == 0 && err != nil {
			return fmt.Errorf("check account privileges: %w", mysqlstore.Explain(err))
		}
	}
	return nil
}

// explain adds the missing GRANT to an access error.
func (m *mysqlDatabase) explain(ctx context.Context, err error) error {
	if !isDenied(err) {
		return fmt.Errorf("create database %s: %w", m.name, mysqlstore.Explain(err))
	}
	var account, variable, partial string
	if asked := m.lock.QueryRowContext(ctx, quotedAccount).Scan(&account); asked != nil {
		return errors.Join(err, asked)
	}

	on := "`" + `sluicebox\_quickstart\_%` + "`.*"
	// With partial_revokes=ON, database names in grants have no wildcards. MariaDB does
	// not have the variable.
	asked := m.lock.QueryRowContext(ctx, "SHOW VARIABLES LIKE 'partial_revokes'").Scan(&variable, &partial)
	if asked == nil && partial == "ON" {
		on = "*.*"
	}
	return &store.SetupError{
		Problem: fmt.Sprintf("account %s lacks privileges for a database of its own: %s", account, err),
		Remedy: "run as an administrator, or use another account:\n" +
			"GRANT CREATE, DROP, SELECT, INSERT, UPDATE, DELETE ON " + on + " TO " + account + ";",
	}
}

// quotedAccount returns the account whose privileges apply, quoted for a GRANT. It
// splits at the last @, because a user name may contain one and a host may not.
const quotedAccount = `SELECT CONCAT(QUOTE(LEFT(CURRENT_USER(), CHAR_LENGTH(CURRENT_USER()) - CHAR_LENGTH(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)) - 1)),
  '@', QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)))`

func (m *mysqlDatabase) session(ctx context.Context) (session, error) {
	conn, err := m.lock.Another(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := conn.ExecContext(ctx, "USE "+m.name); err != nil { // the server's process list then shows the database
		_ = conn.Close()
		return nil, fmt.Errorf("use database %s: %w", m.name, mysqlstore.Explain(err))
	}
	return &sqlSession{
		conn:    conn,
		order:   "INSERT INTO " + m.name + ".orders " + orderColumns + " VALUES (?, ?, ?, NOW(6))",
		event:   "INSERT INTO " + m.name + ".outbox_events " + eventColumns + " VALUES (?, 'EVENT', ?, ?, 'PENDING', NOW(6))",
		release: func() { _ = conn.Close() }, // the server may be gone
	}, nil
}

func (m *mysqlDatabase) countByStatus(ctx context.Context) (map[string]int, error) {
	return countStates(ctx, m.lock.Pool, m.name+".outbox_events")
}

// isStreaming looks for the relay's checkpoint row. Before it reads the log, the relay
// clears its checkpoint, which creates the row. A polling relay saves none.
func (m *mysqlDatabase) isStreaming(ctx context.Context) (there bool, err error) {
	err = m.lock.Pool.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM "+m.name+".sluicebox_record WHERE name = ? AND kind = 'relay' AND record_key = 'checkpoint')", m.name).Scan(&there)
	if err != nil {
		return false, fmt.Errorf("look up relay checkpoint: %w", err)
	}
	return there, nil
}
