package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

var _ capture.Past = (*Source)(nil)

// Reach implements capture.Past. The log can be read from a place for which KeepLog
// kept it, and from no other: the relay's own slot lets go what is settled.
func (s *Source) Reach(ctx context.Context, at capture.Place) error {
	b, _, err := s.findPast(ctx, at)
	closeSession(b.conn)
	return err
}

// Again implements capture.Past. It reads through a temporary copy of the slot that
// KeepLog made: the kept one stays where it is, and so it serves as many readers as
// there are slots to spare. The server drops the copy with the session, and the log
// stays until then also if the kept one is dropped.
func (s *Source) Again(ctx context.Context, at capture.Place, until store.Position, out chan<- capture.Batch) error {
	s.cfg.MayCreate, s.cfg.HeartbeatInterval = false, -1 // it writes nothing
	end, err := parseLSN(until)
	if err != nil {
		return err
	}
	b, p, err := s.findPast(ctx, at)
	if err == nil && end > b.log.XLogPos {
		err = otherLog("the end %s is ahead of the server's log, which ends at %s: the server was restored", until, b.log.XLogPos)
	}
	if err != nil || p.from >= end {
		closeSession(b.conn)
		return err
	}
	s.log, s.server, s.published, s.confirmed = b.log, b.server, b.published, p.from
	s.resume.Behind(at.Position, at.Skip)
	s.resume.Start(s, at.Position)
	p.until = end
	if p.timeout, err = s.beginAgain(ctx, b.conn, at.Kept, p.from); err != nil {
		closeSession(b.conn)
		return err
	}
	progress, err := s.read(ctx, b.conn, p, out)
	return s.failed(s.explainColumns(ctx, err), progress)
}

// findPast makes sure that the log is kept from a place on, and that it is the log
// that the place is of. The session is the caller's to close, also with an error.
func (s *Source) findPast(ctx context.Context, at capture.Place) (b beside, p part, err error) {
	if b, err = s.openBeside(ctx); err != nil {
		return b, p, err
	}
	if b.published != "" && b.conn != nil && (at.Origin != "" || at.Position != "") {
		if err = s.checkOrigin(ctx, &b, at.Checkpoint); err != nil {
			return b, p, err
		}
	}
	if err = b.wrong.Err(); err != nil {
		return b, p, err
	}
	if p.from, err = parseLSN(at.Position); err != nil {
		return b, p, otherLog("%v", err)
	}
	if p.from > b.log.XLogPos {
		return b, p, otherLog("the checkpoint %s is ahead of the server's log, which ends at %s: the server was restored", at.Position, b.log.XLogPos)
	}
	return b, p, s.checkKept(ctx, at, p.from)
}

// checkOrigin makes sure that a checkpoint is of the log that a session reads.
func (s *Source) checkOrigin(ctx context.Context, b *beside, at store.Checkpoint) error {
	here := originOf(b.log) + " "
	if was, ok := strings.CutPrefix(at.Origin, here); ok && was != b.published {
		return otherLog("%s", publishedChange(s.cfg.Name, was, b.published))
	}
	why, err := s.whyOther(ctx, b.conn, here+b.published, at)
	if err == nil && why != "" {
		err = otherLog("%s", why)
	}
	return err
}

// checkKept makes sure that a slot keeps the log behind a place.
func (s *Source) checkKept(ctx context.Context, at capture.Place, from pglogrepl.LSN) error {
	if at.Position == "" || at.Kept == "" {
		return lost("the server keeps no more of its log than the relay has yet to settle: no log was kept for this place")
	}
	if _, ours := s.keptName(at.Kept); !ours {
		return lost("slot %q is none that keeps log for relay %s", at.Kept, s.cfg.Name)
	}
	sl, err := s.lookAt(ctx, at.Kept)
	switch {
	case err != nil:
		return err
	case !sl.exists:
		return lost("slot %s, which kept it, is gone", at.Kept)
	case sl.lost != "":
		return lost("slot %s, which kept it, has lost it: %s", at.Kept, sl.lost)
	case sl.confirmed > from:
		return lost("slot %s stands at %s, ahead of %s: somebody moved it on or made it anew", at.Kept, sl.confirmed, at.Position)
	}
	return nil
}

// beginAgain begins a stream from a copy of a kept slot, behind a place.
func (s *Source) beginAgain(ctx context.Context, conn *pgconn.PgConn, kept string, from pglogrepl.LSN) (timeout time.Duration, err error) {
	name := s.ownSlot("again")
	if err = s.copySlot(ctx, conn, kept, name, true); err != nil {
		return 0, explainFull(err, "reading the log once more needs one for as long as it lasts")
	}
	return s.begin(ctx, conn, name, from)
}

// copySlot makes a slot that keeps what another one keeps, on a replication session:
// the control role need not have the right. The other slot may be in use. Measured on
// versions 15 and 18: the copy stands where the other stood; a stream from it that
// acknowledges nothing leaves it there; it is no failover slot, also where the other
// is one (18); a temporary one is gone with its session, and is made on one that then
// streams from it. The names need no quoting.
//
// Source: https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
func (s *Source) copySlot(ctx context.Context, conn *pgconn.PgConn, from, to string, temporary bool) error {
	sql := fmt.Sprintf("SELECT pg_catalog.pg_copy_logical_replication_slot('%s', '%s', %t)", from, to, temporary)
	_, err := conn.Exec(ctx, sql).ReadAll()
	if err == nil {
		return nil
	}
	if sl, lookErr := s.lookAt(ctx, from); lookErr == nil && sl.lost != "" { // the server's words for that differ between releases
		return lost("slot %s has lost its log: %s", from, sl.lost)
	}
	return fmt.Errorf("copy slot %s: %w", from, s.explainStreaming(err))
}

func lost(format string, args ...any) error {
	return &capture.LostError{Reason: fmt.Sprintf(format, args...)}
}

func otherLog(format string, args ...any) error {
	return &capture.OriginError{Reason: fmt.Sprintf(format, args...)}
}
