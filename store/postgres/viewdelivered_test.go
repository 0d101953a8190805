package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// sentTable is a table of delivered rows, with an id and a time of some types.
const sentTable = `
CREATE TABLE %[1]s (id %[2]s UNIQUE, message_group text, payload jsonb, status text, retry_count int, created_at %[3]s, processed_at timestamptz, error_message text);
INSERT INTO %[1]s (id, payload, created_at) VALUES %[4]s;
INSERT INTO %[1]s (created_at) VALUES ('2024-02-29');
UPDATE %[1]s SET status = 'COMPLETED'`

// TestDeliveredTypes: a time may have any time type, rows without a time are counted, and
// ids that the column cannot hold are ignored.
func TestDeliveredTypes(t *testing.T) {
	url := servers.Database(t, servers.Versions()[0]) + "&timezone=America/New_York"
	box := func(table string) store.Outbox {
		o := flowBox
		o.Name, o.Table = table, table
		return o
	}
	for _, c := range []struct{ table, id, time, rows string }{
		{"zoned", "uuid", "timestamptz", `('00000000-0000-0000-0000-00000000000a', '{}', '2024-02-29 12:00:00.000001+00'),
			('00000000-0000-0000-0000-00000000000b', '{}', NULL), ('00000000-0000-0000-0000-00000000000c', '{}', 'infinity'),
			('00000000-0000-0000-0000-00000000000d', '{}', '-infinity')`},
		{"plain", "bigint", "timestamp NOT NULL", `(2, '{}', '2024-02-29 07:00:00'), (1, '{}', '2024-02-29 07:00:00'), (3, '{}', '2024-02-28 07:00:00')`},
		{"days", "numeric(9, 2)", "date", `(2, '{}', '2024-02-29'), (1, '{}', '2024-02-28')`},
		{"words", "text", "text", `('1', '{}', '2024-02-29')`},
		{"longs", "bytea", "timestamptz", `('1', '{}', '2024-02-29')`},
	} {
		servers.Exec(t, url, fmt.Sprintf(sentTable, c.table, c.id, c.time, c.rows))
	}
	r := newRig(t, url, "SELECT", 0, box("zoned"), box("plain"), box("days"), box("words"), box("longs"))
	feb := func(day int) time.Time { return time.Date(2024, 2, day, 0, 0, 0, 0, time.UTC) }
	ids := []string{"1", "2.00", "007", "abc", "", "\x00", "\xff", "00000000-0000-0000-0000-00000000000A", "00000000-0000-0000-0000-00000000000a", "99999999999999999999", `\x31`}
	const zoned, plain = "00000000-0000-0000-0000-00000000000a 2024-02-29T12:00:00.000001Z", "1 2024-02-29T12:00:00Z"
	for _, c := range []struct {
		q       store.DeliveredQuery
		want    string
		undated int
	}{
		{store.DeliveredQuery{Outbox: "zoned"}, zoned, 3},
		{store.DeliveredQuery{Outbox: "zoned", Since: feb(1)}, zoned, 2},
		{store.DeliveredQuery{Outbox: "zoned", Since: feb(1), Until: feb(30)}, zoned, 1},
		{store.DeliveredQuery{Outbox: "zoned", Since: feb(1), IDs: ids}, zoned, 0},
		{store.DeliveredQuery{Outbox: "plain", Since: feb(29)}, plain + ", 2 2024-02-29T12:00:00Z", 0},
		{store.DeliveredQuery{Outbox: "plain", Since: feb(29), IDs: ids}, plain, 0},
		{store.DeliveredQuery{Outbox: "days", Since: time.Date(2024, 2, 29, 5, 0, 0, 0, time.UTC)}, "2.00 2024-02-29T05:00:00Z", 0},
		{store.DeliveredQuery{Outbox: "days", IDs: ids}, "2.00 2024-02-29T05:00:00Z", 0},
		{store.DeliveredQuery{Outbox: "longs", IDs: ids}, `\x31 2024-02-29T05:00:00Z`, 0},
	} {
		rigs.WantDelivered(t, r.store, c.q, c.want, c.undated)
	}
	_, _, err := rigs.Delivered(t, r.store, store.DeliveredQuery{Outbox: "words"})
	rigs.WantSetup(t, "a text", err, "created_at", "words", "text", "order-by", "log")
}

// TestLockWithUnreadableRequests: an unreadable request count prevents no leadership.
func TestLockWithUnreadableRequests(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		held := takeLock(t, r.store)
		request := func(name string) {
			t.Helper()
			if err := r.store.RequestSavepoint(ctx(t), name, false); err != nil {
				t.Fatal(err)
			}
		}
		request("a")
		rigs.WantRequestCount(t, "a request", held, 1)
		locked := r.begin(t, "LOCK TABLE sluicebox.record IN ACCESS EXCLUSIVE MODE")
		rigs.WantRequestCount(t, "the table is locked", held, 1)
		end(t, locked, false)
		for _, c := range []struct{ away, back string }{
			{"ALTER TABLE sluicebox.record RENAME TO gone", "ALTER TABLE sluicebox.gone RENAME TO record"},
			{"ALTER SCHEMA sluicebox RENAME TO gone", "ALTER SCHEMA gone RENAME TO sluicebox"},
		} {
			r.exec(t, c.away)
			for range 3 {
				rigs.WantRequestCount(t, c.away, held, 0)
			}
			r.exec(t, c.back)
			rigs.WantRequestCount(t, "the ping that finds the table", held, 0)
			rigs.WantRequestCount(t, c.back, held, 1)
		}
		request("b")
		rigs.WantRequestCount(t, "another request", held, 2)
		if _, err := locker(t, url, "rival").Lock(ctx(t)); err == nil {
			t.Error("the lock was lost")
		}
	})
}
