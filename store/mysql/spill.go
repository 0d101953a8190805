package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/bits"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lanekinds"
)

const (
	// maxSpillRows is the maximum number of rows that one statement inserts into a table
	// of the relay.
	maxSpillRows = 128
	// maxDeleteRows is the maximum number of rows that one transaction of
	// DeleteSpilledAfter deletes, because it locks the leader row meanwhile.
	maxDeleteRows = 5000
)

// Spill implements store.Spiller in one transaction. It truncates commit times to
// microseconds.
func (s *Store) Spill(ctx context.Context, epoch store.Epoch, items []store.Item) error {
	if len(items) == 0 {
		return nil
	}
	for i := range items {
		if err := s.validateSpill(&items[i]); err != nil {
			return fmt.Errorf("spill rows: %w", err)
		}
	}

	err := s.spillSession.do(ctx, func(ctx context.Context, c *conn) error {
		return s.runAsLeader(ctx, c, epoch, func() error { return s.spillRows(ctx, c, items) })
	})
	if err != nil {
		return fmt.Errorf("spill rows: %w", asOwnRefused(err))
	}

	return nil
}

// validateSpill returns an error if a row cannot be spilled.
func (s *Store) validateSpill(it *store.Item) error {
	if _, err := s.outbox(it.Outbox); err != nil {
		return err
	}
	if it.Seq == 0 {
		return fmt.Errorf("row %q of outbox %s has no seq", it.ID, it.Outbox)
	}
	return nil
}

// spillRows inserts rows in the call's transaction.
func (s *Store) spillRows(ctx context.Context, c *conn, items []store.Item) error {
	size := func(i int) int { return itemSize(&items[i], s.spilledPayload(&items[i])) }
	return c.batches(len(items), size, func(from, to int) error {
		st := &statement{}
		_, err := c.exec(ctx, s.spillText(st, items[from:to]), st.args...)
		return err
	})
}

// itemSize returns the approximate size of a row in an INSERT.
func itemSize(it *store.Item, payload []byte) int {
	return len(it.ID) + len(it.Kind) + len(it.Group.Name) + len(payload)
}

// batches writes n rows in statements of few different lengths, each of at most a quarter
// of max_allowed_packet unless a single row is larger.
func (c *conn) batches(n int, size func(i int) int, write func(from, to int) error) error {
	for from := 0; from < n; {
		to, sum := from, 0
		for to < min(n, from+maxSpillRows) {
			sum += size(to)
			if to > from && sum > c.server.packet/4 {
				break
			}
			to++
		}
		to = from + 1<<(bits.Len(uint(to-from))-1) // a power of two
		if err := write(from, to); err != nil {
			return err
		}
		from = to
	}

	return nil
}

// spilledPayload returns the payload to spill with a row; nil if the outbox keeps the
// row.
func (s *Store) spilledPayload(it *store.Item) []byte {
	if s.outboxes.Lookup(it.Outbox).Layout.State == store.StateNone {
		return it.Payload
	}
	return nil
}

// spillText returns the statement that spills rows. A row that is already spilled stays
// as it is.
func (s *Store) spillText(st *statement, items []store.Item) string {
	var text strings.Builder
	text.WriteString("INSERT INTO " + ownPrefix + "parked (name, outbox, lane, seq, id, kind, message_group, retry_count, payload_size, committed_at, payload) VALUES\n")
	for i := range items {
		it := &items[i]
		lane := it.Lane().Hash()
		if i > 0 {
			text.WriteString(", ")
		}
		text.WriteString("(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
		st.args = append(st.args, s.name, it.Outbox, lane[:], int64(it.Seq), []byte(it.ID), []byte(it.Kind), groupBytes(it.Group),
			it.RetryCount, it.PayloadSize, timeOrNull(it.Committed), s.spilledPayload(it))
	}

	text.WriteString("\nON DUPLICATE KEY UPDATE retry_count = " + ownPrefix + "parked.retry_count")
	return text.String()
}

// DeleteSpilled implements store.Spiller.
func (s *Store) DeleteSpilled(ctx context.Context, epoch store.Epoch, rows []store.SpilledRef) error {
	if len(rows) == 0 {
		return nil
	}
	for i := range rows {
		if _, err := s.outbox(rows[i].Outbox); err != nil {
			return fmt.Errorf("delete spilled rows: %w", err)
		}
	}

	err := s.spillSession.do(ctx, func(ctx context.Context, c *conn) error {
		return s.runAsLeader(ctx, c, epoch, func() error { return s.deleteSpilledRows(ctx, c, rows) })
	})
	if err != nil {
		return fmt.Errorf("delete spilled rows: %w", asOwnRefused(err))
	}

	return nil
}

// deleteSpilledRows deletes spilled rows in the call's transaction. The seqs find the
// rows, and the ids protect another row that was spilled under one of these seqs by
// mistake.
func (s *Store) deleteSpilledRows(ctx context.Context, c *conn, rows []store.SpilledRef) error {
	byOutbox := map[string][]store.SpilledRef{}
	for _, row := range rows {
		byOutbox[row.Outbox] = append(byOutbox[row.Outbox], row)
	}

	for _, name := range s.outboxes.Names() {
		for list := byOutbox[name]; len(list) > 0; list = list[min(len(list), maxKeys):] {
			chunk := list[:min(len(list), maxKeys)]
			seqs, pairs := make([]any, len(chunk)), make([]any, len(chunk))
			for i, row := range chunk {
				seqs[i], pairs[i] = int64(row.Seq), []byte(fmt.Sprintf("%d %s", row.Seq, row.ID))
			}
			st := &statement{}
			text := "DELETE p FROM " + ownPrefix + "parked AS p FORCE INDEX (" + ownPrefix + "parked_seq)\nWHERE p.name = " + st.arg(s.name) +
				" AND p.outbox = " + st.arg(name) + " AND p.seq IN " + st.list("?", seqs) +
				" AND CAST(CONCAT(p.seq, ' ', p.id) AS BINARY) IN " + st.list("?", pairs)
			if _, err := c.exec(ctx, text, st.args...); err != nil {
				return err
			}
		}
	}

	return nil
}

// ReadSpilled implements store.Spiller.
func (s *Store) ReadSpilled(ctx context.Context, from []store.SpilledRange, each int) ([][]store.Item, error) {
	const read = "SELECT seq, id, kind, message_group, retry_count, payload_size, committed_at, payload FROM " + ownPrefix + `parked
WHERE name = ? AND outbox = ? AND lane = ? AND seq > ? ORDER BY seq LIMIT ?`
	if each <= 0 {
		return nil, fmt.Errorf("read spilled rows: limit is %d, must be positive", each)
	}

	for i := range from {
		if _, err := s.outbox(from[i].Outbox); err != nil {
			return nil, fmt.Errorf("read spilled rows: %w", err)
		}
	}

	if len(from) == 0 {
		return nil, nil
	}
	lists := make([][]store.Item, len(from))
	err := s.spillSession.do(ctx, func(ctx context.Context, c *conn) error {
		return c.tx(ctx, func() error {
			clear(lists)
			for i := range from {
				f := &from[i]
				err := c.query(ctx, read, []any{s.name, f.Outbox, f.Lane[:], int64(f.After), each}, func(rows *sql.Rows) error {
					it, err := scanSpilled(rows, f.Outbox)
					lists[i] = append(lists[i], it)
					return err
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read spilled rows: %w", Explain(err))
	}

	return lists, nil
}

func scanSpilled(rows *sql.Rows, outbox string) (store.Item, error) {
	it := store.Item{Ref: store.Ref{Outbox: outbox}}
	var group, committed sql.NullString
	err := rows.Scan(&it.Seq, &it.ID, &it.Kind, &group, &it.RetryCount, &it.PayloadSize, &committed, &it.Payload)
	it.Group = groupOf(group)
	it.Committed, _ = readTime(committed.String) // the relay wrote it, so it is valid
	return it, err
}

// SpilledLanes implements store.SpillStore. It counts the lanes by the table's primary
// key.
func (s *Store) SpilledLanes(ctx context.Context, take func(store.SpilledLane)) error {
	err := s.spillSession.do(ctx, func(ctx context.Context, c *conn) error {
		return c.tx(ctx, func() error {
			for _, name := range s.outboxes.Names() {
				if err := s.readSpilledLanes(ctx, c, name, take); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("read spilled lanes: %w", Explain(err))
	}

	return nil
}

func (s *Store) readSpilledLanes(ctx context.Context, c *conn, outbox string, take func(store.SpilledLane)) error {
	const count = "SELECT lane, COUNT(*) FROM " + ownPrefix + "parked FORCE INDEX (PRIMARY) WHERE name = ? AND outbox = ? GROUP BY lane"
	const next = "SELECT lane, kind FROM " + ownPrefix + "parked FORCE INDEX (PRIMARY) WHERE name = ? AND outbox = ? AND lane > ? ORDER BY lane, seq LIMIT 1"
	kinds, err := lanekinds.FindKinds(func(after store.LaneHash) (lane store.LaneHash, kind string, found bool, err error) {
		var hash []byte
		err = c.row(ctx, next, []any{s.name, outbox, after[:]}, &hash, &kind)
		copy(lane[:], hash)
		if errors.Is(err, sql.ErrNoRows) {
			return lane, "", false, nil
		}
		return lane, kind, true, err
	})
	if err != nil {
		return err
	}

	l := store.SpilledLane{Outbox: outbox}
	var hash sql.RawBytes // valid until the next row
	return c.query(ctx, count, []any{s.name, outbox}, func(rows *sql.Rows) error {
		err := rows.Scan(&hash, &l.Rows)
		copy(l.Hash[:], hash)
		l.Kind = kinds[l.Hash.Kind()]
		take(l)
		return err
	})
}

// DeleteSpilledAfter implements store.SpillStore, in transactions of bounded size. If it
// returns an error, some of the rows may be deleted.
func (s *Store) DeleteSpilledAfter(ctx context.Context, epoch store.Epoch, after store.Seq) (int, error) {
	const deleteSQL = "DELETE FROM " + ownPrefix + "parked WHERE name = ? AND outbox = ? AND seq > ? ORDER BY seq LIMIT ?"
	total := 0
	for _, name := range s.outboxes.Names() {
		for n := int64(maxDeleteRows); n == maxDeleteRows; {
			err := s.spillSession.do(ctx, func(ctx context.Context, c *conn) error {
				return s.runAsLeader(ctx, c, epoch, func() (err error) {
					n, err = c.exec(ctx, deleteSQL, s.name, name, int64(after), maxDeleteRows)
					return err
				})
			})
			if err != nil {
				return total, fmt.Errorf("delete spilled rows after seq: %w", Explain(err))
			}
			total += int(n)
		}
	}

	return total, nil
}
