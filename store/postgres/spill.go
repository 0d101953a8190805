package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lanekinds"
)

// Spill implements store.SpillStore with one statement on the session for spilled rows.
// Commit times are truncated to microseconds.
func (s *Store) Spill(ctx context.Context, epoch store.Epoch, items []store.Item) error {
	if len(items) == 0 {
		return nil
	}
	for i := range items {
		if err := s.validateSpill(&items[i]); err != nil {
			return fmt.Errorf("spill rows: %w", err)
		}
	}
	if err := s.execSpill(ctx, spillQuery(), s.fenced(epoch, s.spillValues(items))); err != nil {
		return fmt.Errorf("spill rows: %w", err)
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

// spillValues returns the parameters that differ from row to row.
func (s *Store) spillValues(items []store.Item) map[string]any {
	n := len(items)
	outboxes, lanes, ids, kinds, groups := make([]string, n), make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n)
	seqs, txns, retries, sizes := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	times, payloads := make([]pgtype.Timestamptz, n), make([][]byte, n)
	for i := range items {
		it := &items[i]
		lane := it.Lane().Hash()
		outboxes[i], lanes[i], ids[i], kinds[i], groups[i] = it.Outbox, lane[:], []byte(it.ID), []byte(it.Kind), groupBytes(it.Group)
		seqs[i], txns[i], retries[i], sizes[i] = int64(it.Seq), int64(uint32(it.Txn)), int64(it.RetryCount), int64(it.PayloadSize)
		times[i] = timeOrNull(it.Committed)
		if s.outboxes.Lookup(it.Outbox).Layout.State == store.StateNone {
			payloads[i] = it.Payload
		}
	}

	return map[string]any{
		"outboxes": outboxes, "lanes": lanes, "ids": ids, "kinds": kinds, "groups": groups,
		"seqs": seqs, "txns": txns, "retries": retries, "sizes": sizes, "times": times, "payloads": payloads,
	}
}

// DeleteSpilled implements store.SpillStore.
func (s *Store) DeleteSpilled(ctx context.Context, epoch store.Epoch, rows []store.SpilledRef) error {
	if len(rows) == 0 {
		return nil
	}

	n := len(rows)
	outboxes, ids, seqs := make([]string, n), make([][]byte, n), make([]int64, n)
	for i := range rows {
		if _, err := s.outbox(rows[i].Outbox); err != nil {
			return fmt.Errorf("delete spilled rows: %w", err)
		}
		outboxes[i], ids[i], seqs[i] = rows[i].Outbox, []byte(rows[i].ID), int64(rows[i].Seq)
	}

	err := s.execSpill(ctx, deleteSpilledQuery(), s.fenced(epoch, map[string]any{
		"outboxes": outboxes, "ids": ids, "seqs": seqs,
	}))
	if err != nil {
		return fmt.Errorf("delete spilled rows: %w", err)
	}
	return nil
}

// execSpill runs a statement that returns the number of leader rows.
func (s *Store) execSpill(ctx context.Context, write *query, values map[string]any) error {
	return asOwnRefused(s.spillSession.do(ctx, func(ctx context.Context, sess *session) error {
		var leaders int
		err := sess.conn.QueryRow(ctx, write.sql, write.args(values)...).Scan(&leaders)
		if err == nil && leaders == 0 {
			return store.ErrNotLeader
		}
		return err
	}))
}

// ReadSpilled implements store.SpillStore. The visibility of a row's transaction is
// decided at each read. The full 64-bit number is stored, so a row may stay spilled for
// any time.
func (s *Store) ReadSpilled(ctx context.Context, from []store.SpilledRange, each int) ([][]store.Item, error) {
	if each <= 0 {
		return nil, fmt.Errorf("read spilled rows: limit %d must be positive", each)
	}
	if len(from) == 0 {
		return nil, nil
	}

	n := len(from)
	outboxes, lanes, afters := make([]string, n), make([][]byte, n), make([]int64, n)
	for i := range from {
		if _, err := s.outbox(from[i].Outbox); err != nil {
			return nil, fmt.Errorf("read spilled rows: %w", err)
		}
		outboxes[i], lanes[i], afters[i] = from[i].Outbox, from[i].Lane[:], int64(from[i].After)
	}

	var lists [][]store.Item
	err := s.spillSession.do(ctx, func(ctx context.Context, sess *session) error {
		lists = make([][]store.Item, n)
		read := readSpilledQuery()
		rows, err := sess.conn.Query(ctx, read.sql, read.args(map[string]any{
			"name": s.name, "outboxes": outboxes, "lanes": lanes, "afters": afters, "each": int64(each),
		})...)
		if err != nil {
			return err
		}
		return scanSpilled(rows, from, lists)
	})
	if err != nil {
		return nil, fmt.Errorf("read spilled rows: %w", explainOwn(err))
	}

	for _, list := range lists { // the join returns them in any order
		slices.SortFunc(list, func(a, b store.Item) int { return cmp.Compare(a.Seq, b.Seq) })
	}

	return lists, nil
}

// scanSpilled groups the rows of readSpilledQuery by lane.
func scanSpilled(rows pgx.Rows, from []store.SpilledRange, lists [][]store.Item) error {
	defer rows.Close()
	for rows.Next() {
		var ord, txn int64
		var it store.Item
		var id, kind, group []byte
		var at pgtype.Timestamptz
		if err := rows.Scan(&ord, &it.Seq, &id, &kind, &group, &txn, &it.RetryCount, &it.PayloadSize, &at, &it.Payload); err != nil {
			return err
		}
		releaseMessage(rows)
		it.Outbox, it.Txn = from[ord-1].Outbox, store.Txn(txn)
		it.ID, it.Kind = string(id), string(kind)
		it.Group, it.Committed = groupOf(group), timeOrZero(at)
		lists[ord-1] = append(lists[ord-1], it)
	}

	return rows.Err()
}

// SpilledLanes implements store.SpillStore. It counts through the index, at some million
// rows a second.
func (s *Store) SpilledLanes(ctx context.Context, take func(store.SpilledLane)) error {
	snapshotRead := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := s.spillSession.do(ctx, func(ctx context.Context, sess *session) error {
		return pgx.BeginTxFunc(ctx, sess.conn, snapshotRead, func(tx pgx.Tx) error {
			for _, name := range s.outboxes.Names() {
				if err := s.readSpilledLanes(ctx, tx, name, take); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("read spilled lanes: %w", explainOwn(err))
	}
	return nil
}

func (s *Store) readSpilledLanes(ctx context.Context, tx pgx.Tx, outbox string, take func(store.SpilledLane)) error {
	values := map[string]any{"name": s.name, "outbox": outbox}
	next, count := spilledKindQuery(), spilledLanesQuery()
	kinds, err := lanekinds.FindKinds(func(after store.LaneHash) (lane store.LaneHash, kind string, found bool, err error) {
		var hash, text []byte
		values["after"] = after[:]
		err = tx.QueryRow(ctx, next.sql, next.args(values)...).Scan(&hash, &text)
		copy(lane[:], hash)
		if errors.Is(err, pgx.ErrNoRows) {
			return lane, "", false, nil
		}
		return lane, string(text), true, err
	})
	if err != nil {
		return err
	}

	rows, err := tx.Query(ctx, count.sql, count.args(values)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	l := store.SpilledLane{Outbox: outbox}
	var hash pgtype.DriverBytes // valid until the next row
	for rows.Next() {
		if err := rows.Scan(&hash, &l.Rows); err != nil {
			return err
		}
		copy(l.Hash[:], hash)
		l.Kind = kinds[l.Hash.Kind()]
		take(l)
	}

	return rows.Err()
}

// maxDeleteRows bounds the rows that one statement of DeleteSpilledAfter deletes, so that
// it does not lock the leader row for long.
const maxDeleteRows = 20_000

// DeleteSpilledAfter implements store.SpillStore, in transactions of a bounded size.
// After an error some of the rows may be deleted.
func (s *Store) DeleteSpilledAfter(ctx context.Context, epoch store.Epoch, after store.Seq) (int, error) {
	del, all := deleteSpilledAfterQuery(), 0
	args := del.args(s.fenced(epoch, map[string]any{
		"outboxes": s.outboxes.Names(), "after": int64(after), "most": maxDeleteRows,
	}))

	err := s.spillSession.do(ctx, func(ctx context.Context, sess *session) error {
		for {
			var leaderEpoch *int64
			var n int
			if err := sess.conn.QueryRow(ctx, del.sql, args...).Scan(&leaderEpoch, &n); err != nil {
				return err
			}
			if leaderEpoch == nil {
				return store.ErrNotLeader
			}
			if all += n; n < maxDeleteRows {
				return nil
			}
		}
	})
	if err != nil {
		return all, fmt.Errorf("delete spilled rows after seq: %w", explainOwn(err))
	}
	return all, nil
}

// queueDeleteSpilled adds the statement that deletes the spilled rows of the part's
// outcomes.
func (p *outboxPart) queueDeleteSpilled(batch *pgx.Batch, values map[string]any, outcomes []store.Outcome) {
	t := p.table
	if t.deleteSpilled == nil {
		t.deleteSpilled = deleteSettledSpilledQuery(t)
	}
	n := len(p.at)
	ids, texts, seqs, txns := make([]string, n), make([][]byte, n), make([]int64, n), make([]int64, n)
	for k, i := range p.at {
		o := &outcomes[i]
		ids[k], texts[k], seqs[k], txns[k] = o.ID, []byte(o.ID), int64(o.SpilledSeq), int64(uint32(o.Txn))
	}
	values["ids"], values["texts"], values["seqs"], values["txns"] = arrayLiteral(ids), texts, seqs, txns
	batch.Queue(t.deleteSpilled.sql, t.deleteSpilled.args(values)...)
}
