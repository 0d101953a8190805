package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lanekinds"
)

// maxBatchRows is the maximum number of spilled rows that one transaction writes, so that
// claims, outcomes and services do not wait long for the write lock. The transaction takes 2
// ms if the rows belong to one lane, and 10 ms if each belongs to another. With 500,
// spilling is a sixth faster, and concurrent claims wait up to four times as long.
const maxBatchRows = 200

// Spill implements store.Spiller. It spills rows in the given order, many rows in several
// transactions, each of them durable. It may return an error after some were committed, also
// ErrNotLeader. The next leader finds those rows, because nothing is written after the
// change of leader.
//
// The column xid is 0, because the log shows no row whose transaction a claim might not see.
func (s *Store) Spill(ctx context.Context, epoch store.Epoch, items []store.Item) error {
	for i := range items {
		it := &items[i]
		_, err := s.outbox(it.Outbox)
		if err == nil && it.Seq == 0 {
			err = fmt.Errorf("row %q of outbox %s has no seq; assign one before spilling", it.ID, it.Outbox)
		}
		if err != nil {
			return fmt.Errorf("spill rows: %w", err)
		}
	}
	err := s.inBatches(ctx, epoch, Full, len(items), func(ctx context.Context, i int) error {
		return s.spillRow(ctx, &items[i])
	})
	if err != nil {
		return fmt.Errorf("spill rows: %w", asRefused(err))
	}
	return nil
}

// spillRow spills one row, in the call's transaction.
func (s *Store) spillRow(ctx context.Context, it *store.Item) error {
	const put = `
INSERT INTO sluicebox_parked (name, outbox, lane, seq, id, kind, message_group, xid, retry_count, payload_size, committed_at, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?)
ON CONFLICT (name, outbox, lane, seq) DO NOTHING`
	lane := it.Lane().Hash()
	var payload any
	if s.outboxes.Lookup(it.Outbox).Layout.State == store.StateNone {
		payload = spilledPayload(it.Payload)
	}
	_, err := s.writer.conn.Exec(ctx, put, s.name, it.Outbox, lane[:], int64(it.Seq), it.ID, it.Kind, groupValue(it.Group),
		it.RetryCount, it.PayloadSize, commitValue(it.Committed), payload)
	return err
}

// groupValue returns a group as a value, NULL for none.
func groupValue(g store.Group) any {
	if !g.Valid {
		return nil
	}
	return g.Name
}

// commitValue returns a commit time as a value, NULL if it is not known.
func commitValue(at time.Time) any {
	if at.IsZero() {
		return nil
	}
	return at.UTC().Format(commitForm)
}

// spilledPayload returns a payload as a value. An empty payload is a text, because the
// driver writes an empty []byte as NULL, which means that the payload was not kept.
func spilledPayload(payload []byte) any {
	switch {
	case payload == nil:
		return nil
	case len(payload) == 0:
		return ""
	}
	return payload
}

// DeleteSpilled implements store.Spiller, with many rows in several transactions. A power
// failure may undo it; the rows are then found settled or deleted again.
func (s *Store) DeleteSpilled(ctx context.Context, epoch store.Epoch, rows []store.SpilledRef) error {
	for i := range rows {
		if _, err := s.outbox(rows[i].Outbox); err != nil {
			return fmt.Errorf("delete spilled rows: %w", err)
		}
	}
	err := s.inBatches(ctx, epoch, Normal, len(rows), func(ctx context.Context, i int) error {
		return s.deleteSpilledRow(ctx, rows[i])
	})
	if err != nil {
		return fmt.Errorf("delete spilled rows: %w", asRefused(err))
	}
	return nil
}

// deleteSpilledRow deletes a spilled row, in the call's transaction.
func (s *Store) deleteSpilledRow(ctx context.Context, row store.SpilledRef) error {
	const forget = "DELETE FROM sluicebox_parked WHERE name = ? AND outbox = ? AND id = ? AND seq = ?"
	_, err := s.writer.conn.Exec(ctx, forget, s.name, row.Outbox, row.ID, int64(row.Seq))
	return err
}

// inBatches writes n rows as the leader of an epoch, at most maxBatchRows in a transaction.
// Waiting calls run in between.
func (s *Store) inBatches(ctx context.Context, epoch store.Epoch, d Durability, n int, write func(ctx context.Context, i int) error) error {
	for from := 0; from < n; from += maxBatchRows {
		err := s.writer.do(ctx, func(ctx context.Context) error {
			return s.writer.runAsLeader(ctx, epoch, d, lockTimeout, func(ctx context.Context) error {
				for i := from; i < min(from+maxBatchRows, n); i++ {
					if err := write(ctx, i); err != nil {
						return err
					}
				}
				return nil
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// DeleteSpilledAfter implements store.SpillStore, with many rows in several transactions,
// each of them durable. It may return an error after some were committed.
func (s *Store) DeleteSpilledAfter(ctx context.Context, epoch store.Epoch, after store.Seq) (int, error) {
	total := 0
	for _, name := range s.outboxes.Names() {
		for {
			n, err := s.deleteSpilledBatch(ctx, epoch, name, after)
			if err != nil {
				return 0, fmt.Errorf("delete spilled rows after seq %d: %w", after, Explain(err))
			}
			if total += n; n < maxBatchRows {
				break
			}
		}
	}
	return total, nil
}

// deleteSpilledBatch deletes at most maxBatchRows rows of an outbox after a seq.
func (s *Store) deleteSpilledBatch(ctx context.Context, epoch store.Epoch, outbox string, after store.Seq) (n int, err error) {
	const forget = `
DELETE FROM sluicebox_parked WHERE rowid IN
  (SELECT rowid FROM sluicebox_parked WHERE name = ? AND outbox = ? AND seq > ? LIMIT ?)`
	err = s.writer.do(ctx, func(ctx context.Context) error {
		return s.writer.runAsLeader(ctx, epoch, Full, lockTimeout, func(ctx context.Context) error {
			deleted, err := s.writer.conn.Exec(ctx, forget, s.name, outbox, int64(after), maxBatchRows)
			n = int(deleted)
			return err
		})
	})
	return n, err
}

// ReadSpilled implements store.Spiller, on its own connection and from one snapshot.
func (s *Store) ReadSpilled(ctx context.Context, from []store.SpilledRange, each int) ([][]store.Item, error) {
	if each <= 0 {
		return nil, fmt.Errorf("read spilled rows: limit of each lane is %d, must be positive", each)
	}
	for i := range from {
		if _, err := s.outbox(from[i].Outbox); err != nil {
			return nil, fmt.Errorf("read spilled rows: %w", err)
		}
	}
	if len(from) == 0 {
		return nil, nil
	}

	lanes := make([][]store.Item, len(from))
	err := s.readTx(ctx, func(ctx context.Context, conn *Conn) (err error) {
		uncancelled := context.WithoutCancel(ctx) // each statement is short
		for i := range from {
			if err := ctx.Err(); err != nil {
				return err
			}
			if lanes[i], err = s.readSpilledLane(uncancelled, conn, &from[i], each); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read spilled rows: %w", Explain(err))
	}
	return lanes, nil
}

func (s *Store) readSpilledLane(ctx context.Context, conn *Conn, from *store.SpilledRange, each int) (items []store.Item, err error) {
	const read = `
SELECT seq, id, kind, message_group, retry_count, payload_size, committed_at, payload
FROM sluicebox_parked WHERE name = ? AND outbox = ? AND lane = ? AND seq > ? ORDER BY seq LIMIT ?`
	args := []any{s.name, from.Outbox, from.Lane[:], int64(from.After), each}
	err = conn.Query(ctx, read, args, func(row []driver.Value) error {
		items = append(items, spilledItem(from.Outbox, row))
		return nil
	})
	return items, err
}

func spilledItem(outbox string, row []driver.Value) store.Item {
	it := store.Item{Ref: store.Ref{Outbox: outbox}}
	seq, _ := row[0].(int64)
	it.Seq = store.Seq(seq)
	it.ID, _ = textOf(row[1])
	it.Kind, _ = textOf(row[2])
	it.Group.Name, it.Group.Valid = textOf(row[3])
	retries, _ := row[4].(int64)
	it.RetryCount = int(retries)
	size, _ := row[5].(int64)
	it.PayloadSize = int(size)
	it.Committed, _ = readTime(row[6])
	it.Payload = BytesOf(row[7])
	return it
}

// SpilledLanes implements store.SpillStore, on its own connection. The index of the table's
// key serves the count.
func (s *Store) SpilledLanes(ctx context.Context, take func(store.SpilledLane)) error {
	err := s.readTx(ctx, func(ctx context.Context, conn *Conn) error {
		for _, name := range s.outboxes.Names() {
			if err := s.readSpilledLanes(ctx, conn, name, take); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read spilled lanes: %w", Explain(err))
	}
	return nil
}

func (s *Store) readSpilledLanes(ctx context.Context, conn *Conn, outbox string, take func(store.SpilledLane)) error {
	const next = "SELECT lane, kind FROM sluicebox_parked WHERE name = ? AND outbox = ? AND lane > ? ORDER BY lane, seq LIMIT 1"
	const count = "SELECT lane, count(*) FROM sluicebox_parked WHERE name = ? AND outbox = ? GROUP BY lane"
	lane := func(value driver.Value) (hash store.LaneHash, err error) {
		if bytes, _ := value.([]byte); copy(hash[:], bytes) != len(hash) {
			err = fmt.Errorf("in sluicebox_parked, outbox %s: lane %x is not a lane hash", outbox, bytes)
		}
		return hash, err
	}

	kinds, err := lanekinds.FindKinds(func(after store.LaneHash) (hash store.LaneHash, kind string, found bool, err error) {
		err = conn.Query(ctx, next, []any{s.name, outbox, after[:]}, func(row []driver.Value) (err error) {
			found = true
			kind, _ = textOf(row[1])
			hash, err = lane(row[0])
			return err
		})
		return hash, kind, found, err
	})
	if err != nil {
		return err
	}

	l := store.SpilledLane{Outbox: outbox}
	return conn.Query(ctx, count, []any{s.name, outbox}, func(row []driver.Value) (err error) {
		if l.Hash, err = lane(row[0]); err != nil {
			return err
		}
		n, _ := row[1].(int64)
		l.Rows, l.Kind = int(n), kinds[l.Hash.Kind()]
		take(l)
		return ctx.Err()
	})
}
