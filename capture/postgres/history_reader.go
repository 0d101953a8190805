package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
)

var _ capture.HistoryReader = (*Source)(nil)

// CheckReachable implements capture.HistoryReader. Only a position for which RetainLog
// retained WAL can be read again, because the relay's own slot releases settled WAL.
func (s *Source) CheckReachable(ctx context.Context, at capture.StartPoint) error {
	b, _, err := s.locateHistory(ctx, at)
	closeSession(b.conn)
	return err
}

// ReadRange implements capture.HistoryReader. It reads through a temporary copy of the
// slot that RetainLog made, so that slot serves as many readers as there are free slots.
// Until the session ends, the copy retains the WAL even if the original is dropped.
func (s *Source) ReadRange(ctx context.Context, at capture.StartPoint, until store.Position, out chan<- capture.Batch) error {
	s.cfg.MayCreate, s.cfg.HeartbeatInterval = false, -1 // it writes nothing
	end, err := parseLSN(until)
	if err != nil {
		return err
	}

	b, p, err := s.locateHistory(ctx, at)
	if err == nil && end > b.system.XLogPos {
		err = fault.OtherLogf("end %s is ahead of the server's WAL, which ends at %s: the server was restored", until, b.system.XLogPos)
	}
	if err != nil || p.from >= end {
		closeSession(b.conn)
		return err
	}

	s.system, s.server, s.publicationState, s.confirmed = b.system, b.server, b.publicationState, p.from
	s.resume.ResetPartial(at.Position, at.Skip)
	s.resume.Start(s, at.Position)
	p.until = end
	if p.timeout, err = s.beginRange(ctx, b.conn, at.Slot, p.from); err != nil {
		closeSession(b.conn)
		return err
	}

	progress, err := s.readStream(ctx, b.conn, p, out)
	return s.failures.Classify(s.explainMissingColumns(ctx, err), progress, s.resume.Last())
}

// locateHistory verifies that the WAL after a position is retained, and that the position
// belongs to this WAL. The caller closes the session, also after an error.
func (s *Source) locateHistory(ctx context.Context, at capture.StartPoint) (b sideSession, p streamRange, err error) {
	if b, err = s.openSideSession(ctx); err != nil {
		return b, p, err
	}
	if b.publicationState != "" && b.conn != nil && (at.Origin != "" || at.Position != "") {
		if err = s.checkOrigin(ctx, &b, at.Checkpoint); err != nil {
			return b, p, err
		}
	}
	if err = b.faults.Err(); err != nil {
		return b, p, err
	}
	if p.from, err = parseLSN(at.Position); err != nil {
		return b, p, fault.OtherLogf("%v", err)
	}
	if p.from > b.system.XLogPos {
		return b, p, fault.OtherLogf("checkpoint %s is ahead of the server's WAL, which ends at %s: the server was restored", at.Position, b.system.XLogPos)
	}
	return b, p, s.checkRetainedSlot(ctx, at, p.from)
}

// checkOrigin verifies that a checkpoint belongs to the WAL that a session reads.
func (s *Source) checkOrigin(ctx context.Context, b *sideSession, at store.Checkpoint) error {
	here := originOf(b.system) + " "
	if was, ok := strings.CutPrefix(at.Origin, here); ok && was != b.publicationState {
		return fault.OtherLogf("%s", describePublicationChange(s.cfg.Name, was, b.publicationState))
	}
	reason, err := s.originMismatch(ctx, b.conn, here+b.publicationState, at)
	if err == nil && reason != "" {
		err = fault.OtherLogf("%s", reason)
	}
	return err
}

// checkRetainedSlot verifies that a slot retains the WAL after a position.
func (s *Source) checkRetainedSlot(ctx context.Context, at capture.StartPoint, from pglogrepl.LSN) error {
	if at.Position == "" || at.Slot == "" {
		return &notRetainedError{capture.LostError{Reason: "no log is retained from that time (PostgreSQL: `checkpoint create --keep-log`)"}}
	}
	if _, ours := retainedNameOf(s.cfg.Name, at.Slot); !ours {
		return fault.Lostf("slot %q does not retain WAL for relay %s", at.Slot, s.cfg.Name)
	}

	sl, err := s.slots.read(ctx, at.Slot)
	switch {
	case err != nil:
		return err
	case !sl.exists:
		return fault.Lostf("slot %s, which retained it, is gone", at.Slot)
	case sl.lost != "":
		return fault.Lostf("slot %s, which retained it, has lost it: %s", at.Slot, sl.lost)
	case sl.confirmed > from:
		return fault.Lostf("slot %s is at %s, ahead of %s: it was advanced or recreated", at.Slot, sl.confirmed, at.Position)
	}

	return nil
}

// beginRange starts a stream from a copy of a retained slot, after a position.
func (s *Source) beginRange(ctx context.Context, conn *pgconn.PgConn, retainedSlot string, from pglogrepl.LSN) (timeout time.Duration, err error) {
	name := s.slots.tempName("again")
	if err = s.slots.copy(ctx, conn, retainedSlot, name, true); err != nil {
		return 0, explainNoFreeSlot(err, "reading the WAL again needs one meanwhile")
	}
	return s.beginStream(ctx, conn, name, from)
}

// copy creates a copy of a slot on a replication session, because the control role
// need not have the privilege. The original may be in use. The names need no quoting.
//
// Measured on versions 15 and 18:
//
//   - The copy has the original's position, and a stream from it that acknowledges
//     nothing leaves it there.
//   - The copy is not a failover slot, even if the original is one (18).
//   - A temporary copy disappears with its session, and that session can stream from it.
//
// Source:
// https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
func (s *slots) copy(ctx context.Context, conn *pgconn.PgConn, from, to string, temporary bool) error {
	sql := fmt.Sprintf("SELECT pg_catalog.pg_copy_logical_replication_slot('%s', '%s', %t)", from, to, temporary)
	_, err := conn.Exec(ctx, sql).ReadAll()
	if err == nil {
		return nil
	}
	if sl, readErr := s.read(ctx, from); readErr == nil && sl.lost != "" { // the server's wording differs between releases
		return fault.Lostf("slot %s has lost its WAL: %s", from, sl.lost)
	}
	return fmt.Errorf("copy slot %s: %w", from, s.explainStreamError(err))
}

// notRetainedError reports that no slot was made for a position. It is a *capture.LostError,
// but its text does not say so: a relay without retained log lost nothing.
type notRetainedError struct{ capture.LostError }

func (e *notRetainedError) Error() string { return e.Reason }

// Unwrap makes the error a *capture.LostError.
func (e *notRetainedError) Unwrap() error { return &e.LostError }
