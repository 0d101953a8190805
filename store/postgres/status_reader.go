package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

// ReadSettled implements store.StatusReader, on the operator session.
func (s *Store) ReadSettled(ctx context.Context, rows []store.ClaimRow) ([]bool, error) {
	states, err := s.readStates(ctx, s.operator, rows)
	if err != nil {
		return nil, fmt.Errorf("read settled rows: %w", Explain(err))
	}
	return outboxes.Settled(s.outboxes, rows, states), nil
}

// ReadStatuses implements store.RowStatusReader, on the session for replays.
func (s *Store) ReadStatuses(ctx context.Context, rows []store.ClaimRow) ([]store.RowStatus, error) {
	states, err := s.readStates(ctx, s.replay, rows)
	if err != nil {
		return nil, fmt.Errorf("read row statuses: %w", Explain(err))
	}
	return outboxes.Statuses(states), nil
}

// readStates reads the states of rows, with one statement per outbox.
func (s *Store) readStates(ctx context.Context, on seat, rows []store.ClaimRow) ([]store.RowStatus, error) {
	parts, err := s.claimParts(rows)
	if err != nil {
		return nil, err
	}
	states := make([]store.RowStatus, len(rows))
	return states, on.do(ctx, func(ctx context.Context, sess *session) error {
		for _, p := range parts {
			if p.MarkAbsent(states) {
				continue
			}
			t, err := sess.table(ctx, p.Outbox)
			if err != nil {
				return err
			}
			if t.states == nil {
				t.states = statesQuery(t)
			}
			if err := p.states(ctx, sess.conn, t, rows, states); err != nil {
				return err
			}
			p.CopyDuplicateStatuses(rows, states)
		}
		return nil
	})
}

// areFailed is a ledger.AreFailed on the operator session.
func (s *Store) areFailed(ctx context.Context, rows []store.Ref) (failed []bool, err error) {
	err = s.operator.do(ctx, func(ctx context.Context, sess *session) (err error) {
		failed, err = s.readFailed(ctx, sess, rows)
		return err
	})
	return failed, explainOwn(err)
}

// readFailed reports which rows are FAILED, with one statement per outbox. A row of a table
// without states never is.
func (s *Store) readFailed(ctx context.Context, sess *session, rows []store.Ref) ([]bool, error) {
	failed := make([]bool, len(rows))
	byOutbox := map[string][]int{}
	for i := range rows {
		byOutbox[rows[i].Outbox] = append(byOutbox[rows[i].Outbox], i)
	}
	for name, at := range byOutbox {
		t, err := sess.table(ctx, s.outboxes.Lookup(name))
		if err != nil {
			return nil, err
		}
		if t.isFailed == nil {
			t.isFailed = failedQuery(t)
		}
		ids := make([]string, len(at))
		for k, i := range at {
			ids[k] = rows[i].ID
		}
		values := map[string]any{}
		values["ids"] = arrayLiteral(ids)
		found, err := sess.conn.Query(ctx, t.isFailed.sql, t.isFailed.args(values)...)
		if err != nil {
			return nil, err
		}
		var ord int64
		if _, err := pgx.ForEachRow(found, []any{&ord}, func() error { failed[at[ord-1]] = true; return nil }); err != nil {
			return nil, err
		}
	}
	return failed, nil
}

// failedQuery returns the statement that returns the indexes of the ids with a FAILED row.
// OFFSET 0 keeps the subquery a lookup by id: hashed, it would read all FAILED rows.
func failedQuery(t *table) *query {
	b := &builder{}
	return b.query(
		"SELECT w.ord FROM unnest("+b.ids(t)+") WITH ORDINALITY AS w(id, ord) WHERE EXISTS (",
		"  SELECT FROM "+TableName(t.Outbox)+" AS o WHERE o."+Ident(t.Layout.Columns.ID)+" = w.id AND "+t.state(b).Failed()+" IS TRUE OFFSET 0",
		")",
	)
}

// states looks up the rows of one outbox. Of several rows with one id, an unsettled one
// counts.
func (p *claimPart) states(ctx context.Context, conn *pgx.Conn, t *table, rows []store.ClaimRow, states []store.RowStatus) error {
	values := map[string]any{}
	p.bind(values, rows, 0)
	found, err := conn.Query(ctx, t.states.sql, t.states.args(values)...)
	if err != nil {
		return err
	}

	var ord int64
	var state int32
	var payload []byte
	var texts []*string // of the attributes
	into := []any{&ord, &state, &payload}
	if len(t.Layout.Attributes) > 0 {
		into = append(into, &texts)
	}
	seen := make([]bool, len(p.Indexes))
	_, err = pgx.ForEachRow(found, into, func() error {
		if of := (store.RowStatus{State: store.RowState(state), Payload: payload, Attributes: readAttributes(&t.Layout, texts)}); !seen[ord-1] || of.State == store.RowUnsettled {
			states[p.Indexes[ord-1]], seen[ord-1] = of, true
		}
		payload, texts = nil, nil
		return nil
	})

	return err
}

// statesQuery returns the statement that returns the index of each wanted row, its state,
// and the payload if it is COMPLETED and wanted.
func statesQuery(t *table) *query {
	b := &builder{}
	wanted := "CASE WHEN w.wants AND " + t.state(b).Delivered() + " THEN "
	return b.query(
		"WITH "+snapshotCTE+",", b.wanted(t, false),
		"SELECT w.ord, CASE WHEN o.state IS NOT NULL THEN o.state",
		fmt.Sprintf("  WHEN w.txn = 0 OR %s THEN %d ELSE %d END,", visible, store.RowAbsent, store.RowUnsettled),
		"  o.payload"+t.ifAttributes(", o.attributes"),
		"FROM snap CROSS JOIN want w LEFT JOIN LATERAL (",
		"  SELECT "+t.state(b).RowState()+" AS state,",
		"    "+wanted+t.payload()+" END AS payload"+t.ifAttributes(", "+wanted+t.attributes()+" END AS attributes"),
		"  FROM "+TableName(t.Outbox)+" AS o WHERE o."+Ident(t.Layout.Columns.ID)+" = w.id OFFSET 0",
		") o ON true",
	)
}
