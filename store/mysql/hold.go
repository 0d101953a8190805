package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/errortext"
)

// ownTime is the format of times in the relay's tables, which hold microseconds.
const ownTime = "2006-01-02 15:04:05.000000"

// LoadHolds implements store.Holds.
func (s *Store) LoadHolds(ctx context.Context) ([]store.Hold, error) {
	var holds []store.Hold
	err := s.operator.do(ctx, func(ctx context.Context, c *conn) error {
		return c.tx(ctx, func() error {
			holds = nil // the transaction may start over
			for _, name := range s.outboxes.Names() {
				some, err := s.readHolds(ctx, c, s.outboxes.Lookup(name))
				if err != nil {
					return err
				}
				holds = append(holds, some...)
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("load holds: %w", Explain(err))
	}

	return holds, nil
}

// readHolds reads the valid holds of an outbox. A block is valid as long as its row is
// FAILED.
func (s *Store) readHolds(ctx context.Context, c *conn, o *store.Outbox) ([]store.Hold, error) {
	const read = "SELECT hold, kind, message_group, id, retry_count, reason, since FROM " + ownPrefix + "hold WHERE name = ? AND outbox = ?"
	if _, err := c.tableAltered(ctx, o); err != nil { // a block whose row is not found would be released
		return nil, err
	}

	t, err := c.table(ctx, o)
	if err != nil {
		return nil, err
	}

	var all []store.Hold
	err = c.query(ctx, read, []any{s.name, o.Name}, func(rows *sql.Rows) error {
		h := store.Hold{Lane: store.LaneKey{Outbox: o.Name}}
		var kindName, since string
		var group sql.NullString
		if err := rows.Scan(&kindName, &h.Lane.Kind, &group, &h.ID, &h.RetryCount, &h.Reason, &since); err != nil {
			return err
		}
		h.Lane.Group = groupOf(group)
		h.Since, _ = readTime(since) // the relay wrote it, so it is valid
		if h.Kind, err = store.ParseHoldKind(kindName); err != nil {
			return fmt.Errorf("in %shold: %w", ownPrefix, err)
		}
		all = append(all, h)
		return nil
	})
	if err != nil {
		return nil, err
	}

	valid := all[:0]
	for _, h := range all {
		failed := true
		if h.Kind == store.Blocked {
			if failed, err = s.isFailed(ctx, c, t, h.ID); err != nil {
				return nil, err
			}
		}
		if failed {
			valid = append(valid, h)
		}
	}

	return valid, nil
}

// isFailed reports whether the row with an id is FAILED.
func (s *Store) isFailed(ctx context.Context, c *conn, t *table, id string) (bool, error) {
	key, valid := t.id().key(id)
	if !valid {
		return false, nil
	}
	st := &statement{}
	var one int
	err := c.row(ctx, "SELECT 1 FROM "+t.from()+"\nWHERE "+t.idExactlyIn(st, []any{key})+" AND "+t.failed(st)+" LIMIT 1", st.args, &one)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// Hold implements store.Holds. It sanitizes the reason like an error text in Settle, and
// truncates the time to microseconds.
func (s *Store) Hold(ctx context.Context, epoch store.Epoch, h store.Hold) error {
	if _, err := s.outboxes.FindValid(h.Lane.Outbox, &h); err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	err := s.operator.do(ctx, func(ctx context.Context, c *conn) error {
		return s.runAsLeader(ctx, c, epoch, func() error { return s.putHold(ctx, c, &h) })
	})
	if err != nil {
		return fmt.Errorf("hold lane %s: %w", h.Lane, asRefused(err))
	}
	return nil
}

// putHold records a hold in the call's transaction.
func (s *Store) putHold(ctx context.Context, c *conn, h *store.Hold) error {
	const put = "INSERT INTO " + ownPrefix + `hold (name, outbox, lane, hold, kind, message_group, id, retry_count, reason, since)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON DUPLICATE KEY UPDATE kind = ?, message_group = ?, id = ?, retry_count = ?, reason = ?, since = ?`
	lane := h.Lane.Hash()
	kind, group, id, reason := []byte(h.Lane.Kind), groupBytes(h.Lane.Group), []byte(h.ID), errortext.Sanitize(h.Reason, 0, false)
	since := h.Since.UTC().Truncate(time.Microsecond).Format(ownTime)
	_, err := c.exec(ctx, put, s.name, h.Lane.Outbox, lane[:], h.Kind.String(), kind, group, id, h.RetryCount, reason, since,
		kind, group, id, h.RetryCount, reason, since)
	return err
}

// groupBytes returns a group as the relay's tables store it; NULL for none. It is bytes
// because the server checks the charset of texts.
func groupBytes(g store.Group) []byte {
	if !g.Valid {
		return nil
	}
	return append([]byte{}, g.Name...)
}

func groupOf(name sql.NullString) store.Group {
	return store.Group{Name: name.String, Valid: name.Valid}
}

// deleteBlock deletes the block of a row in the call's transaction.
func (s *Store) deleteBlock(ctx context.Context, c *conn, row store.Ref) error {
	const deleteSQL = "DELETE FROM " + ownPrefix + "hold WHERE name = ? AND outbox = ? AND id = ? AND hold = ?"
	_, err := c.exec(ctx, deleteSQL, s.name, row.Outbox, []byte(row.ID), store.Blocked.String())
	return err
}

// Release implements store.Holds.
func (s *Store) Release(ctx context.Context, epoch store.Epoch, lane store.LaneKey, kind store.HoldKind) error {
	const deleteSQL = "DELETE FROM " + ownPrefix + "hold WHERE name = ? AND outbox = ? AND lane = ? AND hold = ?"
	if _, err := s.outbox(lane.Outbox); err != nil {
		return fmt.Errorf("release lane %s: %w", lane, err)
	}

	hash := lane.Hash()
	err := s.operator.do(ctx, func(ctx context.Context, c *conn) error {
		return s.runAsLeader(ctx, c, epoch, func() error {
			_, err := c.exec(ctx, deleteSQL, s.name, lane.Outbox, hash[:], kind.String())
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("release lane %s: %w", lane, asRefused(err))
	}

	return nil
}
