package postgres

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/finding"
	"github.com/sluicebox/sluicebox/store/internal/sessions"
)

const (
	// minStatementTimeout is the least statement_timeout that the relay needs: one
	// statement spills a backlog of millions.
	minStatementTimeout = time.Minute
	// minTransactionTimeout is the least time for which a view must be readable.
	minTransactionTimeout = 5 * time.Minute
)

// Diagnose implements store.Diagnoser, on a session of its own. If the server refuses the
// session permanently, that is a finding; if it is unreachable, Diagnose returns an
// error.
func (s *Store) Diagnose(ctx context.Context) ([]store.Finding, error) {
	if !s.lifetime.Begin() {
		return nil, sessions.ErrClosed
	}
	defer s.lifetime.Done()
	ctx, cancel := s.lifetime.Bind(ctx)
	defer cancel()
	c := &checker{List: finding.List{Subject: "connection"}, thorough: true, now: time.Now, relay: s.name}
	conn, err := s.dialDirect(ctx)
	var setup *store.SetupError
	switch {
	case errors.As(err, &setup):
		c.AddSetupError(setup)
		return c.Findings, nil
	case err != nil:
		return nil, err
	}
	defer discard(s.lifetime, conn)
	c.conn = conn
	_, encrypted := conn.PgConn().Conn().(*tls.Conn) // sslmode=prefer may have gone without
	c.AddEncryption(fmt.Sprintf("%s:%d, no transaction pooler in between,", conn.Config().Host, conn.Config().Port),
		encryption(conn.Config(), encrypted), "enable TLS on the server and remove sslmode from source.url, which means verify-full; sslrootcert=FILE names a CA of your own")
	err = c.run(ctx, s)
	if err == nil {
		err = c.checkServerSettings(ctx)
	}
	if err != nil {
		return c.Findings, fmt.Errorf("diagnose database: %w", Explain(err))
	}
	return c.Findings, nil
}

// encryption describes a session of a configuration. sslmode=verify-ca checks the certificate too, in
// a function of its own.
func encryption(cfg *pgx.ConnConfig, encrypted bool) finding.Encryption {
	of := finding.Encryption{Local: store.Loopback(cfg.Host), Encrypted: encrypted}
	of.Verified = cfg.TLSConfig != nil && (!cfg.TLSConfig.InsecureSkipVerify || cfg.TLSConfig.VerifyPeerCertificate != nil)
	return of
}

// dialDirect opens a session and makes sure that no transaction pooler is in between.
func (s *Store) dialDirect(ctx context.Context) (*pgx.Conn, error) {
	cfg := s.control.cfg.Copy()
	cfg.RuntimeParams["application_name"] = "sluicebox " + s.name + " doctor"
	conn, err := connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := s.checkDirect(ctx, conn); err != nil {
		discard(s.lifetime, conn)
		return nil, err
	}
	return conn, nil
}

// checkWritable looks for settings that prevent every write. Check skips it, because the
// condition may resolve by itself, for example when a standby is promoted.
func (c *checker) checkWritable(ctx context.Context) error {
	var standby, readOnly bool
	var database string
	err := c.conn.QueryRow(ctx, `
SELECT pg_catalog.pg_is_in_recovery(), current_setting('default_transaction_read_only')::bool, current_database()::text`).Scan(&standby, &readOnly, &database)
	switch {
	case err != nil:
		return err
	case standby:
		c.AddFault("server is a standby and accepts no writes",
			"name the primary in source.url, or every host (postgres://user@host1,host2/database): the relay connects to the host that accepts writes")
	case readOnly:
		c.AddFault("transactions are read-only (default_transaction_read_only = on)",
			"SET default_transaction_read_only = off;", // for the session that runs the next statement
			fmt.Sprintf("ALTER ROLE %s IN DATABASE %s SET default_transaction_read_only = off;", c.role, Ident(database)))
	}

	return nil
}

// checkServerSettings checks the server as a whole. None of its findings is a fault.
func (c *checker) checkServerSettings(ctx context.Context) error {
	if c.role == "" {
		return nil // the server is too old for these checks
	}
	for _, check := range []func(context.Context) error{c.clock, c.durability, c.standbys, c.connections, c.checkLimits, c.timeouts} {
		if err := check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// clock compares this machine's clock with the server's, because claims carry times.
func (c *checker) clock(ctx context.Context) error {
	c.Subject = "clock"
	before := c.now()
	server, err := serverTime(ctx, c.conn)
	if err != nil {
		return err
	}
	c.AddClockSkew(before, server, c.now())
	return nil
}

// durability checks whether committed data survives a crash of the server.
func (c *checker) durability(ctx context.Context) error {
	c.Subject = "durability"
	found := false
	for _, setting := range []string{"fsync", "full_page_writes"} {
		off, err := c.queryBool(ctx, "SELECT current_setting($1) = 'off'", setting)
		if err != nil {
			return err
		}
		if off {
			found = true
			c.Add(store.GradeAdvice, setting+" is off: a server crash may lose committed rows, outcomes and checkpoints, or corrupt the whole database",
				"-- as a superuser", fmt.Sprintf("ALTER SYSTEM SET %s = on;", setting), "SELECT pg_reload_conf();")
		}
	}

	if !found {
		c.Add(store.GradeOK, "committed data survives a server crash")
	}
	return nil
}

// standbys looks for a list of synchronous standbys that names all walsenders. The relay's
// stream is one of them (*measured*: it became the synchronous standby, a commit took 12 s).
func (c *checker) standbys(ctx context.Context) error {
	c.Subject = "standbys"
	var names string
	if err := c.conn.QueryRow(ctx, standbysQuery).Scan(&names); err != nil {
		return err
	}
	if strings.Contains(names, "*") {
		c.Add(store.GradeAdvice, "synchronous_standby_names = '"+names+"' matches the relay's stream too: commits may wait for the relay instead of a standby, and hang",
			"name the standbys in synchronous_standby_names by their application_name, for example 'FIRST 1 (standby1, standby2)'")
	}
	return nil
}

// timeouts looks for timeouts set for the role that would end the relay's sessions or its
// longer statements.
func (c *checker) timeouts(ctx context.Context) error {
	c.Subject = "timeouts"
	rows, err := c.conn.Query(ctx, `
SELECT s.name, s.setting::bigint, s.source, current_database()::text FROM pg_catalog.pg_settings s
WHERE s.name IN ('statement_timeout', 'transaction_timeout', 'idle_session_timeout') AND s.setting <> '0' ORDER BY s.name`)
	if err != nil {
		return err
	}

	minimum := map[string]time.Duration{"statement_timeout": minStatementTimeout, "transaction_timeout": minTransactionTimeout, "idle_session_timeout": 1<<63 - 1}
	effects := map[string]string{
		"statement_timeout":    "spilling or deleting a large backlog takes longer",
		"transaction_timeout":  "reading a view of the tables may take longer",
		"idle_session_timeout": "the relay loses its sessions, and with them its position, whenever no rows arrive",
	}

	found := false
	var name, source, database string
	var ms int64
	_, err = pgx.ForEachRow(rows, []any{&name, &ms, &source, &database}, func() error {
		limit := time.Duration(ms) * time.Millisecond
		if limit >= minimum[name] {
			return nil
		}
		found = true
		remedy := fmt.Sprintf("ALTER ROLE %s IN DATABASE %s SET %s = 0;", c.role, Ident(database), name)
		if source == "client" {
			remedy = "remove " + name + " from source.url"
		}
		c.Add(store.GradeAdvice, fmt.Sprintf("%s is %s for this role: %s", name, limit, effects[name]), remedy)
		return nil
	})
	if err == nil && !found {
		c.Add(store.GradeOK, "none ends the relay's sessions or statements")
	}
	return err
}

// DiagnoseLockTimeout bounds the wait for a locked table during a diagnosis. Without a
// lock its queries return at once.
const DiagnoseLockTimeout = "1s"

// IsLockTimeout reports whether a lock was not acquired in time.
func IsLockTimeout(err error) bool {
	return code(err) == "55P03" // lock_not_available
}

// isStatementTimeout reports whether a statement took longer than statement_timeout.
func isStatementTimeout(err error) bool {
	return code(err) == "57014" // query_canceled
}

// LockersRemedy lists the sessions that hold a lock which blocks even readers of a table
// of the database, or wait for one.
const LockersRemedy = "-- shows the session; wait for it, or end it with pg_terminate_backend\n" +
	"SELECT l.relation::regclass, l.granted, a.pid, a.usename, a.application_name, a.state, a.xact_start, a.query " +
	"FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.mode = 'AccessExclusiveLock' AND l.locktype = 'relation' " +
	"AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) ORDER BY l.granted DESC, a.xact_start;"

// reportLocked reports a table lock, and its holder if the lock is on the table itself.
func (c *checker) reportLocked(ctx context.Context, t *table) error {
	const holder = `
SELECT format(', pid %s, user "%s", application "%s"', l.pid, a.usename, a.application_name)
FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.relation = $1 AND l.mode = 'AccessExclusiveLock' AND l.pid <> pg_catalog.pg_backend_pid()
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
ORDER BY l.granted DESC, l.pid LIMIT 1`
	var who string
	if err := c.conn.QueryRow(ctx, holder, t.oid).Scan(&who); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	c.Add(store.GradeAdvice, fmt.Sprintf("a session holds a lock on %s that blocks even reads%s: the relay waits for it", TableName(t.Outbox), who), LockersRemedy)
	return nil
}

const (
	// sessionsNeeded is the number of sessions that a relay opens: nine of the store,
	// one for a view, two of the source besides its stream.
	sessionsNeeded = 12
	// minSessions is the number without which no relay works, not even in poll mode: one
	// each for the lock, claims, outcomes, the checkpoint, and a view.
	minSessions = 5
)

// connections checks whether the server has room for the relay's sessions.
func (c *checker) connections(ctx context.Context) error {
	c.Subject = "connections"
	var used, maxConns, reserved int
	err := c.conn.QueryRow(ctx, `
SELECT (SELECT count(*) FROM pg_catalog.pg_stat_activity a
    WHERE a.datid IS NOT NULL AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_replication r WHERE r.pid = a.pid))::int,
  current_setting('max_connections')::int,
  current_setting('superuser_reserved_connections')::int + coalesce(current_setting('reserved_connections', true)::int, 0)`).Scan(&used, &maxConns, &reserved)
	if err != nil {
		return err
	}

	text := fmt.Sprintf("%d of %d are in use, %d more are reserved", used, maxConns, reserved)
	if maxConns-reserved-used >= sessionsNeeded {
		c.Add(store.GradeOK, text)
		return nil
	}

	const step = 10 // the number of sessions in use changes from one look to the next
	proposed := (used + reserved + 5*sessionsNeeded + step - 1) / step * step
	c.Add(store.GradeAdvice, fmt.Sprintf("%s, and a relay needs %d", text, sessionsNeeded),
		"-- as a superuser, then restart the server; or end unused sessions",
		fmt.Sprintf("ALTER SYSTEM SET max_connections = %d;", proposed))
	return nil
}

// DiagnoseCapacity compares the limits of the server with what several relays of one process need at
// once. names are those of the relays that read it; their own sessions and slots do not count as used.
func (s *Store) DiagnoseCapacity(ctx context.Context, names []string) ([]store.Finding, error) {
	if !s.lifetime.Begin() {
		return nil, sessions.ErrClosed
	}
	defer s.lifetime.Done()
	ctx, cancel := s.lifetime.Bind(ctx)
	defer cancel()
	conn, err := s.dialDirect(ctx)
	if err != nil {
		return nil, err
	}
	defer discard(s.lifetime, conn)
	rows, err := conn.Query(ctx, `
WITH others AS (SELECT a.pid, a.backend_type FROM pg_catalog.pg_stat_activity a
  WHERE NOT starts_with(coalesce(a.application_name, ''), 'sluicebox '))
SELECT 'max_connections', current_setting('max_connections')::int, $2 * cardinality($1::text[]), (SELECT count(*) FROM others WHERE backend_type = 'client backend')::int
    + current_setting('superuser_reserved_connections')::int + coalesce(current_setting('reserved_connections', true)::int, 0)
UNION ALL SELECT 'max_replication_slots', current_setting('max_replication_slots')::int, cardinality($1), (SELECT count(*) FROM pg_catalog.pg_replication_slots WHERE slot_name <> ALL ($1))::int
UNION ALL SELECT 'max_wal_senders', current_setting('max_wal_senders')::int, cardinality($1), (SELECT count(*) FROM others WHERE backend_type = 'walsender')::int`, names, sessionsNeeded)
	if err != nil {
		return nil, err
	}
	type capacity struct {
		Setting             string
		Limit, Needed, Used int
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[capacity])
	if err != nil {
		return nil, err
	}
	list := finding.List{Subject: "capacity"}
	for _, of := range all {
		list.AddCapacity(finding.Capacity{Setting: of.Setting, Limit: of.Limit, Used: of.Used, Needed: of.Needed, Relays: len(names)},
			"-- as a superuser, then restart the server", fmt.Sprintf("ALTER SYSTEM SET %s = %d;", of.Setting, of.Used+of.Needed+spareCapacity))
	}
	return list.Findings, nil
}

// spareCapacity is left to others where DiagnoseCapacity proposes a limit.
const spareCapacity = 20

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
func (c *checker) checkLimit(of string, limit, used int) {
	const need = sessionsNeeded + 1 // the stream
	if limit < 0 || limit-used >= need {
		return
	}
	grade := store.GradeAdvice
	if limit < minSessions {
		grade = store.GradeFault
	}
	c.Add(grade, fmt.Sprintf("%s has CONNECTION LIMIT %d, of which others use %d, and a relay needs up to %d", of, limit, used, need),
		"-- as an administrator; each standby relay needs as many", fmt.Sprintf("ALTER %s CONNECTION LIMIT %d;", of, used+5*need))
}

// unsettledIndex looks for an index that finds the unsettled rows. Without one, each
// poll, each sweep and each snapshot scans the whole table, delivered rows included.
func (c *checker) unsettledIndex(ctx context.Context, t *table) error {
	if t.Layout.State == store.StateNone {
		return nil
	}

	serves, err := c.indexLeadsWithState(ctx, t)
	if err == nil && !serves {
		serves, err = c.partialIndexUsable(ctx, t)
	}
	if IsLockTimeout(err) {
		return c.reportLocked(ctx, t)
	}
	if err != nil {
		return err
	}
	if serves {
		c.Add(store.GradeOK, "an index covers the unsettled rows")
		return nil
	}

	partitioned, err := c.queryBool(ctx, "SELECT true FROM pg_catalog.pg_class WHERE oid = $1 AND relkind = 'p'", t.oid)
	if err != nil {
		return err
	}

	c.Add(store.GradeAdvice, fmt.Sprintf("%s has no index for unsettled rows: polling, sweeps and snapshots scan the whole table", TableName(t.Outbox)),
		t.partialIndex(partitioned))
	return nil
}

// indexLeadsWithState reports whether a full index begins with a state column.
func (c *checker) indexLeadsWithState(ctx context.Context, t *table) (bool, error) {
	l := &t.Layout
	var numbers []int16
	for _, name := range []string{l.Columns.Status, l.Columns.Delivered, l.Columns.Failed} {
		if name != "" {
			numbers = append(numbers, t.MustColumn(name).num)
		}
	}
	return c.queryBool(ctx, `
SELECT true FROM pg_catalog.pg_index i
WHERE i.indrelid = $1 AND i.indisvalid AND i.indpred IS NULL AND i.indkey[0] = ANY ($2::int2[]) LIMIT 1`, t.oid, numbers)
}

// partialIndexUsable asks the planner whether it can use a partial index, because only
// the planner knows which predicates the condition implies.
func (c *checker) partialIndexUsable(ctx context.Context, t *table) (serves bool, err error) {
	b := &builder{}
	read := b.query("EXPLAIN (FORMAT JSON) SELECT FROM " + TableName(t.Outbox) + " o WHERE " + t.state(b).Unsettled())
	var plan []byte
	err = pgx.BeginTxFunc(ctx, c.conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL enable_seqscan = off"); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '"+DiagnoseLockTimeout+"'"); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, read.sql, read.args(nil)...).Scan(&plan); err != nil {
			return err
		}
		serves, err = c.planUsesPartial(ctx, t, plan)
		return err
	})

	return serves && err == nil, err
}

// planUsesPartial reports whether a plan uses a partial index of the table.
func (c *checker) planUsesPartial(ctx context.Context, t *table, plan []byte) (bool, error) {
	var explained []struct{ Plan planNode }
	if err := json.Unmarshal(plan, &explained); err != nil {
		return false, fmt.Errorf("read the plan: %w", err)
	}
	var names []string
	for i := range explained {
		names = explained[i].Plan.indices(names)
	}
	return c.queryBool(ctx, `
SELECT true FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
WHERE x.relname = ANY ($1::text[]) AND i.indpred IS NOT NULL
  AND i.indrelid IN (SELECT $2::oid UNION ALL SELECT p.relid FROM pg_catalog.pg_partition_tree($2::oid::regclass) p) LIMIT 1`, names, t.oid)
}

// planNode is the part of a plan node that is read here.
type planNode struct {
	Index string     `json:"Index Name"`
	Plans []planNode `json:"Plans"`
}

// indices appends the indexes that a plan uses to list.
func (n *planNode) indices(list []string) []string {
	if n.Index != "" {
		list = append(list, n.Index)
	}
	for i := range n.Plans {
		list = n.Plans[i].indices(list)
	}
	return list
}

// partialIndex returns the statement that creates an index of the unsettled rows, in the
// order in which they are read. On a partitioned table CONCURRENTLY is not supported.
func (t *table) partialIndex(partitioned bool) string {
	var names []string
	for _, name := range t.Ordered() {
		names = append(names, Ident(name))
	}

	value := func(v any) string {
		if word, isWord := v.(string); isWord {
			return literal(word)
		}
		return fmt.Sprint(v)
	}
	where := columns.State{Layout: &t.Layout, Column: func(name string) string { return Ident(name) }, Bind: value}.Unsettled()
	where = strings.TrimSuffix(strings.TrimPrefix(where, "("), ")")

	how := " CONCURRENTLY"
	if partitioned {
		how = ""
	}
	return fmt.Sprintf("CREATE INDEX%s ON %s (%s) WHERE %s;", how, TableName(t.Outbox), strings.Join(names, ", "), where)
}

// literal quotes a text for a statement that an operator runs. The E form keeps a
// backslash literal whatever standard_conforming_strings is.
func literal(text string) string {
	if strings.Contains(text, `\`) {
		return " E'" + strings.NewReplacer(`\`, `\\`, "'", "''").Replace(text) + "'"
	}
	return "'" + strings.ReplaceAll(text, "'", "''") + "'"
}
