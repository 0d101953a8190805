package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/finding"
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
// of a partitioned table are scanned at once, after those without a row that stays were
// emptied; see emptyPartition. The commit is asynchronous.
func (s *Store) Prune(ctx context.Context, epoch store.Epoch, p store.PruneRequest) (store.PruneResult, error) {
	o, err := s.outboxes.FindValid(p.Outbox, &p)
	if err != nil {
		return store.PruneResult{}, fmt.Errorf("prune: %w", err)
	}

	at, err := parsePrunePlace(p.From)
	if err != nil {
		return store.PruneResult{}, fmt.Errorf("prune outbox %s: %w", p.Outbox, err)
	}

	var done store.PruneResult
	err = s.operator.do(ctx, func(ctx context.Context, sess *session) error {
		t, err := sess.tableToCopy(ctx, o, o.Archive != "")
		if err != nil {
			return err
		}
		if at.ofParts && t.partitioned && t.Archive == "" {
			done, err = s.prunePartition(ctx, sess.conn, epoch, t, at, p)
		} else {
			done, err = s.prune(ctx, sess.conn, epoch, t, at.block, p)
		}
		return err
	})
	if err != nil {
		return done, fmt.Errorf("prune outbox %s: %w", p.Outbox, asRefused(explainOwn(err)))
	}
	return done, nil
}

// tableToCopy describes the table of an outbox. If rows are copied from it, it is read anew, so
// that a column that was added since is copied too.
func (sess *session) tableToCopy(ctx context.Context, o *store.Outbox, copies bool) (*table, error) {
	if copies {
		return describe(ctx, sess.conn, o)
	}
	return sess.table(ctx, o)
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

func (s *Store) prune(ctx context.Context, conn *pgx.Conn, epoch store.Epoch, t *table, block int64, p store.PruneRequest) (done store.PruneResult, err error) {
	values := s.fenced(epoch)
	values["before"], values["limit"] = p.Before.Truncate(time.Microsecond), p.Limit
	values["from"], values["to"] = blockTID(block), blockTID(block+pruneBlocks(&p))
	var blocks int64
	var leaderEpoch *int64
	var found, kept int
	tx := newTransaction(conn, s.name)
	tx.exec("BEGIN")
	tx.exec("SET LOCAL synchronous_commit = off")
	tx.add(blocksQuery(t), func(results pgx.BatchResults) error { return results.QueryRow().Scan(&blocks) })
	tx.add(pruneQuery(t).with(values), func(results pgx.BatchResults) error {
		return results.QueryRow().Scan(&leaderEpoch, &found, &done.Rows, &kept)
	})
	err = tx.run(ctx, func() error {
		if t.Archive == "" {
			return nil
		}
		if err := tx.flush(ctx); err != nil {
			return err
		}
		return columns.CheckCopied(TableName(t.ArchiveTable()), int64(kept), int64(done.Rows))
	})
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
// the epoch, NULL if it is stale, and how many rows it found, deleted and kept in the
// archive.
func pruneQuery(t *table) *query {
	b := &builder{}
	name := TableName(t.Outbox)
	returning, kept := "1", "SELECT 1 FROM gone"
	if t.Archive != "" {
		returning, kept = "o.*", t.copyInto(t.ArchiveTable())+" SELECT * FROM gone RETURNING 1"
	}
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
		"  DELETE FROM "+name+" AS o USING old WHERE o.ctid = old.place AND o.tableoid = old.part RETURNING "+returning,
		"),",
		"kept AS ("+kept+")",
		"SELECT (SELECT epoch FROM leader), (SELECT count(*) FROM old), (SELECT count(*) FROM gone), (SELECT count(*) FROM kept)",
	)
}

// copyInto begins the statement that copies rows into an archive.
func (t *table) copyInto(archive *store.Outbox) string { return t.CopyInto(TableName(archive), ident) }

// archives checks that rows can be moved into the outbox's archives.
func (c *checker) archives(ctx context.Context, t *table) error {
	for _, to := range t.ArchiveTables() {
		if err := c.archive(ctx, t, to); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) archive(ctx context.Context, t *table, to *store.Outbox) error {
	name, from := TableName(to), TableName(t.Outbox)
	a, err := readTable(ctx, c.conn, to)
	if errors.As(err, new(*store.SetupError)) {
		c.AddNoArchive(name, fmt.Sprintf("CREATE TABLE %s (LIKE %s); GRANT INSERT ON %[1]s TO %[3]s;", name, from, c.role))
		return nil
	}
	if err != nil {
		return err
	}
	before := c.CountFaults()
	c.AddArchive(&finding.Archive{Outbox: from, Name: name, Have: a.archived(), Want: t.archived(), Same: t.Same, Ident: ident})
	if c.CountFaults() > before {
		return nil
	}

	_, err = c.conn.Exec(ctx, "EXPLAIN "+t.copyInto(to)+" SELECT * FROM "+from+" WHERE false")
	switch {
	case lacksRight(err):
		c.AddFault(fmt.Sprintf("%s may not copy rows of %s into the archive %s", c.role, from, name),
			fmt.Sprintf("GRANT SELECT ON %s TO %s; GRANT INSERT ON %s TO %[2]s;", from, c.role, name))
		return nil
	case code(err) != "":
		c.AddFault(fmt.Sprintf("archive %s cannot take rows of %s: %v", name, from, err), fmt.Sprintf("-- create it as a plain copy: CREATE TABLE … (LIKE %s);", from))
		return nil
	}
	return err
}

// archived returns the columns as the shared checks of an archive see them.
func (t *table) archived() []finding.ArchiveColumn {
	list := make([]finding.ArchiveColumn, len(t.Columns))
	for i, c := range t.Columns {
		list[i] = finding.ArchiveColumn{Name: c.name, Type: c.full}
	}
	return list
}
