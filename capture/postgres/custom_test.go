package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestCustomTable takes rows of a table with timestamps as state through the WAL and
// through polling, each to an outcome. Both modes agree on the groups.
func TestCustomTable(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabaseOf(t, servers.Database(t, version), createOdd(), oddNames)
		c := ctxOf(t)
		if err := d.views.Install(c); err != nil {
			t.Fatal(err)
		}
		if err := d.views.Check(c); err != nil {
			t.Fatal(err)
		}
		epoch, err := d.views.AcquireLeadership(c)
		if err != nil {
			t.Fatal(err)
		}
		rows := []capturetest.Row{
			{ID: "delivered", Group: store.GroupOf("g"), Payload: "1"}, {ID: "failed", Group: store.GroupOf(""), Payload: "2"},
			{ID: "tried", Payload: "3"},
		}
		r := run(t, d, d.config(), store.Checkpoint{})
		d.Begin(t, rows...)(true)
		streamed := r.next().Items
		polled := pollOnce(t, d.views, d.outboxes("shop"))
		if len(streamed) != 3 || len(polled) != 3 {
			t.Fatalf("%d rows were streamed, %d polled", len(streamed), len(polled))
		}
		for i, want := range rows {
			s, p := &streamed[i], find(t, polled, want.ID)
			if s.ID != want.ID || s.Group != want.Group || p.Group != want.Group || s.Lane() != p.Lane() ||
				string(s.Payload) != want.Payload || string(p.Payload) != want.Payload {
				t.Errorf("row %s was streamed as %+v and polled as %+v", want.ID, s, p)
			}
		}
		settleThree(t, d.views, epoch, streamed)
		left := pollOnce(t, d.views, d.outboxes("shop"))
		if len(left) != 1 || left[0].ID != "tried" || left[0].RetryCount != 1 {
			t.Errorf("got unsettled rows %+v, want the row to retry", left)
		}
	})
}

func ctxOf(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return c
}

// settleThree claims three rows and writes an outcome of each kind.
func settleThree(t *testing.T, st *pgstore.Store, epoch store.Epoch, items []store.Item) {
	t.Helper()
	claims, outcomes := make([]store.ClaimRow, 3), make([]store.Outcome, 3)
	for i := range items {
		claims[i] = store.ClaimRow{Ref: items[i].Ref, Txn: items[i].Txn}
		outcomes[i] = store.Outcome{Ref: items[i].Ref, RetryCount: 1, At: time.Now(), Status: []store.Status{store.Completed, store.Failed, store.Pending}[i]}
	}
	// The walsender is sometimes ahead of visibility.
	for deadline := time.Now().Add(testTimeout); ; {
		answers, err := st.Claim(ctxOf(t), epoch, time.Now(), claims)
		if err != nil {
			t.Fatal(err)
		}
		claimed := 0
		for _, a := range answers {
			if a.Result == store.Claimed {
				claimed++
			}
		}
		if claimed == 3 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("got claim answers %+v", answers)
		}
	}
	results, err := st.Settle(ctxOf(t), epoch, outcomes)
	if err != nil {
		t.Fatal(err)
	}
	for i, result := range results {
		if result != store.Written {
			t.Errorf("the outcome of %s: %d", items[i].ID, result)
		}
	}
}

// pollOnce returns the rows of the first poll.
func pollOnce(t *testing.T, views store.Viewer, outboxes []store.Outbox) []store.Item {
	t.Helper()
	src := poll.New(poll.Config{Interval: time.Second, BatchSize: 10, Outboxes: outboxes}, views, capturetest.HeldFunc(nil))
	c, cancel := context.WithCancel(ctxOf(t))
	out, done := make(chan capture.Batch), make(chan error, 1)
	go func() { done <- src.Run(c, capture.Span{}, out) }()
	var items []store.Item
	select {
	case b := <-out:
		items = b.Items
	case err := <-done:
		t.Fatalf("the poll ended: %v", err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the poll ended with %v", err)
	}
	return items
}

func find(t *testing.T, items []store.Item, id string) *store.Item {
	t.Helper()
	for i := range items {
		if items[i].ID == id {
			return &items[i]
		}
	}
	t.Fatalf("row %s is not among %+v", id, items)
	return nil
}

// TestGeneratedColumn: the WAL does not contain a generated column. That is reported
// before the first row, and the table can be polled.
func TestGeneratedColumn(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		servers.Exec(t, d.url, "ALTER TABLE outbox_events DROP message_group",
			"ALTER TABLE outbox_events ADD message_group text GENERATED ALWAYS AS (substr(payload, 1, 1)) STORED")
		err := openErr(t, d, d.config(), store.Checkpoint{})
		var no *capture.NoStreamError
		if !errors.As(err, &no) {
			t.Fatalf("got %v, want a *capture.NoStreamError", err)
		}
		expectText(t, err, `outbox shop: column "message_group" (columns.group) of table "public"."outbox_events" is generated`, "group-path", "or poll")
		servers.Exec(t, d.url, "INSERT INTO outbox_events (id, payload) VALUES ('a', 'xyz')")
		if items := pollOnce(t, d.views, d.outboxes("shop")); len(items) != 1 || items[0].Group != store.GroupOf("x") {
			t.Errorf("polled %+v", items)
		}
	})
	// Since version 18 a publication may include stored generated columns.
	versions := servers.Versions()
	if last := versions[len(versions)-1]; last >= 18 {
		d := newDatabase(t, servers.Database(t, last))
		servers.Exec(t, d.url, "ALTER TABLE outbox_events DROP message_group",
			"ALTER TABLE outbox_events ADD message_group text GENERATED ALWAYS AS (substr(payload, 1, 1)) STORED",
			"CREATE PUBLICATION "+d.name+" FOR TABLE outbox_events WITH (publish = 'insert', publish_via_partition_root = true, publish_generated_columns = stored)")
		r := run(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, "INSERT INTO outbox_events (id, payload) VALUES ('a', 'xyz')")
		if items := r.next().Items; len(items) != 1 || items[0].Group != store.GroupOf("x") {
			t.Errorf("streamed %+v", items)
		}
	}
}
