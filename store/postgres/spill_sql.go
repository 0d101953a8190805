package postgres

import "github.com/sluicebox/sluicebox/store"

// The table parked has one index for each way to look for its rows. Which one a
// statement can use is settled by how it names the columns, see the third step of
// the schema: as they are, the primary key; with the collation POSIX, the one on
// the id, of which it has the beginning; in expressions, the one on the seq.

// spillQuery makes the statement that parks rows. It gives how many leader rows
// hold the epoch. Rows of a transaction that its snapshot shows lose its number.
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

// readSpilledQuery makes the statement that reads lanes: the place of the lane in the
// call, and the row. The number of a transaction that is visible by now is 0.
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

// spilledLanesQuery makes the statement that counts the rows of each lane. It needs
// nothing but the index.
func spilledLanesQuery() *query {
	b := &builder{}
	return b.query(
		"SELECT p.lane, count(*) FROM sluicebox.parked p",
		"WHERE p.name = "+b.arg("name", "text")+" AND p.outbox = "+b.arg("outbox", "text")+" GROUP BY p.lane",
	)
}

// spilledKindQuery makes the statement that finds the first lane behind a hash, and its
// kind.
func spilledKindQuery() *query {
	b := &builder{}
	return b.query(
		"SELECT p.lane, p.kind FROM sluicebox.parked p",
		"WHERE p.name = "+b.arg("name", "text")+" AND p.outbox = "+b.arg("outbox", "text")+" AND p.lane > "+b.arg("after", "bytea"),
		"ORDER BY p.lane, p.seq LIMIT 1",
	)
}

// deleteSpilledAfterQuery makes the statement that deletes rows behind a seq, at most so
// many. It gives the epoch, NULL if it has passed, and how many it deleted.
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

// deleteSpilledQuery makes the statement that forgets rows. It gives how many leader rows
// hold the epoch.
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

// deleteWantedSpilled deletes the parked rows that w names. All of the key comes from w:
// with the name given beside it, the parked rows themselves could come to be what
// is gone through.
const deleteWantedSpilled = `
  DELETE FROM sluicebox.parked p USING want w
  WHERE p.name COLLATE "POSIX" = w.name AND p.outbox COLLATE "POSIX" = w.outbox AND substr(p.id, 1, 512) = substr(w.text, 1, 512)
    AND p.id = w.text AND p.seq = w.seq`

// deleteSettledSpilledQuery makes the statement that forgets the parked rows of outcomes.
// It follows the outcomes in their transaction and sees what they wrote: a row is
// forgotten if it is settled or gone by now, whoever did it. One that is still
// open was changed by somebody else under the outcome, which is written once
// more; until then it stays parked, so that a crash loses nothing. If somebody
// settles it just between this statement and the reading back, it stays parked
// too: its next claim finds it settled. One whose transaction is not visible yet
// is neither: its outcome was too early.
func deleteSettledSpilledQuery(t *table) *query {
	b := &builder{}
	id := t.mustColumn(t.Layout.Columns.ID)
	open, seen := "", ""
	if t.Layout.State != store.StateNone { // where every outcome counts as written
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
