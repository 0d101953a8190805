package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
)

// Open checks the server and fixes the publication where it may. It then continues from
// the slot at the checkpoint, or takes a snapshot: a new slot, and the tables at its
// start.
//
//   - One *capture.NoStreamError lists everything that an operator must fix.
//   - *OldTransactionError: a new slot would have to wait too long for a transaction. The
//     checkpoint may be cleared by then.
func (s *Source) Open(ctx context.Context, at store.Checkpoint, tables capture.Tables) (capture.OpenResult, error) {
	s.closeStream()
	var sv *server
	var sl slot
	var id pglogrepl.IdentifySystemResult
	fixed, lost := false, ""
	err := s.control.do(ctx, func(conn *pgx.Conn) (err error) {
		var faults fault.List
		if sv, faults, err = s.catalog(conn).inspect(ctx); err != nil {
			return err
		}

		s.repl, id, err = s.slots.dial(ctx)
		if err := faults.AddErr(err); err != nil {
			return err
		}
		if err := faults.Err(); err != nil {
			return err
		}
		defer func() {
			if err == nil {
				s.publicationState, err = s.catalog(conn).readPublicationState(ctx, sv)
			}
		}()

		// A running relay is not disturbed: nothing changes before the slot is known to
		// be free.
		if sl, err = s.slots.wait(ctx, conn, s.repl); err != nil {
			return err
		}
		if sl, err = s.finishSnapshot(ctx, conn, sl); err != nil {
			return err
		}
		if lost, err = s.lostReason(ctx, at, sl, id); err != nil {
			return err
		}
		if fixed = sv.publication.incomplete(); !fixed {
			return nil
		}
		// A log that can still be read is compared by its origin at the next start, which
		// the change of the publication changes.
		if lost != "" || !s.hasLogOnly() {
			if err := tables.ClearCheckpoint(ctx); err != nil {
				return err
			}
		}
		return sv.publication.fix(ctx, conn, s.cfg.Name)
	})

	var result capture.OpenResult
	if err == nil {
		s.system = id
		s.server = sv
		s.origin = originOf(id) + " " + s.publicationState
		result, err = s.resumeOrSnapshot(ctx, at, tables, openState{server: sv, slot: sl, publicationFixed: fixed, lost: lost})
	}
	if err != nil {
		s.closeStream()
		return capture.OpenResult{}, err
	}

	s.resetState(result.From)
	return result, nil
}

// openState decides whether the slot continues from the checkpoint.
type openState struct {
	server           *server
	slot             slot
	publicationFixed bool   // the publication was missing a table
	lost             string // why the WAL after the checkpoint cannot be read; "" if it can
}

// resumeOrSnapshot continues from the checkpoint or takes a snapshot.
func (s *Source) resumeOrSnapshot(ctx context.Context, at store.Checkpoint, tables capture.Tables, p openState) (capture.OpenResult, error) {
	reason := s.snapshotReason(at, p)
	if reason == "" {
		s.confirmed = p.slot.confirmed
		return capture.OpenResult{Origin: s.origin, From: at.Position}, nil
	}
	if p.lost == "" && s.hasLogOnly() {
		return s.snapshotAndKeep(ctx, at, tables, p, reason)
	}
	if err := tables.ClearCheckpoint(ctx); err != nil {
		return capture.OpenResult{}, err
	}
	if p.slot.exists {
		if err := s.slots.drop(ctx, s.repl, s.cfg.Name); err != nil {
			return capture.OpenResult{}, err
		}
	}

	created, err := s.slots.createOwn(ctx, s.repl, s.cfg.Name, p.server.version)
	if err != nil {
		return capture.OpenResult{}, fmt.Errorf("new slot needed, because %s: %w", reason, err)
	}
	if s.confirmed, err = parseLSN(store.Position(created.ConsistentPoint)); err != nil {
		return capture.OpenResult{}, err
	}

	view, err := tables.View(ctx, created.SnapshotName)
	if err != nil {
		err = fmt.Errorf("read tables as of slot %s: %w", s.cfg.Name, err)
		return capture.OpenResult{}, errors.Join(err, s.discard(context.WithoutCancel(ctx)))
	}
	result := capture.OpenResult{
		Origin: s.origin, From: formatLSN(s.confirmed), View: view, SnapshotReason: reason, Discard: s.discard,
	}
	if s.hasLogOnly() {
		result.Discard = nil // the next Open keeps the rows of the slot
		if err := tables.Keep(ctx, store.Checkpoint{Origin: unfinishedPrefix + s.origin, Position: result.From}, nil); err != nil {
			view.Close()
			return capture.OpenResult{}, errors.Join(err, s.discard(context.WithoutCancel(ctx)))
		}
	}
	return result, nil
}

// discard drops the slot that Open created, on the session that created it.
func (s *Source) discard(ctx context.Context) error {
	if s.repl == nil {
		return nil
	}
	defer s.closeStream()
	return s.slots.drop(ctx, s.repl, s.cfg.Name)
}

// snapshotReason returns in one line why Open takes a snapshot; "" if the log continues at
// the checkpoint.
func (s *Source) snapshotReason(at store.Checkpoint, p openState) string {
	switch {
	case at.Position != "" && p.publicationFixed:
		return fmt.Sprintf("publication %s was missing a table; added it", s.cfg.Name)
	case p.lost != "":
		return p.lost
	}

	origin, unfinished := strings.CutPrefix(at.Origin, unfinishedPrefix)
	_, was := splitOrigin(origin)
	tablesWas, _, _ := strings.Cut(was, publicationSeparator)
	tablesNow, _, _ := strings.Cut(s.publicationState, publicationSeparator)
	switch {
	case tablesWas != tablesNow:
		return "the set of outbox tables changed"
	case was != s.publicationState:
		return describePublicationChange(s.cfg.Name, was, s.publicationState)
	case unfinished:
		return "the last snapshot was not finished"
	}
	return ""
}

// lostReason returns in one line why the WAL after the checkpoint cannot be read; "" if it
// can. It may lack rows that were not published.
func (s *Source) lostReason(ctx context.Context, at store.Checkpoint, sl slot, id pglogrepl.IdentifySystemResult) (string, error) {
	if at.Position == "" {
		return "there is no checkpoint yet", nil
	}
	lsn, err := parseLSN(at.Position)
	if err != nil {
		return "unreadable checkpoint: " + err.Error(), nil
	}
	log, _ := splitOrigin(strings.TrimPrefix(at.Origin, unfinishedPrefix))
	if reason, err := s.originMismatch(ctx, s.repl, originOf(id), store.Checkpoint{Origin: log, Position: at.Position}); err != nil || reason != "" {
		return reason, err
	}

	switch {
	case !sl.exists:
		return fmt.Sprintf("slot %s is gone", s.cfg.Name), nil
	case sl.lost != "":
		return fmt.Sprintf("slot %s has lost its WAL: %s", s.cfg.Name, sl.lost), nil
	case sl.confirmed > lsn:
		return fmt.Sprintf("slot %s is at %s, ahead of checkpoint %s: it was advanced or recreated", s.cfg.Name, sl.confirmed, at.Position), nil
	case lsn > id.XLogPos:
		return fmt.Sprintf("checkpoint %s is ahead of the server's WAL, which ends at %s: the server was restored", at.Position, id.XLogPos), nil
	}

	return "", nil
}

// readyTimeout bounds Ready.
const readyTimeout = 2 * time.Second

// Ready reports whether Open could read the log now, for a relay that polls. It returns
// nil, or the *capture.NoStreamError that Open would return. If another session holds the
// slot and the caller does not lead, the error is a *store.SetupError. Other errors say
// nothing about the stream.
//
// Ready changes nothing on the server. It returns within 2 s, or 4 s if the server does
// not respond at all. It may be called concurrently with any call except Close.
func (s *Source) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	err := s.control.retryOnce(ctx, func(conn *pgx.Conn) error {
		_, faults, err := s.catalog(conn).inspect(ctx)
		if err != nil {
			return err
		}

		repl, _, err := s.slots.dial(ctx)
		closeSession(repl)
		if err := faults.AddErr(err); err != nil {
			return err
		}
		if err := faults.Err(); err != nil {
			return err
		}

		sl, err := s.slots.query(ctx, conn, s.cfg.Name)
		if err == nil && sl.active && (!s.cfg.TakeOver || !sl.terminable) {
			err = s.slots.heldError(&sl)
		}
		return err
	})
	if err != nil {
		return err
	}
	return s.slots.oldest.check(ctx)
}
