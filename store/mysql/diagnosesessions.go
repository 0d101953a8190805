package mysql

import (
	"context"
	"fmt"
	"strconv"

	"github.com/sluicebox/sluicebox/store"
)

const (
	// sessionsNeeded is how many sessions a relay opens: seven of the store, one for a view
	// and one to spare, three of the source, and its stream.
	sessionsNeeded = 13
	// minSessions is without how many no relay works, even one that polls: those of the
	// lock, of the claims, of the outcomes, of the checkpoint, and a view.
	minSessions = 5
	// minStatementTimeout is how long a statement must be allowed to take, in seconds: a
	// backlog of millions is read by one.
	minStatementTimeout = 60
)

// connections looks whether the server has room for the relay's sessions.
func (c *checker) connections(ctx context.Context) error {
	c.Subject = "connections"
	most, err := c.conn.variable(ctx, "max_connections")
	if err != nil {
		return err
	}
	limit, err := strconv.Atoi(most)
	if err != nil {
		return fmt.Errorf("max_connections is %q", most)
	}
	var name, text string
	if err := c.conn.sqlConn.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Threads_connected'").Scan(&name, &text); err != nil {
		return err
	}
	used, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("the number of sessions (Threads_connected) is %q", text)
	}
	said := fmt.Sprintf("%d of %d are in use", used, limit)
	if limit-used >= sessionsNeeded {
		c.Add(store.GradeOK, said)
		return nil
	}
	lines := c.conn.server.setGlobal("max_connections", strconv.Itoa(limit+5*sessionsNeeded))
	lines[0] += "; or end sessions that are not needed"
	c.Add(store.GradeAdvice, fmt.Sprintf("%s, and a relay needs %d", said, sessionsNeeded), lines...)
	return nil
}

// checkLimits looks at what the server lets the account do.
func (c *checker) checkLimits(ctx context.Context) error {
	c.Subject = "account"
	on := &c.conn.server
	var most int // of the account, or else of every account
	if err := c.conn.row(ctx, "SELECT @@max_user_connections", nil, &most); err != nil {
		return err
	}
	if most > 0 && most < sessionsNeeded {
		grade := store.GradeAdvice
		if most < minSessions {
			grade = store.GradeFault
		}
		c.Add(grade, fmt.Sprintf("%s may have %d sessions at a time (max_user_connections), and a relay needs up to %d", Account(on.account), most, sessionsNeeded),
			"-- as an administrator; each relay that stands by needs as many", fmt.Sprintf("ALTER USER %s WITH MAX_USER_CONNECTIONS %d;", Account(on.account), 5*sessionsNeeded))
	}
	limit, more, err := on.statementLimit(ctx, c.conn)
	if err != nil || limit == 0 || limit >= minStatementTimeout {
		return err
	}
	c.Add(store.GradeAdvice, fmt.Sprintf("the server ends statements that take longer than %g s, and a large backlog is read by one", limit), more...)
	return nil
}
