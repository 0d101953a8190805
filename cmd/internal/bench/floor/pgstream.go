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

	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

const (
	// statusInterval is the maximum time between two status messages.
	statusInterval = time.Second
	// A server of version 16 or later may sleep through a commit until it hears from its
	// client (see capture/postgres). So a status is sent at the start of a silence, and then
	// at growing intervals.
	minStatusInterval = 5 * time.Millisecond
)

// slotStream reads the slot. It belongs to the goroutine of run.
type slotStream struct {
	conn *pgconn.PgConn
	dec  *pgDecoder
	rows *ledger
	out  chunker

	receivedAt, statusAt, deadline time.Time
	wait                           time.Duration // until the next status during a silence
}

func openSlotStream(ctx context.Context, cfg *Config, dec *pgDecoder, rows *ledger) (*slotStream, error) {
	config, err := pgstore.ParseURL(cfg.URL, "sluicebox bench floor stream")
	if err != nil {
		return nil, err
	}

	config.RuntimeParams["replication"] = "database"
	config.RuntimeParams["client_encoding"] = "UTF8"
	conn, err := pgconn.ConnectConfig(ctx, &config.Config)
	if err != nil {
		return nil, fmt.Errorf("connect stream to %s: %w", config.Host, pgstore.Explain(err))
	}

	publication := strings.ReplaceAll(pgstore.Ident(cfg.Publication), "'", "''")
	err = pglogrepl.StartReplication(ctx, conn, cfg.Slot, 0, pglogrepl.StartReplicationOptions{
		Mode: pglogrepl.LogicalReplication, PluginArgs: []string{"proto_version '1'", "publication_names '" + publication + "'"},
	})
	if err != nil {
		closeConn(conn)
		return nil, fmt.Errorf("start stream of slot %s: %w", cfg.Slot, pgstore.Explain(err))
	}
	return &slotStream{conn: conn, dec: dec, rows: rows, out: chunker{ledger: rows}}, nil
}

func (s *slotStream) close() { closeConn(s.conn) }

// run implements stream. Protocol version 1 sends only committed changes.
func (s *slotStream) run(ctx context.Context, maxRows int, take func([]row) error) error {
	s.out.maxRows, s.out.emit = maxRows, take
	conn := s.conn.Conn()
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	s.statusAt = time.Now()
	if err := s.setReadDeadline(s.statusAt.Add(statusInterval)); err != nil {
		return err
	}

	for ctx.Err() == nil { // checked after setting the deadline, which may have replaced the past one of AfterFunc
		msg, err := s.conn.Frontend().Receive()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			err = s.sendDueStatus(time.Now())
		case err != nil:
			err = fmt.Errorf("read stream: %w", err)
		default:
			err = s.message(ctx, msg)
		}
		if err != nil {
			return err
		}
	}

	_ = conn.SetWriteDeadline(time.Now().Add(store.CloseTimeout))
	_ = s.status(time.Now()) // the rows are completed even if the server does not receive it
	return ctx.Err()
}

func (s *slotStream) message(ctx context.Context, msg pgproto3.BackendMessage) error {
	switch msg := msg.(type) {
	case *pgproto3.CopyData:
		switch msg.Data[0] {
		case pglogrepl.XLogDataByteID:
			return s.change(ctx, msg.Data[1+xlogHeader:])
		case pglogrepl.PrimaryKeepaliveMessageByteID:
			return s.keepalive(msg.Data[1:])
		}
	case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus:
		return nil
	case *pgproto3.ErrorResponse:
		return fmt.Errorf("read stream: %w", pgconn.ErrorResponseToPgError(msg))
	case *pgproto3.CopyDone:
		return errors.New("read stream: server ended it")
	}
	return fmt.Errorf("read stream: unexpected message %T", msg)
}

// xlogHeader is the size of the two positions and the time before each message of pgoutput.
const xlogHeader = 24

func (s *slotStream) change(ctx context.Context, data []byte) error {
	kind, body := data[0], data[1:]
	switch kind {
	case 'B':
		s.out.begin()
	case 'R':
		return s.dec.relation(body)
	case 'I':
		r, err := s.dec.insert(body)
		if err != nil {
			return err
		}
		return s.out.add(ctx, r)
	case 'C':
		err := s.out.end(ctx, commitEnd(body))
		return errors.Join(err, s.received(time.Now()))
	}
	return nil // other messages about the table and its columns
}

func (s *slotStream) keepalive(data []byte) error {
	k, err := pglogrepl.ParsePrimaryKeepaliveMessage(data)
	if err != nil {
		return err
	}
	if s.out.txn == nil {
		s.rows.advanceIdle(uint64(k.ServerWALEnd))
	}
	if k.ReplyRequested {
		return s.status(time.Now())
	}
	return nil
}

// received schedules the next status after a short silence.
func (s *slotStream) received(now time.Time) error {
	s.receivedAt, s.wait = now, minStatusInterval
	if next := now.Add(minStatusInterval); next.Before(s.deadline) {
		return s.setReadDeadline(next)
	}
	return nil
}

// sendDueStatus sends a status if it is due.
func (s *slotStream) sendDueStatus(now time.Time) error {
	next := min(s.receivedAt.Add(s.wait).Sub(now), s.statusAt.Add(statusInterval).Sub(now))
	if next <= 0 {
		if err := s.status(now); err != nil {
			return err
		}
		if s.wait <= now.Sub(s.receivedAt) {
			s.wait = min(4*max(s.wait, minStatusInterval), statusInterval)
			s.receivedAt = now
		}
		next = s.wait
	}
	return s.setReadDeadline(now.Add(next))
}

// setReadDeadline sets the read deadline. After it expires, sendDueStatus sets the next one.
func (s *slotStream) setReadDeadline(until time.Time) error {
	s.deadline = until
	return s.conn.Conn().SetReadDeadline(until)
}

func (s *slotStream) status(now time.Time) error {
	s.statusAt = now
	at := pglogrepl.LSN(s.rows.position())
	err := pglogrepl.SendStandbyStatusUpdate(context.Background(), s.conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: at, ClientTime: now})
	if err != nil {
		return fmt.Errorf("send status: %w", err)
	}
	return nil
}

// closeConn closes a connection. It waits for the cleanup of an aborted call.
func closeConn(conn *pgconn.PgConn) {
	_ = conn.Conn().SetDeadline(time.Now().Add(store.CloseTimeout))
	ctx, cancel := context.WithTimeout(context.Background(), store.CloseTimeout)
	defer cancel()
	ended := conn.CleanupDone()
	_ = conn.Close(ctx) // its error does not matter
	select {
	case <-ended:
	case <-ctx.Done():
	}
}
