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
)

// Run streams from the slot. A lost connection ends it with an ordinary error; a
// slot or publication that is gone, a slot that somebody else moved on, or
// another server behind the same address ends it with a *capture.LostError.
func (s *Source) Run(ctx context.Context, span capture.Span, out chan<- capture.Batch) error {
	if s.tables == nil {
		return errors.New("a source runs only after Open")
	}
	until, err := parseLSN(span.Until)
	if err != nil {
		return err
	}
	from, err := parseLSN(s.resume.Start(s, span.From))
	if err != nil {
		return err
	}
	conn, timeout, err := s.startStream(ctx)
	if err != nil {
		return err
	}
	defer closeSession(conn)
	asm := newAssembler(s.tables, s.cfg.Name, s.cfg.MaxBatchRows, s.cfg.MaxBatchBytes)
	asm.after, asm.until = from, until
	st := newStream(s, conn, asm, out, from, timeout)
	s.setWake(conn.Conn())
	defer s.setWake(nil)
	beside, end := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() { s.attend(beside, st) })
	work.Go(func() { s.watch(beside, st) })
	defer func() {
		end()
		work.Wait()
	}()
	s.resume.Connected()
	return s.explainColumns(ctx, st.run(ctx))
}

// startStream opens the stream on the session that Open left or on a new one,
// and returns the server's wal_sender_timeout.
func (s *Source) startStream(ctx context.Context) (conn *pgconn.PgConn, timeout time.Duration, err error) {
	conn, s.repl = s.repl, nil
	defer func() {
		if err != nil {
			closeSession(conn)
			conn = nil
		}
	}()
	if conn == nil {
		var id pglogrepl.IdentifySystemResult
		if conn, id, err = s.dial(ctx); err != nil {
			return conn, 0, err
		}
		if origin := originOf(id); origin != s.origin {
			return conn, 0, &capture.LostError{Reason: fmt.Sprintf("the server, timeline and database are %s, they were %s", origin, s.origin)}
		}
	}
	if timeout, err = s.checkSlot(ctx, conn); err != nil {
		return conn, 0, err
	}
	err = pglogrepl.StartReplication(ctx, conn, s.cfg.Name, 0, pglogrepl.StartReplicationOptions{PluginArgs: []string{
		"proto_version '1'", "publication_names '" + s.cfg.Name + "'", "messages 'true'",
	}})
	if err != nil {
		return conn, 0, s.explainStreaming(err)
	}
	return conn, timeout, nil
}

// checkSlot makes sure before a stream that the slot is the one that Open saw.
// The name needs no quoting, see Config.Validate.
func (s *Source) checkSlot(ctx context.Context, conn *pgconn.PgConn) (time.Duration, error) {
	sql := fmt.Sprintf(`SELECT (SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'),
		(SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '%[1]s' AND database = current_database()),
		(SELECT pubname FROM pg_publication WHERE pubname = '%[1]s')`, s.cfg.Name)
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return 0, fmt.Errorf("look at slot %s: %w", s.cfg.Name, err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != 3 {
		return 0, fmt.Errorf("look at slot %s: the server's answer has another form", s.cfg.Name)
	}
	row := results[0].Rows[0]
	if row[1] == nil {
		return 0, &capture.LostError{Reason: fmt.Sprintf("slot %s is gone", s.cfg.Name)}
	}
	if row[2] == nil {
		return 0, &capture.LostError{Reason: fmt.Sprintf("publication %s is gone", s.cfg.Name)}
	}
	confirmed, err := pglogrepl.ParseLSN(string(row[1]))
	if err != nil {
		return 0, err
	}
	if confirmed > s.confirmed {
		return 0, &capture.LostError{Reason: fmt.Sprintf("slot %s stands at %s, the relay acknowledged %s: somebody else moved it on or made it anew",
			s.cfg.Name, confirmed, s.confirmed)}
	}
	ms, err := strconv.Atoi(string(row[0]))
	if err != nil {
		return 0, fmt.Errorf("wal_sender_timeout: %w", err)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// explainStreaming tells a lost log from a lost connection.
func (s *Source) explainStreaming(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	switch pg.Code {
	case "42704", // undefined_object: the slot, or the publication as of that place in the log
		"55000", // object_not_in_prerequisite_state: the slot was invalidated
		"58P01": // undefined_file: the log was removed
		return &capture.LostError{Reason: pg.Message}
	}
	return fmt.Errorf("stream from slot %s: %w", s.cfg.Name, err)
}
