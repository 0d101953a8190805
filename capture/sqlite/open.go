package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
)

// Open creates the log and its triggers if they are missing. Then it continues from the
// checkpoint or takes a snapshot. The tables must be those of a store/sqlite store of the
// same relay.
func (s *Source) Open(ctx context.Context, at store.Checkpoint, tables capture.Tables) (capture.OpenResult, error) {
	conn, err := sqlitestore.Dial(ctx, s.path)
	if err != nil {
		return capture.OpenResult{}, err
	}
	defer conn.Close()
	st, err := s.readLogState(ctx, conn)
	if err != nil {
		return capture.OpenResult{}, err
	}

	opening := capture.OpenResult{From: at.Position, SnapshotReason: snapshotReason(at, &st)}
	if opening.SnapshotReason != "" {
		if err := tables.ClearCheckpoint(ctx); err != nil {
			return capture.OpenResult{}, err
		}
		if st.lossReason != "" {
			opening.Discard = s.discard
		}
	}
	if st.incomplete() {
		if st, err = s.completeLog(ctx, conn); err != nil {
			return capture.OpenResult{}, err
		}
		if opening.SnapshotReason == "" && st.id != at.Origin {
			return capture.OpenResult{}, errors.New("open log: it was changed concurrently by another program")
		}
	}
	if opening.SnapshotReason != "" {
		// The triggers exist now, so every insert after the view opens has a higher number
		// than the counter in the view.
		if opening.View, err = tables.View(ctx, ""); err != nil {
			return capture.OpenResult{}, fmt.Errorf("open view of the tables: %w", err)
		}
		if opening.From = opening.View.Position(); opening.From == "" {
			opening.View.Close()
			return capture.OpenResult{}, errors.New("open view of the tables: view has no log position; it belongs to another database or relay")
		}
	}

	opening.Origin = st.id
	return opening, s.resetState(st.id, opening.From)
}

// resetState replaces the state of an earlier Open.
func (s *Source) resetState(log string, at store.Position) error {
	if _, err := parsePosition(at); err != nil {
		return err
	}
	s.log = log
	s.acks.Reset("", 0)
	s.acks.Offer(at)
	s.resume.Reset(at)
	return nil
}

// snapshotReason returns one line with the reason why the log cannot be read from the
// checkpoint, "" if it can.
func snapshotReason(at store.Checkpoint, st *logState) string {
	n, err := parsePosition(at.Position)
	switch {
	case at.Position == "":
		return "there is no checkpoint yet"
	case st.lossReason != "":
		return st.lossReason
	case at.Origin != st.id:
		return fmt.Sprintf("checkpoint belongs to log %s, this log is %s", at.Origin, st.id)
	case err != nil:
		return "checkpoint is unreadable: " + err.Error()
	case n > st.counter:
		return fmt.Sprintf("checkpoint %d is ahead of the log counter, which is %d: it was reset", n, st.counter)
	case n < st.trimmed:
		return fmt.Sprintf("log trimmed up to %d, checkpoint is %d", st.trimmed, n)
	}
	return ""
}

// discard drops the triggers and the log that Open created, so that no unread log
// accumulates.
func (s *Source) discard(ctx context.Context) error {
	s.log = ""
	err := s.writeSession.write(ctx, func(ctx context.Context, conn *sqlitestore.Conn) error {
		for i := range s.cfg.Outboxes {
			if err := conn.Script(ctx, "DROP TRIGGER IF EXISTS "+sqlitestore.Ident(s.triggerPrefix()+s.cfg.Outboxes[i].Name)); err != nil {
				return err
			}
		}
		if err := conn.Script(ctx, "DROP TABLE IF EXISTS "+s.logTable()); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, "DELETE FROM sluicebox_log WHERE name = ?", s.cfg.Name)
		return err
	})
	if err != nil {
		return fmt.Errorf("drop log: %w", sqlitestore.Explain(err))
	}
	return nil
}
