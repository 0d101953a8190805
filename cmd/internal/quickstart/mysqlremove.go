package quickstart

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
)

// mysqlRemoval returns the statements that remove everything of the named quickstart
// from a server. The name needs no quotes.
func mysqlRemoval(name string) []string { return []string{"DROP DATABASE IF EXISTS " + name} }

// cleanUp ends the sessions and, unless keep is set, drops the database. It opens
// sessions of its own, because the others may have been lost.
func (m *mysqlDatabase) cleanUp(ctx context.Context, keep bool) error {
	m.lock.Close()
	if keep || !m.created {
		return nil
	}
	if err := m.removeAll(ctx); err != nil {
		return removalError(err, mysqlRemoval(m.name))
	}
	return nil
}

func (m *mysqlDatabase) removeAll(ctx context.Context) error {
	session, err := demodb.OpenMySQL(ctx, m.config)
	if err != nil {
		return err
	}
	defer session.Close()
	conn := session.Conn
	if err := m.awaitSetUp(ctx, conn); err != nil {
		return err
	}

	// The relay has closed its sessions. Until the server notices, an open transaction
	// of one locks its tables.
	if _, err := conn.ExecContext(ctx, fmt.Sprintf("SET SESSION lock_wait_timeout = %d", ceilSeconds(m.endTimeout))); err != nil {
		return fmt.Errorf("set lock_wait_timeout: %w", err)
	}

	drop := mysqlRemoval(m.name)[0]
	_, err = conn.ExecContext(ctx, drop)
	if errorNumber(err) == codeLockTimeout {
		if err := m.endSessions(ctx, conn); err != nil {
			return err
		}
		_, err = conn.ExecContext(ctx, drop)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", drop, err)
	}
	return nil
}

// awaitSetUp waits until the session that created the database has ended, because it
// may still be creating tables. After endTimeout it kills that session.
func (m *mysqlDatabase) awaitSetUp(ctx context.Context, conn *sql.Conn) error {
	got, err := acquireLock(ctx, conn, m.name, m.endTimeout)
	if err == nil && !got {
		var by sql.NullInt64
		if err = conn.QueryRowContext(ctx, "SELECT IS_USED_LOCK(?)", m.name).Scan(&by); err == nil && by.Valid {
			err = endSession(ctx, conn, by.Int64)
		}
		if err == nil {
			got, err = acquireLock(ctx, conn, m.name, killTimeout)
		}
	}
	if err == nil && !got {
		err = errors.New("session did not end")
	}
	if err != nil {
		return fmt.Errorf("wait for the session that created the database: %w", err)
	}
	return nil
}

// endSessions kills the sessions that use the database. They belong to the account
// itself, so it can see them.
func (m *mysqlDatabase) endSessions(ctx context.Context, conn *sql.Conn) error {
	using, err := sessionIDs(ctx, conn)
	for _, id := range using[m.name] {
		err = errors.Join(err, endSession(ctx, conn, id))
	}
	if err != nil {
		return fmt.Errorf("kill relay sessions: %w", err)
	}
	return nil
}

func endSession(ctx context.Context, conn *sql.Conn, id int64) error {
	_, err := conn.ExecContext(ctx, fmt.Sprintf("KILL %d", id))
	if errorNumber(err) == codeNoSession {
		return nil
	}
	return err
}

// sessionIDs returns the ids of the sessions that use each database, as far as the
// account may see them. It uses SHOW PROCESSLIST because MySQL and MariaDB have the
// list in different tables. The servers' columns differ, so it picks id and db by name.
func sessionIDs(ctx context.Context, conn *sql.Conn) (map[string][]int64, error) {
	rows, err := conn.QueryContext(ctx, "SHOW PROCESSLIST")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // rows.Err has the error
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}

	var id int64
	var database sql.NullString
	into := make([]any, len(columns))
	for i, column := range columns {
		switch {
		case strings.EqualFold(column, "id"):
			into[i] = &id
		case strings.EqualFold(column, "db"):
			into[i] = &database
		default:
			into[i] = new(sql.RawBytes)
		}
	}

	using := map[string][]int64{}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		using[database.String] = append(using[database.String], id)
	}
	return using, rows.Err()
}

// mysqlLeftoverSQL finds the databases of other quickstarts that are not running.
const mysqlLeftoverSQL = `
SELECT schema_name FROM information_schema.schemata
WHERE schema_name REGEXP CONCAT('^', ?, '[0-9a-f]{8}$') AND IS_FREE_LOCK(schema_name)
ORDER BY schema_name`

// leftovers lists the databases of kept and killed quickstarts on the server, with
// the statements that drop them, or returns "" if there are none. A database that a
// session uses is not listed: for example, a relay may run on a kept one.
func (m *mysqlDatabase) leftovers(ctx context.Context) (string, error) {
	names, err := m.findLeftovers(ctx)
	if err != nil {
		return "", fmt.Errorf("list leftovers of earlier quickstarts: %w", err)
	}
	return leftoverNote(names, "database %s on this server.", mysqlRemoval), nil
}

func (m *mysqlDatabase) findLeftovers(ctx context.Context) (names []string, err error) {
	using, err := sessionIDs(ctx, m.lock.Conn)
	if err != nil {
		return nil, err
	}

	rows, err := m.lock.QueryContext(ctx, mysqlLeftoverSQL, namePrefix)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // rows.Err has the error
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		if len(using[name]) == 0 {
			names = append(names, name)
		}
	}
	return names, rows.Err()
}
