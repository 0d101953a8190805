package quickstart

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
	"github.com/sluicebox/sluicebox/store/backoff"
)

// endPollInterval is the time between two checks for remaining sessions.
const endPollInterval = 20 * time.Millisecond

// postgresRemoval returns the statements that remove everything of the named quickstart
// from a database, except the schema sluicebox. The name needs no quotes.
func postgresRemoval(name string) []string {
	return []string{
		"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '" + name + "'",
		"DROP PUBLICATION IF EXISTS " + name,
		"DROP SCHEMA IF EXISTS " + name + " CASCADE",
		"DELETE FROM sluicebox.queue WHERE name = '" + name + "'",
		"DELETE FROM sluicebox.record WHERE name = '" + name + "'",
		"DELETE FROM sluicebox.leader WHERE name = '" + name + "'",
	}
}

// cleanUp ends the sessions and, unless keep is set, removes everything that was
// created. It opens a connection of its own, because the other may have been lost.
func (s *postgresSchema) cleanUp(ctx context.Context, keep bool) error {
	s.conn.Close()
	if keep || !s.created {
		return nil
	}
	err := s.removeAll(ctx)
	if err == nil {
		return nil
	}
	err = removalError(err, postgresRemoval(s.name))
	if !s.shared {
		err = fmt.Errorf("%w\nDROP SCHEMA sluicebox CASCADE; -- if no other relay uses it", err)
	}
	return err
}

func (s *postgresSchema) removeAll(ctx context.Context) error {
	conn, err := demodb.OpenSQL(ctx, s.config)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := s.endSessions(ctx, conn); err != nil {
		return err
	}
	var errs []error
	for _, statement := range postgresRemoval(s.name)[:3] {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", statement, err))
		}
	}
	errs = append(errs, s.removeOwn(ctx, conn))
	return errors.Join(errs...)
}

// ownSessionsSQL counts the sessions of this quickstart and its relay. Every role may
// see the application names of all sessions.
const ownSessionsSQL = `SELECT count(*) FROM pg_stat_activity
WHERE application_name LIKE '%' || $1 || '%' AND pid <> pg_backend_pid()`

// endSessions waits until the server has noticed that the sessions are closed. Until
// then one of them may still create the slot, or hold it. After demodb.EndTimeout it
// terminates them.
func (s *postgresSchema) endSessions(ctx context.Context, conn *demodb.SQL) error {
	began, ended := time.Now(), false
	for {
		var n int
		if err := conn.QueryRowContext(ctx, ownSessionsSQL, s.name).Scan(&n); err != nil {
			return fmt.Errorf("count open sessions: %w", err)
		}
		switch waited := time.Since(began); {
		case n == 0:
			return nil
		case ended && waited > demodb.EndTimeout+killTimeout:
			return fmt.Errorf("%d relay sessions did not end", n)
		case !ended && waited > demodb.EndTimeout:
			ended = true
			_, err := conn.ExecContext(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '%' || $1 || '%' AND pid <> pg_backend_pid()", s.name)
			if err != nil {
				return fmt.Errorf("terminate relay sessions: %w", err)
			}
		}
		if err := backoff.Sleep(ctx, endPollInterval); err != nil {
			return err
		}
	}
}

// removeOwn deletes the quickstart's rows from the relay tables. It drops the schema
// sluicebox too, if this quickstart's relay created it and no other relay has used it
// since.
func (s *postgresSchema) removeOwn(ctx context.Context, conn *demodb.SQL) error {
	var there bool
	if err := conn.QueryRowContext(ctx, "SELECT to_regclass('sluicebox.leader') IS NOT NULL").Scan(&there); err != nil || !there {
		return err
	}
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // no effect after the commit
	for _, statement := range postgresRemoval(s.name)[3:] {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	if !s.shared {
		if err := dropUnused(ctx, tx); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// dropUnused drops the schema sluicebox if no relay uses it. A relay that starts now waits for
// the lock and then finds no tables. It creates them at its next start.
func dropUnused(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, "LOCK TABLE sluicebox.leader"); err != nil {
		return err
	}
	var used bool
	err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT FROM sluicebox.leader UNION ALL SELECT FROM sluicebox.record)").Scan(&used)
	if err != nil || used {
		return err
	}
	_, err = tx.ExecContext(ctx, "DROP SCHEMA sluicebox CASCADE")
	return err
}

// postgresLeftoverSQL finds the schemas, publications and slots of other quickstarts
// that no session uses.
const postgresLeftoverSQL = `
SELECT name FROM (
	SELECT nspname::text FROM pg_namespace
	UNION SELECT pubname::text FROM pg_publication
	UNION SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()
) AS had (name)
WHERE name ~ ('^' || $1 || '[0-9a-f]{8}$')
AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name LIKE '%' || name || '%')
ORDER BY name`

// leftovers lists the objects of kept and killed quickstarts in the database, with the
// statements that remove them, or returns "" if there are none.
func (s *postgresSchema) leftovers(ctx context.Context) (string, error) {
	var names []string
	var name string
	err := demodb.Each(ctx, s.conn, postgresLeftoverSQL, []any{namePrefix}, []any{&name}, func() { names = append(names, name) })
	if err != nil {
		return "", fmt.Errorf("list leftovers of earlier quickstarts: %w", err)
	}
	return leftoverNote(names, "%s in this database.\nUntil its slot is dropped, the server retains WAL for it.", postgresRemoval), nil
}
