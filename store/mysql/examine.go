package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/finding"
)

const (
	// clockSlack is by how much two clocks may differ before it is worth a word.
	clockSlack = time.Second
	// sessionsNeeded is how many sessions a relay opens: six of the store, one for a view
	// and one to spare, two of the source.
	sessionsNeeded = 10
)

// Examine implements store.Examiner, on a session of its own. A server that refuses
// the session for good is a finding, one that cannot be reached an error.
func (s *Store) Examine(ctx context.Context) ([]store.Finding, error) {
	c := &checker{List: finding.List{Subject: "connection"}, thorough: true}
	err := s.onOwn(ctx, func(ctx context.Context, conn *conn) error {
		c.conn = conn
		how := "without TLS"
		if s.views.TLS != nil {
			how = "with TLS"
		}
		c.Add(store.Fine, s.views.Addr+" "+how)
		for _, look := range []func(context.Context) error{
			func(ctx context.Context) error { return c.run(ctx, s) }, c.clock, c.durability, c.connections,
		} {
			if err := look(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	var setup *store.SetupError
	switch {
	case err == nil:
		return c.Found, nil
	case c.conn == nil && errors.As(err, &setup):
		c.Setup(setup)
		return c.Found, nil
	}
	return c.Found, fmt.Errorf("examine the database: %w", Explain(err))
}

// state looks for what keeps every write out. It may pass by itself, as when a replica
// is promoted, so it is none of Check's.
func (c *checker) state(ctx context.Context) error {
	readOnly, err := c.conn.variable(ctx, "read_only")
	if err == nil && (strings.EqualFold(readOnly, "ON") || readOnly == "1") {
		c.Fault("it is read-only, as a replica is", "name the primary in source.url, or, if it is one: SET GLOBAL read_only = OFF;")
	}
	return err
}

// clock compares this machine's clock with the server's: claims carry times.
func (c *checker) clock(ctx context.Context) error {
	c.Subject = "clock"
	before := time.Now()
	var text string
	if err := c.conn.row(ctx, "SELECT UTC_TIMESTAMP(6)", nil, &text); err != nil {
		return err
	}
	after := time.Now()
	server, ok := readTime(text)
	if !ok {
		return fmt.Errorf("the server's time is %q", text)
	}
	const remedy = "have both machines keep the same time (chrony, systemd-timesyncd): the relay writes the times of claims by its own clock"
	switch {
	case server.Sub(after) > clockSlack:
		c.Add(store.Advice, fmt.Sprintf("this machine is %s behind the server", server.Sub(after).Round(time.Millisecond)), remedy)
	case before.Sub(server) > clockSlack:
		c.Add(store.Advice, fmt.Sprintf("this machine is %s ahead of the server", before.Sub(server).Round(time.Millisecond)), remedy)
	default:
		c.Add(store.Fine, "this machine and the server differ by less than a second")
	}
	return nil
}

// durability looks at what a crash of the server would take with it.
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
			c.Add(store.Advice, fmt.Sprintf("%s is %s: a crash of the server's machine takes the last commits with it, and the relay begins anew at its checkpoint", name, value),
				fmt.Sprintf("SET GLOBAL %s = 1;", name), "-- and in the server's configuration")
		}
	}
	if !found {
		c.Add(store.Fine, "what is committed survives a crash of the server")
	}
	return nil
}

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
	if err := c.conn.on.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Threads_connected'").Scan(&name, &text); err != nil {
		return err
	}
	used, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("the number of sessions (Threads_connected) is %q", text)
	}
	said := fmt.Sprintf("%d of %d are in use", used, limit)
	if limit-used >= sessionsNeeded {
		c.Add(store.Fine, said)
		return nil
	}
	c.Add(store.Advice, fmt.Sprintf("%s, and a relay needs %d", said, sessionsNeeded),
		fmt.Sprintf("SET GLOBAL max_connections = %d;", used+5*sessionsNeeded), "-- and in the server's configuration, or end sessions that are not needed")
	return nil
}

// unsettledIndex looks for an index that finds the rows that are not settled: a table
// that keeps what was delivered is else read whole by each poll, each sweep and each
// cut.
func (c *checker) unsettledIndex(ctx context.Context, t *table) error {
	if t.Layout.State == store.StateNone {
		return nil
	}
	const find = `
SELECT COUNT(*) > 0 FROM information_schema.statistics
WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ? AND seq_in_index = 1 AND column_name IN (?, ?)`
	state := t.stateColumns()
	var serves bool
	if err := c.conn.row(ctx, find, []any{t.Schema, t.Table, state[0], state[len(state)-1]}, &serves); err != nil {
		return err
	}
	if serves {
		c.Add(store.Fine, "an index finds the rows that are not settled")
		return nil
	}
	var columns []string
	for _, name := range slices.Concat(state, t.Layout.OrderBy, []string{t.Layout.Columns.ID}) {
		columns = append(columns, Ident(name))
	}
	c.Add(store.Advice, fmt.Sprintf("no index of %s finds the rows that are not settled: polling, sweeps and the first start read the whole table", TableName(t.Outbox)),
		fmt.Sprintf("CREATE INDEX %s ON %s (%s);", Ident(t.Table+"_unsettled"), TableName(t.Outbox), strings.Join(columns, ", ")))
	return nil
}
