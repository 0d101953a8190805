package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lanekinds"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// The table queue has one index per access path. The form in which a statement names the
// columns decides which index it can use; see the schema:
//
//   - As they are: the primary key, by lane.
//   - In expressions: the index on n.
//   - With the collation POSIX: the index on the beginning of the id, of spilled rows only.

// byNumber is the condition that a row q has the number of a row w. The whole key comes from
// w: with the name as a separate parameter, the planner could scan the queue instead.
const byNumber = "(q.name || '') = w.name AND (q.queue || '') = w.queue AND (q.n + 0) = w.n AND (q.outbox || '') = w.outbox"

// Enqueue implements ledger.Writer. Commit times are truncated to microseconds. Rows of a
// transaction that the snapshot shows lose its number. The others keep the full 64-bit
// number, so visibility can be decided at any later time.
func (t *transaction) Enqueue(ctx context.Context, queue string, rows []store.Item) (added int, err error) {
	if len(rows) == 0 {
		return 0, nil
	}
	if t.onlyNew && len(rows) >= minCopyRows {
		added, err = t.copyRows(ctx, queue, rows)
	} else {
		added, err = t.write(ctx, t.enqueueQuery(queue, rows))
	}
	if isNumberTaken(err) {
		return 0, &store.RefusedError{Err: fmt.Errorf("number of a row belongs to another row: %w", err)}
	}
	if err != nil || added == len(rows) {
		return added, err
	}

	var taken int // 1 for the first row
	err = t.read(ctx, t.takenQuery(queue, rows), func(row pgx.Rows) error { return row.Scan(&taken) })
	if err == nil && taken > 0 {
		err = ledger.NumberTaken(&rows[taken-1])
	}
	return added, err
}

// minCopyRows is the number of new rows from which COPY adds them. Of 5000 rows it takes three
// quarters of the server's time of INSERT (measured), but two more round trips.
const minCopyRows = 500

// queuedFields are the columns of the queue that Enqueue writes.
const queuedFields = "name, queue, outbox, lane, n, id, kind, message_group, xid, retry_count, payload_size, committed_at, payload, attributes"

// copyRows adds new rows with COPY. It reads the visibility of their transactions before, which
// keeps the number of one that commits meanwhile.
func (t *transaction) copyRows(ctx context.Context, queue string, rows []store.Item) (int, error) {
	txns, places := transactionsOf(rows)
	var xids []int64
	b := &builder{}
	err := t.read(ctx, b.query("WITH "+b.xids(txns), "SELECT of FROM xids"), func(row pgx.Rows) error { return row.Scan(&xids) })
	if err != nil {
		return 0, err
	}
	var lane []byte
	var key store.LaneKey
	n, err := t.conn.CopyFrom(ctx, pgx.Identifier{"sluicebox", "queue"}, strings.Split(queuedFields, ", "), pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) {
		it := &rows[i]
		if k := it.Lane(); lane == nil || k != key {
			hash := k.Hash()
			key, lane = k, hash[:]
		}
		return []any{
			t.name, queue, it.Outbox, lane, int64(it.Seq), []byte(it.ID), []byte(it.Kind), groupBytes(it.Group), xids[places[it.Txn]-1],
			int64(it.RetryCount), int64(it.PayloadSize), timeOrNull(it.Committed), it.Payload, ledger.EncodeAttributes(it.Attributes),
		}, nil
	}))
	return int(n), err
}

// transactionsOf returns the numbers of the rows' transactions, each once, and their places
// among them, from 1.
func transactionsOf(rows []store.Item) (txns []int64, places map[store.Txn]int64) {
	places = map[store.Txn]int64{}
	for i := range rows {
		if txn := rows[i].Txn; places[txn] == 0 {
			txns = append(txns, int64(uint32(txn)))
			places[txn] = int64(len(txns))
		}
	}
	return txns, places
}

// xids returns CTEs with the column xid of the rows of transactions, in one array.
func (b *builder) xids(txns []int64) string {
	return snapshotCTE + `, xids AS MATERIALIZED (
  SELECT array_agg(CASE WHEN w.txn = 0 OR ` + visible + ` THEN 0 ELSE ` + fullXid + ` END ORDER BY w.ord) AS of
  FROM snap CROSS JOIN unnest(` + b.bind("xids", "bigint[]", txns) + `) WITH ORDINALITY AS w(txn, ord)
)`
}

// isNumberTaken reports whether a row has the number of a row in another lane.
func isNumberTaken(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.ConstraintName == "queue_n"
}

// isInQueue reports whether a row of an update that expects new rows is in its queue already, or
// its number is taken.
func isInQueue(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.ConstraintName == "queue_pkey" || pg.ConstraintName == "queue_n")
}

// enqueueQuery returns the statement that adds rows to a queue.
//
//   - For new rows alone it names no index, because a server that may meet a row which is there
//     looks up each row before it adds it, and adds it in two steps.
//   - Otherwise it names the index of the rows that are there. The server would look up each row
//     in each unique index otherwise, which costs a seventh of its time (measured). A number of a
//     row in another lane is then an error.
//
// It passes the number of each transaction once, because to look at the snapshot for each row
// costs as much as an index. The two together took a third of the server's time (measured).
func (t *transaction) enqueueQuery(queue string, rows []store.Item) *query {
	n := len(rows)
	outboxes, lanes, ids, kinds, groups := make([]string, n), make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n)
	ns, txns, retries, sizes := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	times, payloads, attributes := make([]pgtype.Timestamptz, n), make([][]byte, n), make([][]byte, n)
	distinct, places := transactionsOf(rows)
	for i := range rows {
		it := &rows[i]
		lane := it.Lane().Hash()
		outboxes[i], lanes[i], ids[i], kinds[i], groups[i] = it.Outbox, lane[:], []byte(it.ID), []byte(it.Kind), groupBytes(it.Group)
		ns[i], retries[i], sizes[i] = int64(it.Seq), int64(it.RetryCount), int64(it.PayloadSize)
		times[i], payloads[i], attributes[i] = timeOrNull(it.Committed), it.Payload, ledger.EncodeAttributes(it.Attributes)
		txns[i] = places[it.Txn]
	}

	conflict := "ON CONFLICT (name, queue, outbox, lane, n) DO NOTHING"
	if t.onlyNew {
		conflict = ""
	}
	b := &builder{}
	return b.query(
		"WITH "+b.xids(distinct),
		"INSERT INTO sluicebox.queue ("+queuedFields+")",
		"SELECT "+b.bind("name", "text", t.name)+", "+b.bind("queue", "text", queue)+", w.outbox, w.lane, w.n, w.id, w.kind, w.message_group,",
		"  xids.of[w.txn], w.retry_count, w.payload_size, w.committed_at, w.payload, w.attributes",
		"FROM xids CROSS JOIN unnest("+
			b.bind("outboxes", "text[]", outboxes)+", "+b.bind("lanes", "bytea[]", lanes)+", "+b.bind("ns", "bigint[]", ns)+", "+
			b.bind("ids", "bytea[]", ids)+", "+b.bind("kinds", "bytea[]", kinds)+", "+b.bind("groups", "bytea[]", groups)+", "+
			b.bind("txns", "bigint[]", txns)+", "+b.bind("retries", "bigint[]", retries)+", "+b.bind("sizes", "bigint[]", sizes)+", "+
			b.bind("times", "timestamptz[]", times)+", "+b.bind("payloads", "bytea[]", payloads)+", "+
			b.bind("attributes", "bytea[]", attributes),
		") AS w(outbox, lane, n, id, kind, message_group, txn, retry_count, payload_size, committed_at, payload, attributes)",
		conflict,
	)
}

// takenQuery returns the statement that finds the first wanted row whose number another row
// has. A row that was in the queue, and that another session has removed since, is not one.
func (t *transaction) takenQuery(queue string, rows []store.Item) *query {
	refs := make([]ledger.Ref, len(rows))
	for i := range rows {
		refs[i] = ledger.Ref{Ref: rows[i].Ref, N: int64(rows[i].Seq), Lane: rows[i].Lane().Hash()}
	}
	b := &builder{}
	return b.query(
		"WITH "+t.wantedRows(b, queue, refs),
		"SELECT coalesce(min(w.ord), 0) FROM want w",
		"WHERE EXISTS (SELECT FROM sluicebox.queue q WHERE "+byNumber+" AND (q.id <> w.id OR q.lane <> w.lane) OFFSET 0)",
	)
}

// wantedRows returns the CTE of rows with the names of their queue.
func (t *transaction) wantedRows(b *builder, queue string, refs []ledger.Ref) string {
	n := len(refs)
	outboxes, ns, ids, lanes := make([]string, n), make([]int64, n), make([][]byte, n), make([][]byte, n)
	for i := range refs {
		outboxes[i], ns[i], ids[i] = refs[i].Outbox, refs[i].N, []byte(refs[i].ID)
		if refs[i].Lane != (store.LaneHash{}) {
			lanes[i] = refs[i].Lane[:]
		}
	}
	return "want AS MATERIALIZED (\n  SELECT " + b.bind("name", "text", t.name) + " AS name, " + b.bind("queue", "text", queue) + " AS queue, u.* FROM unnest(" +
		b.bind("outboxes", "text[]", outboxes) + ", " + b.bind("ns", "bigint[]", ns) + ", " + b.bind("ids", "bytea[]", ids) + ", " + b.bind("lanes", "bytea[]", lanes) +
		") WITH ORDINALITY AS u(outbox, n, id, lane, ord)\n)"
}

// groupBytes returns a group as the relay's tables store it, NULL for none.
func groupBytes(g store.Group) []byte {
	if !g.Valid {
		return nil
	}
	return append([]byte{}, g.Name...)
}

func groupOf(name []byte) store.Group { return store.Group{Name: string(name), Valid: name != nil} }

// timeOrZero returns a time, zero for NULL.
func timeOrZero(at pgtype.Timestamptz) time.Time {
	if !at.Valid {
		return time.Time{}
	}
	return at.Time.UTC()
}

// timeOrNull returns a time as a column stores it, NULL for zero.
func timeOrNull(at time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: at.Truncate(time.Microsecond), Valid: !at.IsZero()}
}

// queueColumns lists the columns of a row q that scanQueued reads, with expressions for its
// transaction and content, the payload and the attributes.
func queueColumns(txn, content string) string {
	return "q.outbox, q.n, q.id, q.kind, q.message_group, " + txn + ", q.retry_count, q.payload_size, q.committed_at, " + content
}

// queuedContent and noContent are the contents of a row q, and of none.
const (
	queuedContent = "q.payload, q.attributes"
	noContent     = "NULL::bytea, NULL::bytea"
)

// scanQueued reads an integer and a row of queueColumns.
func scanQueued(rows pgx.Rows) (ord int64, it store.Item, err error) {
	var txn int64
	var id, kind, group, attributes []byte
	var at pgtype.Timestamptz
	err = rows.Scan(&ord, &it.Outbox, &it.Seq, &id, &kind, &group, &txn, &it.RetryCount, &it.PayloadSize, &at, &it.Payload, &attributes)
	if err == nil && attributes != nil {
		it.Attributes, err = ledger.DecodeAttributes(attributes)
	}
	it.ID, it.Kind, it.Group, it.Txn, it.Committed = string(id), string(kind), groupOf(group), store.Txn(txn), timeOrZero(at)
	releaseMessage(rows)
	return ord, it, err
}

// Dequeue implements ledger.Writer.
func (t *transaction) Dequeue(ctx context.Context, queue string, refs []ledger.Ref, removed func(int, *store.Item)) (total int, err error) {
	if len(refs) == 0 {
		return 0, nil
	}
	if removed == nil {
		return t.write(ctx, t.dequeueQuery(queue, refs, false))
	}
	err = t.read(ctx, t.dequeueQuery(queue, refs, true), func(rows pgx.Rows) error {
		ord, it, err := scanQueued(rows)
		if err == nil {
			removed(int(ord)-1, &it)
			total++
		}
		return err
	})
	return total, err
}

// dequeueQuery returns the statement that removes rows of a queue. With each it returns each
// of them with the index of its ref.
func (t *transaction) dequeueQuery(queue string, refs []ledger.Ref, each bool) *query {
	b := &builder{}
	returning := ""
	if each {
		returning = "RETURNING w.ord, " + queueColumns("0::bigint", noContent)
	}
	return b.query(
		"WITH "+t.wantedRows(b, queue, refs),
		"DELETE FROM sluicebox.queue q USING want w",
		"WHERE "+byNumber+" AND CASE WHEN w.lane IS NULL THEN q.id = w.id ELSE q.lane = w.lane END",
		returning,
	)
}

// Clear implements ledger.Writer.
func (t *transaction) Clear(ctx context.Context, q ledger.Scan) (n int, last int64, err error) {
	err = t.read(ctx, t.clearQuery(q), func(rows pgx.Rows) error { return rows.Scan(&n, &last) })
	return n, last, err
}

// clearQuery returns the statement that removes rows in the order of their numbers. It
// returns their number, and the number of the last of them in the queue.
func (t *transaction) clearQuery(q ledger.Scan) *query {
	b := &builder{}
	return b.query(
		"WITH gone AS (",
		"  DELETE FROM sluicebox.queue d WHERE d.ctid = ANY (ARRAY(SELECT q.ctid "+t.scanned(b, q)+")) RETURNING d.n",
		") SELECT count(*), coalesce(max(n), 0) FROM gone",
	)
}

// Range implements ledger.QueueReader. The visibility of a row's transaction is decided at
// each read.
func (t *transaction) Range(ctx context.Context, queue string, from []store.SpilledRange, each int) ([][]store.Item, error) {
	lists := make([][]store.Item, len(from))
	err := t.read(ctx, t.rangeQuery(queue, from, each), func(rows pgx.Rows) error {
		ord, it, err := scanQueued(rows)
		if err == nil {
			lists[ord-1] = append(lists[ord-1], it)
		}
		return err
	})
	for _, list := range lists { // the join returns them in any order
		slices.SortFunc(list, func(a, b store.Item) int { return cmp.Compare(a.Seq, b.Seq) })
	}
	return lists, err
}

// rangeQuery returns the statement that reads lanes: the index of the range, and the row.
func (t *transaction) rangeQuery(queue string, from []store.SpilledRange, each int) *query {
	n := len(from)
	outboxes, lanes, afters := make([]string, n), make([][]byte, n), make([]int64, n)
	for i := range from {
		outboxes[i], lanes[i], afters[i] = from[i].Outbox, from[i].Lane[:], int64(from[i].After)
	}

	b := &builder{}
	return b.query(
		"WITH "+snapshotCTE,
		"SELECT w.ord, "+queueColumns("CASE WHEN q.xid = 0 OR pg_catalog.pg_visible_in_snapshot(q.xid::text::xid8, snap.s) THEN 0 ELSE q.xid & 4294967295 END", queuedContent),
		"FROM snap CROSS JOIN unnest("+b.bind("outboxes", "text[]", outboxes)+", "+b.bind("lanes", "bytea[]", lanes)+", "+b.bind("afters", "bigint[]", afters)+
			") WITH ORDINALITY AS w(outbox, lane, after, ord)",
		"CROSS JOIN LATERAL (",
		"  SELECT * FROM sluicebox.queue q WHERE q.name = "+b.bind("name", "text", t.name)+" AND q.queue = "+b.bind("queue", "text", queue),
		"  AND q.outbox = w.outbox AND q.lane = w.lane AND q.n > w.after ORDER BY q.n LIMIT "+b.bind("each", "bigint", int64(each)),
		") q",
	)
}

// Scan implements ledger.QueueReader.
func (t *transaction) Scan(ctx context.Context, q ledger.Scan) (list []store.Item, err error) {
	err = t.read(ctx, t.scanQuery(q), func(rows pgx.Rows) error {
		_, it, err := scanQueued(rows)
		list = append(list, it)
		return err
	})
	return list, err
}

// scanQuery returns the statement that reads rows in the order of their numbers.
func (t *transaction) scanQuery(q ledger.Scan) *query {
	b := &builder{}
	return b.query("SELECT 0::bigint, "+queueColumns("0::bigint", noContent), t.scanned(b, q))
}

// scanned returns the rest of a query for rows q, from FROM. Heads are found by a scan of the
// rows by number that keeps those without an earlier row in their lane.
func (t *transaction) scanned(b *builder, q ledger.Scan) string {
	name, queue := b.bind("name", "text", t.name), b.bind("queue", "text", q.Queue)
	sql := "FROM sluicebox.queue q\nWHERE (q.name || '') = " + name + " AND (q.queue || '') = " + queue + " AND (q.n + 0) > " + b.bind("after", "bigint", q.After)
	if q.Heads {
		sql += "\nAND NOT EXISTS (\n  SELECT FROM sluicebox.queue e WHERE e.name = " + name + " AND e.queue = " + queue +
			" AND e.outbox = q.outbox AND e.lane = q.lane AND e.n < q.n OFFSET 0\n)"
	}
	if q.Outboxes != nil {
		sql += "\nAND q.outbox = ANY (" + b.bind("outboxes", "text[]", q.Outboxes) + ")"
	}
	return sql + "\nORDER BY (q.n + 0), (q.outbox || '') LIMIT " + b.bind("limit", "bigint", int64(q.Limit))
}

// Lanes implements ledger.QueueReader. It counts through the index, at some million rows a
// second.
func (t *transaction) Lanes(ctx context.Context, queue, outbox string, take func(store.SpilledLane)) error {
	kinds, err := lanekinds.FindKinds(func(after store.LaneHash) (lane store.LaneHash, kind string, found bool, err error) {
		err = t.read(ctx, t.laneKindQuery(queue, outbox, after[:]), func(rows pgx.Rows) error {
			var hash, text []byte
			err := rows.Scan(&hash, &text)
			copy(lane[:], hash)
			kind, found = string(text), true
			return err
		})
		return lane, kind, found, err
	})
	if err != nil {
		return err
	}

	l := store.SpilledLane{Outbox: outbox}
	var hash pgtype.DriverBytes // valid until the next row
	return t.read(ctx, t.lanesQuery(queue, outbox), func(rows pgx.Rows) error {
		err := rows.Scan(&hash, &l.Rows)
		copy(l.Hash[:], hash)
		l.Kind = kinds[l.Hash.Kind()]
		take(l)
		return err
	})
}

// ofOutbox is the condition that a row q is in the queue and of the outbox.
func (t *transaction) ofOutbox(b *builder, queue, outbox string) string {
	return "WHERE q.name = " + b.bind("name", "text", t.name) + " AND q.queue = " + b.bind("queue", "text", queue) + " AND q.outbox = " + b.bind("outbox", "text", outbox)
}

// lanesQuery returns the statement that counts the rows of each lane. It is an index-only
// scan.
func (t *transaction) lanesQuery(queue, outbox string) *query {
	b := &builder{}
	return b.query("SELECT q.lane, count(*) FROM sluicebox.queue q", t.ofOutbox(b, queue, outbox), "GROUP BY q.lane")
}

// laneKindQuery returns the statement that finds the first lane after a hash, and its kind.
func (t *transaction) laneKindQuery(queue, outbox string, after []byte) *query {
	b := &builder{}
	return b.query("SELECT q.lane, q.kind FROM sluicebox.queue q", t.ofOutbox(b, queue, outbox), "AND q.lane > "+b.bind("after", "bytea", after), "ORDER BY q.lane, q.n LIMIT 1")
}
