package postgres

import "github.com/sluicebox/sluicebox/store"

// The table parked has one index per access path. The form in which a statement names the
// columns decides which index it can use; see the third step of the schema:
//
//   - As they are: the primary key.
//   - With the collation POSIX: the index on the beginning of the id.
//   - In expressions: the index on seq.

// spillQuery returns the statement that spills rows. It returns the number of leader rows
// with the epoch. Rows of a transaction that the snapshot shows lose its number.
func spillQuery() *query {
	b := &builder{}
	return b.query(
		"WITH "+b.leader()+",", snapshotCTE+", put AS (",
		"  INSERT INTO sluicebox.parked (name, outbox, lane, seq, id, kind, message_group, xid, retry_count, payload_size, committed_at, payload)",
		"  SELECT "+b.arg("name", "text")+", w.outbox, w.lane, w.seq, w.id, w.kind, w.message_group,",
		"    CASE WHEN w.txn = 0 OR "+visible+" THEN 0 ELSE "+fullXid+" END,",
		"    w.retry_count, w.payload_size, w.committed_at, w.payload",
		"  FROM leader CROSS JOIN snap CROSS JOIN unnest("+
			b.arg("outboxes", "text[]")+", "+b.arg("lanes", "bytea[]")+", "+b.arg("seqs", "bigint[]")+", "+b.arg("ids", "bytea[]")+", "+
			b.arg("kinds", "bytea[]")+", "+b.arg("groups", "bytea[]")+", "+b.arg("txns", "bigint[]")+", "+b.arg("retries", "bigint[]")+", "+
			b.arg("sizes", "bigint[]")+", "+b.arg("times", "timestamptz[]")+", "+b.arg("payloads", "bytea[]"),
		"  ) AS w(outbox, lane, seq, id, kind, message_group, txn, retry_count, payload_size, committed_at, payload)",
		"  ON CONFLICT DO NOTHING",
		")",
		"SELECT count(*) FROM leader",
	)
}

// readSpilledQuery returns the statement that reads lanes: the lane's index in the call,
// and the row. The number of a transaction that is visible by now is 0.
func readSpilledQuery() *query {
	b := &builder{}
	return b.query(
		"WITH "+snapshotCTE,
		"SELECT w.ord, p.seq, p.id, p.kind, p.message_group,",
		"  CASE WHEN p.xid = 0 OR pg_catalog.pg_visible_in_snapshot(p.xid::text::xid8, snap.s) THEN 0 ELSE p.xid & 4294967295 END,",
		"  p.retry_count, p.payload_size, p.committed_at, p.payload",
		"FROM snap CROSS JOIN unnest("+b.arg("outboxes", "text[]")+", "+b.arg("lanes", "bytea[]")+", "+b.arg("afters", "bigint[]")+
			") WITH ORDINALITY AS w(outbox, lane, after, ord)",
		"CROSS JOIN LATERAL (",
		"  SELECT * FROM sluicebox.parked p WHERE p.name = "+b.arg("name", "text")+" AND p.outbox = w.outbox AND p.lane = w.lane AND p.seq > w.after",
		"  ORDER BY p.seq LIMIT "+b.arg("each", "bigint"),
		") p",
	)
}

// spilledLanesQuery returns the statement that counts the rows of each lane. It is an
// index-only scan.
func spilledLanesQuery() *query {
	b := &builder{}
	return b.query(
		"SELECT p.lane, count(*) FROM sluicebox.parked p",
		"WHERE p.name = "+b.arg("name", "text")+" AND p.outbox = "+b.arg("outbox", "text")+" GROUP BY p.lane",
	)
}

// spilledKindQuery returns the statement that finds the first lane after a hash, and its
// kind.
func spilledKindQuery() *query {
	b := &builder{}
	return b.query(
		"SELECT p.lane, p.kind FROM sluicebox.parked p",
		"WHERE p.name = "+b.arg("name", "text")+" AND p.outbox = "+b.arg("outbox", "text")+" AND p.lane > "+b.arg("after", "bytea"),
		"ORDER BY p.lane, p.seq LIMIT 1",
	)
}

// deleteSpilledAfterQuery returns the statement that deletes rows after a seq, up to a
// limit. It returns the epoch, NULL if it is stale, and the number of rows deleted.
func deleteSpilledAfterQuery() *query {
	b := &builder{}
	return b.query(
		"WITH "+b.leader()+", gone AS (",
		"  DELETE FROM sluicebox.parked p WHERE p.ctid = ANY (ARRAY(",
		`    SELECT x.ctid FROM sluicebox.parked x WHERE (x.name || '') = `+b.arg("name", "text")+" AND (x.seq + 0) > "+b.arg("after", "bigint"),
		"    AND x.outbox = ANY ("+b.arg("outboxes", "text[]")+") ORDER BY (x.seq + 0) LIMIT "+b.arg("most", "bigint"),
		"  )) AND EXISTS (SELECT FROM leader) RETURNING 1",
		")",
		"SELECT (SELECT epoch FROM leader), (SELECT count(*) FROM gone)",
	)
}

// deleteSpilledQuery returns the statement that deletes spilled rows. It returns the
// number of leader rows with the epoch.
func deleteSpilledQuery() *query {
	b := &builder{}
	return b.query(
		"WITH "+b.leader()+",",
		"want AS MATERIALIZED (",
		"  SELECT "+b.arg("name", "text")+" AS name, u.* FROM unnest("+
			b.arg("outboxes", "text[]")+", "+b.arg("ids", "bytea[]")+", "+b.arg("seqs", "bigint[]")+") AS u(outbox, text, seq)",
		"), gone AS ("+deleteWantedSpilled+" AND EXISTS (SELECT FROM leader))",
		"SELECT count(*) FROM leader",
	)
}

// deleteWantedSpilled deletes the spilled rows that w names. The whole key comes from w:
// with the name as a separate parameter, the planner could scan the spilled rows instead.
const deleteWantedSpilled = `
  DELETE FROM sluicebox.parked p USING want w
  WHERE p.name COLLATE "POSIX" = w.name AND p.outbox COLLATE "POSIX" = w.outbox AND substr(p.id, 1, 512) = substr(w.text, 1, 512)
    AND p.id = w.text AND p.seq = w.seq`

// deleteSettledSpilledQuery returns the statement that deletes the spilled rows of
// outcomes. It runs after the outcomes in their transaction and sees their writes:
//
//   - A row that is settled or gone by now is deleted, whoever settled it.
//   - A row that is still unsettled was changed by another session during the outcome.
//     The outcome is written again. The row stays spilled until then, so that a crash
//     loses nothing.
//   - A row that another session settles between this statement and explainMissed stays
//     spilled. Its next claim finds it settled.
//   - A row whose transaction is not visible yet stays spilled, because its outcome was
//     too early.
func deleteSettledSpilledQuery(t *table) *query {
	b := &builder{}
	id := t.mustColumn(t.Layout.Columns.ID)
	open, seen := "", ""
	if t.Layout.State != store.StateNone { // without a state every outcome counts as written
		seen = "  WHERE CASE WHEN w.txn = 0 THEN true ELSE " + visible + " END"
		open = " AND NOT EXISTS (SELECT FROM " + TableName(t.Outbox) + " AS o WHERE o." + Ident(id.name) + " = w.id AND " + t.open(b) + " OFFSET 0)"
	}
	return b.query(
		"WITH "+b.leader()+",", snapshotCTE+",",
		"want AS MATERIALIZED (",
		"  SELECT "+b.arg("name", "text")+" AS name, "+b.arg("outbox", "text")+" AS outbox, w.id, w.text, w.seq FROM snap CROSS JOIN unnest("+
			b.arg("ids", id.typ+"[]")+", "+b.arg("texts", "bytea[]")+", "+b.arg("seqs", "bigint[]")+", "+b.arg("txns", "bigint[]")+
			") AS w(id, text, seq, txn)",
		seen,
		")",
		deleteWantedSpilled+open+" AND EXISTS (SELECT FROM leader)",
	)
}
