package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
)

// ReadSettled implements store.StatusReader. It runs one statement per outbox, on the
// operator session.
func (s *Store) ReadSettled(ctx context.Context, rows []store.ClaimRow) ([]bool, error) {
	parts, err := s.claimParts(rows)
	if err != nil {
		return nil, fmt.Errorf("read settled rows: %w", err)
	}
	settled := make([]bool, len(rows))
	err = s.operator.do(ctx, func(ctx context.Context, sess *session) error {
		for _, p := range parts {
			t, err := sess.table(ctx, p.Outbox)
			if err != nil {
				return err
			}
			if t.settled == nil {
				t.settled = settledQuery(t)
			}
			if err := p.readSettled(ctx, sess.conn, t, rows, settled); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read settled rows: %w", Explain(err))
	}
	return settled, nil
}

// readSettled looks up the rows of one outbox. A duplicate row is looked up once, and its
// second index stays false.
func (p *claimPart) readSettled(ctx context.Context, conn *pgx.Conn, t *table, rows []store.ClaimRow, settled []bool) error {
	values := t.values("")
	p.bind(values, rows)
	found, err := conn.Query(ctx, t.settled.sql, t.settled.args(values)...)
	if err != nil {
		return err
	}
	var ord int64
	_, err = pgx.ForEachRow(found, []any{&ord}, func() error {
		settled[p.Indexes[ord-1]] = true
		return nil
	})
	return err
}

// settledQuery returns the statement that returns the indexes of the wanted rows that are
// settled, or gone by the rule of a claim. On a table without states it returns none.
func settledQuery(t *table) *query {
	b := &builder{}
	wanted := b.wanted(t, false)
	settled := "false"
	if t.Layout.State != store.StateNone {
		settled = fmt.Sprintf("CASE WHEN o.open IS NULL THEN w.txn <> 0 AND %s ELSE NOT o.open END", visible)
	}
	return b.query(
		"WITH "+snapshotCTE+",", wanted,
		"SELECT w.ord FROM snap CROSS JOIN want w LEFT JOIN LATERAL (",
		"  SELECT "+t.open(b)+" AS open FROM "+TableName(t.Outbox)+" AS o WHERE o."+Ident(t.Layout.Columns.ID)+" = w.id OFFSET 0",
		") o ON true WHERE "+settled,
	)
}
