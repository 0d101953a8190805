package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

const plugin = "pgoutput"

// slot is the current state of a slot.
type slot struct {
	exists          bool
	active          bool
	pid             int
	applicationName string // application_name of the session that holds it
	holder          string // description of that session, with its address
	terminable      bool   // the relay, as one of its roles, may terminate that session
	lost            string // why its WAL is unavailable; "" if it is available
	confirmed       pglogrepl.LSN
}

// slots reads, creates, copies and drops the replication slots of a relay.
type slots struct {
	cfg     *Config
	control *control
	stream  *pgx.ConnConfig // of replication sessions
	oldest  oldestTransaction
}

func newSlots(cfg *Config, control *control, stream *pgx.ConnConfig) slots {
	return slots{cfg: cfg, control: control, stream: stream, oldest: oldestTransaction{cfg: cfg, control: control}}
}

// next is the name of the slot that replaces the relay's; see snapshotAndKeep.
func (s *slots) next() string { return s.cfg.Name + nextSlotSuffix }

// dial opens a replication session and identifies its WAL.
func (s *slots) dial(ctx context.Context) (*pgconn.PgConn, pglogrepl.IdentifySystemResult, error) {
	var id pglogrepl.IdentifySystemResult
	conn, err := pgconn.ConnectConfig(ctx, s.stream.Config.Copy())
	if err != nil {
		return nil, id, s.explainConnect(err)
	}
	if id, err = pglogrepl.IdentifySystem(ctx, conn); err == nil && acceptsAnyBytes(conn) {
		// Text in such a database need not be UTF-8, and a server with client_encoding
		// UTF8 would end the stream at the first invalid value.
		_, err = conn.Exec(ctx, "SET client_encoding = 'SQL_ASCII'").ReadAll()
	}
	if err != nil {
		closeSession(conn)
		return nil, id, s.explainConnect(err)
	}
	return conn, id, nil
}

// acceptsAnyBytes reports whether the database accepts text of any bytes.
func acceptsAnyBytes(conn *pgconn.PgConn) bool {
	return conn.ParameterStatus("server_encoding") == "SQL_ASCII"
}

// explainConnect names the reason why the role cannot stream: a *capture.NoStreamError if
// a retry cannot help. The privilege is found out by trying, because managed services
// grant it by other means than the role's attribute.
func (s *slots) explainConnect(err error) error {
	role := s.stream.User
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch {
		case pg.Code == "42501" && strings.Contains(pg.Message, "for database"):
			return fault.Fault{
				Subject: "stream", Problem: fmt.Sprintf("role %s may not stream: %s", role, pg.Message),
				Statements:   []string{fmt.Sprintf("GRANT CONNECT ON DATABASE %s TO %s;", pgstore.Ident(s.stream.Database), pgstore.Ident(role))},
				Instructions: "as an administrator",
			}.Err()
		case pg.Code == "42501":
			return fault.Fault{
				Subject: "stream", Problem: fmt.Sprintf("role %s may not stream: %s", role, pg.Message),
				Statements: []string{"ALTER ROLE " + pgstore.Ident(role) + " REPLICATION;"},
				Instructions: fmt.Sprintf("as an administrator, or the service's equivalent, such as `GRANT rds_replication TO %s;` on Amazon RDS and Aurora",
					pgstore.Ident(role)),
			}.Err()
		case pg.Code == "53300" && strings.Contains(pg.Message, "max_wal_senders"):
			return &noWalsenderError{capture.NoStreamError{SetupError: store.SetupError{
				Problem: "server has no free walsender: " + pg.Message,
				Remedy: "run `ALTER SYSTEM SET max_wal_senders = …;` with a larger number and restart the server, " +
					"or end an unused stream (SELECT * FROM pg_stat_replication)",
			}}}
		}
	}

	err = pgstore.Explain(err)
	var setup *store.SetupError
	if errors.As(err, &setup) {
		return fault.NoStream(fmt.Sprintf("role %s cannot open a replication session: %s", role, setup.Problem), setup.Remedy)
	}
	return fmt.Errorf("open replication session on %s: %w", s.stream.Host, err)
}

// slotLostExpr returns why the WAL of a slot s is unavailable. Columns differ between
// versions: invalidation_reason exists since 17, conflicting since 16.
const slotLostExpr = `CASE WHEN to_jsonb(s) ->> 'invalidation_reason' IS NOT NULL THEN to_jsonb(s) ->> 'invalidation_reason'
		WHEN s.wal_status = 'lost' THEN 'wal_removed'
		WHEN to_jsonb(s) ->> 'conflicting' = 'true' THEN 'conflicting' ELSE '' END`

const slotSQL = `
SELECT s.plugin::text, s.slot_type::text, s.database::text, current_database()::text, s.active, coalesce(s.active_pid, 0),
	coalesce(a.application_name, ''), coalesce(host(a.client_addr), ''),
	` + slotLostExpr + `,
	coalesce(s.confirmed_flush_lsn::text, ''),
	coalesce((SELECT bool_or((m.rolsuper OR NOT r.rolsuper) AND (pg_has_role(m.oid, r.oid, 'USAGE') OR pg_has_role(m.oid, 'pg_signal_backend', 'USAGE')))
		FROM pg_roles r, pg_roles m WHERE r.oid = a.usesysid AND m.rolname IN (current_user, $2)), false)
		AND a.backend_type IS DISTINCT FROM 'client backend'
FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = $1`

// read is query on the control session.
func (s *slots) read(ctx context.Context, name string) (sl slot, err error) {
	err = s.control.retryOnce(ctx, func(conn *pgx.Conn) error {
		sl, err = s.query(ctx, conn, name)
		return err
	})
	return sl, err
}

// query reads the state of one of the relay's slots. A slot of that name that belongs to
// another program is a *store.SetupError.
func (s *slots) query(ctx context.Context, conn *pgx.Conn, name string) (slot, error) {
	var sl slot
	var plug, kind, database, current, application, address, confirmed *string
	err := conn.QueryRow(ctx, slotSQL, name, s.stream.User).Scan(&plug, &kind, &database, &current, &sl.active, &sl.pid,
		&application, &address, &sl.lost, &confirmed, &sl.terminable)
	if errors.Is(err, pgx.ErrNoRows) {
		return sl, nil
	}
	if err != nil {
		return sl, fmt.Errorf("read slot %s: %w", name, pgstore.Explain(err))
	}

	sl.exists = true
	if plug == nil || database == nil || *plug != plugin || *database != *current {
		foreign := fault.Fault{
			Subject:      "slot",
			Problem:      fmt.Sprintf("replication slot %s belongs to another program: %s, plugin %s, database %s", name, *kind, textOrNone(plug), textOrNone(database)),
			Statements:   []string{dropStatement(name)},
			Instructions: "if the slot is unused; otherwise use another name",
		}
		return sl, foreign.Err()
	}

	sl.applicationName = *application // coalesced, never NULL
	sl.holder = fmt.Sprintf("application %q, address %s", textOrNone(application), textOrNone(address))
	sl.confirmed, err = parseLSN(store.Position(*confirmed)) // coalesced, never NULL
	return sl, err
}

// dropStatement returns the statement that drops a slot. The name needs no quoting, see
// Config.Validate.
func dropStatement(name string) string {
	return "SELECT pg_drop_replication_slot('" + name + "');"
}

// heldError names the session that holds the slot. For a caller that leads it is a
// *capture.NoStreamError, because the holder is not a working relay. For any other caller
// it is a *store.SetupError, because two relays must not poll the same tables.
func (s *slots) heldError(sl *slot) error {
	setupErr := store.SetupError{
		Problem: fmt.Sprintf("replication slot %s is held by another session: pid %d, %s", s.cfg.Name, sl.pid, sl.holder),
		Remedy: fmt.Sprintf("another relay of this name runs, or another program reads the slot: stop it, give this one another name, "+
			"or, if it hangs, run `SELECT pg_terminate_backend(%d);`", sl.pid),
	}
	if s.cfg.TakeOver {
		return &capture.NoStreamError{SetupError: setupErr}
	}
	return &setupErr
}

func textOrNone(p *string) string {
	if p == nil || *p == "" {
		return "(none)"
	}
	return *p
}

const (
	// slotBusyTimeout is how long a slot may stay in use. The server notices the death of
	// a relay only when it next writes to it.
	slotBusyTimeout  = 10 * time.Second
	slotPollInterval = 100 * time.Millisecond
)

// wait waits until no session holds the relay's slot. repl may be nil, or a session of the stream's
// role.
func (s *slots) wait(ctx context.Context, conn *pgx.Conn, repl *pgconn.PgConn) (slot, error) {
	deadline := time.Now().Add(slotBusyTimeout)
	tick := time.NewTicker(slotPollInterval)
	defer tick.Stop()
	for {
		sl, err := s.query(ctx, conn, s.cfg.Name)
		if err != nil || !sl.active {
			return sl, err
		}
		if time.Now().After(deadline) {
			return sl, s.heldError(&sl)
		}
		if s.cfg.TakeOver {
			if err := s.terminateHolder(ctx, conn, repl, sl.pid); err != nil {
				return sl, fmt.Errorf("terminate session holding slot %s: %w", s.cfg.Name, err)
			}
		}
		select {
		case <-ctx.Done():
			return sl, ctx.Err()
		case <-tick.C:
		}
	}
}

// terminateHolder asks the server to end the session that holds the slot. The stream's
// role may always end its own streams; the control role may be able to end another role's
// session. If neither may, the caller waits, and that is not an error.
func (s *slots) terminateHolder(ctx context.Context, conn *pgx.Conn, repl *pgconn.PgConn, pid int) error {
	// A relay streams. A client session that reads the slot by SQL is left to finish.
	const end = "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity WHERE pid = %d AND backend_type IS DISTINCT FROM 'client backend'"
	if repl != nil {
		_, err := repl.Exec(ctx, fmt.Sprintf(end, pid)).ReadAll()
		if err == nil || repl.IsClosed() {
			return err
		}
	}
	if _, err := conn.Exec(ctx, fmt.Sprintf(end, pid)); err != nil && conn.IsClosed() {
		return err
	}
	return nil
}

// DropSlot drops the slot, so that the server retains no WAL for a relay that polls. It
// leaves alone a slot that does not exist or that another session holds. It also drops the
// slot of an unfinished snapshot.
func (s *Source) DropSlot(ctx context.Context) error {
	return errors.Join(s.slots.dropIdle(ctx, s.cfg.Name), s.slots.dropIdle(ctx, s.slots.next()))
}

func (s *slots) dropIdle(ctx context.Context, name string) error {
	sl, err := s.read(ctx, name)
	if err != nil || !sl.exists || sl.active {
		return err
	}
	return s.drop(ctx, nil, name)
}

// drop drops a slot, if it still exists, on a replication session; nil opens one.
func (s *slots) drop(ctx context.Context, conn *pgconn.PgConn, name string) error {
	if conn == nil {
		var err error
		if conn, _, err = s.dial(ctx); err != nil {
			return err
		}
		defer closeSession(conn)
	}
	err := pglogrepl.DropReplicationSlot(ctx, conn, name, pglogrepl.DropReplicationSlotOptions{})
	var pg *pgconn.PgError
	if err == nil || errors.As(err, &pg) && pg.Code == "42704" { // undefined_object: it was dropped meanwhile
		return nil
	}
	return fmt.Errorf("drop slot %s: %w", name, s.explainConnect(err))
}

// max_slot_wal_keep_size is shown with a unit, or as -1.
const retainedSQL = `
SELECT greatest(pg_current_wal_lsn() - coalesce($2::text::pg_lsn, s.confirmed_flush_lsn), 0)::bigint,
	pg_size_bytes(current_setting('max_slot_wal_keep_size'))
FROM pg_replication_slots s WHERE s.slot_name = $1`

// Retained queries, on the control session, how many bytes of WAL follow the acknowledged
// position. Before the first acknowledgement since Open it uses the slot's position.
// Limit is max_slot_wal_keep_size. The server counts towards the limit from the slot's
// restart_lsn. That is earlier than the acknowledged position, back to the start of the
// oldest transaction open there. If the slot does not exist, the error is a
// *capture.LostError.
func (s *Source) Retained(ctx context.Context) (capture.RetainedLog, error) {
	var acked *string
	if lsn := s.acked(); lsn != 0 {
		text := lsn.String()
		acked = &text
	}

	var retained capture.RetainedLog
	err := s.control.retryOnce(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, retainedSQL, s.cfg.Name, acked).Scan(&retained.Bytes, &retained.Limit)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return capture.RetainedLog{}, fault.Lostf("slot %s is gone", s.cfg.Name)
	case err != nil:
		return capture.RetainedLog{}, fmt.Errorf("query WAL retained by slot %s: %w", s.cfg.Name, pgstore.Explain(err))
	}

	switch {
	case retained.Limit < 0:
		retained.Limit = 0
	case retained.Limit == 0:
		retained.Limit = 1 // the server retains WAL only until its next checkpoint
	}

	return retained, nil
}
