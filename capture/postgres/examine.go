package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// Examine looks at everything that a stream needs and returns what it found, in
// the order in which it is to be read and mended. What keeps the role from
// streaming is a store.Fault. It changes nothing, opens a replication session for a
// moment, and leaves a relay that runs alone. An error means that the rest could
// not be looked at. What the store examines too, it leaves to it.
func (s *Source) Examine(ctx context.Context) ([]store.Finding, error) {
	var e examination
	err := s.control.twice(ctx, func(conn *pgx.Conn) error {
		e = examination{source: s, conn: conn}
		return e.run(ctx)
	})
	switch {
	case errors.Is(err, errStandby):
		e.Add("server", store.Fault, "it is a standby, whose log a relay does not read",
			"name the primary in source.url, or every host: the relay goes to the one that takes writes")
		err = nil
	case pgstore.LockedOut(err):
		e.Add("tables", store.Advice, "somebody holds a lock that keeps even readers out of a table: what follows was not looked at, and the relay waits for it",
			pgstore.LockersRemedy)
		err = nil
	}
	return e.End(err)
}

// examination gathers findings.
type examination struct {
	fault.Findings

	source *Source
	conn   *pgx.Conn
	server *server
	wrong  []fault.Fault
	slot   slot
}

// part adds the faults of a subject, or what is fine if there are none.
func (e *examination) part(subject, fine string) {
	for i := range e.wrong {
		if e.wrong[i].Subject == subject {
			e.Found = append(e.Found, e.wrong[i].Finding(store.Fault))
		}
	}
	if fine != "" && !e.faulty(subject) {
		e.Add(subject, store.Fine, fine)
	}
}

func (e *examination) run(ctx context.Context) error {
	if _, err := e.conn.Exec(ctx, "SET lock_timeout = '"+pgstore.LockWait+"'"); err != nil {
		return err
	}
	defer func() { _, _ = e.conn.Exec(ctx, "RESET lock_timeout") }() // a session that was lost has none
	sv, wrong, err := e.source.inspect(ctx, e.conn)
	if err != nil {
		return err
	}
	e.server, e.wrong = sv, wrong.Wrong
	if e.slot, err = e.source.findSlot(ctx, e.conn); err != nil {
		f := fault.Of(err)
		if f == nil {
			return err
		}
		e.wrong = append(e.wrong, *f)
	}
	e.part("server", "")
	e.part("wal_level", "logical")
	e.part("slots", fmt.Sprintf("%d of %d are taken", sv.slots, sv.maxSlots))
	e.part("tables", "")
	if err := e.stream(ctx); err != nil {
		return err
	}
	e.publication()
	for _, look := range []func(context.Context) error{e.slotState, e.retained, e.keptLogs, e.transactions, e.failover} {
		if err := look(ctx); err != nil {
			return err
		}
	}
	return nil
}

// stream finds out by trying whether the role may stream, and whether what it
// would stream is this database's log.
func (e *examination) stream(ctx context.Context) error {
	repl, id, err := e.source.dial(ctx)
	closeSession(repl)
	role := e.source.streamConfig.User
	var busy *busyError
	switch f := fault.Of(err); {
	case errors.As(err, &busy):
		return e.noSender(ctx, busy.Problem)
	case f != nil:
		e.Found = append(e.Found, f.Finding(store.Fault))
		return nil
	case err != nil:
		return err
	}
	var system, database string
	err = e.conn.QueryRow(ctx, "SELECT current_database()::text, (SELECT system_identifier::text FROM pg_control_system())").Scan(&database, &system)
	if err != nil {
		return fmt.Errorf("ask which server it is: %w", pgstore.Explain(err))
	}
	if id.DBName != database || id.SystemID != system {
		e.Add("stream", store.Fault, fmt.Sprintf("source.stream-url leads to database %s of server %s, and source.url to %s of %s",
			id.DBName, id.SystemID, database, system), "name the same database in both, each with its own role")
		return nil
	}
	e.Add("stream", store.Fine, "role "+role+" may read the log")
	return nil
}

// noSender is the answer of a server whose walsenders are all taken. If one of
// them serves a relay of this name, that is as it should be.
func (e *examination) noSender(ctx context.Context, problem string) error {
	if e.relayReads() {
		e.Add("stream", store.Fine, "every walsender is taken, one of them by the relay itself; so it was not tried whether the role may stream")
		return nil
	}
	var most int
	if err := e.conn.QueryRow(ctx, "SELECT current_setting('max_wal_senders')::int").Scan(&most); err != nil {
		return err
	}
	f := fault.Fault{
		Subject: "stream", Problem: problem, Statements: []string{fmt.Sprintf("ALTER SYSTEM SET max_wal_senders = %d;", most+moreSlots)},
		How: "as a superuser and restart the server, or end a stream that is not needed (SELECT * FROM pg_stat_replication)",
	}
	e.Found = append(e.Found, f.Finding(store.Fault))
	return nil
}

// relayReads reports whether a relay of this name holds the slot.
func (e *examination) relayReads() bool {
	return e.slot.active && e.slot.program == e.source.streamConfig.RuntimeParams["application_name"]
}

// publication says what is published, and what the relay completes by itself.
func (e *examination) publication() {
	s, p := e.source, &e.server.published
	if len(e.server.tables) == 0 {
		return // the store says that there is none
	}
	if len(p.missing) > 0 && p.mends(s) {
		f := p.incomplete(s.cfg.Name, "or leave it to `sluicebox init`, or to the relay itself")
		e.Found = append(e.Found, f.Finding(store.Advice))
	}
	fine := ""
	if len(p.missing) == 0 {
		fine = fmt.Sprintf("%s publishes the inserts into %s", s.cfg.Name, tableList(e.server.tables))
	}
	e.part("publication", fine)
}

// slotState says whether the slot is there and free.
func (e *examination) slotState(context.Context) error {
	s, sl := e.source, &e.slot
	free := "-- while no relay of the name runs; the next one makes the slot anew"
	switch {
	case e.faulty("slot"):
		e.part("slot", "")
	case !sl.exists:
		e.Add("slot", store.Fine, s.cfg.Name+" is not there yet; the relay makes it")
	case sl.lost != "":
		e.Add("slot", store.Advice, fmt.Sprintf("%s has lost its log (%s): the relay reads the tables for what it held and makes it anew", s.cfg.Name, sl.lost),
			free, dropStatement(s.cfg.Name))
	case e.relayReads():
		e.Add("slot", store.Fine, fmt.Sprintf("%s is read by a relay of this name, pid %d", s.cfg.Name, sl.pid))
	case sl.active:
		f := fault.Fault{
			Subject: "slot", Problem: fmt.Sprintf("%s is held by another program: pid %d, %s", s.cfg.Name, sl.pid, sl.holder),
			Statements: []string{fmt.Sprintf("SELECT pg_terminate_backend(%d);", sl.pid)}, How: "or stop that program, or give the relay another name",
		}
		e.Found = append(e.Found, f.Finding(store.Fault))
	default:
		e.Add("slot", store.Fine, fmt.Sprintf("%s stands at %s", s.cfg.Name, sl.confirmed))
	}
	return nil
}

// usable reports whether the slot is there, the relay's, and has its log.
func (e *examination) usable() bool {
	return e.slot.exists && e.slot.lost == "" && !e.faulty("slot")
}

// faulty reports whether a fault of a subject was found.
func (e *examination) faulty(subject string) bool {
	return slices.ContainsFunc(e.wrong, func(f fault.Fault) bool { return f.Subject == subject })
}

// warnRetained is how much log a slot that nobody reads may keep before it is worth
// a word.
const warnRetained = 1 << 30

// idle_replication_slot_timeout is there since version 18.
const keptSQL = `
SELECT pg_size_bytes(current_setting('max_slot_wal_keep_size')),
	coalesce((SELECT pg_current_wal_lsn() - s.restart_lsn FROM pg_replication_slots s WHERE s.slot_name = $1), 0)::bigint,
	coalesce(current_setting('idle_replication_slot_timeout', true), '0')`

// retained says how much log the slot keeps, and what bounds it.
func (e *examination) retained(ctx context.Context) error {
	var limit, kept int64
	var idle string
	if err := e.conn.QueryRow(ctx, keptSQL, e.source.cfg.Name).Scan(&limit, &kept, &idle); err != nil {
		return fmt.Errorf("ask how much log slot %s keeps: %w", e.source.cfg.Name, pgstore.Explain(err))
	}
	const subject = "retained log"
	if limit < 0 {
		e.Add(subject, store.Advice, "max_slot_wal_keep_size is unlimited: a slot that no relay reads keeps the log until the disk is full",
			"-- as a superuser, with what the disk can spare", "ALTER SYSTEM SET max_slot_wal_keep_size = '20GB';", "SELECT pg_reload_conf();")
	}
	if idle != "0" {
		e.Add(subject, store.Advice, "idle_replication_slot_timeout is "+idle+": the server invalidates the slot of a relay that does not run for so long",
			"-- as a superuser", "ALTER SYSTEM SET idle_replication_slot_timeout = 0;", "SELECT pg_reload_conf();")
	}
	text := "the slot keeps " + size(kept)
	if limit >= 0 {
		text += " of at most " + size(limit)
	}
	switch {
	case !e.usable():
	case !e.slot.active && (kept > warnRetained || limit > 0 && kept > limit/2):
		e.Add(subject, store.Advice, text+", and no relay reads it", "-- start the relay; or, if none is to run any more", dropStatement(e.source.cfg.Name))
	default:
		e.Add(subject, store.Fine, text)
	}
	return nil
}

// size is a number of bytes for people.
func size(n int64) string {
	switch {
	case n < 1<<20:
		return fmt.Sprintf("%d kB", n>>10)
	case n < 10<<30:
		return fmt.Sprintf("%d MB", n>>20)
	}
	return fmt.Sprintf("%d GB", n>>30)
}

// The settings and the flag are there since version 17. A standby that copies slots
// streams with a slot of its own.
const failoverSQL = `
SELECT coalesce((SELECT to_jsonb(s) ->> 'failover' FROM pg_replication_slots s WHERE s.slot_name = $1), ''),
	ARRAY(SELECT s.slot_name::text FROM pg_replication_slots s WHERE s.slot_type = 'physical' AND s.active AND NOT s.temporary ORDER BY 1),
	coalesce(current_setting('synchronized_standby_slots', true), '')`

// failover looks at what a standby needs in order to go on where the relay was.
func (e *examination) failover(ctx context.Context) error {
	if e.server.version < 170000 || !e.usable() {
		return nil // slots are not copied, or it will be made as one that is
	}
	var failover, holds string
	var standbys []string
	if err := e.conn.QueryRow(ctx, failoverSQL, e.source.cfg.Name).Scan(&failover, &standbys, &holds); err != nil {
		return fmt.Errorf("ask how slot %s fails over: %w", e.source.cfg.Name, pgstore.Explain(err))
	}
	const subject = "failover"
	switch {
	case failover != "true":
		e.Add(subject, store.Advice, fmt.Sprintf("slot %s is no failover slot: a promoted standby does not have it", e.source.cfg.Name),
			"-- while no relay of the name runs; the next one makes it as a failover slot", dropStatement(e.source.cfg.Name))
	case len(standbys) > 0 && holds == "":
		e.Add(subject, store.Advice, "synchronized_standby_slots is empty: rows may be delivered that a promoted standby never had",
			"-- as a superuser; deliveries then wait for these standbys", fmt.Sprintf("ALTER SYSTEM SET synchronized_standby_slots = '%s';", strings.Join(standbys, ", ")),
			"SELECT pg_reload_conf();")
	default:
		e.Add(subject, store.Fine, "slot "+e.source.cfg.Name+" is a failover slot")
	}
	return nil
}
