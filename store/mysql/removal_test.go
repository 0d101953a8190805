package mysql

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestRemovalLocksNoOtherRow: rows of a queue are removed beside another session's new row,
// in tables so small that the server would rather read all of them.
func TestRemovalLocksNoOtherRow(t *testing.T) {
	const box = "box"
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			for _, rows := range []int{2, 20, 200} {
				url := f.Database(t)
				st, epoch := scriptLeader(t, url)
				var items []store.Item
				var refs []store.SpilledRef
				for i := range rows {
					ref := store.Ref{Outbox: box, ID: fmt.Sprint("id ", i)}
					items = append(items, store.Item{Ref: ref, Kind: "EVENT", Group: store.GroupOf("g"), Seq: store.Seq(i + 1)})
					refs = append(refs, store.SpilledRef{Ref: ref, Seq: store.Seq(i + 1)})
				}
				if err := st.Spill(t.Context(), epoch, items); err != nil {
					t.Fatal(err)
				}

				servers.ExecMySQL(t, url, "ANALYZE TABLE sluicebox_queue")
				other, err := servers.OpenMySQL(t, url).BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, n := range []int{0, 1000} { // in front of the others, and behind
					if _, err := other.Exec("INSERT INTO sluicebox_queue (name, queue, outbox, lane, n, id, kind, retry_count, payload_size) "+
						"VALUES ('rig', '', 'box', REPEAT('x', 20), ?, 'new', 'EVENT', 0, 0)", n); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				started := time.Now()
				for _, some := range [][]store.SpilledRef{refs[:1], refs[1 : 1+(rows-1)*4/5], refs[1+(rows-1)*4/5:]} {
					if err := st.DeleteSpilled(ctx, epoch, some); err != nil {
						t.Errorf("%d of %d rows, after %s: %v", len(some), rows, time.Since(started), err)
					}
				}
				if n, err := st.DeleteSpilledAfter(ctx, epoch, store.Checkpoint{Seq: 5000}); n != 0 || err != nil {
					t.Errorf("%d rows behind the others: %d, %v", rows, n, err)
				}
				cancel()
				if err := other.Rollback(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestRecordsLockNoOtherRecord: records are written and deleted beside other sessions' new records, in
// tables so small that the server would rather read all of them.
func TestRecordsLockNoOtherRecord(t *testing.T) {
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			for _, n := range []int{2, 20, 200} {
				url := f.Database(t)
				st, epoch := scriptLeader(t, url)
				db := servers.OpenMySQL(t, url)
				var records []ledger.Record
				var keys []string
				for i := range n {
					key := fmt.Sprintf("key %03d", i)
					keys, records = append(keys, key), append(records, ledger.Record{Key: key, Body: fmt.Appendf(nil, `{"n": %d}`, i)})
				}
				write := func(do func(ctx context.Context, tx ledger.Tx) error) {
					t.Helper()
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					if err := (backend{st, st.operator}).Update(ctx, epoch, ledger.Full, do); err != nil {
						t.Errorf("%d records: %v", n, err)
					}
				}
				put := func(ctx context.Context, tx ledger.Tx) error { return tx.Put(ctx, "test", records...) }
				write(put)
				servers.ExecMySQL(t, url, "ANALYZE TABLE sluicebox_record")
				other, err := db.BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, key := range []string{"a", "key 000a", "z"} { // in front of the others, between them, and behind
					if _, err := other.Exec("INSERT INTO sluicebox_record (name, kind, record_key, body, version) VALUES ('rig', 'test', ?, '{}', 1)", key); err != nil {
						t.Fatal(err)
					}
				}
				write(put)
				const stored = "SELECT COUNT(*) FROM sluicebox_record WHERE name = 'rig' AND kind = 'test' AND version = ? AND JSON_VALUE(body, '$.n') = CAST(SUBSTRING(record_key, 5) AS UNSIGNED)"
				var count int
				if err := db.QueryRow(stored, 2).Scan(&count); err != nil || count != n {
					t.Errorf("%d of %d records were written twice, %v", count, n, err)
				}
				few := keys[:1+(n-1)*4/5]
				for _, some := range [][]string{few, {"none", keys[0]}} {
					write(func(ctx context.Context, tx ledger.Tx) error { return tx.Delete(ctx, "test", some...) })
				}
				if err := db.QueryRow(stored, 2).Scan(&count); err != nil || count != n-len(few) {
					t.Errorf("%d of %d records are left, %v", count, n, err)
				}
				if err := other.Rollback(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
