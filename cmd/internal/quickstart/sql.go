package quickstart

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
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
	states := map[string]int{}
	var status string
	var n int
	err := demodb.Each(ctx, db, "SELECT status, count(*) FROM "+table+" GROUP BY status", nil, []any{&status, &n}, func() { states[status] = n })
	if err != nil {
		return nil, fmt.Errorf("count rows by status: %w", err)
	}
	return states, nil
}

// ordersTable creates the table of the example service, with its name for %s.
const ordersTable = `CREATE TABLE %s (
    id           VARCHAR(13) PRIMARY KEY,
    customer     VARCHAR(255) NOT NULL,
    amount_cents BIGINT NOT NULL,
    created_at   TIMESTAMP NOT NULL
);`

// tables returns the statements that create the tables of the example service: the orders
// and the outbox. schema is "" or ends with a dot.
func tables(db layouts.Database, schema string) []string {
	preset, _ := layouts.Named(store.FlowCatalyst().Name)
	outbox := demodb.CreateTable(db, &preset, schema+"outbox_events", demodb.Index{Columns: "status, message_group, created_at"})
	return append([]string{fmt.Sprintf(ordersTable, schema+"orders")}, outbox...)
}
