package quickstart

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

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
	if err := m.awaitSetUp(ctx, session); err != nil {
		return err
	}

	return session.DropDatabase(ctx, m.name, m.endTimeout)
}

// awaitSetUp waits until the session that created the database has ended, because it
// may still be creating tables. After m.endTimeout it kills that session.
func (m *mysqlDatabase) awaitSetUp(ctx context.Context, session *demodb.SQL) error {
	got, err := acquireLock(ctx, session.Conn, m.name, m.endTimeout)
	if err == nil && !got {
		var by sql.NullInt64
		if err = session.QueryRowContext(ctx, "SELECT IS_USED_LOCK(?)", m.name).Scan(&by); err == nil && by.Valid {
			err = session.Kill(ctx, by.Int64)
		}
		if err == nil {
			got, err = acquireLock(ctx, session.Conn, m.name, killTimeout)
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
	using, err := m.lock.Users(ctx)
	if err != nil {
		return nil, err
	}

	var name string
	err = demodb.Each(ctx, m.lock, mysqlLeftoverSQL, []any{namePrefix}, []any{&name}, func() {
		if len(using[name]) == 0 {
			names = append(names, name)
		}
	})
	return names, err
}
