package postgres

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
)

// blockRows is how many rows a block of the table is taken to have.
const blockRows = 8

// pruneBlocks is the number of blocks that a call scans: 2 MiB for 500 rows, a few ms of
// reading.
func pruneBlocks(p *store.PruneRequest) int64 { return int64(max(1, p.ScanRows()/blockRows)) }

// Prune implements store.Pruner. It scans a table block by block. Blocks are in insertion
// order as long as nothing was deleted; later, new rows reuse the space of deleted ones.
//
// It does not use an index, because outbox tables rarely have one on the settlement time,
// and maintaining it would cost each claim and outcome more than the scan. All partitions
// of a partitioned table are scanned at once. The commit is asynchronous.
func (s *Store) Prune(ctx context.Context, epoch store.Epoch, p store.PruneRequest) (store.PruneResult, error) {
	o, err := s.outboxes.FindValid(p.Outbox, &p)
	if err != nil {
		return store.PruneResult{}, fmt.Errorf("prune: %w", err)
	}

	block, err := pruneFrom(p.From)
	if err != nil {
		return store.PruneResult{}, fmt.Errorf("prune outbox %s: %w", p.Outbox, err)
	}

	var done store.PruneResult
	err = s.operator.do(ctx, func(ctx context.Context, sess *session) error {
		t, err := sess.table(ctx, o)
		if err != nil {
			return err
		}
		done, err = s.prune(ctx, sess.conn, epoch, t, block, p)
		return err
	})
	if err != nil {
		return done, fmt.Errorf("prune outbox %s: %w", p.Outbox, asRefused(explainOwn(err)))
	}
	return done, nil
}

// Clock implements store.Pruner.
func (s *Store) Clock(ctx context.Context) (now time.Time, err error) {
	err = s.operator.do(ctx, func(ctx context.Context, sess *session) (err error) {
		now, err = serverTime(ctx, sess.conn)
		return err
	})
	if err != nil {
		return now, fmt.Errorf("read server time: %w", Explain(err))
	}
	return now, nil
}

func serverTime(ctx context.Context, conn *pgx.Conn) (now time.Time, err error) {
	err = conn.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
	return now, err
}

func pruneFrom(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	block, err := strconv.ParseUint(text, 10, 32) // PostgreSQL block numbers have 32 bits
	if err != nil {
		return 0, fmt.Errorf("invalid prune cursor %q", text)
	}
	return int64(block), nil
}

func (s *Store) prune(ctx context.Context, conn *pgx.Conn, epoch store.Epoch, t *table, block int64, p store.PruneRequest) (done store.PruneResult, err error) {
	values := s.fenced(epoch)
	values["before"], values["limit"] = p.Before.Truncate(time.Microsecond), p.Limit
	values["from"], values["to"] = blockTID(block), blockTID(block+pruneBlocks(&p))
	var blocks int64
	var leaderEpoch *int64
	var found int
	tx := newTransaction(conn, s.name)
	tx.exec("BEGIN")
	tx.exec("SET LOCAL synchronous_commit = off")
	tx.add(blocksQuery(t), func(results pgx.BatchResults) error { return results.QueryRow().Scan(&blocks) })
	tx.add(pruneQuery(t).with(values), func(results pgx.BatchResults) error { return results.QueryRow().Scan(&leaderEpoch, &found, &done.Rows) })
	err = tx.run(ctx, func() error { return nil })
	if next := block + pruneBlocks(&p); next < blocks {
		done.Next = strconv.FormatInt(next, 10) // also behind rows that were refused
	}
	if err != nil {
		return store.PruneResult{Next: done.Next}, err
	}
	if leaderEpoch == nil {
		return store.PruneResult{}, store.ErrNotLeader
	}
	if found == p.Limit && done.Rows > 0 {
		done.Next = strconv.FormatInt(block, 10) // there may be more
	}
	return done, nil
}

// blocksQuery returns the statement that counts the blocks of a table, or of its largest
// partition.
func blocksQuery(t *table) *query {
	b := &builder{}
	return b.query(`
WITH RECURSIVE part AS (
  SELECT ` + b.bind("oid", "oid", t.oid) + ` AS oid
  UNION ALL SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN part ON i.inhparent = part.oid
) SELECT coalesce(max(pg_catalog.pg_relation_size(oid)), 0) / current_setting('block_size')::bigint FROM part`)
}

// blockTID returns the first tid of a block. No table has blocks past last.
func blockTID(block int64) string {
	const last = 1<<32 - 2
	return fmt.Sprintf("(%d,0)", min(block, last))
}

// pruneQuery returns the statement that deletes delivered rows of some blocks. It returns
// the epoch, NULL if it is stale, and how many rows it found and deleted.
func pruneQuery(t *table) *query {
	b := &builder{}
	name := TableName(t.Outbox)
	return b.query(
		"WITH "+b.leader()+",",
		"old AS MATERIALIZED (",
		"  SELECT o.tableoid AS part, o.ctid AS place FROM "+name+" AS o",
		"  WHERE o.ctid >= "+b.arg("from", "tid")+" AND o.ctid < "+b.arg("to", "tid"),
		"    AND "+t.state(b).Delivered()+" AND o."+Ident(t.Layout.DeliveredTime())+" < "+b.arg("before", "timestamptz"),
		"    AND EXISTS (SELECT FROM leader)",
		"  LIMIT "+b.arg("limit", "bigint")+" FOR UPDATE OF o SKIP LOCKED",
		"),",
		"gone AS (",
		"  DELETE FROM "+name+" AS o USING old WHERE o.ctid = old.place AND o.tableoid = old.part RETURNING 1",
		")",
		"SELECT (SELECT epoch FROM leader), (SELECT count(*) FROM old), (SELECT count(*) FROM gone)",
	)
}
