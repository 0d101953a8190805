package postgres

import (
	"context"
	"fmt"

	"github.com/sluicebox/sluicebox/store"
)

const (
	// sessionsNeeded is the number of sessions that a relay opens: eight of the store,
	// one for a view, two of the source besides its stream.
	sessionsNeeded = 11
	// minSessions is the number without which no relay works, not even in poll mode: one
	// each for the lock, claims, outcomes, the checkpoint, and a view.
	minSessions = 5
)

// connections checks whether the server has room for the relay's sessions.
func (c *checker) connections(ctx context.Context) error {
	c.Subject = "connections"
	var used, most, reserved int
	err := c.conn.QueryRow(ctx, `
SELECT (SELECT count(*) FROM pg_catalog.pg_stat_activity a
    WHERE a.datid IS NOT NULL AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_replication r WHERE r.pid = a.pid))::int,
  current_setting('max_connections')::int,
  current_setting('superuser_reserved_connections')::int + coalesce(current_setting('reserved_connections', true)::int, 0)`).Scan(&used, &most, &reserved)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%d of %d are in use, %d more are reserved", used, most, reserved)
	if most-reserved-used >= sessionsNeeded {
		c.Add(store.GradeOK, text)
		return nil
	}
	c.Add(store.GradeAdvice, fmt.Sprintf("%s, and a relay needs %d", text, sessionsNeeded),
		"-- as a superuser, then restart the server; or end unused sessions",
		fmt.Sprintf("ALTER SYSTEM SET max_connections = %d;", used+reserved+5*sessionsNeeded))
	return nil
}

// checkLimits checks the connection limits of the role and the database. The stream
// counts against them too. Superusers have no limit.
func (c *checker) checkLimits(ctx context.Context) error {
	var super bool
	var ofRole, ofDatabase, byRole, byDatabase int
	var database string
	err := c.conn.QueryRow(ctx, `
WITH others AS (SELECT a.usename, a.datname FROM pg_catalog.pg_stat_activity a
  WHERE a.datid IS NOT NULL AND a.pid <> pg_catalog.pg_backend_pid() AND NOT starts_with(coalesce(a.application_name, ''), $1))
SELECT r.rolsuper, r.rolconnlimit, (SELECT count(*) FROM others WHERE usename = current_user)::int,
  d.datname::text, d.datconnlimit, (SELECT count(*) FROM others WHERE datname = d.datname)::int
FROM pg_catalog.pg_roles r, pg_catalog.pg_database d WHERE r.rolname = current_user AND d.datname = current_database()`,
		"sluicebox "+c.relay+" ").Scan(&super, &ofRole, &byRole, &database, &ofDatabase, &byDatabase)
	if err != nil || super {
		return err
	}
	c.checkLimit("ROLE "+c.role, ofRole, byRole)
	c.checkLimit("DATABASE "+Ident(database), ofDatabase, byDatabase)
	return nil
}

// checkLimit compares the limit of a role or a database with the number that a relay
// needs. used excludes the sessions of this relay, in case it is running.
func (c *checker) checkLimit(of string, most, used int) {
	const need = sessionsNeeded + 1 // the stream
	if most < 0 || most-used >= need {
		return
	}
	grade := store.GradeAdvice
	if most < minSessions {
		grade = store.GradeFault
	}
	c.Add(grade, fmt.Sprintf("%s has CONNECTION LIMIT %d, of which others use %d, and a relay needs up to %d", of, most, used, need),
		"-- as an administrator; each standby relay needs as many", fmt.Sprintf("ALTER %s CONNECTION LIMIT %d;", of, used+5*need))
}
