package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lanekinds"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// maxBatchRows is the maximum number of spilled rows that one transaction writes, so that
// claims, outcomes and services do not wait long for the write lock. The transaction takes 2
// ms if the rows belong to one lane, and 10 ms if each belongs to another. With 500,
// spilling is a sixth faster, and concurrent claims wait up to four times as long.
const maxBatchRows = 200

// backend implements ledger.Backend. It writes on the writing connection. A view has its own
// connection, so it needs no lock of a writer and blocks no other call.
type backend struct{ store *Store }

// Update implements ledger.Backend. The sync of a Full commit makes all earlier commits
// durable, so Barrier is the same.
func (b backend) Update(ctx context.Context, epoch store.Epoch, d ledger.Durability, do func(context.Context, ledger.Tx) error) error {
	w := b.store.writer
	return asRefused(w.do(ctx, func(ctx context.Context) error {
		return w.runAsLeader(ctx, epoch, d != ledger.Normal, lockTimeout, func(ctx context.Context) error { return do(ctx, w.tx()) })
	}))
}

// countRequests reads the number of a relay's requests.
const countRequests = "SELECT version FROM sluicebox_record WHERE name = ? AND kind = ? AND key = ?"

// Request implements ledger.Backend.
func (b backend) Request(ctx context.Context, do func(ctx context.Context, tx ledger.Tx, nth int64) error) error {
	w := b.store.writer
	return asRefused(w.do(ctx, func(ctx context.Context) error {
		return w.conn.Write(ctx, Full, func(ctx context.Context) error {
			tx, nth := w.tx(), int64(0)
			err := tx.Put(ctx, ledger.RelayKind, ledger.Record{Key: ledger.Requests, Body: []byte("{}")})
			if err == nil {
				err = w.conn.Query(ctx, countRequests, []any{w.name, ledger.RelayKind, ledger.Requests}, func(row []driver.Value) error {
					nth = numberAt(row, 0)
					return nil
				})
			}
			if err != nil {
				return err
			}
			return do(ctx, tx, nth)
		})
	}))
}

// View implements ledger.Backend.
func (b backend) View(ctx context.Context, do func(context.Context, ledger.Reader) error) error {
	return Explain(b.store.readTx(ctx, func(ctx context.Context, conn *Conn) error {
		return do(ctx, reader{conn, b.store.name})
	}))
}

// readTx runs fn in a read transaction on its own connection. It needs no lock of a writer
// and blocks no other call.
func (s *Store) readTx(ctx context.Context, fn func(context.Context, *Conn) error) error {
	return s.lifetime.Do(ctx, func(ctx context.Context) error {
		conn, err := Dial(ctx, s.path)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.pragma(ctx, "query_only=1"); err != nil {
			return err
		}
		return conn.Read(ctx, func(ctx context.Context) error { return fn(ctx, conn) })
	})
}

// reader implements ledger.Reader in a transaction.
type reader struct {
	conn *Conn
	name string // of the relay
}

// Get implements ledger.RecordReader.
func (r reader) Get(ctx context.Context, kind string, keys ...string) ([][]byte, error) {
	const read = "SELECT body FROM sluicebox_record WHERE name = ? AND kind = ? AND key = ?"
	bodies := make([][]byte, len(keys))
	for i, key := range keys {
		err := r.conn.Query(ctx, read, []any{r.name, kind, key}, func(row []driver.Value) error {
			bodies[i] = BytesOf(row[0])
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return bodies, nil
}

// List implements ledger.RecordReader.
func (r reader) List(ctx context.Context, kind, prefix string, limit int, take func(ledger.Record) error) error {
	const read = "SELECT key, body FROM sluicebox_record WHERE name = ? AND kind = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?"
	if limit == 0 {
		limit = -1
	}
	return r.conn.Query(ctx, read, []any{r.name, kind, prefix, prefix + ledger.AfterKeys, limit}, func(row []driver.Value) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return take(ledger.Record{Key: textAt(row, 0), Body: BytesOf(row[1])})
	})
}

// Range implements ledger.QueueReader.
func (r reader) Range(ctx context.Context, queue string, from []store.SpilledRange, each int) ([][]store.Item, error) {
	const read = `
SELECT outbox, n, id, kind, message_group, retry_count, payload_size, committed_at, payload, attributes FROM sluicebox_queue INDEXED BY sluicebox_queue_lane
WHERE name = ? AND queue = ? AND outbox = ? AND lane = ? AND n > ? ORDER BY n LIMIT ?`
	lanes := make([][]store.Item, len(from))
	uncancelled := context.WithoutCancel(ctx) // each statement is short
	for i := range from {
		f := &from[i]
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		err := r.conn.Query(uncancelled, read, []any{r.name, queue, f.Outbox, f.Lane[:], int64(f.After), each}, func(row []driver.Value) error {
			it, err := queuedItem(row)
			lanes[i] = append(lanes[i], it)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return lanes, nil
}

func queuedItem(row []driver.Value) (it store.Item, err error) {
	it = store.Item{
		Ref: store.Ref{Outbox: textAt(row, 0), ID: textAt(row, 2)}, Seq: store.Seq(numberAt(row, 1)), Kind: textAt(row, 3),
		RetryCount: int(numberAt(row, 5)), PayloadSize: int(numberAt(row, 6)), Payload: BytesOf(row[8]),
	}
	it.Group.Name, it.Group.Valid = textOf(row[4])
	it.Committed, _ = readTime(row[7])
	if attributes := BytesOf(row[9]); attributes != nil {
		it.Attributes, err = ledger.DecodeAttributes(attributes)
	}
	return it, err
}

// Scan implements ledger.QueueReader.
func (r reader) Scan(ctx context.Context, q ledger.Scan) (rows []store.Item, err error) {
	read := `
SELECT outbox, n, id, kind, message_group, retry_count, payload_size, committed_at, NULL, NULL FROM sluicebox_queue AS r INDEXED BY sluicebox_queue_n
WHERE name = ?1 AND queue = ?2 AND n > ?3`
	if q.Heads {
		read += ` AND NOT EXISTS (
  SELECT 1 FROM sluicebox_queue AS e INDEXED BY sluicebox_queue_lane
  WHERE e.name = ?1 AND e.queue = ?2 AND e.outbox = r.outbox AND e.lane = r.lane AND e.n < r.n)`
	}
	args := []any{r.name, q.Queue, q.After, q.Limit}
	if q.Outboxes != nil {
		read += " AND outbox IN (SELECT value FROM json_each(?5))"
		args = append(args, jsonArray(q.Outboxes))
	}
	err = r.conn.Query(ctx, read+"\nORDER BY n, outbox LIMIT ?4", args, func(row []driver.Value) error {
		it, err := queuedItem(row)
		rows = append(rows, it)
		return err
	})
	return rows, err
}

// Lanes implements ledger.QueueReader. The index serves the count.
func (r reader) Lanes(ctx context.Context, queue, outbox string, take func(store.SpilledLane)) error {
	const next = `
SELECT lane, kind FROM sluicebox_queue INDEXED BY sluicebox_queue_lane
WHERE name = ? AND queue = ? AND outbox = ? AND lane > ? ORDER BY lane, n LIMIT 1`
	const count = `
SELECT lane, count(*) FROM sluicebox_queue INDEXED BY sluicebox_queue_lane
WHERE name = ? AND queue = ? AND outbox = ? GROUP BY lane`
	lane := func(value driver.Value) (hash store.LaneHash, err error) {
		if bytes, _ := value.([]byte); copy(hash[:], bytes) != len(hash) {
			err = fmt.Errorf("in sluicebox_queue, outbox %s: lane %x is not a lane hash", outbox, bytes)
		}
		return hash, err
	}

	kinds, err := lanekinds.FindKinds(func(after store.LaneHash) (hash store.LaneHash, kind string, found bool, err error) {
		err = r.conn.Query(ctx, next, []any{r.name, queue, outbox, after[:]}, func(row []driver.Value) (err error) {
			found, kind = true, textAt(row, 1)
			hash, err = lane(row[0])
			return err
		})
		return hash, kind, found, err
	})
	if err != nil {
		return err
	}

	l := store.SpilledLane{Outbox: outbox}
	return r.conn.Query(ctx, count, []any{r.name, queue, outbox}, func(row []driver.Value) (err error) {
		if l.Hash, err = lane(row[0]); err != nil {
			return err
		}
		l.Rows, l.Kind = int(numberAt(row, 1)), kinds[l.Hash.Kind()]
		take(l)
		return ctx.Err()
	})
}

// tx returns the session's open transaction.
func (s *session) tx() writeTx { return writeTx{reader{s.conn, s.name}} }

// writeTx implements ledger.Tx in a write transaction.
type writeTx struct{ reader }

// Now implements ledger.Tx. The database is on this host.
func (writeTx) Now(context.Context) (time.Time, error) { return time.Now(), nil }

// Lock implements ledger.Tx. The write lock is the lock of the records.
func (t writeTx) Lock(ctx context.Context, kind string, keys ...string) ([][]byte, error) {
	return t.Get(ctx, kind, keys...)
}

// Put implements ledger.Writer.
func (t writeTx) Put(ctx context.Context, kind string, records ...ledger.Record) error {
	const put = `
INSERT INTO sluicebox_record (name, kind, key, body, version) VALUES (?, ?, ?, ?, 1)
ON CONFLICT (name, kind, key) DO UPDATE SET body = excluded.body, version = version + 1`
	for _, rec := range records {
		if _, err := t.conn.Exec(ctx, put, t.name, kind, rec.Key, string(rec.Body)); err != nil {
			return err
		}
	}
	return nil
}

// Delete implements ledger.Writer.
func (t writeTx) Delete(ctx context.Context, kind string, keys ...string) error {
	for _, key := range keys {
		if _, err := t.conn.Exec(ctx, "DELETE FROM sluicebox_record WHERE name = ? AND kind = ? AND key = ?", t.name, kind, key); err != nil {
			return err
		}
	}
	return nil
}

// Enqueue implements ledger.Writer. It stores no Txn, because the log shows no row whose
// transaction a claim might not see.
func (t writeTx) Enqueue(ctx context.Context, queue string, rows []store.Item) (int, error) {
	const put = `
INSERT INTO sluicebox_queue (name, queue, outbox, lane, n, id, kind, message_group, retry_count, payload_size, committed_at, payload, attributes)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING`
	added := 0
	for i := range rows {
		it := &rows[i]
		lane := it.Lane().Hash()
		n, err := t.conn.Exec(ctx, put, t.name, queue, it.Outbox, lane[:], int64(it.Seq), it.ID, it.Kind, groupValue(it.Group),
			it.RetryCount, it.PayloadSize, commitValue(it.Committed), payloadValue(it.Payload), payloadValue(ledger.EncodeAttributes(it.Attributes)))
		if err != nil {
			return 0, err
		}
		if n == 0 {
			if err := t.checkSame(ctx, queue, it, lane); err != nil {
				return 0, err
			}
		}
		added += int(n)
	}
	return added, nil
}

// checkSame returns an error unless a row is in the queue.
func (t writeTx) checkSame(ctx context.Context, queue string, it *store.Item, lane store.LaneHash) error {
	const read = `
SELECT 1 FROM sluicebox_queue INDEXED BY sluicebox_queue_n
WHERE name = ? AND queue = ? AND n = ? AND outbox = ? AND id = ? AND lane = ?`
	same := false
	err := t.conn.Query(ctx, read, []any{t.name, queue, int64(it.Seq), it.Outbox, it.ID, lane[:]},
		func([]driver.Value) error { same = true; return nil })
	if err == nil && !same {
		err = ledger.NumberTaken(it)
	}
	return err
}

// groupValue returns a group as a value, NULL for none.
func groupValue(g store.Group) any {
	if !g.Valid {
		return nil
	}
	return g.Name
}

// commitValue returns a commit time as a value, NULL if it is not known.
func commitValue(at time.Time) any {
	if at.IsZero() {
		return nil
	}
	return at.UTC().Format(commitForm)
}

// payloadValue returns a payload as a value. An empty payload is a text, because the driver
// writes an empty []byte as NULL, which means that the payload was not kept.
func payloadValue(payload []byte) any {
	switch {
	case payload == nil:
		return nil
	case len(payload) == 0:
		return ""
	}
	return payload
}

// Dequeue implements ledger.Writer.
func (t writeTx) Dequeue(ctx context.Context, queue string, refs []ledger.Ref, removed func(int, *store.Item)) (int, error) {
	const byNumber = "DELETE FROM sluicebox_queue INDEXED BY sluicebox_queue_n WHERE name = ? AND queue = ? AND n = ? AND outbox = ?"
	const returned = "\nRETURNING id, kind, message_group"
	total := 0
	for i := range refs {
		ref := &refs[i]
		remove, args := byNumber+" AND id = ?", []any{t.name, queue, ref.N, ref.Outbox, ref.ID}
		if ref.Lane != (store.LaneHash{}) {
			remove, args[4] = byNumber+" AND lane = ?", ref.Lane[:]
		}
		if removed == nil {
			n, err := t.conn.Exec(ctx, remove, args...)
			if err != nil {
				return 0, err
			}
			total += int(n)
			continue
		}
		err := t.conn.Query(ctx, remove+returned, args, func(row []driver.Value) error {
			it := store.Item{Ref: store.Ref{Outbox: ref.Outbox, ID: textAt(row, 0)}, Kind: textAt(row, 1), Seq: store.Seq(ref.N)}
			it.Group.Name, it.Group.Valid = textOf(row[2])
			removed(i, &it)
			total++
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	return total, nil
}

// Clear implements ledger.Writer. The index has the numbers and outboxes of the rows.
func (t writeTx) Clear(ctx context.Context, q ledger.Scan) (n int, last int64, err error) {
	remove := `
DELETE FROM sluicebox_queue WHERE rowid IN (
  SELECT rowid FROM sluicebox_queue INDEXED BY sluicebox_queue_n
  WHERE name = ?1 AND queue = ?2 AND n > ?3`
	args := []any{t.name, q.Queue, q.After, q.Limit}
	if q.Outboxes != nil {
		remove += " AND outbox IN (SELECT value FROM json_each(?5))"
		args = append(args, jsonArray(q.Outboxes))
	}
	err = t.conn.Query(ctx, remove+"\n  ORDER BY n, outbox LIMIT ?4)\nRETURNING n", args, func(row []driver.Value) error {
		n, last = n+1, max(last, numberAt(row, 0))
		return nil
	})
	return n, last, err
}

// textAt and numberAt return a value of a row that the relay wrote, zero for NULL.
func textAt(row []driver.Value, i int) string {
	text, _ := textOf(row[i])
	return text
}

func numberAt(row []driver.Value, i int) int64 {
	n, _ := row[i].(int64)
	return n
}
