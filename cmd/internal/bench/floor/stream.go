package floor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

const (
	// statusEvery is the longest time between two statuses.
	statusEvery = time.Second
	// A server of version 16 or later may sleep through a commit until it hears
	// from its client (see capture/postgres), so a status follows a silence that
	// begins, and then others less and less often.
	firstNudge = 5 * time.Millisecond
	goodbye    = time.Second
)

// stream reads the slot. All of it belongs to the goroutine of run.
type stream struct {
	conn *pgconn.PgConn
	dec  *decoder
	rows *ledger

	txn   *transaction // nil between transactions
	chunk []row        // read and not yet handed on
	most  int          // rows in a chunk

	heardAt, statusAt, deadline time.Time
	wait                        time.Duration // until the next status, while nothing comes
}

func openStream(ctx context.Context, cfg *Config, dec *decoder, rows *ledger) (*stream, error) {
	config, err := pgstore.ParseURL(cfg.URL, "sluicebox bench floor stream")
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["replication"] = "database"
	config.RuntimeParams["client_encoding"] = "UTF8"
	conn, err := pgconn.ConnectConfig(ctx, &config.Config)
	if err != nil {
		return nil, fmt.Errorf("connect to %s for the stream: %w", config.Host, pgstore.Explain(err))
	}
	publication := strings.ReplaceAll(pgstore.Ident(cfg.Publication), "'", "''")
	err = pglogrepl.StartReplication(ctx, conn, cfg.Slot, 0, pglogrepl.StartReplicationOptions{
		Mode: pglogrepl.LogicalReplication, PluginArgs: []string{"proto_version '1'", "publication_names '" + publication + "'"},
	})
	if err != nil {
		hangUp(conn)
		return nil, fmt.Errorf("start the stream of slot %s: %w", cfg.Slot, pgstore.Explain(err))
	}
	return &stream{conn: conn, dec: dec, rows: rows}, nil
}

func (s *stream) close() { hangUp(s.conn) }

// run reads until the context ends. It hands the rows of a transaction on at its
// end, or before it when there are most of them: protocol version 1 sends nothing
// that is not committed. Whoever takes a chunk owns it.
func (s *stream) run(ctx context.Context, most int, take func([]row) error) error {
	s.most = most
	conn := s.conn.Conn()
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	s.statusAt = time.Now()
	if err := s.listen(s.statusAt.Add(statusEvery)); err != nil {
		return err
	}
	for ctx.Err() == nil { // after the deadline was set, which may have been past
		msg, err := s.conn.Frontend().Receive()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			err = s.tend(time.Now())
		case err != nil:
			err = fmt.Errorf("read the stream: %w", err)
		default:
			err = s.message(ctx, msg, take)
		}
		if err != nil {
			return err
		}
	}
	_ = conn.SetWriteDeadline(time.Now().Add(goodbye))
	_ = s.status(time.Now()) // the rows are completed even if the server does not hear of it
	return ctx.Err()
}

func (s *stream) message(ctx context.Context, msg pgproto3.BackendMessage, take func([]row) error) error {
	switch msg := msg.(type) {
	case *pgproto3.CopyData:
		switch msg.Data[0] {
		case pglogrepl.XLogDataByteID:
			return s.change(ctx, msg.Data[1+xlogHeader:], take)
		case pglogrepl.PrimaryKeepaliveMessageByteID:
			return s.keepalive(msg.Data[1:])
		}
	case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus:
		return nil
	case *pgproto3.ErrorResponse:
		return fmt.Errorf("read the stream: %w", pgconn.ErrorResponseToPgError(msg))
	case *pgproto3.CopyDone:
		return errors.New("read the stream: the server ended it")
	}
	return fmt.Errorf("read the stream: the server sent an unexpected %T", msg)
}

// xlogHeader is two positions and a time, before each message of pgoutput.
const xlogHeader = 24

func (s *stream) change(ctx context.Context, data []byte, take func([]row) error) error {
	kind, body := data[0], data[1:]
	switch kind {
	case 'B':
		s.txn = s.rows.begin()
	case 'R':
		return s.dec.relation(body)
	case 'I':
		r, err := s.dec.insert(body)
		if err != nil {
			return err
		}
		r.txn = s.txn
		s.chunk = append(s.chunk, r)
		if len(s.chunk) == s.most {
			return s.hand(ctx, 0, take)
		}
	case 'C':
		err := s.hand(ctx, commitEnd(body), take)
		s.txn = nil
		return errors.Join(err, s.heard(time.Now()))
	}
	return nil // what the table and its columns have besides
}

func (s *stream) hand(ctx context.Context, end pglogrepl.LSN, take func([]row) error) error {
	chunk := s.chunk
	if err := s.rows.read(ctx, s.txn, len(chunk), end); err != nil || len(chunk) == 0 {
		return err
	}
	s.chunk = make([]row, 0, len(chunk)) // the next one is likely as large
	return take(chunk)
}

func (s *stream) keepalive(data []byte) error {
	k, err := pglogrepl.ParsePrimaryKeepaliveMessage(data)
	if err != nil {
		return err
	}
	if s.txn == nil {
		s.rows.idle(k.ServerWALEnd)
	}
	if k.ReplyRequested {
		return s.status(time.Now())
	}
	return nil
}

// heard brings the next status forward to the end of a short silence.
func (s *stream) heard(now time.Time) error {
	s.heardAt, s.wait = now, firstNudge
	if next := now.Add(firstNudge); next.Before(s.deadline) {
		return s.listen(next)
	}
	return nil
}

// tend sends the status that is due, if any.
func (s *stream) tend(now time.Time) error {
	next := min(s.heardAt.Add(s.wait).Sub(now), s.statusAt.Add(statusEvery).Sub(now))
	if next <= 0 {
		if err := s.status(now); err != nil {
			return err
		}
		if s.wait <= now.Sub(s.heardAt) {
			s.wait = min(4*max(s.wait, firstNudge), statusEvery)
			s.heardAt = now
		}
		next = s.wait
	}
	return s.listen(now.Add(next))
}

// listen bounds the reads. A bound that is met is set anew by tend.
func (s *stream) listen(until time.Time) error {
	s.deadline = until
	return s.conn.Conn().SetReadDeadline(until)
}

func (s *stream) status(now time.Time) error {
	s.statusAt = now
	at := s.rows.position()
	err := pglogrepl.SendStandbyStatusUpdate(context.Background(), s.conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: at, ClientTime: now})
	if err != nil {
		return fmt.Errorf("send a status: %w", err)
	}
	return nil
}

// hangUp closes a connection. It waits for what a call that was cut short left
// running.
func hangUp(conn *pgconn.PgConn) {
	_ = conn.Conn().SetDeadline(time.Now().Add(goodbye))
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	ended := conn.CleanupDone()
	_ = conn.Close(ctx) // nothing hangs on it
	select {
	case <-ended:
	case <-ctx.Done():
	}
}
