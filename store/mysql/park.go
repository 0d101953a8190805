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
	// mostParked is the most rows that one statement inserts into an own table.
	mostParked = 128
	// forgetMost is the most rows that one transaction of ForgetParked deletes, so that
	// it does not lock the leader row for long.
	forgetMost = 5000
)

// Park implements store.Parking, in one transaction. Commit times are cut to
// microseconds.
func (s *Store) Park(ctx context.Context, epoch store.Epoch, items []store.Item) error {
	if len(items) == 0 {
		return nil
	}
	for i := range items {
		if err := s.parkable(&items[i]); err != nil {
			return fmt.Errorf("park: %w", err)
		}
	}
	err := s.parking.do(ctx, func(ctx context.Context, c *conn) error {
		return s.lead(ctx, c, epoch, func() error { return s.park(ctx, c, items) })
	})
	if err != nil {
		return fmt.Errorf("park: %w", ownRefusal(err))
	}
	return nil
}

// parkable reports what keeps a row from being parked.
func (s *Store) parkable(it *store.Item) error {
	if _, err := s.outbox(it.Outbox); err != nil {
		return err
	}
	if it.Seq == 0 {
		return fmt.Errorf("row %q of outbox %s has no seq", it.ID, it.Outbox)
	}
	return nil
}

// park inserts rows, in the call's transaction.
func (s *Store) park(ctx context.Context, c *conn, items []store.Item) error {
	size := func(i int) int { return itemSize(&items[i], s.keptPayload(&items[i])) }
	return c.batches(len(items), size, func(from, to int) error {
		st := &statement{}
		_, err := c.exec(ctx, s.parkText(st, items[from:to]), st.args...)
		return err
	})
}

// itemSize is about what a row takes in a statement that inserts it.
func itemSize(it *store.Item, payload []byte) int {
	return len(it.ID) + len(it.Kind) + len(it.Group.Name) + len(payload)
}

// batches writes n rows by statements of few lengths, and of a quarter of what the
// server takes at once.
func (c *conn) batches(n int, size func(i int) int, write func(from, to int) error) error {
	for from := 0; from < n; {
		to, sum := from, 0
		for to < min(n, from+mostParked) {
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

// keptPayload is a row's payload if it is to be parked with it.
func (s *Store) keptPayload(it *store.Item) []byte {
	if s.outboxes.Known(it.Outbox).Layout.State == store.StateNone {
		return it.Payload
	}
	return nil
}

// parkText is the statement that parks rows. One that is parked stays as it is.
func (s *Store) parkText(st *statement, items []store.Item) string {
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
			it.RetryCount, it.PayloadSize, orNull(it.Committed), s.keptPayload(it))
	}
	text.WriteString("\nON DUPLICATE KEY UPDATE retry_count = " + ownPrefix + "parked.retry_count")
	return text.String()
}

// Unpark implements store.Parking.
func (s *Store) Unpark(ctx context.Context, epoch store.Epoch, rows []store.ParkedRef) error {
	if len(rows) == 0 {
		return nil
	}
	for i := range rows {
		if _, err := s.outbox(rows[i].Outbox); err != nil {
			return fmt.Errorf("unpark: %w", err)
		}
	}
	err := s.parking.do(ctx, func(ctx context.Context, c *conn) error {
		return s.lead(ctx, c, epoch, func() error { return s.unpark(ctx, c, rows) })
	})
	if err != nil {
		return fmt.Errorf("unpark: %w", ownRefusal(err))
	}
	return nil
}

// unpark forgets parked rows, in the call's transaction. The seqs find them, and the
// ids leave out what is parked under one of them by mistake.
func (s *Store) unpark(ctx context.Context, c *conn, rows []store.ParkedRef) error {
	byOutbox := map[string][]store.ParkedRef{}
	for _, row := range rows {
		byOutbox[row.Outbox] = append(byOutbox[row.Outbox], row)
	}
	for _, name := range s.outboxes.Names() {
		for list := byOutbox[name]; len(list) > 0; list = list[min(len(list), mostKeys):] {
			chunk := list[:min(len(list), mostKeys)]
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

// Parked implements store.Parking.
func (s *Store) Parked(ctx context.Context, from []store.ParkedFrom, each int) ([][]store.Item, error) {
	const read = "SELECT seq, id, kind, message_group, retry_count, payload_size, committed_at, payload FROM " + ownPrefix + `parked
WHERE name = ? AND outbox = ? AND lane = ? AND seq > ? ORDER BY seq LIMIT ?`
	if each <= 0 {
		return nil, fmt.Errorf("read parked rows: the limit is %d, must be positive", each)
	}
	for i := range from {
		if _, err := s.outbox(from[i].Outbox); err != nil {
			return nil, fmt.Errorf("read parked rows: %w", err)
		}
	}
	if len(from) == 0 {
		return nil, nil
	}
	lists := make([][]store.Item, len(from))
	err := s.parking.do(ctx, func(ctx context.Context, c *conn) error {
		return c.tx(ctx, func() error {
			clear(lists)
			for i := range from {
				f := &from[i]
				err := c.query(ctx, read, []any{s.name, f.Outbox, f.Lane[:], int64(f.After), each}, func(rows *sql.Rows) error {
					it, err := scanParked(rows, f.Outbox)
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
		return nil, fmt.Errorf("read parked rows: %w", Explain(err))
	}
	return lists, nil
}

func scanParked(rows *sql.Rows, outbox string) (store.Item, error) {
	it := store.Item{Ref: store.Ref{Outbox: outbox}}
	var group, committed sql.NullString
	err := rows.Scan(&it.Seq, &it.ID, &it.Kind, &group, &it.RetryCount, &it.PayloadSize, &committed, &it.Payload)
	it.Group = groupOf(group)
	it.Committed, _ = readTime(committed.String) // the relay wrote it
	return it, err
}

// ParkedLanes implements store.Parking. Lanes are counted by the table's key.
func (s *Store) ParkedLanes(ctx context.Context, take func(store.ParkedLane)) error {
	err := s.parking.do(ctx, func(ctx context.Context, c *conn) error {
		return c.tx(ctx, func() error {
			for _, name := range s.outboxes.Names() {
				if err := s.parkedLanes(ctx, c, name, take); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("read the parked lanes: %w", Explain(err))
	}
	return nil
}

func (s *Store) parkedLanes(ctx context.Context, c *conn, outbox string, take func(store.ParkedLane)) error {
	const count = "SELECT lane, COUNT(*) FROM " + ownPrefix + "parked FORCE INDEX (PRIMARY) WHERE name = ? AND outbox = ? GROUP BY lane"
	const next = "SELECT lane, kind FROM " + ownPrefix + "parked FORCE INDEX (PRIMARY) WHERE name = ? AND outbox = ? AND lane > ? ORDER BY lane, seq LIMIT 1"
	kinds, err := lanekinds.Find(func(after store.LaneHash) (lane store.LaneHash, kind string, found bool, err error) {
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
	l := store.ParkedLane{Outbox: outbox}
	var hash sql.RawBytes // valid until the next row
	return c.query(ctx, count, []any{s.name, outbox}, func(rows *sql.Rows) error {
		err := rows.Scan(&hash, &l.Rows)
		copy(l.Hash[:], hash)
		l.Kind = kinds[l.Hash.Kind()]
		take(l)
		return err
	})
}

// ForgetParked implements store.Parking, by transactions of a bounded size. After an
// error some of the rows may be gone.
func (s *Store) ForgetParked(ctx context.Context, epoch store.Epoch, after store.Seq) (int, error) {
	const forget = "DELETE FROM " + ownPrefix + "parked WHERE name = ? AND outbox = ? AND seq > ? ORDER BY seq LIMIT ?"
	all := 0
	for _, name := range s.outboxes.Names() {
		for n := int64(forgetMost); n == forgetMost; {
			err := s.parking.do(ctx, func(ctx context.Context, c *conn) error {
				return s.lead(ctx, c, epoch, func() (err error) {
					n, err = c.exec(ctx, forget, s.name, name, int64(after), forgetMost)
					return err
				})
			})
			if err != nil {
				return all, fmt.Errorf("forget parked rows: %w", Explain(err))
			}
			all += int(n)
		}
	}
	return all, nil
}
