package postgres

import (
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// claimQuery returns the statement that claims rows of a table. It returns one row per
// id: the row's index in the call, a store.ClaimResult, the seconds that a held row stays
// held, the retry count and the payload. No row at all means that the epoch is stale.
//
// All parts of the statement share one snapshot, so the result for a row that was not
// updated was true when the statement looked it up.
//
// With skip, the statement skips rows locked by another session.
func claimQuery(t *table, timeout, skip bool) *query {
	b := &builder{}
	if !t.Layout.WritesClaims() {
		return b.query(
			"WITH "+b.leader()+",", snapshotCTE+",", b.wanted(t, false),
			"SELECT w.ord, "+t.unwritten()+", NULL::float8, coalesce(o.retry, 0), o.payload",
			"FROM leader CROSS JOIN snap CROSS JOIN want w",
			t.lookup(b, "NULL::float8", t.needsRow()),
		)
	}

	free, wait := "true", "NULL::float8"
	if timeout {
		free, wait = t.claimableCondition(b), t.remainingClaimSeconds(b)
	}

	leader, wanted := b.leader(), b.wanted(t, timeout)
	id := Ident(t.Layout.Columns.ID)
	locked, ours := "", ""
	if skip {
		locked = "locked AS MATERIALIZED (\n  SELECT w.ord FROM want w, " + TableName(t.Outbox) + " AS o WHERE o." + id +
			" = w.id AND EXISTS (SELECT FROM leader) FOR NO KEY UPDATE OF o SKIP LOCKED\n),"
		ours = " AND (w.ord IN (SELECT ord FROM locked)) IS TRUE" // a hashed subplan too
	}
	return b.query(
		"WITH "+leader+",", snapshotCTE+",", wanted+",", locked,
		"claimed AS (",
		"  UPDATE "+TableName(t.Outbox)+" AS o SET "+t.claimAssignments(b),
		"  FROM want w",
		"  WHERE o."+id+" = w.id AND "+t.open(b)+" AND "+free,
		"    AND EXISTS (SELECT FROM leader)"+ours,
		"  RETURNING w.ord, "+t.retryCount()+" AS retry, CASE WHEN w.wants THEN "+t.payload()+" END AS payload",
		")",
		fmt.Sprintf("SELECT ord, %d, NULL::float8, retry, payload FROM claimed", store.Claimed),
		"UNION ALL",
		"SELECT w.ord, "+t.unclaimed(timeout, skip)+", o.wait, 0, NULL",
		"FROM leader CROSS JOIN snap CROSS JOIN want w",
		t.lookup(b, wait, "true"),
		// A hashed subplan: linear time, although hash joins are off.
		"WHERE w.ord NOT IN (SELECT ord FROM claimed)",
	)
}

// snapshotCTE is the statement's own snapshot and its xmax, computed once.
const snapshotCTE = `snap AS MATERIALIZED (
  SELECT s, pg_catalog.pg_snapshot_xmax(s)::text::bigint AS xmax FROM pg_catalog.pg_current_snapshot() AS s
)`

// fullXid is the 64-bit number of a wanted row's transaction. The log has its low 32
// bits. The full number lies within 2^31 of the snapshot's xmax, on either side, because
// the log may be ahead of the snapshot. Taking the largest number below xmax instead
// would move a new transaction 2^32 into the past, and its row would count as gone.
const fullXid = `greatest(0, snap.xmax + CASE
    WHEN (w.txn - snap.xmax) & 4294967295 < 2147483648 THEN (w.txn - snap.xmax) & 4294967295
    ELSE ((w.txn - snap.xmax) & 4294967295) - 4294967296 END)`

// visible is true if the transaction of a wanted row is visible.
const visible = `pg_catalog.pg_visible_in_snapshot(
  ` + fullXid + `::text::xid8, snap.s)`

// wanted returns the CTE of the rows to claim.
func (b *builder) wanted(t *table, own bool) string {
	typ := t.mustColumn(t.Layout.Columns.ID).typ
	params := []string{b.arg("ids", typ+"[]"), b.arg("txns", "bigint[]"), b.arg("wants", "boolean[]")}
	columns := "id, txn, wants"
	if own {
		params = append(params, b.arg("owns", "timestamptz[]"))
		columns += ", own"
	}
	return "want AS MATERIALIZED (\n  SELECT * FROM unnest(" + strings.Join(params, ", ") +
		") WITH ORDINALITY AS u(" + columns + ", ord)\n)"
}

func (t *table) claimAssignments(b *builder) string {
	var set []string
	for _, a := range columns.Claim(&t.Layout) {
		param, typ := "processing", t.mustColumn(a.Column).typ
		if a.Value == columns.Time {
			param, typ = "at", "timestamptz"
		}
		set = append(set, Ident(a.Column)+" = "+b.arg(param, typ))
	}
	return strings.Join(set, ", ")
}

// claimableCondition is the condition that no other program's claim holds an unsettled
// row o. A claim without a time holds nothing, because it would never expire.
func (t *table) claimableCondition(b *builder) string {
	c := &t.Layout.Columns
	claimed := "o." + Ident(c.Claimed)
	// The relay's own claim time is compared after the column's rounding. Times are
	// compared as timestamptz: on a local clock one hour occurs twice a year.
	cond := fmt.Sprintf("%s IS NULL OR %s::timestamptz <= statement_timestamp() - %s OR %s = w.own::%s",
		claimed, claimed, b.arg("timeout", "interval"), claimed, t.mustColumn(c.Claimed).full)
	if t.Layout.State != store.StateTimestamps {
		cond = fmt.Sprintf("o.%s = %s OR %s", Ident(c.Status), b.arg("pending", t.mustColumn(c.Status).typ), cond)
	}
	return "(" + cond + ") IS TRUE"
}

// remainingClaimSeconds is the number of seconds for which another program's claim still
// holds a row o, NULL if none does.
func (t *table) remainingClaimSeconds(b *builder) string {
	claimed := "o." + Ident(t.Layout.Columns.Claimed)
	return fmt.Sprintf("CASE WHEN NOT (%s) THEN extract(epoch FROM %s::timestamptz + %s - statement_timestamp())::float8 END",
		t.claimableCondition(b), claimed, b.arg("timeout", "interval"))
}

func (t *table) retryCount() string {
	if t.Layout.Columns.RetryCount == "" {
		return "0::bigint"
	}
	return "coalesce(o." + Ident(t.Layout.Columns.RetryCount) + ", 0)::bigint"
}

// lookup joins each wanted row as the snapshot shows it. OFFSET 0 keeps it a lookup by id
// per row: pulled up, it could become another kind of join.
func (t *table) lookup(b *builder, wait, when string) string {
	retry, payload := "NULL::bigint", "NULL"
	if !t.Layout.WritesClaims() {
		payload = "CASE WHEN w.wants AND " + t.open(b) + " THEN " + t.payload() + " END"
		if t.Layout.State != store.StateNone {
			retry = t.retryCount()
		}
	}
	return "LEFT JOIN LATERAL (\n  SELECT true AS found, " + t.open(b) + " AS open, " + wait + " AS wait, " +
		retry + " AS retry, " + payload + " AS payload\n" +
		"  FROM " + TableName(t.Outbox) + " AS o WHERE o." + Ident(t.Layout.Columns.ID) + " = w.id AND " + when +
		" OFFSET 0\n) o ON true"
}

// absentResult is the result for a row that the snapshot does not show. Txn 0 means that
// the source read the row from the table itself.
func absentResult() string {
	return fmt.Sprintf("CASE WHEN w.txn = 0 THEN %d WHEN %s THEN %d ELSE %d END",
		store.Gone, visible, store.Gone, store.NotYetVisible)
}

// skippedRow is the result of a statement with skip for a locked row.
const skippedRow = 0

// unclaimed is the result for a row that the statement did not update.
func (t *table) unclaimed(timeout, skip bool) string {
	held, left := "", int(store.NotYetVisible)
	if skip {
		left = skippedRow
	}
	if timeout {
		held = fmt.Sprintf(" WHEN o.wait IS NOT NULL THEN %d", store.Held)
	}
	// Open and free when the statement began, but not updated: another session changed or
	// deleted it meanwhile. A new statement sees the change.
	return fmt.Sprintf("CASE WHEN o.found IS NULL THEN %s WHEN NOT o.open THEN %d%s ELSE %d END",
		absentResult(), store.AlreadySettled, held, left)
}

// needsRow is the condition under which a claim without a write reads the row:
//
//   - No state in the table: only if the payload is wanted.
//   - Claims not written: also for a row read from the table, because it may have been
//     settled since. A row from the log needs no read.
//   - Otherwise always.
func (t *table) needsRow() string {
	switch {
	case t.Layout.State == store.StateNone:
		return "w.wants"
	case t.Layout.Unclaimed:
		return "(w.wants OR w.txn = 0)"
	}
	return "true"
}

// unwritten is the result for a row where claims write nothing.
func (t *table) unwritten() string {
	return fmt.Sprintf("CASE WHEN NOT (%s) THEN %d WHEN o.found IS NULL THEN %s WHEN NOT o.open THEN %d ELSE %d END",
		t.needsRow(), store.Claimed, absentResult(), store.AlreadySettled, store.Claimed)
}
