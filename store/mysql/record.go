package mysql

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store/ledger"
)

// records is the table of the relay's records, read by its key. Without the hint the server
// may scan a small table, and lock records that the statement does not name.
const records = ownPrefix + "record AS r FORCE INDEX (PRIMARY)"

// Get implements ledger.RecordReader.
func (r reader) Get(ctx context.Context, kind string, keys ...string) ([][]byte, error) {
	return r.get(ctx, kind, keys, "")
}

// Lock implements ledger.Tx. The server locks the records in the order of their keys.
func (t writeTx) Lock(ctx context.Context, kind string, keys ...string) ([][]byte, error) {
	return t.get(ctx, kind, keys, "\nFOR UPDATE")
}

func (r reader) get(ctx context.Context, kind string, keys []string, lock string) ([][]byte, error) {
	found := make(map[string][]byte, len(keys))
	for chunk := range slices.Chunk(keys, maxKeys) {
		st := &statement{}
		text := r.getText(st, kind, chunk) + lock
		err := r.conn.query(ctx, text, st.args, func(rows *sql.Rows) error {
			var key string
			var body []byte
			err := rows.Scan(&key, &body)
			found[key] = body
			return err
		})
		if err != nil {
			return nil, err
		}
	}

	bodies := make([][]byte, len(keys))
	for i, key := range keys {
		bodies[i] = found[key]
	}
	return bodies, nil
}

// getText returns the statement that reads records, at most maxKeys of them.
func (r reader) getText(st *statement, kind string, keys []string) string {
	list := make([]any, len(keys))
	for i, key := range keys {
		list[i] = key
	}
	return "SELECT r.record_key, r.body FROM " + records + "\nWHERE r.name = " + st.arg(r.name) + " AND r.kind = " + st.arg(kind) +
		" AND r.record_key IN " + st.list("?", list)
}

// List implements ledger.RecordReader.
func (r reader) List(ctx context.Context, kind, prefix string, limit int, take func(ledger.Record) error) error {
	text := "SELECT r.record_key, r.body FROM " + records + "\nWHERE r.name = ? AND r.kind = ? AND r.record_key >= ? AND r.record_key < ? ORDER BY r.record_key"
	args := []any{r.name, kind, prefix, prefix + ledger.AfterKeys}
	if limit > 0 {
		text, args = text+" LIMIT ?", append(args, limit)
	}
	return r.conn.query(ctx, text, args, func(rows *sql.Rows) error {
		var rec ledger.Record
		if err := rows.Scan(&rec.Key, &rec.Body); err != nil {
			return err
		}
		return take(rec)
	})
}

// Now implements ledger.Tx.
func (t writeTx) Now(ctx context.Context) (time.Time, error) { return serverTime(ctx, t.conn) }

// Put implements ledger.Writer.
func (t writeTx) Put(ctx context.Context, kind string, records ...ledger.Record) error {
	size := func(rec *ledger.Record) int { return len(rec.Key) + len(rec.Body) }
	return inBatches(t.conn, records, size, func(some []ledger.Record) error {
		var args []any
		for _, rec := range some {
			args = append(args, t.name, kind, rec.Key, string(rec.Body))
		}
		_, err := t.conn.exec(ctx, t.conn.server.putText(len(some)), args...)
		return err
	})
}

// putText returns the statement that writes records. The servers have no common name for the new row.
func (s *server) putText(records int) string {
	const values = "(?, ?, ?, ?, 1)"
	text := "INSERT INTO " + ownPrefix + "record (name, kind, record_key, body, version) VALUES\n" + values + strings.Repeat(", "+values, records-1)
	if s.mariadb {
		return text + "\nON DUPLICATE KEY UPDATE body = VALUE(body), version = version + 1"
	}
	return text + " AS n\nON DUPLICATE KEY UPDATE body = n.body, version = " + ownPrefix + "record.version + 1"
}

// Delete implements ledger.Writer. It joins the keys, because a DELETE with a list of them reads, and locks, all
// of a small table, also with FORCE INDEX (measured: MySQL 9.7 and MariaDB 10.11, 16 keys of 20 records).
func (t writeTx) Delete(ctx context.Context, kind string, keys ...string) error {
	for some := range slices.Chunk(keys, maxKeys) {
		list, err := json.Marshal(some)
		if err != nil {
			return err
		}
		if _, err := t.conn.exec(ctx, deleteText, string(list), t.name, kind); err != nil {
			return err
		}
	}
	return nil
}

// deleteText is the statement that deletes the records whose keys, in ASCII, are in a JSON array.
const deleteText = "DELETE r FROM JSON_TABLE(?, '$[*]' COLUMNS (k VARCHAR(100) CHARACTER SET utf8mb4 PATH '$')) AS d STRAIGHT_JOIN " + records +
	"\nON r.name = ? AND r.kind = ? AND r.record_key = d.k"
