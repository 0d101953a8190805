package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lanekinds"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// queueTable is a table of queues. The spilled rows have one of their own, because only they
// are looked up by id: with an index by id a replay costs the server 13 to 46 % more CPU
// (measured).
type queueTable string

const (
	spilledRows  queueTable = ownPrefix + "queue"
	replayedRows queueTable = ownPrefix + "replay"
)

// tableOf returns the table that has a queue.
func tableOf(queue string) queueTable {
	if queue == ledger.SpilledQueue {
		return spilledRows
	}
	return replayedRows
}

// byLane and byNumber return the table as r. Every statement names its index, because the
// server may prefer a scan while it believes that the table is small.
func (t queueTable) byLane() string { return string(t) + " AS r FORCE INDEX (PRIMARY)" }

func (t queueTable) byNumber() string { return string(t) + " AS r FORCE INDEX (" + string(t) + "_n)" }

const queuedColumns = "r.outbox, r.n, r.id, r.kind, r.message_group, r.retry_count, r.payload_size, r.committed_at"

func rangeText(queue string) string {
	return "SELECT " + queuedColumns + ", r.payload, r.attributes FROM " + tableOf(queue).byLane() +
		"\nWHERE r.name = ? AND r.queue = ? AND r.outbox = ? AND r.lane = ? AND r.n > ? ORDER BY r.n LIMIT ?"
}

// Range implements ledger.QueueReader.
func (r reader) Range(ctx context.Context, queue string, from []store.SpilledRange, each int) ([][]store.Item, error) {
	lanes, text := make([][]store.Item, len(from)), rangeText(queue)
	for i := range from {
		f := &from[i]
		err := r.conn.query(ctx, text, []any{r.name, queue, f.Outbox, f.Lane[:], int64(f.After), each}, func(rows *sql.Rows) error {
			it, err := scanQueued(rows)
			it.Outbox = f.Outbox // rows share the text
			lanes[i] = append(lanes[i], it)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return lanes, nil
}

// scanQueued reads queuedColumns, the payload and the attributes.
func scanQueued(rows *sql.Rows) (store.Item, error) {
	var it store.Item
	var group, committed sql.NullString
	var attributes sql.RawBytes
	err := rows.Scan(&it.Outbox, &it.Seq, &it.ID, &it.Kind, &group, &it.RetryCount, &it.PayloadSize, &committed, &it.Payload, &attributes)
	if err != nil {
		return it, err
	}
	it.Group = groupOf(group)
	it.Committed, _ = readTime(committed.String) // the relay wrote it, so it is valid
	it.Attributes, err = ledger.DecodeAttributes(attributes)
	return it, err
}

// Scan implements ledger.QueueReader.
func (r reader) Scan(ctx context.Context, q ledger.Scan) (list []store.Item, err error) {
	if q.Outboxes != nil && len(q.Outboxes) == 0 {
		return nil, nil
	}
	if q.Heads {
		return r.heads(ctx, q)
	}
	st := &statement{}
	return r.queued(ctx, st, r.scanText(st, q))
}

func (r reader) scanText(st *statement, q ledger.Scan) string {
	return "SELECT " + queuedColumns + ", NULL, NULL FROM " + r.scanned(st, q) + "\nORDER BY r.n, r.outbox LIMIT " + st.arg(q.Limit)
}

// queued returns the rows of a statement that selects queuedColumns, the payload and the attributes.
func (r reader) queued(ctx context.Context, st *statement, text string) (list []store.Item, err error) {
	err = r.conn.query(ctx, text, st.args, func(rows *sql.Rows) error {
		it, err := scanQueued(rows)
		list = append(list, it)
		return err
	})
	return list, err
}

// maxHeadWindow limits the rows by number among which one statement looks for heads.
const maxHeadWindow = 100_000

// heads returns the rows by number that are the first of their lane. It looks among windows of
// rows, so that one statement looks up the first row of a lane once, and not for each of its rows
// (measured for all lanes of 200 000 rows in 1000 lanes: 0.2 to 1.2 s, otherwise 8 s). Small windows
// come first, because every row may be a head.
func (r reader) heads(ctx context.Context, q ledger.Scan) (list []store.Item, err error) {
	for window := 2 * q.Limit; len(list) < q.Limit; window = min(8*window, maxHeadWindow) {
		last := int64(math.MaxInt64)
		st := &statement{}
		text := "SELECT r.n FROM " + r.scanned(st, q) + "\nORDER BY r.n, r.outbox LIMIT 1 OFFSET " + st.arg(window-1)
		if err := r.conn.query(ctx, text, st.args, func(rows *sql.Rows) error { return rows.Scan(&last) }); err != nil {
			return nil, err
		}

		st = &statement{}
		some, err := r.queued(ctx, st, r.headsText(st, q, last, q.Limit-len(list)))
		if list = append(list, some...); err != nil || last == math.MaxInt64 {
			return list, err
		}
		q.After = last
	}
	return list, nil
}

// headsText returns the statement for the first heads of a window that ends with a number. By n
// alone MySQL would sort the rows of a lane; MariaDB sorts them if the order also names the name
// and queue.
func (r reader) headsText(st *statement, q ledger.Scan, last int64, limit int) string {
	table := string(tableOf(q.Queue))
	return "SELECT " + queuedColumns + ", NULL, NULL FROM (\n  SELECT r.outbox, r.lane, MIN(r.n) AS n FROM " + r.scanned(st, q) + " AND r.n <= " + st.arg(last) + " GROUP BY r.outbox, r.lane) AS h" +
		"\nSTRAIGHT_JOIN " + tableOf(q.Queue).byLane() + " ON r.name = " + st.arg(r.name) + " AND r.queue = " + st.arg(q.Queue) + " AND r.outbox = h.outbox AND r.lane = h.lane AND r.n = h.n" +
		"\nWHERE h.n = (\n  SELECT e.n FROM " + table + " AS e FORCE INDEX (PRIMARY) WHERE e.name = " + st.arg(r.name) + " AND e.queue = " + st.arg(q.Queue) +
		" AND e.outbox = h.outbox AND e.lane = h.lane ORDER BY e.outbox, e.lane, e.n LIMIT 1)" +
		"\nORDER BY r.n, r.outbox LIMIT " + st.arg(limit)
}

// scanned returns the rest of a statement on the rows of a scan, without its limit.
func (r reader) scanned(st *statement, q ledger.Scan) string {
	text := tableOf(q.Queue).byNumber() + "\nWHERE r.name = " + st.arg(r.name) + " AND r.queue = " + st.arg(q.Queue) + " AND r.n > " + st.arg(q.After)
	if q.Outboxes != nil {
		names := make([]any, len(q.Outboxes))
		for i, name := range q.Outboxes {
			names[i] = name
		}
		text += " AND r.outbox IN " + st.list("?", names)
	}
	return text
}

// Lanes implements ledger.QueueReader. The primary key serves the count.
func (r reader) Lanes(ctx context.Context, queue, outbox string, take func(store.SpilledLane)) error {
	of := tableOf(queue).byLane() + " WHERE r.name = ? AND r.queue = ? AND r.outbox = ?"
	next := "SELECT r.lane, r.kind FROM " + of + " AND r.lane > ? ORDER BY r.lane, r.n LIMIT 1"
	count := "SELECT r.lane, COUNT(*) FROM " + of + " GROUP BY r.lane"
	kinds, err := lanekinds.FindKinds(func(after store.LaneHash) (lane store.LaneHash, kind string, found bool, err error) {
		var hash []byte
		err = r.conn.row(ctx, next, []any{r.name, queue, outbox, after[:]}, &hash, &kind)
		copy(lane[:], hash)
		if errors.Is(err, sql.ErrNoRows) {
			return lane, "", false, nil
		}
		return lane, kind, true, err
	})
	if err != nil {
		return err
	}

	l := store.SpilledLane{Outbox: outbox}
	var hash sql.RawBytes // valid until the next row
	return r.conn.query(ctx, count, []any{r.name, queue, outbox}, func(rows *sql.Rows) error {
		err := rows.Scan(&hash, &l.Rows)
		copy(l.Hash[:], hash)
		l.Kind = kinds[l.Hash.Kind()]
		take(l)
		return err
	})
}

const (
	// maxInsertRows is the maximum number of rows or records that one statement adds.
	maxInsertRows = 128
	// packetShare is the part of max_allowed_packet that a statement uses unless one of its
	// values is larger: a quarter.
	packetShare = 4
)

// fitting returns how many of the first n values, up to limit, one statement takes.
func (c *conn) fitting(n, limit int, size func(i int) int) int {
	sum := 0
	for i := range min(n, limit) {
		if sum += size(i); i > 0 && sum > c.server.packet/packetShare {
			return i
		}
	}
	return min(n, limit)
}

// Enqueue implements ledger.Writer. It truncates commit times to microseconds. It stores no
// Txn, because a claim waits for open transactions.
func (t writeTx) Enqueue(ctx context.Context, queue string, rows []store.Item) (added int, err error) {
	if rows, err = t.fittingRows(queue, rows); err != nil {
		return 0, err
	}
	err = inBatches(t.conn, rows, itemSize, func(batch []store.Item) error {
		err := t.insert(ctx, queue, batch)
		if code(err) == codeDuplicate { // the server undid this statement alone
			if batch, err = t.absent(ctx, queue, batch); err == nil {
				err = inBatches(t.conn, batch, itemSize, func(some []store.Item) error { return t.insert(ctx, queue, some) })
			}
		}
		added += len(batch)
		return err
	})
	return added, err
}

// fittingRows omits the content that is too large for the server. A spilled row keeps its own,
// because only the log may have it.
func (t writeTx) fittingRows(queue string, rows []store.Item) ([]store.Item, error) {
	limit := t.conn.server.packet / 16 * 15
	fitting := rows
	for i := range rows {
		if itemSize(&rows[i]) <= limit {
			continue
		}
		if queue == ledger.SpilledQueue {
			return nil, &store.RefusedError{Err: fmt.Errorf("row %q of outbox %s has %d bytes; raise max_allowed_packet of the server", rows[i].ID, rows[i].Outbox, itemSize(&rows[i]))}
		}
		if &fitting[0] == &rows[0] {
			fitting = append([]store.Item{}, rows...)
		}
		fitting[i].DropContent()
	}
	return fitting, nil
}

// itemSize returns the approximate size of a row in an INSERT.
func itemSize(it *store.Item) int {
	return len(it.ID) + len(it.Kind) + len(it.Group.Name) + len(it.Payload) + len(ledger.EncodeAttributes(it.Attributes))
}

// inBatches passes rows or records on in batches of few different lengths, so that the server keeps few
// prepared statements.
func inBatches[T any](c *conn, all []T, size func(*T) int, write func([]T) error) error {
	for len(all) > 0 {
		n := c.fitting(len(all), maxInsertRows, func(i int) int { return size(&all[i]) })
		n = 1 << (bits.Len(uint(n)) - 1) // a power of two
		if err := write(all[:n]); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

// insert adds rows to a queue. It fails with codeDuplicate if it has the number of one.
func (t writeTx) insert(ctx context.Context, queue string, rows []store.Item) error {
	insert := "INSERT INTO " + string(tableOf(queue)) + " (name, queue, outbox, lane, n, id, kind, message_group, retry_count, payload_size, committed_at, payload, attributes) VALUES\n"
	const values = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
	var args []any
	for i := range rows {
		it := &rows[i]
		lane := it.Lane().Hash()
		args = append(args, t.name, queue, it.Outbox, lane[:], int64(it.Seq), []byte(it.ID), []byte(it.Kind), groupBytes(it.Group),
			it.RetryCount, it.PayloadSize, timeOrNull(it.Committed), it.Payload, ledger.EncodeAttributes(it.Attributes))
	}
	_, err := t.conn.exec(ctx, insert+values+strings.Repeat(", "+values, len(rows)-1), args...)
	return err
}

// absent returns the rows that a queue does not have, each once. It returns an error if
// another row has the number of one.
func (t writeTx) absent(ctx context.Context, queue string, rows []store.Item) (absent []store.Item, err error) {
	type number struct {
		outbox string
		n      int64
	}
	type owner struct {
		id   string
		lane store.LaneHash
	}
	taken := map[number]owner{}
	numbers := make([]any, len(rows))
	for i := range rows {
		numbers[i] = int64(rows[i].Seq)
	}
	st := &statement{}
	text := "SELECT r.outbox, r.n, r.id, r.lane FROM " + tableOf(queue).byNumber() + "\nWHERE r.name = " + st.arg(t.name) + " AND r.queue = " + st.arg(queue) + " AND r.n IN " + st.list("?", numbers)
	err = t.conn.query(ctx, text, st.args, func(rows *sql.Rows) error {
		var at number
		var by owner
		var lane []byte
		err := rows.Scan(&at.outbox, &at.n, &by.id, &lane)
		copy(by.lane[:], lane)
		taken[at] = by
		return err
	})
	if err != nil {
		return nil, err
	}

	for i := range rows {
		it := &rows[i]
		at, by := number{it.Outbox, int64(it.Seq)}, owner{it.ID, it.Lane().Hash()}
		switch other, exists := taken[at]; {
		case !exists:
			taken[at] = by // the call may have it twice
			absent = append(absent, *it)
		case other != by:
			return nil, ledger.NumberTaken(it)
		}
	}
	return absent, nil
}

// Dequeue implements ledger.Writer. A statement removes rows of one outbox that are given in
// the same way.
func (t writeTx) Dequeue(ctx context.Context, queue string, refs []ledger.Ref, removed func(int, *store.Item)) (total int, err error) {
	var order []removal
	at := map[removal][]int{}
	for i := range refs {
		rm := removal{queue, refs[i].Outbox, refs[i].Lane != (store.LaneHash{})}
		if at[rm] == nil {
			order = append(order, rm)
		}
		at[rm] = append(at[rm], i)
	}

	for _, rm := range order {
		for rest := at[rm]; len(rest) > 0; {
			n := t.conn.fitting(len(rest), maxKeys, func(i int) int { return len(refs[rest[i]].ID) })
			count, err := t.remove(ctx, rm, refs, rest[:n], removed)
			if err != nil {
				return 0, err
			}
			total += count
			rest = rest[n:]
		}
	}
	return total, nil
}

// removal selects refs that one statement can remove.
type removal struct {
	queue, outbox string
	byLane        bool // otherwise by id
}

// pair returns a row's number with its lane or id.
func (rm removal) pair(n int64, lane []byte, id string) string {
	if rm.byLane {
		id = string(lane)
	}
	return strconv.FormatInt(n, 10) + " " + id
}

// text returns the rest of a statement on rows. The numbers find them, and the pairs exclude
// another row that got one of the numbers by mistake.
func (rm removal) text(st *statement, relay string, numbers, pairs []any) string {
	column := "r.id"
	if rm.byLane {
		column = "r.lane"
	}
	return tableOf(rm.queue).byNumber() + "\nWHERE r.name = " + st.arg(relay) + " AND r.queue = " + st.arg(rm.queue) + " AND r.outbox = " + st.arg(rm.outbox) +
		" AND r.n IN " + st.list("?", numbers) + " AND CAST(CONCAT(r.n, ' ', " + column + ") AS BINARY) IN " + st.list("?", pairs)
}

// remove removes the rows of refs at some indexes, at most maxKeys.
func (t writeTx) remove(ctx context.Context, rm removal, refs []ledger.Ref, at []int, removed func(int, *store.Item)) (int, error) {
	numbers, pairs, indexes := make([]any, len(at)), make([]any, len(at)), map[string]int{}
	for k, i := range at {
		ref := &refs[i]
		pair := rm.pair(ref.N, ref.Lane[:], ref.ID)
		numbers[k], pairs[k], indexes[pair] = ref.N, []byte(pair), i
	}
	st := &statement{}
	text := rm.text(st, t.name, numbers, pairs)

	if removed != nil {
		err := t.conn.query(ctx, "SELECT r.n, r.lane, r.id, r.kind, r.message_group FROM "+text, st.args, func(rows *sql.Rows) error {
			it := store.Item{Ref: store.Ref{Outbox: rm.outbox}}
			var lane []byte
			var group sql.NullString
			if err := rows.Scan(&it.Seq, &lane, &it.ID, &it.Kind, &group); err != nil {
				return err
			}
			it.Group = groupOf(group)
			removed(indexes[rm.pair(int64(it.Seq), lane, it.ID)], &it)
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	n, err := t.conn.exec(ctx, "DELETE r FROM "+text, st.args...)
	return int(n), err
}

// Clear implements ledger.Writer. A DELETE that names an index has no LIMIT, so a read finds
// the last row first.
func (t writeTx) Clear(ctx context.Context, q ledger.Scan) (n int, last int64, err error) {
	if q.Outboxes != nil && len(q.Outboxes) == 0 {
		return 0, 0, nil
	}
	st, outbox, found := &statement{}, "", false
	text := "SELECT r.n, r.outbox FROM " + t.scanned(st, q) + "\nORDER BY r.n, r.outbox LIMIT " + st.arg(q.Limit)
	err = t.conn.query(ctx, text, st.args, func(rows *sql.Rows) error {
		found = true
		return rows.Scan(&last, &outbox)
	})
	if err != nil || !found {
		return 0, 0, err
	}

	st = &statement{}
	cleared, err := t.conn.exec(ctx, t.clearText(st, q, last, outbox), st.args...)
	return int(cleared), last, err
}

// clearText returns the statement that deletes the rows of a scan up to a row.
func (t writeTx) clearText(st *statement, q ledger.Scan, last int64, outbox string) string {
	return "DELETE r FROM " + t.scanned(st, q) + " AND r.n <= " + st.arg(last) + " AND (r.n < " + st.arg(last) + " OR r.outbox <= " + st.arg(outbox) + ")"
}

// groupBytes returns a group as the relay's tables store it; NULL for none.
func groupBytes(g store.Group) []byte {
	if !g.Valid {
		return nil
	}
	return append([]byte{}, g.Name...)
}

func groupOf(name sql.NullString) store.Group {
	return store.Group{Name: name.String, Valid: name.Valid}
}

// ownTime is the format of times in the relay's tables, which hold microseconds.
const ownTime = "2006-01-02 15:04:05.000000"

// timeOrNull returns a time as the relay's tables store it; NULL for zero.
func timeOrNull(at time.Time) sql.NullString {
	return sql.NullString{Valid: !at.IsZero(), String: at.UTC().Truncate(time.Microsecond).Format(ownTime)}
}
