package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// A partition whose rows are all to be deleted is emptied at once, which costs the same for
// a thousand rows as for a hundred million. The partition stays, because tables belong to the
// services: an insert into a range without a partition fails.
//
//   - Calls of Prune first read the partition, a few blocks at a time and without locks, and
//     give up at the first row that must stay.
//   - One transaction then locks the partition, looks for rows that are not delivered, and
//     truncates it. It locks nothing before it, so it cannot deadlock with writers.
//   - Claims and services wait for that lock, because they look for rows in every partition.
//     So it has little time, and the partition's rows are deleted one by one if that is not
//     enough.
const (
	partitionLockTimeout = "50ms"

	// partitionCheckTimeout bounds the search for rows that are not delivered. It needs an
	// index that begins with the state, unless the partition is small.
	partitionCheckTimeout = "100ms"

	// partitionIdleTimeout ends the session of a relay that is frozen meanwhile.
	partitionIdleTimeout = "1s"
)

// prunePlace is where a pass continues.
type prunePlace struct {
	// ofParts: partitions are emptied, beginning with the one of the oid part or the next.
	ofParts bool
	part    uint32
	block   int64
	rows    int64 // in the blocks of the partition before block
}

// parsePrunePlace parses a cursor: "" for the beginning, a block number, or p, an oid, a block
// number and a number of rows.
func parsePrunePlace(text string) (at prunePlace, err error) {
	rest, ofParts := strings.CutPrefix(text, "p")
	if at.ofParts = ofParts || text == ""; text == "" {
		return at, nil
	}
	if !ofParts {
		block, err := strconv.ParseUint(text, 10, 32) // PostgreSQL block numbers have 32 bits
		at.block = int64(block)
		return at, asInvalidCursor(text, err)
	}
	_, err = fmt.Sscanf(rest, "%d:%d:%d", &at.part, &at.block, &at.rows)
	return at, asInvalidCursor(text, err)
}

func asInvalidCursor(text string, err error) error {
	if err != nil {
		return fmt.Errorf("invalid prune cursor %q", text)
	}
	return nil
}

func (at prunePlace) String() string {
	if !at.ofParts {
		return strconv.FormatInt(at.block, 10)
	}
	return fmt.Sprintf("p%d:%d:%d", at.part, at.block, at.rows)
}

// partition is a partition that may be emptied.
type partition struct {
	oid    uint32
	name   string // quoted
	blocks int64
}

// partitionTree lists an outbox's table with its partitions.
func partitionTree(b *builder, t *table) string {
	return `
WITH RECURSIVE tree AS (
  SELECT ` + b.bind("oid", "oid", t.oid) + ` AS oid
  UNION ALL SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent = tree.oid
)`
}

// nextPartition returns the first partition from an oid on that has blocks and that the role
// may truncate; nil if there is none. A table with a trigger for deletions has none, because a
// truncation does not fire it. A partition that a foreign key references is left out, and so is
// one whose row security applies to the role: its sessions cannot read such a partition by its
// name, see commonSettings.
func nextPartition(ctx context.Context, conn *pgx.Conn, t *table, from uint32) (*partition, error) {
	b := &builder{}
	q := b.query(partitionTree(b, t) + `
SELECT c.oid, pg_catalog.format('%I.%I', n.nspname, c.relname), pg_catalog.pg_relation_size(c.oid) / current_setting('block_size')::bigint
FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid >= ` + b.bind("from", "oid", from) + ` AND c.relkind = 'r' AND c.relispartition AND pg_catalog.pg_relation_size(c.oid) > 0
  AND pg_catalog.has_table_privilege(c.oid, 'TRUNCATE') AND NOT pg_catalog.row_security_active(c.oid)
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger g JOIN tree ON g.tgrelid = tree.oid
    WHERE (NOT g.tgisinternal OR g.tgparentid <> 0) AND g.tgtype & 40 <> 0)
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint k WHERE k.confrelid = c.oid AND k.contype = 'f')
ORDER BY c.oid LIMIT 1`)
	var p partition
	err := conn.QueryRow(ctx, q.sql, q.args(nil)...).Scan(&p.oid, &p.name, &p.blocks)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return &p, err
}

// prunePartition reads a part of a partition, and empties it if all its rows may go.
func (s *Store) prunePartition(ctx context.Context, conn *pgx.Conn, epoch store.Epoch, t *table, at prunePlace, p store.PruneRequest) (done store.PruneResult, err error) {
	part, err := nextPartition(ctx, conn, t, at.part)
	if err != nil {
		return done, err
	}
	if part == nil {
		return store.PruneResult{Next: prunePlace{}.String()}, nil
	}
	if part.oid != at.part {
		at = prunePlace{ofParts: true, part: part.oid}
	}

	next := prunePlace{ofParts: true, part: part.oid + 1}
	end := at.block + 2*pruneBlocks(&p) // reading costs less than deleting
	rows, stay, err := countPruned(ctx, conn, t, part, at.block, end, p.Before)
	switch {
	case err != nil:
		return done, err
	case stay > 0:
	case end < part.blocks:
		next = prunePlace{ofParts: true, part: part.oid, block: end, rows: at.rows + rows}
	default:
		emptied, err := s.emptyPartition(ctx, conn, epoch, t, part)
		if err != nil {
			return done, err
		}
		if emptied {
			done.Rows = int(at.rows + rows)
		}
	}
	done.Next = next.String()
	return done, nil
}

// countPruned returns how many rows some blocks of a partition have, and how many of them
// stay.
func countPruned(ctx context.Context, conn *pgx.Conn, t *table, part *partition, from, to int64, before time.Time) (rows, stay int64, err error) {
	b := &builder{}
	q := b.query(
		"SELECT count(*), count(*) FILTER (WHERE ("+t.state(b).Delivered()+" AND o."+Ident(t.Layout.DeliveredTime())+" < "+
			b.bind("before", "timestamptz", before.Truncate(time.Microsecond))+") IS NOT TRUE)",
		"FROM ONLY "+part.name+" AS o WHERE o.ctid >= "+b.bind("from", "tid", blockTID(from))+" AND o.ctid < "+b.bind("to", "tid", blockTID(to)),
	)
	err = conn.QueryRow(ctx, q.sql, q.args(nil)...).Scan(&rows, &stay)
	return rows, stay, err
}

// emptyPartition truncates a partition. It returns false if the partition must stay as it is,
// or if that could not be found out in time.
func (s *Store) emptyPartition(ctx context.Context, conn *pgx.Conn, epoch store.Epoch, t *table, part *partition) (emptied bool, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		for _, statement := range []string{
			"SET LOCAL lock_timeout = '" + partitionLockTimeout + "'",
			"SET LOCAL statement_timeout = '" + partitionCheckTimeout + "'",
			"SET LOCAL idle_in_transaction_session_timeout = '" + partitionIdleTimeout + "'",
			"SET LOCAL synchronous_commit = off",
			"LOCK TABLE ONLY " + part.name + " IN ACCESS EXCLUSIVE MODE",
		} {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
		leads, stays, err := s.lockedPartition(ctx, tx, epoch, t, part)
		switch {
		case err != nil:
			return err
		case !leads:
			return store.ErrNotLeader
		case stays:
			return nil
		}
		emptied = true
		_, err = tx.Exec(ctx, "TRUNCATE ONLY "+part.name)
		return err
	})
	if errors.As(err, new(*pgconn.PgError)) && !conn.IsClosed() {
		return false, nil // for example a timeout: its rows are deleted one by one
	}
	return emptied && err == nil, err
}

// lockedPartition reports whether the relay leads, and whether a locked partition must stay:
// it has a row that is not delivered, or its name now belongs to a table that is none of the
// outbox's partitions.
func (s *Store) lockedPartition(ctx context.Context, tx pgx.Tx, epoch store.Epoch, t *table, part *partition) (leads, stays bool, err error) {
	b := &builder{}
	q := b.query(
		partitionTree(b, t)+",",
		b.leader(),
		"SELECT EXISTS (SELECT FROM leader), EXISTS (SELECT FROM ONLY "+part.name+" AS o WHERE "+t.undelivered(b)+")",
		"  OR NOT EXISTS (SELECT FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid",
		"    WHERE c.relispartition AND c.oid = "+b.bind("part", "oid", part.oid)+" AND c.oid = pg_catalog.to_regclass("+b.bind("part name", "text", part.name)+"))",
	)
	err = tx.QueryRow(ctx, q.sql, q.args(s.fenced(epoch))...).Scan(&leads, &stays)
	return leads, stays, err
}

// undelivered returns the condition that a row o is not COMPLETED, in a form that an index on
// the state finds.
func (t *table) undelivered(b *builder) string {
	if !columns.HasStatus(&t.Layout) {
		return "(o." + Ident(t.Layout.Columns.Delivered) + " IS NULL)"
	}
	status, completed := "o."+Ident(t.Layout.Columns.Status), t.bindStatus(b, columns.Stored(&t.Layout, store.Completed))
	return fmt.Sprintf("(%[1]s < %[2]s OR %[1]s > %[2]s OR %[1]s IS NULL)", status, completed)
}
