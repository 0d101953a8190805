package mysql_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestCompressed reads compressed transactions. MySQL compresses each transaction as a
// whole, MariaDB its rows and its statements.
func TestCompressed(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		settings := map[string]string{"binlog-transaction-compression": "ON"}
		if f == servers.MariaDB {
			settings = map[string]string{"log-bin-compress": "ON", "log-bin-compress-min-len": "10"}
		}

		d := newDatabase(t, f, f.Start(t, settings).Database())
		fo, src, _ := follow(t, d, d.config(), store.Checkpoint{})
		long := strings.Repeat("compressible ", 1000)
		for i := range 20 {
			d.Begin(t, capturetest.Row{ID: fmt.Sprintf("a%02d", i), Payload: long}, capturetest.Row{ID: fmt.Sprintf("b%02d", i), Payload: long})(true)
		}

		d.exec(t, "ALTER TABLE outbox_events ADD COLUMN extra int FIRST -- "+long)
		d.Begin(t, capturetest.Row{ID: "last", Payload: long})(true)
		if err := src.Mark(t.Context(), "end"); err != nil {
			t.Fatal(err)
		}

		fo.Until("the marker", func() bool { return len(fo.Marks) > 0 })
		if len(fo.Items) != 41 || fo.Items[40].ID != "last" {
			t.Fatalf("got %d rows", len(fo.Items))
		}

		for i := range fo.Items {
			if string(fo.Items[i].Payload) != long {
				t.Errorf("row %s has another payload", fo.Items[i].ID)
			}
		}
	})
}

// TestXA checks that XA transactions arrive when they are prepared.
func TestXA(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		d := newDatabase(t, f, f.Database(t))
		fo, src, _ := follow(t, d, d.config(), store.Checkpoint{})
		xa := func(name, last string) string {
			return fmt.Sprintf("XA START '%s'; %s; XA END '%[1]s'; %[3]s", name, insert(name), last)
		}
		servers.ExecMySQL(t, d.url, xa(d.name+"one", "XA COMMIT '"+d.name+"one' ONE PHASE"))
		servers.ExecMySQL(t, d.url, xa(d.name+"two", "XA PREPARE '"+d.name+"two'; XA COMMIT '"+d.name+"two'"))
		servers.ExecMySQL(t, d.url, xa(d.name+"gone", "XA PREPARE '"+d.name+"gone'; XA ROLLBACK '"+d.name+"gone'"))
		d.exec(t, insert("after"))
		if err := src.Mark(t.Context(), "end"); err != nil {
			t.Fatal(err)
		}
		fo.Until("the marker", func() bool { return len(fo.Marks) > 0 })
		fo.Expect(d.name+"one", d.name+"two", d.name+"gone", "after") // a claim finds the third gone
	})
}

// TestTransactions checks other ways to end or split a transaction.
func TestTransactions(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		d := newDatabase(t, f, f.Database(t))
		d.exec(t, "CREATE TABLE plain (n int) ENGINE=MyISAM", "CREATE TABLE source (id varchar(64), payload text)", "INSERT INTO source VALUES ('s1', 'x'), ('s2', 'y')",
			"CREATE TRIGGER copies AFTER INSERT ON source FOR EACH ROW INSERT INTO outbox_events (id, payload) VALUES (NEW.id, NEW.payload)")

		fo, src, _ := follow(t, d, d.config(), store.Checkpoint{})
		servers.ExecMySQL(t, d.url,
			"BEGIN; "+insert("kept")+"; SAVEPOINT s; "+insert("undone")+"; ROLLBACK TO SAVEPOINT s; "+insert("too")+"; COMMIT",
			"INSERT INTO plain VALUES (1)",
			"BEGIN; INSERT INTO plain VALUES (2); "+insert("mixed")+"; COMMIT",
			"INSERT INTO outbox_events (id, payload) SELECT concat('copy of ', id), payload FROM source ORDER BY id",
			"INSERT INTO source VALUES ('triggered', 'x')",
			"CREATE TABLE made AS SELECT * FROM source",
			"TRUNCATE TABLE made; ANALYZE TABLE made; OPTIMIZE TABLE made; DROP TABLE made",
			"UPDATE outbox_events SET status = 'PROCESSING'; DELETE FROM outbox_events WHERE id = 'kept'",
			"REPLACE INTO outbox_events (id, payload) VALUES ('replaced', 'x')",
			"INSERT INTO outbox_events (id, payload) VALUES ('replaced', 'y') ON DUPLICATE KEY UPDATE payload = 'z'",
			"BEGIN; "+insert("rolled back")+"; ROLLBACK",
			"FLUSH BINARY LOGS",
			insert("last"))

		if err := src.Mark(t.Context(), "end"); err != nil {
			t.Fatal(err)
		}
		fo.Until("the marker", func() bool { return len(fo.Marks) > 0 })
		fo.Expect("kept", "too", "mixed", "copy of s1", "copy of s2", "triggered", "replaced", "last")
	})
}

// TestPartitionedByStatus checks that a row that the relay's own UPDATE moves to another
// partition is not captured again.
func TestPartitionedByStatus(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		d := newDatabase(t, f, f.Database(t))
		d.exec(t, "ALTER TABLE outbox_events DROP PRIMARY KEY, ADD PRIMARY KEY (id, status)",
			"ALTER TABLE outbox_events PARTITION BY LIST COLUMNS (status) (PARTITION open VALUES IN ('PENDING'), PARTITION busy VALUES IN ('PROCESSING'), PARTITION done VALUES IN ('COMPLETED', 'FAILED'))")
		fo, _, _ := follow(t, d, d.config(), store.Checkpoint{})
		d.exec(t, insert("a"), "UPDATE outbox_events SET status = 'PROCESSING'", "UPDATE outbox_events SET status = 'PENDING'", "UPDATE outbox_events SET status = 'COMPLETED'", insert("b"))
		fo.Rows(2)
		fo.Expect("a", "b")
	})
}

// TestLargeRow reads a row that is larger than a packet of the protocol, which has less than 16 MiB.
func TestLargeRow(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		d := newDatabase(t, f, f.Start(t, map[string]string{"max-allowed-packet": "64M"}).Database())
		fo, _, _ := follow(t, d, d.config(), store.Checkpoint{})
		d.exec(t, "INSERT INTO outbox_events (id, payload) VALUES ('large', repeat('0123456789abcdef', 9 * 128 * 1024))", insert("after"))
		fo.Rows(2)
		fo.Expect("large", "after")
		if n := len(fo.Items[0].Payload); n != 18<<20 {
			t.Errorf("payload: got %d bytes", n)
		}
	})
}

// TestTap reads beside a relay with a server id of its own.
func TestTap(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		d := newDatabase(t, f, f.Database(t))
		relay, _, _ := follow(t, d, d.config(), store.Checkpoint{})
		tap := newSource(t, d.config())
		defer tap.Close()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		out, begun, done := make(chan capture.Batch), make(chan struct{}), make(chan error, 1)
		go func() { done <- tap.Tap(ctx, out, func() { close(begun) }) }()

		select {
		case <-begun:
		case err := <-done:
			t.Fatal(err)
		}

		d.exec(t, insert("seen"))
		for rows := 0; rows < 1; {
			b := <-out
			rows += len(b.Items)
		}

		relay.Rows(1)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the tap ended with %v", err)
		}

		relay.End()
		if len(relay.Disconnects()) > 0 {
			t.Errorf("the relay lost its stream: %v", relay.Disconnects())
		}
	})
}

// TestOwnWrites checks that a relay's own writes yield no positions, because they would
// keep each other going.
func TestOwnWrites(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		d := newDatabase(t, f, f.Start(t, nil).Database())
		fo, _, _ := follow(t, d, d.config(), store.Checkpoint{})
		d.exec(t, insert("one"))
		fo.Rows(1)
		for range 3 {
			d.exec(t, "INSERT INTO sluicebox_record VALUES ('another', 'relay', 'checkpoint', '{}', 1) ON DUPLICATE KEY UPDATE version = version + 1")
		}

		for range 2 {
			if b := <-fo.Batches(); b.Position != "" || len(b.Items)+len(b.Marks) > 0 {
				t.Errorf("got %+v, want a heartbeat", b)
			}
		}

		d.Unrelated(t)
		late := time.After(40 * time.Second)
		for {
			select {
			case b := <-fo.Batches():
				if b.Position == "" {
					continue
				}
			case <-late:
				t.Error("got no position")
			}
			return
		}
	})
}
