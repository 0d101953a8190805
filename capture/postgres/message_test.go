package postgres_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// messageLayout reads the members of a message.
func messageLayout() store.Layout {
	return store.Layout{
		Name: store.CustomLayout, State: store.StateNone, GroupRest: []string{"part.no"},
		Columns:    store.Columns{ID: "id", Group: "tenant", Payload: "body"},
		Attributes: []store.AttributeColumn{{Column: "type", Name: store.AttributeType}, {Column: "headers", Spread: true}},
	}
}

// messagesOf is an outbox of messages with a prefix. It names no table.
func messagesOf(prefix string, l store.Layout) func(string) []store.Outbox {
	return func(name string) []store.Outbox {
		return []store.Outbox{{Name: name, MessagePrefix: prefix, Kind: "EVENT", Layout: l}}
	}
}

func newMessages(t *testing.T, version int, l store.Layout) *database {
	t.Helper()
	return newDatabaseOf(t, servers.Database(t, version), "CREATE TABLE other (n int)", messagesOf("orders", l))
}

// emit is a statement that emits a message.
func emit(transactional bool, prefix, content string) string {
	return fmt.Sprintf("SELECT pg_logical_emit_message(%t, %s, %s)", transactional, quoted(prefix), quoted(content))
}

// TestMessages: the transactional messages of a prefix are rows, in the order in which they were
// emitted. Others are not, nor are those of a transaction that was rolled back.
func TestMessages(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newMessages(t, version, messageLayout())
		cfg := d.config()
		expectFinding(t, cfg, "publication", store.GradeAdvice, `CREATE PUBLICATION "`+d.name+`" WITH (publish`)
		servers.Exec(t, d.url, emit(true, "orders", `{"id": "before the slot"}`))
		r := run(t, d, cfg, store.Checkpoint{})
		servers.Exec(t, d.url,
			"BEGIN", emit(true, "orders", `{"id": "rolled back"}`), "ROLLBACK", emit(false, "orders", `{"id": "not transactional"}`),
			emit(true, "order", `{"id": "another prefix"}`),
			"BEGIN",
			emit(true, "orders", ` {"id": 7, "tenant": "a/b", "part": {"no": null}, "body": {"n":  1}, "type": "paid", "headers": {"trace": "x"}, "id": 8}`),
			emit(true, "orders", `{"id": "ä\"1", "tenant": "", "part": {"no": 2}, "body": "text\u0000", "type": "a\u0000b", "other": 1}`),
			"SAVEPOINT s", emit(true, "orders", `{"id": "undone"}`), "ROLLBACK TO s",
			"INSERT INTO other VALUES (1)", emit(true, "orders", `{"id": "3"}`), "COMMIT")
		got := r.next()
		want := []store.Item{
			{
				Ref: store.Ref{ID: "8"}, Group: store.GroupOf(`a\/b/\N`), Payload: []byte(`{"n":  1}`),
				Attributes: store.Attributes{{Name: "type", Value: "paid"}, {Name: "trace", Value: "x"}},
			},
			{
				Ref: store.Ref{ID: `ä"1`}, Group: store.GroupOf("/2"), Payload: []byte("text\x00"),
				Attributes: store.Attributes{{Name: "type", Value: "a\ufffdb"}},
			},
			{Ref: store.Ref{ID: "3"}, Payload: []byte{}},
		}
		if len(got.Items) != len(want) {
			t.Fatalf("%d messages are rows, want %d: %+v", len(got.Items), len(want), got.Items)
		}
		for i := range want {
			w, g := &want[i], &got.Items[i]
			if g.ID != w.ID || g.Kind != "EVENT" || g.Group != w.Group || string(g.Payload) != string(w.Payload) || g.Payload == nil || !slices.Equal(g.Attributes, w.Attributes) {
				t.Errorf("message %d is %+v, want %+v", i, g, w)
			}
			if g.Outbox != "shop" || g.Txn == 0 || g.Committed.IsZero() {
				t.Errorf("message %d is %+v", i, g)
			}
		}
		r.close()
		expectFinding(t, cfg, "publication", store.GradeOK, "messages need no table")
	})
}

// TestWholeMessages: without columns the content is the payload, whatever it is, and the LSN the
// id. A second read of the WAL gives the same ids.
func TestWholeMessages(t *testing.T) {
	t.Parallel()
	oneVersion(t, func(t *testing.T, version int) {
		d := newMessages(t, version, store.Layout{Name: store.CustomLayout, State: store.StateNone})
		r := run(t, d, d.config(), store.Checkpoint{})
		at := store.Checkpoint{Origin: r.o.Origin, Position: r.o.From}
		servers.Exec(t, d.url, "BEGIN", emit(true, "orders", "not JSON"), emit(true, "orders", ""), `SELECT pg_logical_emit_message(true, 'orders', '\x00ff'::bytea)`, "COMMIT")
		first := r.next().Items
		r.close()
		again := run(t, d, d.config(), at).next().Items
		if len(first) != 3 || len(again) != 3 {
			t.Fatalf("%d messages, then %d, want 3", len(first), len(again))
		}
		last := pglogrepl.LSN(0)
		for i, want := range []string{"not JSON", "", "\x00\xff"} {
			lsn, err := pglogrepl.ParseLSN(first[i].ID)
			if err != nil || lsn <= last || first[i].ID != again[i].ID {
				t.Errorf("message %d has the id %q, then %q, after %s: %v", i, first[i].ID, again[i].ID, last, err)
			}
			last = lsn
			if g := first[i]; string(g.Payload) != want || g.Payload == nil || g.Group.Valid || g.Attributes != nil {
				t.Errorf("message %d is %+v, want the payload %q", i, g, want)
			}
		}
	})
}

// TestUnreadableMessages: a message that is not as the layout says is a row with the reason.
func TestUnreadableMessages(t *testing.T) {
	t.Parallel()
	oneVersion(t, func(t *testing.T, version int) {
		d := newMessages(t, version, messageLayout())
		r := run(t, d, d.config(), store.Checkpoint{})
		contents := map[string]string{
			"not JSON": "no JSON object", "": "no JSON object", `["id"]`: "no JSON object", `{"id": 1} {}`: "no JSON object",
			`{"body": 1}`: "no id in its member id", `{"id": null}`: "no id in its member id", `{"id": ""}`: "no id in its member id",
		}
		for content, reason := range contents {
			servers.Exec(t, d.url, emit(true, "orders", content))
			it := r.next().Items[0]
			text, bad := it.Attributes.Get(store.AttributeUnreadable)
			if _, err := pglogrepl.ParseLSN(it.ID); err != nil || !bad || !strings.Contains(text, reason) || string(it.Payload) != content || it.Group.Valid {
				t.Errorf("message %q is %+v, want the reason %q", content, it, reason)
			}
		}
		servers.Exec(t, d.url, emit(true, "orders", `{"id": "next"}`))
		if it := r.next().Items[0]; it.ID != "next" || len(it.Attributes) > 0 {
			t.Errorf("the message behind them is %+v", it)
		}
	})
}

// TestMessageOutboxes: an outbox names a table or a prefix, which no other has, and a layout
// without a state.
func TestMessageOutboxes(t *testing.T) {
	config := func(boxes ...store.Outbox) error {
		cfg := (&database{url: "postgres://u@127.0.0.1/d", name: "relay", outboxes: outboxes}).config()
		cfg.Outboxes = boxes
		return cfg.Validate()
	}
	box := messagesOf("orders", messageLayout())("a")[0]
	if err := config(box, outboxes("b")[0]); err != nil {
		t.Errorf("messages beside a table: %v", err)
	}
	twice, tabled, own, stated := box, box, box, box
	twice.Name = "b"
	tabled.Table = "t"
	own.MessagePrefix = "relay.mark"
	stated.Layout = store.FlowCatalyst()
	for want, err := range map[string]error{
		`message prefix "orders" has two outboxes`: config(box, twice), "have no table": config(tabled),
		"the relay's own messages": config(own), "use a layout with state none": config(stated),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestStoreOfMessages: checks, claims, outcomes and statuses need no table.
func TestStoreOfMessages(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newMessages(t, version, messageLayout())
		ctx := ctxOf(t)
		if err := errors.Join(d.views.Install(ctx), d.views.Check(ctx)); err != nil {
			t.Fatal(err)
		}
		found, err := d.views.Diagnose(ctx)
		if err != nil || slices.ContainsFunc(found, func(f store.Finding) bool { return f.Grade == store.GradeFault }) {
			t.Errorf("the diagnosis: %+v, %v", found, err)
		}
		epoch, err := d.views.AcquireLeadership(ctx)
		if err != nil {
			t.Fatal(err)
		}
		r := run(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, "BEGIN", emit(true, "orders", `{"id": 1}`), emit(true, "orders", `{"id": 2}`), emit(true, "orders", `{"id": 3}`), "COMMIT")
		settleThree(t, d.views, epoch, r.next().Items)
		if err := d.views.AwaitTable(ctx, "shop"); err != nil {
			t.Errorf("there is no table to wait for: %v", err)
		}
		rows := []store.ClaimRow{{Ref: store.Ref{Outbox: "shop", ID: "1"}, WantPayload: true}}
		if settled, err := d.views.ReadSettled(ctx, rows); err != nil || settled[0] {
			t.Errorf("settled %v, %v", settled, err)
		}
		view, err := d.views.View(ctx, "")
		if err != nil {
			t.Fatal(err)
		}
		defer view.Close()
		if items, err := view.Unsettled(ctx, store.UnsettledQuery{Outbox: "shop", Limit: 10}); err != nil || len(items) > 0 {
			t.Errorf("a view shows %+v, %v", items, err)
		}
	})
}
