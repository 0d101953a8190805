package postgres

// The table replay_row has one index per access path, as parked has. Statements that name
// the columns directly use the primary key; statements that name them in expressions use
// the index on n.

// copyQuery returns the statement that adds rows to a job. It returns the number of
// leader rows with the epoch, and the number of jobs. Rows of a transaction that the
// snapshot shows lose its number.
func copyQuery() *query {
	b := &builder{}
	name, job := b.arg("name", "text"), b.arg("job", "text")
	return b.query(
		"WITH "+b.leader()+",", snapshotCTE+", put AS (",
		"  INSERT INTO sluicebox.replay_row (name, job, outbox, lane, n, id, kind, message_group, xid, payload_size, committed_at, payload)",
		"  SELECT "+name+", "+job+", w.outbox, w.lane, w.n, w.id, w.kind, w.message_group,",
		"    CASE WHEN w.txn = 0 OR "+visible+" THEN 0 ELSE "+fullXid+" END, w.payload_size, w.committed_at, w.payload",
		"  FROM leader CROSS JOIN snap CROSS JOIN unnest("+
			b.arg("outboxes", "text[]")+", "+b.arg("lanes", "bytea[]")+", "+b.arg("ns", "bigint[]")+", "+b.arg("ids", "bytea[]")+", "+
			b.arg("kinds", "bytea[]")+", "+b.arg("groups", "bytea[]")+", "+b.arg("txns", "bigint[]")+", "+
			b.arg("sizes", "bigint[]")+", "+b.arg("times", "timestamptz[]")+", "+b.arg("payloads", "bytea[]"),
		"  ) AS w(outbox, lane, n, id, kind, message_group, txn, payload_size, committed_at, payload)",
		"  WHERE EXISTS (SELECT FROM sluicebox.replay AS r WHERE r.name = "+name+" AND r.job = "+job+" OFFSET 0)",
		"  ON CONFLICT DO NOTHING RETURNING 1",
		"), moved AS (",
		"  UPDATE sluicebox.replay AS r SET cursor_position = "+b.arg("position", "text")+", cursor_skip = "+b.arg("skip", "bigint")+", total = r.total + c.n",
		"  FROM (SELECT count(*) AS n FROM put) AS c WHERE r.name = "+name+" AND r.job = "+job+" AND EXISTS (SELECT FROM leader) RETURNING 1",
		")",
		countWritten("moved"),
	)
}

// clearQuery returns the statement that deletes the first rows of a job. It returns the
// number of leader rows with the epoch, and the number of rows deleted.
func clearQuery() *query {
	b := &builder{}
	name, job := b.arg("name", "text"), b.arg("job", "text")
	return b.query(
		"WITH "+b.leader()+", gone AS (",
		"  DELETE FROM sluicebox.replay_row AS r WHERE r.ctid = ANY (ARRAY(",
		"    SELECT x.ctid FROM sluicebox.replay_row AS x WHERE (x.name || '') = "+name+" AND (x.job || '') = "+job,
		"    ORDER BY (x.n + 0) LIMIT "+b.arg("limit", "bigint"),
		"  )) AND EXISTS (SELECT FROM leader) RETURNING 1",
		"), counted AS (",
		"  UPDATE sluicebox.replay AS r SET total = r.total - c.n",
		"  FROM (SELECT count(*) AS n FROM gone) AS c WHERE r.name = "+name+" AND r.job = "+job+" AND c.n > 0",
		")",
		countWritten("gone"),
	)
}

// finishRowsQuery returns the statement that removes finished rows from a job. It returns
// the number of leader rows with the epoch, and the number of jobs. The whole key comes
// from w, as in deleteWantedSpilled.
func finishRowsQuery() *query {
	b := &builder{}
	name, job := b.arg("name", "text"), b.arg("job", "text")
	is := func(result string) string {
		return "count(*) FILTER (WHERE g.result = " + b.arg(result, "smallint") + ")"
	}

	return b.query(
		"WITH "+b.leader()+",",
		"want AS MATERIALIZED (",
		"  SELECT "+name+" AS name, "+job+" AS job, u.* FROM unnest("+b.arg("outboxes", "text[]")+", "+b.arg("lanes", "bytea[]")+", "+
			b.arg("ns", "bigint[]")+", "+b.arg("results", "smallint[]")+", "+b.arg("reasons", "text[]")+") AS u(outbox, lane, n, result, reason)",
		"), gone AS (",
		"  DELETE FROM sluicebox.replay_row AS r USING want w",
		"  WHERE r.name = w.name AND r.job = w.job AND r.outbox = w.outbox AND r.lane = w.lane AND r.n = w.n AND EXISTS (SELECT FROM leader)",
		"  RETURNING r.n, r.outbox, r.id, r.kind, r.message_group, w.result, w.reason",
		"), counted AS (",
		"  UPDATE sluicebox.replay AS r SET sent = r.sent + c.sent, skipped = r.skipped + c.skipped, refused = r.refused + c.refused",
		"  FROM (SELECT "+is("sent")+" AS sent, "+is("skipped")+" AS skipped, "+is("refused")+" AS refused FROM gone AS g) AS c",
		"  WHERE r.name = "+name+" AND r.job = "+job+" AND EXISTS (SELECT FROM leader) RETURNING r.refused - c.refused AS before",
		"), noted AS (",
		"  INSERT INTO sluicebox.replay_error (name, job, n, outbox, id, kind, message_group, reason)",
		"  SELECT "+name+", "+job+", e.n, e.outbox, e.id, e.kind, e.message_group, e.reason FROM counted AS c CROSS JOIN (",
		"    SELECT g.*, row_number() OVER (ORDER BY g.n) AS nth FROM gone AS g WHERE g.result = "+b.arg("refused", "smallint"),
		"  ) AS e WHERE c.before + e.nth <= "+b.arg("most", "bigint"),
		"  ON CONFLICT DO NOTHING",
		")",
		countWritten("counted"),
	)
}

// replayLanesQuery returns the statement that finds the lanes of a job by their first
// rows. It scans the rows by n and keeps the rows without an earlier row in their lane.
func replayLanesQuery() *query {
	b := &builder{}
	name, job := b.arg("name", "text"), b.arg("job", "text")
	return b.query(
		"SELECT r.outbox, r.kind, r.message_group, r.lane, r.n FROM sluicebox.replay_row AS r",
		"WHERE (r.name || '') = "+name+" AND (r.job || '') = "+job+" AND (r.n + 0) > "+b.arg("after", "bigint"),
		"AND NOT EXISTS (",
		"  SELECT FROM sluicebox.replay_row AS e WHERE e.name = "+name+" AND e.job = "+job+" AND e.outbox = r.outbox AND e.lane = r.lane AND e.n < r.n OFFSET 0",
		") ORDER BY (r.n + 0) LIMIT "+b.arg("limit", "bigint"),
	)
}

// replayRowsQuery returns the statement that reads lanes: the lane's index in the call,
// and the row. The number of a transaction that is visible by now is 0.
func replayRowsQuery() *query {
	b := &builder{}
	return b.query(
		"WITH "+snapshotCTE,
		"SELECT w.ord, r.n, r.id, r.kind, r.message_group,",
		"  CASE WHEN r.xid = 0 OR pg_catalog.pg_visible_in_snapshot(r.xid::text::xid8, snap.s) THEN 0 ELSE r.xid & 4294967295 END,",
		"  r.payload_size, r.committed_at, r.payload",
		"FROM snap CROSS JOIN unnest("+b.arg("outboxes", "text[]")+", "+b.arg("lanes", "bytea[]")+", "+b.arg("afters", "bigint[]")+
			") WITH ORDINALITY AS w(outbox, lane, after, ord)",
		"CROSS JOIN LATERAL (",
		"  SELECT * FROM sluicebox.replay_row AS r WHERE r.name = "+b.arg("name", "text")+" AND r.job = "+b.arg("job", "text"),
		"  AND r.outbox = w.outbox AND r.lane = w.lane AND r.n > w.after ORDER BY r.n LIMIT "+b.arg("each", "bigint"),
		") r",
	)
}
