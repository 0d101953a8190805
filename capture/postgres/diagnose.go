package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// Diagnose checks everything that a stream needs and returns the findings in the order in
// which to read and fix them. A condition that keeps the role from streaming is a
// store.GradeFault. Diagnose changes nothing, opens a replication session for a moment,
// and does not disturb a running relay. It leaves out checks that the store's Diagnose
// covers. An error means that the remaining checks did not run.
func (s *Source) Diagnose(ctx context.Context) ([]store.Finding, error) {
	var e diagnosis
	err := s.control.retryOnce(ctx, func(conn *pgx.Conn) error {
		e = diagnosis{source: s, conn: conn}
		return e.run(ctx)
	})
	switch {
	case errors.Is(err, errStandby):
		e.Add("server", store.GradeFault, "server is a standby, and a relay does not read its WAL",
			"name the primary in source.url, or every host: the relay connects to the host that accepts writes")
		err = nil
	case pgstore.IsLockTimeout(err):
		e.Add("tables", store.GradeAdvice, "a session holds a lock that blocks even reads of a table: the remaining checks did not run, and the relay waits for it",
			pgstore.LockersRemedy)
		err = nil
	}

	return e.Result(err)
}

// diagnosis gathers findings.
type diagnosis struct {
	fault.Findings

	source *Source
	conn   *pgx.Conn
	server *server
	slot   slot
}

func (e *diagnosis) run(ctx context.Context) error {
	if _, err := e.conn.Exec(ctx, "SET lock_timeout = '"+pgstore.DiagnoseLockTimeout+"'"); err != nil {
		return err
	}
	defer func() { _, _ = e.conn.Exec(ctx, "RESET lock_timeout") }() // a lost session needs no reset
	sv, faults, err := e.source.catalog(e.conn).inspect(ctx)
	if err != nil {
		return err
	}

	e.server, e.Faults = sv, faults.Faults
	if e.slot, err = e.source.slots.query(ctx, e.conn, e.source.cfg.Name); err != nil {
		f := fault.FromError(err)
		if f == nil {
			return err
		}
		e.Faults = append(e.Faults, *f)
	}

	e.AddSubject("server", "")
	e.AddSubject("wal_level", "logical")
	e.AddSubject("slots", fmt.Sprintf("%d of %d are taken", sv.slots, sv.maxSlots))
	e.AddSubject("tables", "")
	if err := e.checkStream(ctx); err != nil {
		return err
	}

	e.checkPublication()
	for _, check := range []func(context.Context) error{e.checkSlot, e.checkRetainedLog, e.checkRetainedSlots, e.checkTransactions, e.checkFailover} {
		if err := check(ctx); err != nil {
			return err
		}
	}

	return nil
}

// checkStream tries whether the role may stream, and whether the stream is this
// database's WAL.
func (e *diagnosis) checkStream(ctx context.Context) error {
	repl, id, err := e.source.slots.dial(ctx)
	closeSession(repl)
	role := e.source.slots.stream.User
	var busy *noWalsenderError
	switch f := fault.FromError(err); {
	case errors.As(err, &busy):
		return e.checkNoWalsender(ctx, busy.Problem)
	case f != nil:
		e.AddFault(f)
		return nil
	case err != nil:
		return err
	}

	var system, database string
	err = e.conn.QueryRow(ctx, "SELECT current_database()::text, (SELECT system_identifier::text FROM pg_control_system())").Scan(&database, &system)
	if err != nil {
		return fmt.Errorf("identify server: %w", pgstore.Explain(err))
	}
	if id.DBName != database || id.SystemID != system {
		e.Add("stream", store.GradeFault, fmt.Sprintf("source.stream-url leads to database %s of server %s, and source.url to %s of %s",
			id.DBName, id.SystemID, database, system), "name the same database in both, each with its own role")
		return nil
	}

	e.Add("stream", store.GradeOK, "role "+role+" may stream WAL")
	return nil
}

// checkNoWalsender handles a server without a free walsender. It is fine if one of them
// serves a relay of this name.
func (e *diagnosis) checkNoWalsender(ctx context.Context, problem string) error {
	if e.readByRelay() {
		e.Add("stream", store.GradeOK, "all walsenders are in use, one of them by the relay itself; whether the role may stream was not checked")
		return nil
	}
	var maxSenders int
	if err := e.conn.QueryRow(ctx, "SELECT current_setting('max_wal_senders')::int").Scan(&maxSenders); err != nil {
		return err
	}
	f := fault.Fault{
		Subject: "stream", Problem: problem, Statements: []string{fmt.Sprintf("ALTER SYSTEM SET max_wal_senders = %d;", maxSenders+spareSlots)},
		Instructions: "as a superuser and restart the server, or end an unused stream (SELECT * FROM pg_stat_replication)",
	}
	e.AddFault(&f)
	return nil
}

// readByRelay reports whether a relay of this name holds the slot.
func (e *diagnosis) readByRelay() bool {
	return e.slot.active && e.slot.applicationName == e.source.slots.stream.RuntimeParams["application_name"]
}

// checkPublication reports the published tables, and the missing ones that the relay adds
// itself.
func (e *diagnosis) checkPublication() {
	s, p := e.source, &e.server.publication
	if !p.needed {
		return // the store reports missing tables
	}
	if p.incomplete() && p.canFix(&s.cfg) {
		f := p.missingTablesFault(s.cfg.Name, "or leave it to `sluicebox init`, or to the relay itself")
		e.Found = append(e.Found, f.Finding(store.GradeAdvice))
	}
	okText := ""
	switch {
	case p.incomplete():
	case len(e.server.tables) == 0:
		okText = s.cfg.Name + " exists; messages need no table in it"
	default:
		okText = fmt.Sprintf("%s publishes the inserts into %s", s.cfg.Name, tableList(e.server.tables))
	}
	e.AddSubject("publication", okText)
}

// checkSlot reports whether the slot exists and is free.
func (e *diagnosis) checkSlot(context.Context) error {
	s, sl := e.source, &e.slot
	free := "-- while no relay of the name runs; the next one recreates the slot"
	switch {
	case e.HasFault("slot"):
		e.AddSubject("slot", "")
	case !sl.exists:
		e.Add("slot", store.GradeOK, s.cfg.Name+" does not exist yet; the relay creates it")
	case sl.lost != "":
		e.Add("slot", store.GradeAdvice, fmt.Sprintf("%s has lost its WAL (%s): the relay takes a snapshot and recreates it", s.cfg.Name, sl.lost),
			free, dropStatement(s.cfg.Name))
	case e.readByRelay():
		e.Add("slot", store.GradeOK, fmt.Sprintf("%s is read by a relay of this name, pid %d", s.cfg.Name, sl.pid))
	case sl.active:
		f := fault.Fault{
			Subject: "slot", Problem: fmt.Sprintf("%s is held by another program: pid %d, %s", s.cfg.Name, sl.pid, sl.holder),
			Statements: []string{fmt.Sprintf("SELECT pg_terminate_backend(%d);", sl.pid)}, Instructions: "or stop that program, or give the relay another name",
		}
		e.AddFault(&f)
	default:
		e.Add("slot", store.GradeOK, fmt.Sprintf("%s is at %s", s.cfg.Name, sl.confirmed))
	}

	return nil
}

// slotUsable reports whether the slot exists, belongs to the relay, and still has its
// WAL.
func (e *diagnosis) slotUsable() bool {
	return e.slot.exists && e.slot.lost == "" && !e.HasFault("slot")
}

// retainedWarnBytes is how much WAL an unread slot may retain before it is reported.
const retainedWarnBytes = 1 << 30

// idle_replication_slot_timeout exists since version 18.
const slotRetentionSQL = `
SELECT pg_size_bytes(current_setting('max_slot_wal_keep_size')),
	coalesce((SELECT pg_current_wal_lsn() - s.restart_lsn FROM pg_replication_slots s WHERE s.slot_name = $1), 0)::bigint,
	coalesce(current_setting('idle_replication_slot_timeout', true), '0')`

// checkRetainedLog reports how much WAL the slot retains, and its limit.
func (e *diagnosis) checkRetainedLog(ctx context.Context) error {
	var limit, retained int64
	var idle string
	if err := e.conn.QueryRow(ctx, slotRetentionSQL, e.source.cfg.Name).Scan(&limit, &retained, &idle); err != nil {
		return fmt.Errorf("query WAL retained by slot %s: %w", e.source.cfg.Name, pgstore.Explain(err))
	}

	const subject = "retained log"
	if limit < 0 {
		e.Add(subject, store.GradeAdvice, "max_slot_wal_keep_size is unlimited: an unread slot retains WAL until the disk is full",
			"-- as a superuser, with a size that the disk can spare", "ALTER SYSTEM SET max_slot_wal_keep_size = '20GB';", "SELECT pg_reload_conf();")
	}
	if idle != "0" {
		e.Add(subject, store.GradeAdvice, "idle_replication_slot_timeout is "+idle+": the server invalidates the slot of a relay that is stopped for that long",
			"-- as a superuser", "ALTER SYSTEM SET idle_replication_slot_timeout = 0;", "SELECT pg_reload_conf();")
	}

	text := "the slot retains " + formatBytes(retained)
	if limit >= 0 {
		text += " of at most " + formatBytes(limit)
	}

	switch {
	case !e.slotUsable():
	case !e.slot.active && (retained > retainedWarnBytes || limit > 0 && retained > limit/2):
		e.Add(subject, store.GradeAdvice, text+", and no relay reads it", "-- start the relay; or, if it is no longer needed", dropStatement(e.source.cfg.Name))
	default:
		e.Add(subject, store.GradeOK, text)
	}

	return nil
}

// formatBytes formats a number of bytes for people.
func formatBytes(n int64) string {
	switch {
	case n < 1<<20:
		return fmt.Sprintf("%d kB", n>>10)
	case n < 10<<30:
		return fmt.Sprintf("%d MB", n>>20)
	}
	return fmt.Sprintf("%d GB", n>>30)
}

// The settings and the flag exist since version 17. A standby that synchronizes slots
// streams with a physical slot of its own.
const failoverSQL = `
SELECT coalesce((SELECT to_jsonb(s) ->> 'failover' FROM pg_replication_slots s WHERE s.slot_name = $1), ''),
	ARRAY(SELECT s.slot_name::text FROM pg_replication_slots s WHERE s.slot_type = 'physical' AND s.active AND NOT s.temporary ORDER BY 1),
	coalesce(current_setting('synchronized_standby_slots', true), '')`

// checkFailover checks whether a promoted standby could continue from the slot.
func (e *diagnosis) checkFailover(ctx context.Context) error {
	if e.server.version < 170000 || !e.slotUsable() {
		return nil // no slot synchronization, or the slot will be created as a failover slot
	}

	var failover, holds string
	var standbys []string
	if err := e.conn.QueryRow(ctx, failoverSQL, e.source.cfg.Name).Scan(&failover, &standbys, &holds); err != nil {
		return fmt.Errorf("query failover state of slot %s: %w", e.source.cfg.Name, pgstore.Explain(err))
	}

	const subject = "failover"
	switch {
	case failover != "true":
		e.Add(subject, store.GradeAdvice, fmt.Sprintf("slot %s is not a failover slot: a promoted standby does not have it", e.source.cfg.Name),
			"-- while no relay of the name runs; the next one recreates it as a failover slot", dropStatement(e.source.cfg.Name))
	case len(standbys) > 0 && holds == "":
		e.Add(subject, store.GradeAdvice, "synchronized_standby_slots is empty: rows may be delivered that a promoted standby never had",
			"-- as a superuser; deliveries then wait for these standbys", fmt.Sprintf("ALTER SYSTEM SET synchronized_standby_slots = '%s';", strings.Join(standbys, ", ")),
			"SELECT pg_reload_conf();")
	default:
		e.Add(subject, store.GradeOK, "slot "+e.source.cfg.Name+" is a failover slot")
	}

	return nil
}

// longTransaction is the age from which a transaction is reported, because the server
// retains WAL from its start.
const longTransaction = 10 * time.Minute

// checkTransactions looks for an old transaction. It delays the creation of a slot, and
// an existing slot retains WAL from the transaction's start.
func (e *diagnosis) checkTransactions(ctx context.Context) error {
	age := longTransaction
	effect := "the server retains WAL since then"
	if !e.slotUsable() {
		age, effect = e.source.cfg.SlotTimeout, "the slot cannot be created before it ends; the relay polls meanwhile if it may"
	}

	old, err := e.source.slots.oldest.find(ctx, e.conn)
	if err != nil {
		return err
	}
	if old == nil || old.Age < age {
		return e.checkHiddenTransactions(ctx, effect)
	}

	remedies := []string{old.Remedy}
	if old.PID != 0 {
		remedies = []string{terminateComment, terminateStatement(old.PID)}
	}

	e.Add("transactions", store.GradeAdvice, old.description+": "+effect, remedies...)
	return nil
}

const terminateComment = "-- as an administrator, to end it now"

func terminateStatement(pid int) string { return fmt.Sprintf("SELECT pg_terminate_backend(%d);", pid) }

// hiddenTransaction is a transaction that has written and whose start the role may not
// see.
type hiddenTransaction struct {
	XID string
	PID int
}

// hiddenSQL finds hidden transactions. A session without a row in pg_stat_activity is
// about to end. Prepared transactions are never hidden.
const hiddenSQL = `
SELECT l.transactionid::text, l.pid FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid <> pg_backend_pid() AND a.xact_start IS NULL
ORDER BY age(l.transactionid) DESC`

func (e *diagnosis) findHidden(ctx context.Context) ([]hiddenTransaction, error) {
	rows, err := e.conn.Query(ctx, hiddenSQL)
	if err != nil {
		return nil, fmt.Errorf("find old transactions: %w", pgstore.Explain(err))
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[hiddenTransaction])
	if err != nil {
		return nil, fmt.Errorf("find old transactions: %w", pgstore.Explain(err))
	}
	return list, nil
}

// Hidden transactions are watched for hiddenTimeout, at most SlotTimeout, and polled
// every hiddenPollInterval, because most of them end at once.
const (
	hiddenTimeout      = defaultSlotTimeout
	hiddenPollInterval = 100 * time.Millisecond
)

// checkHiddenTransactions watches transactions whose age the role may not see. A
// transaction that stays open meanwhile is reported as old, without its age.
func (e *diagnosis) checkHiddenTransactions(ctx context.Context, effect string) error {
	left, err := e.findHidden(ctx)
	if err != nil {
		return err
	}

	watch := min(hiddenTimeout, e.source.cfg.SlotTimeout)
	for until := time.Now().Add(watch); len(left) > 0 && time.Now().Before(until); {
		if err := backoff.Sleep(ctx, hiddenPollInterval); err != nil {
			return err
		}
		now, err := e.findHidden(ctx)
		if err != nil {
			return err
		}
		left = slices.DeleteFunc(left, func(t hiddenTransaction) bool { return !slices.Contains(now, t) })
	}

	if len(left) == 0 {
		e.Add("transactions", store.GradeOK, "no long-running transaction")
		return nil
	}

	user := pgstore.Ident(e.server.user)
	e.Add("transactions", store.GradeAdvice,
		fmt.Sprintf("pid %d has a transaction open for longer than %s, and %s may not see its start (pg_read_all_stats); if it is old, %s",
			left[0].PID, watch, user, effect),
		"-- as an administrator, so that the role sees it", "GRANT pg_read_all_stats TO "+user+";")
	return nil
}
