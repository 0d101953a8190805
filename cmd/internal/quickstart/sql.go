package quickstart

import (
	"context"
	"database/sql"
	"fmt"
)

// sqlSession is the session of one writer on database/sql.
type sqlSession struct {
	conn interface {
		BeginTx(ctx context.Context, o *sql.TxOptions) (*sql.Tx, error)
	}
	order, event string // INSERT statements with placeholders for an order's values
	release      func() // returns the connection
}

func (s *sqlSession) commit(ctx context.Context, o order) error {
	tx, err := s.conn.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // no effect after the commit
	if _, err := tx.ExecContext(ctx, s.order, o.id(), o.customer(), o.cents()); err != nil {
		return fmt.Errorf("insert order %s: %w", o.id(), err)
	}
	if _, err := tx.ExecContext(ctx, s.event, o.id(), o.customer(), o.payload()); err != nil {
		return fmt.Errorf("insert outbox row of order %s: %w", o.id(), err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit order %s: %w", o.id(), err)
	}
	return nil
}

func (s *sqlSession) close() { s.release() }

// countStates counts the rows of an outbox by status.
func countStates(ctx context.Context, db *sql.DB, table string) (map[string]int, error) {
	rows, err := db.QueryContext(ctx, "SELECT status, count(*) FROM "+table+" GROUP BY status")
	if err != nil {
		return nil, fmt.Errorf("count rows by status: %w", err)
	}
	defer func() { _ = rows.Close() }() // rows.Err has the error
	states := map[string]int{}
	for rows.Next() {
		var status string
		var n int
		if err := rows.Scan(&status, &n); err != nil {
			return nil, fmt.Errorf("count rows by status: %w", err)
		}
		states[status] = n
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("count rows by status: %w", err)
	}
	return states, nil
}
