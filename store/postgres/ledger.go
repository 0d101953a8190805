package postgres

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// maxBatchRows is the maximum number of spilled rows that one transaction writes or deletes,
// so that it does not lock the leader row for long.
const maxBatchRows = 20_000

// maxBatchBytes limits the texts and payloads of such a transaction, which memory holds twice.
const maxBatchBytes = 16 << 20

// backend implements ledger.Backend on a session. With async, Normal transactions commit
// asynchronously.
type backend struct {
	store *Store
	sess  seat
	async bool
}

// Update implements ledger.Backend. A Barrier runs on the control session. Its synchronous
// commit flushes the server's WAL, and with it the claims and outcomes that were committed
// asynchronously before. Only the session that raised the epoch may write it: if it is still
// alive, the server has not crashed since and lost none of them.
func (b backend) Update(ctx context.Context, epoch store.Epoch, d ledger.Durability, do func(context.Context, ledger.Tx) error) error {
	s, sess := b.store, b.sess
	if d == ledger.Barrier {
		sess = seat{s.control, s.lifetime}
	}
	return asOwnRefused(sess.do(ctx, func(ctx context.Context, sess *session) error {
		if d == ledger.Barrier && s.leaderConn != nil && s.leaderConn != sess.conn {
			return store.ErrInterrupted
		}
		err := b.update(ctx, sess, epoch, d, true, do)
		if isInQueue(err) {
			// A first try of this call, whose answer was lost, has added the rows. It may
			// have been adding them at the same moment; now they can be seen.
			err = b.update(ctx, sess, epoch, d, false, do)
		}
		return err
	}))
}

// update runs a transaction of the leader. See transaction for onlyNew.
func (b backend) update(ctx context.Context, sess *session, epoch store.Epoch, d ledger.Durability, onlyNew bool, do func(context.Context, ledger.Tx) error) error {
	t := newTransaction(sess.conn, b.store.name)
	t.onlyNew = onlyNew
	t.exec("BEGIN")
	if b.async && d == ledger.Normal {
		t.exec("SET LOCAL synchronous_commit = off")
	}
	t.add(fenceQuery().with(b.store.fenced(epoch)), t.readFence)
	return t.run(ctx, func() error { return do(ctx, t) })
}

// fenceQuery returns the statement that begins a transaction of the leader. It divides by
// zero unless the leader row has the epoch and holder, so that the server executes nothing
// that follows in the same batch, the commit included.
func fenceQuery() *query {
	b := &builder{}
	return b.query("WITH "+b.leader(), "SELECT now(), 1 / (SELECT count(*) FROM leader)")
}

func (t *transaction) readFence(results pgx.BatchResults) error {
	err := results.QueryRow().Scan(&t.now, nil)
	if code(err) == "22012" { // division_by_zero
		return store.ErrNotLeader
	}
	return err
}

// Request implements ledger.Backend. Its first statement locks the counter until the
// transaction ends, so a reader of the count also sees the requests up to it.
func (b backend) Request(ctx context.Context, do func(ctx context.Context, tx ledger.Tx, nth int64) error) error {
	return asOwnRefused(b.sess.do(ctx, func(ctx context.Context, sess *session) error {
		t, nth := newTransaction(sess.conn, b.store.name), int64(0)
		count := ledger.Record{Key: ledger.Requests, Body: []byte("{}")}
		t.exec("BEGIN")
		t.add(t.putQuery("RETURNING now(), version", ledger.RelayKind, count), func(results pgx.BatchResults) error {
			return results.QueryRow().Scan(&t.now, &nth)
		})
		return t.run(ctx, func() error {
			if err := t.flush(ctx); err != nil {
				return err
			}
			return do(ctx, t, nth)
		})
	}))
}

// View implements ledger.Backend.
func (b backend) View(ctx context.Context, do func(context.Context, ledger.Reader) error) error {
	return explainOwn(b.sess.do(ctx, func(ctx context.Context, sess *session) error {
		t := newTransaction(sess.conn, b.store.name)
		t.exec("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
		return t.run(ctx, func() error { return do(ctx, t) })
	}))
}

// transaction implements ledger.Tx. It collects statements until the result of one is
// needed, and sends them as one batch. So an update that only writes takes one round trip.
// Without BEGIN each batch is a transaction, which the server commits at its end.
type transaction struct {
	conn    *pgx.Conn
	name    string // of the relay
	now     time.Time
	pending *pgx.Batch
	results []func(pgx.BatchResults) error // of pending

	// onlyNew: a row that is added and is in its queue already, from a try whose answer was
	// lost, is an error; see isInQueue.
	onlyNew bool
}

func newTransaction(conn *pgx.Conn, name string) *transaction {
	return &transaction{conn: conn, name: name, pending: &pgx.Batch{}}
}

// add adds a statement to the next batch. read reads its result; nil reads its tag.
func (t *transaction) add(q *query, read func(pgx.BatchResults) error) {
	if read == nil {
		read = func(results pgx.BatchResults) error {
			_, err := results.Exec()
			return err
		}
	}
	t.pending.Queue(q.sql, q.args(nil)...)
	t.results = append(t.results, read)
}

// exec adds a statement without parameters.
func (t *transaction) exec(sql string) { t.add(&query{sql: sql}, nil) }

// flush sends the batch and reads its results.
func (t *transaction) flush(ctx context.Context) (err error) {
	if len(t.results) == 0 {
		return nil
	}
	results, reads := t.conn.SendBatch(ctx, t.pending), t.results
	t.pending, t.results = &pgx.Batch{}, nil
	defer readRest(results, &err)
	for _, read := range reads {
		if err := read(results); err != nil {
			return err
		}
	}
	return nil
}

// read sends the batch with a statement at its end, and calls each for every row of the
// statement's result, as it arrives.
func (t *transaction) read(ctx context.Context, q *query, each func(pgx.Rows) error) error {
	t.add(q, func(results pgx.BatchResults) error {
		rows, err := results.Query()
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := each(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	return t.flush(ctx)
}

// write sends the batch with a statement at its end, and returns the number of rows that the
// statement wrote.
func (t *transaction) write(ctx context.Context, q *query) (n int, err error) {
	t.add(q, func(results pgx.BatchResults) error {
		tag, err := results.Exec()
		n = int(tag.RowsAffected())
		return err
	})
	return n, t.flush(ctx)
}

// run runs do and commits. After an error it rolls back.
func (t *transaction) run(ctx context.Context, do func() error) error {
	err := do()
	if err == nil {
		t.exec("COMMIT")
		err = t.flush(ctx)
	}
	if err != nil && !t.conn.IsClosed() && t.conn.PgConn().TxStatus() != 'I' {
		_, rollback := t.conn.PgConn().Exec(ctx, "ROLLBACK").ReadAll()
		err = errors.Join(err, rollback) // after a failed rollback the session is closed
	}
	return err
}

// Now implements ledger.Tx.
func (t *transaction) Now(ctx context.Context) (time.Time, error) {
	err := t.flush(ctx)
	return t.now, err
}

// Get implements ledger.RecordReader.
func (t *transaction) Get(ctx context.Context, kind string, keys ...string) ([][]byte, error) {
	return t.get(ctx, kind, keys, "")
}

// Lock implements ledger.Tx. It locks in the order of the keys.
func (t *transaction) Lock(ctx context.Context, kind string, keys ...string) ([][]byte, error) {
	return t.get(ctx, kind, keys, lockRecords)
}

const lockRecords = "FOR NO KEY UPDATE"

func (t *transaction) get(ctx context.Context, kind string, keys []string, lock string) ([][]byte, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	found := make(map[string][]byte, len(keys))
	err := t.read(ctx, t.getQuery(kind, keys, lock), func(rows pgx.Rows) error {
		var rec ledger.Record
		err := rows.Scan(&rec.Key, &rec.Body)
		found[rec.Key] = rec.Body
		return err
	})
	bodies := make([][]byte, len(keys))
	for i, key := range keys {
		bodies[i] = found[key]
	}
	return bodies, err
}

// getQuery returns the statement that reads records one after another, in the order of their keys.
// OFFSET makes the server look up each key. With key = ANY it may instead read all records of the kind
// and compare the keys, if its statistics are older than most of the records.
func (t *transaction) getQuery(kind string, keys []string, lock string) *query {
	b := &builder{}
	return b.query(
		"SELECT r.key, r.body::text FROM unnest("+b.bind("keys", "text[]", slices.Sorted(slices.Values(keys)))+") AS w(key)",
		"CROSS JOIN LATERAL (SELECT key, body FROM sluicebox.record", b.ofKind(t.name, kind), "AND key = w.key OFFSET 0 "+lock+") r",
	)
}

// ofKind is the condition that a record of a relay has a kind.
func (b *builder) ofKind(relay, kind string) string {
	return "WHERE name = " + b.bind("name", "text", relay) + " AND kind = " + b.bind("kind", "text", kind)
}

// List implements ledger.RecordReader.
func (t *transaction) List(ctx context.Context, kind, prefix string, limit int, take func(ledger.Record) error) error {
	b := &builder{}
	read := b.query(
		"SELECT key, body::text FROM sluicebox.record", b.ofKind(t.name, kind),
		"AND key >= "+b.bind("from", "text", prefix)+" AND key < "+b.bind("to", "text", prefix+ledger.AfterKeys),
		"ORDER BY key LIMIT nullif("+b.bind("limit", "bigint", int64(limit))+", 0)",
	)
	return t.read(ctx, read, func(rows pgx.Rows) error {
		var rec ledger.Record
		if err := rows.Scan(&rec.Key, &rec.Body); err != nil {
			return err
		}
		return take(rec)
	})
}

// putQuery returns the statement that writes records.
func (t *transaction) putQuery(returning, kind string, records ...ledger.Record) *query {
	keys, bodies := make([]string, len(records)), make([]string, len(records))
	for i := range records {
		keys[i], bodies[i] = records[i].Key, string(records[i].Body)
	}
	b := &builder{}
	return b.query(
		"INSERT INTO sluicebox.record AS r (name, kind, key, body, version)",
		"SELECT "+b.bind("name", "text", t.name)+", "+b.bind("kind", "text", kind)+", u.key, u.body::json, 1",
		"FROM unnest("+b.bind("keys", "text[]", keys)+", "+b.bind("bodies", "text[]", bodies)+") AS u(key, body)",
		"ON CONFLICT (name, kind, key) DO UPDATE SET body = excluded.body, version = r.version + 1", returning,
	)
}

// Put implements ledger.Writer.
func (t *transaction) Put(_ context.Context, kind string, records ...ledger.Record) error {
	if len(records) > 0 {
		t.add(t.putQuery("", kind, records...), nil)
	}
	return nil
}

// Delete implements ledger.Writer. Each record is a statement of the batch, because a plan for several
// that was made while there were few records may read all of them.
func (t *transaction) Delete(_ context.Context, kind string, keys ...string) error {
	for _, key := range keys {
		t.add(t.deleteQuery(kind, key), nil)
	}
	return nil
}

func (t *transaction) deleteQuery(kind, key string) *query {
	b := &builder{}
	return b.query("DELETE FROM sluicebox.record", b.ofKind(t.name, kind), "AND key = "+b.bind("key", "text", key))
}
