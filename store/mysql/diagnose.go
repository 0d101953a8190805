package mysql

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/finding"
)

// Diagnose implements store.Diagnoser on a session of its own. If the server permanently
// refuses the session, that is a finding. If it cannot be reached, Diagnose returns an
// error.
func (s *Store) Diagnose(ctx context.Context) ([]store.Finding, error) {
	c := &checker{List: finding.List{Subject: "connection"}, thorough: true}
	err := s.onNewSession(ctx, func(ctx context.Context, conn *conn) error {
		c.conn = conn
		encrypted, err := conn.encrypted(ctx)
		if err != nil {
			return err
		}
		c.AddEncryption(s.viewConfig.Addr, encryption(s.viewConfig, encrypted), "enable TLS on the server and set tls=true in source.url, with tls-ca=FILE if its CA is your own")
		for _, check := range []func(context.Context) error{
			func(ctx context.Context) error { return c.run(ctx, s) }, c.clock, c.durability, c.connections, c.checkLimits,
		} {
			if err := check(ctx); err != nil {
				return err
			}
		}
		return nil
	})

	var setup *store.SetupError
	switch {
	case err == nil:
		return c.Findings, nil
	case c.conn == nil && errors.As(err, &setup):
		s.refusedDatabase(ctx, c, setup, code(err))
		return c.Findings, nil
	}

	return c.Findings, fmt.Errorf("diagnose database: %w", Explain(err))
}

// encrypted reports whether the session uses TLS; a URL may leave that to the server.
func (c *conn) encrypted(ctx context.Context) (bool, error) {
	var name, cipher string
	err := c.sqlConn.QueryRowContext(ctx, "SHOW SESSION STATUS LIKE 'Ssl_cipher'").Scan(&name, &cipher)
	return cipher != "", err
}

// encryption describes a session of a configuration.
func encryption(cfg *mysql.Config, encrypted bool) finding.Encryption {
	host, _, err := net.SplitHostPort(cfg.Addr)
	if err != nil {
		host = cfg.Addr // a socket
	}
	return finding.Encryption{Local: store.Loopback(host), Encrypted: encrypted, Verified: cfg.TLS != nil && !cfg.TLS.InsecureSkipVerify}
}

// refusedDatabase reports that no session can be opened. If the account has no right on
// the database, a session without a database shows which account the server uses, and the
// finding includes the GRANT.
func (s *Store) refusedDatabase(ctx context.Context, c *checker, setup *store.SetupError, errCode int) {
	if errCode != codeDatabaseDenied {
		c.AddSetupError(setup)
		return
	}

	cfg := s.viewConfig.Clone()
	cfg.DBName = ""
	conn, err := dial(ctx, cfg, "READ COMMITTED", readSettings())
	if err != nil {
		c.AddSetupError(setup)
		return
	}
	defer conn.close()
	conn.server.database = s.viewConfig.DBName
	remedies := []string{"-- if the name of the database is right; as an administrator"}

	for _, name := range s.outboxes.Names() {
		remedies = append(remedies, grantOutbox(&conn.server, s.outboxes.Lookup(name)))
	}

	c.AddFault(setup.Problem, remedies...)
}

// checkWritable checks that the server accepts writes. Check does not do this because the
// condition may pass by itself, for example when a replica is promoted.
func (c *checker) checkWritable(ctx context.Context) error {
	readOnly, err := c.conn.isOn(ctx, "read_only")
	if err != nil {
		return err
	}

	if readOnly {
		c.AddFault("server is read-only, as a replica is", "-- set source.url to the primary; or, if this is the primary, as an administrator", "SET GLOBAL read_only = OFF;")
	}
	for _, name := range []string{"transaction_read_only", "tx_read_only"} { // MariaDB before 11.1 has only the second
		readOnly, err := c.conn.isOn(ctx, name)
		if err != nil {
			return err
		}
		if readOnly {
			c.AddFault("transactions are read-only by default ("+name+")", c.conn.server.setGlobal(name, "OFF")...)
			break
		}
	}

	return nil
}

// clock compares this machine's clock with the server's, because claims carry times.
func (c *checker) clock(ctx context.Context) error {
	c.Subject = "clock"
	before := time.Now()
	server, err := serverTime(ctx, c.conn)
	if err != nil {
		return err
	}
	c.AddClockSkew(before, server, time.Now())
	return nil
}

// durability reports whether a crash of the server loses commits.
func (c *checker) durability(ctx context.Context) error {
	c.Subject = "durability"
	found := false
	for _, name := range []string{"innodb_flush_log_at_trx_commit", "sync_binlog"} {
		value, err := c.conn.variable(ctx, name)
		if err != nil {
			return err
		}
		if value != "1" && value != "" {
			found = true
			c.Add(store.GradeAdvice, fmt.Sprintf("%s is %s: a crash of the server's machine loses the last commits, also of delivered rows", name, value),
				c.conn.server.setGlobal(name, "1")...)
		}
	}

	if !found {
		c.Add(store.GradeOK, "commits survive a crash of the server")
	}
	return nil
}

// unsettledIndex checks for an index that finds unsettled rows. Without one, each poll,
// sweep and snapshot reads the whole table, delivered rows included.
func (c *checker) unsettledIndex(ctx context.Context, t *table) error {
	if t.Layout.State == store.StateNone {
		return nil
	}
	const find = `
SELECT COUNT(*) > 0 FROM information_schema.statistics
WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ? AND seq_in_index = 1 AND column_name IN (?, ?)`

	state := columns.StateColumns(&t.Layout)
	var serves bool
	if err := c.conn.row(ctx, find, []any{t.Schema, t.Table, state[0], state[len(state)-1]}, &serves); err != nil {
		return err
	}

	if serves {
		c.Add(store.GradeOK, "an index finds unsettled rows")
		return nil
	}

	var indexed []string
	for _, name := range slices.Concat(state, t.Ordered()) {
		indexed = append(indexed, Ident(name))
	}

	c.Add(store.GradeAdvice, fmt.Sprintf("no index of %s finds unsettled rows: polling, sweeps and the first start read the whole table", TableName(t.Outbox)),
		fmt.Sprintf("CREATE INDEX %s ON %s (%s);", Ident(t.Table+"_unsettled"), TableName(t.Outbox), strings.Join(indexed, ", ")))
	return nil
}

const (
	// sessionsNeeded is how many sessions a relay opens: nine of the store, one for a
	// view, three of the source, and its stream.
	sessionsNeeded = 14
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
	used, limit, err := c.usage(ctx)
	if err != nil {
		return err
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

// usage returns the number of sessions of the server and its limit.
func (c *checker) usage(ctx context.Context) (used, limit int, err error) {
	setting, err := c.conn.variable(ctx, "max_connections")
	if err != nil {
		return 0, 0, err
	}

	limit, err = strconv.Atoi(setting)
	if err != nil {
		return 0, 0, fmt.Errorf("max_connections is %q", setting)
	}

	var name, text string
	if err := c.conn.sqlConn.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Threads_connected'").Scan(&name, &text); err != nil {
		return 0, 0, err
	}

	used, err = strconv.Atoi(text)
	if err != nil {
		return 0, 0, fmt.Errorf("number of sessions (Threads_connected) is %q", text)
	}
	return used, limit, nil
}

// DiagnoseCapacity compares the limit of the server with what several relays of one process need at once.
// names are those of the relays that read it. The sessions of their account do not count as used.
func (s *Store) DiagnoseCapacity(ctx context.Context, names []string) ([]store.Finding, error) {
	c := &checker{List: finding.List{Subject: "capacity"}}
	err := s.onNewSession(ctx, func(ctx context.Context, conn *conn) error {
		c.conn = conn
		used, limit, err := c.usage(ctx)
		if err != nil {
			return err
		}
		var own int
		if err := conn.row(ctx, "SELECT count(*) FROM information_schema.PROCESSLIST WHERE user = substring_index(user(), '@', 1)", nil, &own); err != nil {
			return err
		}
		of := finding.Capacity{Setting: "max_connections", Limit: limit, Used: max(used-own, 0), Needed: len(names) * sessionsNeeded, Relays: len(names)}
		c.AddCapacity(of, conn.server.setGlobal(of.Setting, strconv.Itoa(of.Used+of.Needed+sessionsNeeded))...)
		return nil
	})
	return c.Findings, err
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
