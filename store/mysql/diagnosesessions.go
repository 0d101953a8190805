package mysql

import (
	"context"
	"fmt"
	"strconv"

	"github.com/sluicebox/sluicebox/store"
)

const (
	// sessionsNeeded is how many sessions a relay opens: eight of the store, one for a
	// view, three of the source, and its stream.
	sessionsNeeded = 13
	// minSessions is how many sessions a relay needs at least, even one that polls: lock,
	// claims, outcomes, checkpoint and a view.
	minSessions = 5
	// minStatementTimeout is the minimum time limit for a statement in seconds, because a
	// single statement reads a backlog of millions of rows.
	minStatementTimeout = 60
)

// connections checks that the server has room for the relay's sessions.
func (c *checker) connections(ctx context.Context) error {
	c.Subject = "connections"
	setting, err := c.conn.variable(ctx, "max_connections")
	if err != nil {
		return err
	}

	limit, err := strconv.Atoi(setting)
	if err != nil {
		return fmt.Errorf("max_connections is %q", setting)
	}

	var name, text string
	if err := c.conn.sqlConn.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Threads_connected'").Scan(&name, &text); err != nil {
		return err
	}

	used, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("number of sessions (Threads_connected) is %q", text)
	}

	usage := fmt.Sprintf("%d of %d are in use", used, limit)
	if limit-used >= sessionsNeeded {
		c.Add(store.GradeOK, usage)
		return nil
	}

	lines := c.conn.server.setGlobal("max_connections", strconv.Itoa(limit+5*sessionsNeeded))
	lines[0] += "; or end unneeded sessions"
	c.Add(store.GradeAdvice, fmt.Sprintf("%s, and a relay needs %d", usage, sessionsNeeded), lines...)
	return nil
}

// checkLimits checks the server's limits for the account.
func (c *checker) checkLimits(ctx context.Context) error {
	c.Subject = "account"
	srv := &c.conn.server
	var maxSessions int // of the account, otherwise of every account
	if err := c.conn.row(ctx, "SELECT @@max_user_connections", nil, &maxSessions); err != nil {
		return err
	}

	if maxSessions > 0 && maxSessions < sessionsNeeded {
		grade := store.GradeAdvice
		if maxSessions < minSessions {
			grade = store.GradeFault
		}
		c.Add(grade, fmt.Sprintf("%s may have %d sessions at a time (max_user_connections), and a relay needs up to %d", Account(srv.account), maxSessions, sessionsNeeded),
			"-- as an administrator; each standby relay needs as many", fmt.Sprintf("ALTER USER %s WITH MAX_USER_CONNECTIONS %d;", Account(srv.account), 5*sessionsNeeded))
	}

	limit, remedy, err := srv.statementLimit(ctx, c.conn)
	if err != nil || limit == 0 || limit >= minStatementTimeout {
		return err
	}

	c.Add(store.GradeAdvice, fmt.Sprintf("server ends statements that take longer than %g s, and a single statement reads a large backlog", limit), remedy...)
	return nil
}
