package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/errortext"
)

// readTx runs fn in a read transaction on its own connection. It needs no lock of a writer
// and blocks no other call.
func (s *Store) readTx(ctx context.Context, fn func(context.Context, *Conn) error) error {
	return s.lifetime.Do(ctx, func(ctx context.Context) error {
		conn, err := Dial(ctx, s.path)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.pragma(ctx, "query_only=1"); err != nil {
			return err
		}
		return conn.Read(ctx, func(ctx context.Context) error { return fn(ctx, conn) })
	})
}

// LoadHolds implements store.Holds, on its own connection.
func (s *Store) LoadHolds(ctx context.Context) ([]store.Hold, error) {
	var holds []store.Hold
	err := s.readTx(ctx, func(ctx context.Context, conn *Conn) error {
		holds = nil // the transaction was retried
		for _, name := range s.outboxes.Names() {
			t, err := describe(ctx, conn, s.outboxes.Lookup(name))
			if err != nil {
				return err
			}
			of, err := s.readHolds(ctx, conn, name)
			if err != nil {
				return err
			}
			failed := failedQuery(t)
			for i := range of {
				stands := of[i].Kind != store.Blocked
				for _, key := range t.keys(of[i].ID) {
					if stands {
						break
					}
					err := conn.Query(ctx, failed.sql, failed.args(&values{key: key}), func([]driver.Value) error {
						stands = true
						return StopIteration()
					})
					if err != nil {
						return err
					}
				}
				if stands {
					holds = append(holds, of[i])
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("load holds: %w", Explain(err))
	}
	return holds, nil
}

func (s *Store) readHolds(ctx context.Context, conn *Conn, outbox string) (holds []store.Hold, err error) {
	const load = "SELECT hold, kind, message_group, id, retry_count, reason, since FROM sluicebox_hold WHERE name = ? AND outbox = ?"
	err = conn.Query(ctx, load, []any{s.name, outbox}, func(row []driver.Value) (err error) {
		h := store.Hold{Lane: store.LaneKey{Outbox: outbox}}
		word, _ := textOf(row[0])
		if h.Kind, err = store.ParseHoldKind(word); err != nil {
			return fmt.Errorf("in sluicebox_hold: %w", err)
		}
		h.Lane.Kind, _ = textOf(row[1])
		h.Lane.Group.Name, h.Lane.Group.Valid = textOf(row[2])
		h.ID, _ = textOf(row[3])
		n, _ := row[4].(int64)
		h.RetryCount = int(n)
		h.Reason, _ = textOf(row[5])
		h.Since, _ = readTime(row[6])
		holds = append(holds, h)
		return nil
	})
	return holds, err
}

// failedQuery builds the statement that returns a row if the row of an id is FAILED.
func failedQuery(t *table) *query {
	b := &builder{}
	sql := "SELECT 1 FROM " + TableName(t.Outbox) + " WHERE " + Ident(t.Layout.Columns.ID) + " = " + b.key() + " AND " + t.failed(b)
	return &query{sql, b.params}
}

// Hold implements store.Holds. It sanitizes the reason like an error text of Settle, and
// truncates the time to milliseconds.
func (s *Store) Hold(ctx context.Context, epoch store.Epoch, h store.Hold) error {
	if _, err := s.outboxes.FindValid(h.Lane.Outbox, &h); err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	err := s.writer.do(ctx, func(ctx context.Context) error {
		return s.writer.runAsLeader(ctx, epoch, Full, lockTimeout, func(ctx context.Context) error {
			return s.hold(ctx, &h)
		})
	})
	if err != nil {
		return fmt.Errorf("hold lane %s: %w", h.Lane, asRefused(err))
	}
	return nil
}

// hold records a hold, in the call's transaction.
func (s *Store) hold(ctx context.Context, h *store.Hold) error {
	const put = `
INSERT INTO sluicebox_hold (name, outbox, lane, hold, kind, message_group, id, retry_count, reason, since)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name, outbox, lane, hold) DO UPDATE SET kind = excluded.kind, message_group = excluded.message_group,
  id = excluded.id, retry_count = excluded.retry_count, reason = excluded.reason, since = excluded.since`
	lane := h.Lane.Hash()
	_, err := s.writer.conn.Exec(ctx, put, s.name, h.Lane.Outbox, lane[:], h.Kind.String(), h.Lane.Kind, groupValue(h.Lane.Group),
		h.ID, h.RetryCount, errortext.Sanitize(h.Reason, 0, false), formatTime(h.Since.Truncate(time.Millisecond)))
	return err
}

// block records the hold that an outcome requests, if its row is FAILED, in the call's
// transaction.
func (s *Store) block(ctx context.Context, o *store.Outcome) error {
	t, err := s.writer.table(ctx, s.outboxes.Lookup(o.Outbox))
	if err != nil {
		return err
	}
	if t.isFailed == nil {
		t.isFailed = failedQuery(t)
	}

	failed := false
	for _, key := range t.keys(o.ID) {
		err := s.writer.conn.Query(ctx, t.isFailed.sql, t.isFailed.args(&values{key: key}), func([]driver.Value) error {
			failed = true
			return StopIteration()
		})
		if err != nil {
			return err
		}
	}
	if !failed {
		return nil
	}

	h := o.Hold()
	return s.hold(ctx, &h)
}

// deleteBlock deletes the block that a row caused, in the call's transaction.
func (s *Store) deleteBlock(ctx context.Context, row store.Ref) error {
	const forget = "DELETE FROM sluicebox_hold WHERE name = ? AND outbox = ? AND id = ? AND hold = ?"
	_, err := s.writer.conn.Exec(ctx, forget, s.name, row.Outbox, row.ID, store.Blocked.String())
	return err
}

// Release implements store.Holds.
func (s *Store) Release(ctx context.Context, epoch store.Epoch, lane store.LaneKey, kind store.HoldKind) error {
	const forget = "DELETE FROM sluicebox_hold WHERE name = ? AND outbox = ? AND lane = ? AND hold = ?"
	if _, err := s.outbox(lane.Outbox); err != nil {
		return fmt.Errorf("release lane %s: %w", lane, err)
	}
	hash := lane.Hash()
	err := s.writer.do(ctx, func(ctx context.Context) error {
		return s.writer.runAsLeader(ctx, epoch, Full, lockTimeout, func(ctx context.Context) error {
			_, err := s.writer.conn.Exec(ctx, forget, s.name, lane.Outbox, hash[:], kind.String())
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("release lane %s: %w", lane, Explain(err))
	}
	return nil
}
