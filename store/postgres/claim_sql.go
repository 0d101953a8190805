package postgres

import (
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// claimQuery makes the statement that claims rows of a table. It gives a row
// for each id: its place in the call, a store.ClaimResult, how long a held row
// stays so, the retry count and the payload. No row at all says that the epoch
// has passed.
//
// All parts of the statement share one snapshot, so what it says of a row that
// it did not update is what was true when it looked for it.
//
// With skip, rows that somebody else has locked are passed over.
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
		ours = " AND (w.ord IN (SELECT ord FROM locked)) IS TRUE" // hashed, too
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
		// A hashed subplan: it takes linear time, though hash joins are off.
		"WHERE w.ord NOT IN (SELECT ord FROM claimed)",
	)
}

// snapshotCTE is the statement's own snapshot, taken apart once.
const snapshotCTE = `snap AS MATERIALIZED (
  SELECT s, pg_catalog.pg_snapshot_xmax(s)::text::bigint AS xmax FROM pg_catalog.pg_current_snapshot() AS s
)`

// fullXid is the number of the transaction of a wanted row. The log gives its
// low 32 bits. It lies within 2^31 of the snapshot's xmax, on either side: the log
// may be ahead of the snapshot, so reading it as the largest number below xmax
// would put a new transaction 2^32 into the past, and its row would be taken for
// gone.
const fullXid = `greatest(0, snap.xmax + CASE
    WHEN (w.txn - snap.xmax) & 4294967295 < 2147483648 THEN (w.txn - snap.xmax) & 4294967295
    ELSE ((w.txn - snap.xmax) & 4294967295) - 4294967296 END)`

// visible says whether the transaction of a wanted row is visible.
const visible = `pg_catalog.pg_visible_in_snapshot(
  ` + fullXid + `::text::xid8, snap.s)`

// wanted is the CTE of the rows to claim.
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

// claimableCondition is the condition that nobody else's claim holds an open row o. A claim
// without a time holds nothing: nobody could say until when.
func (t *table) claimableCondition(b *builder) string {
	c := &t.Layout.Columns
	claimed := "o." + Ident(c.Claimed)
	// The row's own time is rounded as the column rounded it. Instants are
	// compared: on the clock of a zone an hour comes twice a year.
	cond := fmt.Sprintf("%s IS NULL OR %s::timestamptz <= statement_timestamp() - %s OR %s = w.own::%s",
		claimed, claimed, b.arg("timeout", "interval"), claimed, t.mustColumn(c.Claimed).full)
	if t.Layout.State != store.StateTimestamps {
		cond = fmt.Sprintf("o.%s = %s OR %s", Ident(c.Status), b.arg("pending", t.mustColumn(c.Status).typ), cond)
	}
	return "(" + cond + ") IS TRUE"
}

// remainingClaimSeconds is the seconds for which somebody else's claim still holds a row o, NULL
// if none does.
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

// lookup joins what the snapshot shows of each wanted row. OFFSET 0 keeps it a
// lookup by id for each of them: pulled up, it could become another join.
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

// absentResult says what a row is that the snapshot does not show. The source saw a
// row without a transaction in the table itself.
func absentResult() string {
	return fmt.Sprintf("CASE WHEN w.txn = 0 THEN %d WHEN %s THEN %d ELSE %d END",
		store.Gone, visible, store.Gone, store.NotYetVisible)
}

// skippedRow is what a statement with skip answers for a locked row.
const skippedRow = 0

// unclaimed says what a row is that the statement did not update.
func (t *table) unclaimed(timeout, skip bool) string {
	held, left := "", int(store.NotYetVisible)
	if skip {
		left = skippedRow
	}
	if timeout {
		held = fmt.Sprintf(" WHEN o.wait IS NOT NULL THEN %d", store.Held)
	}
	// Open and free when the statement began, and yet not updated: somebody
	// changed or deleted it meanwhile. A new statement will see.
	return fmt.Sprintf("CASE WHEN o.found IS NULL THEN %s WHEN NOT o.open THEN %d%s ELSE %d END",
		absentResult(), store.AlreadySettled, held, left)
}

// needsRow is the condition that a claim without a write looks at the row.
// Where the table keeps no state, what the stream brought is enough. Where claims
// are not written it is so for what the log brought; a row that was read from the
// table may have been settled between the reading and the claim.
func (t *table) needsRow() string {
	switch {
	case t.Layout.State == store.StateNone:
		return "w.wants"
	case t.Layout.Unclaimed:
		return "(w.wants OR w.txn = 0)"
	}
	return "true"
}

// unwritten says what a row is where claims write nothing.
func (t *table) unwritten() string {
	return fmt.Sprintf("CASE WHEN NOT (%s) THEN %d WHEN o.found IS NULL THEN %s WHEN NOT o.open THEN %d ELSE %d END",
		t.needsRow(), store.Claimed, absentResult(), store.AlreadySettled, store.Claimed)
}
