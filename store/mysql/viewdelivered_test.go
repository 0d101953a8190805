package mysql_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestDeliveredTypes checks that any time type is accepted, rows without a valid time are
// counted, and ids that the column cannot hold match no row.
func TestDeliveredTypes(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		const sent = `CREATE TABLE %[1]s (id %[2]s UNIQUE, message_group varchar(99), payload longtext, status varchar(20), retry_count int,
  created_at %[3]s, processed_at datetime(6), error_message text)`
		var boxes []store.Outbox
		for _, c := range []struct{ table, id, time string }{
			{"fine", "varchar(20)", "datetime(6)"}, {"plain", "bigint NOT NULL", "timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP"},
			{"days", "binary(2)", "date"}, {"words", "int", "varchar(30)"},
		} {
			servers.ExecMySQL(t, url, fmt.Sprintf(sent, c.table, c.id, c.time))
			o := flowBox()
			o.Name, o.Table = c.table, c.table
			boxes = append(boxes, o)
		}

		r := newRig(t, url, flowTable, 0, boxes...)
		r.db.SetMaxOpenConns(1)
		r.exec(t, "SET SESSION sql_mode = '', time_zone = '+00:00'")
		for _, rows := range []string{
			"fine (id, created_at) VALUES ('a', '2024-02-29 12:00:00.000001'), ('b', NULL), ('c', '0000-00-00 00:00:00'), (NULL, NULL), ('d', '2024-02-00 00:00:00')",
			"plain (id, created_at) VALUES (2, '2024-02-29 12:00:00'), (1, '2024-02-29 12:00:00'), (3, '2024-02-28 12:00:00')",
			"days (id, created_at) VALUES (X'3a00', '2024-02-29'), (X'3a01', '2024-02-28')", "words (id, created_at) VALUES (1, '2024-02-29')",
		} {
			r.exec(t, "INSERT INTO "+rows)
		}

		for _, o := range boxes {
			r.exec(t, "UPDATE "+o.Table+" SET status = 'COMPLETED'")
		}

		feb := func(day int) time.Time { return time.Date(2024, 2, day, 0, 0, 0, 0, time.UTC) }
		ids := []string{"1", "007", "abc", "", "A", "\x00", "\xff", "a", "99999999999999999999", "0x3a00", "a"}
		const fine, plain, days = "a 2024-02-29T12:00:00.000001Z", "1 2024-02-29T12:00:00Z", "0x3a00 2024-02-29T00:00:00Z"
		for _, c := range []struct {
			q       store.DeliveredQuery
			want    string
			undated int
		}{
			{store.DeliveredQuery{Outbox: "fine"}, fine, 3},
			{store.DeliveredQuery{Outbox: "fine", Since: feb(1)}, fine, 1},
			{store.DeliveredQuery{Outbox: "fine", Until: feb(30), IDs: ids}, fine, 0},
			{store.DeliveredQuery{Outbox: "plain", Since: feb(29)}, plain + ", 2 2024-02-29T12:00:00Z", 0},
			{store.DeliveredQuery{Outbox: "plain", IDs: ids}, plain, 0},
			{store.DeliveredQuery{Outbox: "plain", IDs: ids[1:4]}, "", 0},
			{store.DeliveredQuery{Outbox: "days", Since: feb(29)}, days, 0},
			{store.DeliveredQuery{Outbox: "days", Since: feb(28).Add(time.Microsecond), Until: feb(29)}, "", 0},
			{store.DeliveredQuery{Outbox: "days", IDs: ids}, days, 0},
		} {
			rigs.WantDelivered(t, r.store, c.q, c.want, c.undated)
		}

		_, _, err := rigs.Delivered(t, r.store, store.DeliveredQuery{Outbox: "words"})
		rigs.WantSetup(t, "a text", err, "created_at", "words", "varchar(30)", "order-by", "log")
	})
}

// TestUnreadableRequestCount checks that an unreadable request counter does not prevent
// leadership, and that reading it leaves no transaction open.
func TestUnreadableRequestCount(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
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
		open := r.begin(t, "UPDATE sluicebox_record SET version = version + 5") // another session keeps a row locked
		rigs.WantRequestCount(t, "a request that is not committed", held, 1)
		if err := open.Rollback(); err != nil {
			t.Fatal(err)
		}

		conn, err := r.db.Conn(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		exec := func(query string) {
			t.Helper()
			if _, err := conn.ExecContext(ctx(t), query); err != nil {
				t.Fatalf("%s: %v", query, err)
			}
		}

		exec("LOCK TABLES sluicebox_record WRITE") // would wait for an open transaction that has read it
		rigs.WantRequestCount(t, "the table is locked", held, 1)
		exec("UNLOCK TABLES")
		exec("RENAME TABLE sluicebox_record TO gone")
		for range 3 {
			rigs.WantRequestCount(t, "no table", held, 0)
		}

		exec("RENAME TABLE gone TO sluicebox_record")
		request("b")
		rigs.WantRequestCount(t, "another request", held, 2)
		if _, err := openStore(t, url, 0, flowBox()).Lock(ctx(t)); err == nil {
			t.Error("the lock was lost")
		}
	})
}
