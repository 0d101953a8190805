package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// unsettledIndex looks for an index that finds the unsettled rows. Without one, each
// poll, each sweep and each snapshot scans the whole table, delivered rows included.
func (c *checker) unsettledIndex(ctx context.Context, t *table) error {
	if t.Layout.State == store.StateNone {
		return nil
	}

	serves, err := c.indexLeadsWithState(ctx, t)
	if err == nil && !serves {
		serves, err = c.partialIndexUsable(ctx, t)
	}
	if IsLockTimeout(err) {
		return c.reportLocked(ctx, t)
	}
	if err != nil {
		return err
	}
	if serves {
		c.Add(store.GradeOK, "an index covers the unsettled rows")
		return nil
	}

	partitioned, err := c.queryBool(ctx, "SELECT true FROM pg_catalog.pg_class WHERE oid = $1 AND relkind = 'p'", t.oid)
	if err != nil {
		return err
	}

	c.Add(store.GradeAdvice, fmt.Sprintf("%s has no index for unsettled rows: polling, sweeps and snapshots scan the whole table", TableName(t.Outbox)),
		t.partialIndex(partitioned))
	return nil
}

// indexLeadsWithState reports whether a full index begins with a state column.
func (c *checker) indexLeadsWithState(ctx context.Context, t *table) (bool, error) {
	l := &t.Layout
	var numbers []int16
	for _, name := range []string{l.Columns.Status, l.Columns.Delivered, l.Columns.Failed} {
		if name != "" {
			numbers = append(numbers, t.mustColumn(name).num)
		}
	}
	return c.queryBool(ctx, `
SELECT true FROM pg_catalog.pg_index i
WHERE i.indrelid = $1 AND i.indisvalid AND i.indpred IS NULL AND i.indkey[0] = ANY ($2::int2[]) LIMIT 1`, t.oid, numbers)
}

// partialIndexUsable asks the planner whether it can use a partial index, because only
// the planner knows which predicates the condition implies.
func (c *checker) partialIndexUsable(ctx context.Context, t *table) (serves bool, err error) {
	b := &builder{}
	read := b.query("EXPLAIN (FORMAT JSON) SELECT FROM " + TableName(t.Outbox) + " o WHERE " + t.unsettled(b))
	var plan []byte
	err = pgx.BeginTxFunc(ctx, c.conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL enable_seqscan = off"); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '"+DiagnoseLockTimeout+"'"); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, read.sql, read.args(t.values(""))...).Scan(&plan); err != nil {
			return err
		}
		serves, err = c.planUsesPartial(ctx, t, plan)
		return err
	})

	return serves && err == nil, err
}

// planUsesPartial reports whether a plan uses a partial index of the table.
func (c *checker) planUsesPartial(ctx context.Context, t *table, plan []byte) (bool, error) {
	var explained []struct{ Plan planNode }
	if err := json.Unmarshal(plan, &explained); err != nil {
		return false, fmt.Errorf("read the plan: %w", err)
	}
	var names []string
	for i := range explained {
		names = explained[i].Plan.indices(names)
	}
	return c.queryBool(ctx, `
SELECT true FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
WHERE x.relname = ANY ($1::text[]) AND i.indpred IS NOT NULL
  AND i.indrelid IN (SELECT $2::oid UNION ALL SELECT p.relid FROM pg_catalog.pg_partition_tree($2::oid::regclass) p) LIMIT 1`, names, t.oid)
}

// planNode is the part of a plan node that is read here.
type planNode struct {
	Index string     `json:"Index Name"`
	Plans []planNode `json:"Plans"`
}

// indices appends the indexes that a plan uses to list.
func (n *planNode) indices(list []string) []string {
	if n.Index != "" {
		list = append(list, n.Index)
	}
	for i := range n.Plans {
		list = n.Plans[i].indices(list)
	}
	return list
}

// partialIndex returns the statement that creates an index of the unsettled rows, in the
// order in which they are read. On a partitioned table CONCURRENTLY is not supported.
func (t *table) partialIndex(partitioned bool) string {
	l := &t.Layout
	var names []string
	for _, name := range columns.Order(l, sameName, t.serial) {
		names = append(names, Ident(name))
	}

	var where string
	switch l.State {
	case store.StateTimestamps:
		where = Ident(l.Columns.Delivered) + " IS NULL AND " + Ident(l.Columns.Failed) + " IS NULL"
	case store.StateNumbers:
		where = fmt.Sprintf("%s IN (%d, %d)", Ident(l.Columns.Status), l.Numbers[store.Pending], l.Numbers[store.Processing])
	default:
		where = fmt.Sprintf("%s IN (%s, %s)", Ident(l.Columns.Status), literal(l.Words[store.Pending]), literal(l.Words[store.Processing]))
	}

	how := " CONCURRENTLY"
	if partitioned {
		how = ""
	}
	return fmt.Sprintf("CREATE INDEX%s ON %s (%s) WHERE %s;", how, TableName(t.Outbox), strings.Join(names, ", "), where)
}

// literal quotes a text for a statement that an operator runs. The E form keeps a
// backslash literal whatever standard_conforming_strings is.
func literal(text string) string {
	if strings.Contains(text, `\`) {
		return " E'" + strings.NewReplacer(`\`, `\\`, "'", "''").Replace(text) + "'"
	}
	return "'" + strings.ReplaceAll(text, "'", "''") + "'"
}
