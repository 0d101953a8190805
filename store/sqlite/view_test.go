package sqlite_test

import (
	"os"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
)

// TestDeliveredTimeFormats: times of several formats in one table are read, and invalid ones are
// counted.
func TestDeliveredTimeFormats(t *testing.T) {
	r := newRig(t, `
CREATE TABLE outbox_events (id, message_group, payload, status, retry_count, created_at TIMESTAMP, processed_at, error_message);
CREATE UNIQUE INDEX by_id ON outbox_events (id);
CREATE INDEX by_status ON outbox_events (status);
INSERT INTO outbox_events (id, created_at) VALUES (1, '2024-02-29 12:00:00.000001'), ('a', '2024-02-29T12:00:00+01:00'), (x'0a', '2024-02-29'),
  (4, 1709208000), (5, 1709208000123), ('b', NULL), ('c', 'soon'), ('d', 1.5), (NULL, '2024-02-29'), (2.5, '2024-02-29'), ('07', '2024-03-01 00:00:00');
UPDATE outbox_events SET status = 'COMPLETED'`, 0, flowBox())
	feb29 := time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC)
	const numbers = "4 2024-02-29T12:00:00Z, 5 2024-02-29T12:00:00.123Z, "
	const texts = "1 2024-02-29T12:00:00.000001Z, a 2024-02-29T11:00:00Z, "
	for _, c := range []struct {
		q       store.DeliveredQuery
		want    string
		undated int
	}{
		{store.DeliveredQuery{}, numbers + "x'0a' 2024-02-29T00:00:00Z, " + texts + "07 2024-03-01T00:00:00Z", 3},
		{store.DeliveredQuery{Since: feb29.Add(time.Nanosecond), Until: feb29.AddDate(0, 0, 1)}, numbers + texts[:len(texts)-2], 3},
		{store.DeliveredQuery{IDs: []string{"4", "x'0a'", "7", "A", "c", "\xff"}}, "4 2024-02-29T12:00:00Z, x'0a' 2024-02-29T00:00:00Z", 1},
	} {
		c.q.Outbox = "events"
		rigs.WantDelivered(t, r.store, c.q, c.want, c.undated)
	}
}

// TestUnreadableRequestCount: a request count that cannot be read does not prevent leadership.
func TestUnreadableRequestCount(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	held, err := r.store.Lock(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	request := func(name string) {
		t.Helper()
		if err := r.store.RequestSavepoint(ctx(t), name, false); err != nil {
			t.Fatal(err)
		}
	}
	request("a")
	rigs.WantRequestCount(t, "a request", held, 1)
	r.db.SetMaxOpenConns(1)
	r.exec(t, "BEGIN EXCLUSIVE")
	r.exec(t, "UPDATE sluicebox_record SET version = 9")
	rigs.WantRequestCount(t, "the file is locked", held, 1)
	r.exec(t, "ROLLBACK")
	r.exec(t, "ALTER TABLE sluicebox_record RENAME TO gone")
	for range 2 {
		rigs.WantRequestCount(t, "no table", held, 0)
	}
	r.exec(t, "ALTER TABLE gone RENAME TO sluicebox_record")
	request("b")
	rigs.WantRequestCount(t, "another request", held, 2)

	r.exec(t, "VACUUM INTO ?", r.path+".copy")
	if err := os.Rename(r.path, r.path+".old"); err != nil {
		t.Fatal(err)
	}
	rigs.WantRequestCount(t, "no file", held, 2)
	for _, end := range []string{"-wal", "-shm"} {
		if err := os.Remove(r.path + end); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(r.path+".copy", r.path); err != nil {
		t.Fatal(err)
	}
	request("c")
	rigs.WantRequestCount(t, "a request in a restored file", held, 3)
}
