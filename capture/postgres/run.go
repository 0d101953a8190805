package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
)

// Run streams from the slot. A lost connection ends it with an ordinary error. Other
// errors:
//
//   - *capture.LostError: the slot or the publication is gone or was changed; another
//     session advanced the slot; the address leads to another server or to an older state
//     of this one; or the WAL at one position cannot be read at all.
//   - *capture.NoStreamError: the role may not stream any more, or another session has
//     held the last walsender for 10 s, or, with Config.TakeOver, the slot.
//   - *store.SetupError: without Config.TakeOver, another session has held the slot for
//     10 s; or the table has lost a column that the layout names.
//   - An error that wraps store.ErrInterrupted: the server continues on another timeline,
//     and Open decides where to continue.
func (s *Source) Run(ctx context.Context, span capture.Span, out chan<- capture.Batch) error {
	if s.server == nil {
		return errors.New("run source: Open was not called")
	}

	until, err := parseLSN(span.Until)
	if err != nil {
		return err
	}

	from, err := parseLSN(s.resume.Start(s, span.From))
	if err != nil {
		return err
	}

	conn, timeout, err := s.startStream(ctx, from)
	if err != nil {
		return s.classifyRefusal(ctx, err)
	}

	s.refusedSince = time.Time{}
	progress, err := s.readStream(ctx, conn, streamRange{from: from, until: until, timeout: timeout}, out)
	return s.failures.Classify(s.explainMissingColumns(ctx, err), progress, s.resume.Last())
}

// streamRange is the range that a started stream reads.
type streamRange struct {
	from, until pglogrepl.LSN // until is 0 for no end
	timeout     time.Duration // the server's wal_sender_timeout
}

// readStream sends the batches of a stream until the context ends, the range ends or the
// connection is lost, and closes its session. progress means that something new was sent.
func (s *Source) readStream(ctx context.Context, conn *pgconn.PgConn, p streamRange, out chan<- capture.Batch) (progress bool, err error) {
	defer closeSession(conn)
	messages, err := newMessageBoxes(s.cfg.Outboxes)
	if err != nil {
		return false, err
	}
	asm := newAssembler(newTables(s.server.tables), messages, s.cfg.Name, s.cfg.MaxBatchRows, s.cfg.MaxBatchBytes)
	asm.after, asm.until, asm.row.acceptsAnyBytes = p.from, p.until, acceptsAnyBytes(conn)
	asm.tx.MaxPayload = s.resume.MaxPayload
	if s.watched != nil {
		asm.watch = s.newWatch(ctx)
	}
	st := newStream(s, conn, asm, out, p.from, p.timeout)
	s.wake.set(conn.Conn())
	defer s.wake.set(nil)
	sideCtx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() { st.monitor(sideCtx) })
	work.Go(func() { st.watchShutdown(sideCtx) })
	defer func() {
		cancel()
		work.Wait()
	}()

	s.resume.Connected()
	err = st.run(ctx)
	return st.progress, err
}

// startStream starts the stream on the session that Open left, or on a new one, and
// returns the server's wal_sender_timeout.
func (s *Source) startStream(ctx context.Context, from pglogrepl.LSN) (conn *pgconn.PgConn, timeout time.Duration, err error) {
	conn, s.repl = s.repl, nil
	defer func() {
		if err != nil {
			closeSession(conn)
			conn = nil
		}
	}()
	if conn == nil {
		if conn, err = s.redial(ctx, from); err != nil {
			return conn, 0, err
		}
	}
	timeout, err = s.beginStream(ctx, conn, s.cfg.Name, 0)
	return conn, timeout, err
}

// beginStream starts a stream from a slot on a replication session, and returns the
// server's wal_sender_timeout. The server skips transactions that end at or before from;
// 0 is the slot's position.
func (s *Source) beginStream(ctx context.Context, conn *pgconn.PgConn, slot string, from pglogrepl.LSN) (time.Duration, error) {
	timeout, err := s.checkSlot(ctx, conn, slot)
	if err != nil {
		return 0, err
	}
	err = pglogrepl.StartReplication(ctx, conn, slot, from, pglogrepl.StartReplicationOptions{PluginArgs: []string{
		"proto_version '1'", "publication_names '" + s.cfg.Name + "'", "messages 'true'",
	}})
	return timeout, s.slots.explainStreamError(err)
}

// redial opens a replication session after a lost one, and verifies that the WAL
// continues where the last run stopped.
func (s *Source) redial(ctx context.Context, from pglogrepl.LSN) (*pgconn.PgConn, error) {
	conn, id, err := s.slots.dial(ctx)
	if err != nil {
		return nil, err
	}

	if err := s.checkSystem(id); err != nil {
		return conn, err
	}

	if from > id.XLogPos {
		standby, err := inRecovery(ctx, conn)
		if err == nil && standby {
			err = errStandby // it has not caught up yet
		}
		if err == nil { // it may have been promoted since it was identified
			id, err = pglogrepl.IdentifySystem(ctx, conn)
		}
		if err == nil {
			err = s.checkSystem(id)
		}
		if err == nil && from > id.XLogPos { // a server sends only durable WAL, so a crash cannot cause this
			err = fault.Lostf("the server's WAL ends at %s, but it was read up to %s: the server was restored", id.XLogPos, from)
		}
		if err != nil {
			return conn, err
		}
	}
	return conn, s.checkPublished(ctx)
}

// checkSystem verifies that a session reads the WAL that the source has read before.
func (s *Source) checkSystem(id pglogrepl.IdentifySystemResult) error {
	switch now, was := originOf(id), originOf(s.system); {
	case now == was:
		return nil
	case id.SystemID == s.system.SystemID && id.DBName == s.system.DBName:
		return timelineChangedError(id.Timeline, s.system.Timeline)
	default:
		return fault.Lostf("server, timeline and database are %s, they were %s", now, was)
	}
}

// checkSlot verifies, before a stream starts, that slot and publication exist and that
// the slot has not advanced past the acknowledged position. The names need no quoting,
// see Config.Validate.
func (s *Source) checkSlot(ctx context.Context, conn *pgconn.PgConn, slot string) (time.Duration, error) {
	sql := fmt.Sprintf(`SELECT (SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'),
		(SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '%s' AND database = current_database()),
		(SELECT pubname FROM pg_publication WHERE pubname = '%s'), pg_is_in_recovery()`, slot, s.cfg.Name)

	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return 0, fmt.Errorf("check slot %s: %w", slot, err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != 4 {
		return 0, fmt.Errorf("check slot %s: unexpected result", slot)
	}

	row := results[0].Rows[0]
	if string(row[3]) == "t" {
		return 0, errStandby // it may lack the slot until it is promoted
	}
	if row[1] == nil {
		return 0, fault.Lostf("slot %s is gone", slot)
	}
	if row[2] == nil {
		return 0, fault.Lostf("publication %s is gone", s.cfg.Name)
	}

	confirmed, err := pglogrepl.ParseLSN(string(row[1]))
	if err != nil {
		return 0, err
	}
	if confirmed > s.confirmed {
		return 0, &capture.LostError{Reason: fmt.Sprintf("slot %s is at %s, but the relay acknowledged %s: it was advanced or recreated",
			slot, confirmed, s.confirmed)}
	}

	ms, err := strconv.Atoi(string(row[0]))
	if err != nil {
		return 0, fmt.Errorf("wal_sender_timeout: %w", err)
	}
	return time.Duration(ms) * time.Millisecond, nil
}
