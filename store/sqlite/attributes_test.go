package sqlite_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
)

// attributedTable has a group over two columns of different types, attributes, and the end of a
// claim. It has no place for FAILED.
const attributedTable = `
CREATE TABLE outbox_events (
    id INTEGER PRIMARY KEY, aggregate TEXT, tenant VARCHAR(20) COLLATE NOCASE, part BIGINT, headers JSON, body TEXT,
    sent_at DATETIME, in_progress_until %s, failures INT, last_error TEXT, created_at DATETIME)`

func attributedBox() store.Outbox {
	return store.Outbox{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: store.Layout{
		Name: store.CustomLayout, State: store.StateTimestamps, Lease: true, GroupRest: []string{"part"}, OrderBy: []string{"created_at", "id"},
		Columns: store.Columns{
			ID: "id", Group: "tenant", Payload: "body", Delivered: "sent_at", Claimed: "in_progress_until", RetryCount: "failures", Error: "last_error",
		},
		Attributes: []store.AttributeColumn{
			{Column: "aggregate", Name: store.AttributeKind}, {Column: "created_at", Name: store.AttributeTime}, {Column: "headers", Spread: true},
		},
	}}
}

// newAttributedRig has a column of a type for the end of a claim.
func newAttributedRig(t *testing.T, claimed string, boxes ...store.Outbox) *rig {
	t.Helper()
	return newRig(t, fmt.Sprintf(attributedTable, claimed), 10*time.Minute, boxes...)
}

// TestAttributes checks that views, claims and statuses read the attributes with the payload,
// and only with it, whatever the size of the payload.
func TestAttributes(t *testing.T) {
	for _, size := range []int{0, 1, 300 << 10} { // the claiming statement returns no payload of 300 KiB
		r := newAttributedRig(t, "DATETIME", attributedBox())
		payload := any(strings.Repeat("x", size))
		if size == 0 {
			payload = nil
		}
		r.exec(t, `INSERT INTO outbox_events (aggregate, headers, body, created_at) VALUES ('Grüße "\', '{"n": 1, "trace": "a", "none": null}', ?, '2024-02-29 12:00:00.5')`, payload)
		want := store.Attributes{{Name: "kind", Value: `Grüße "\`}, {Name: "time", Value: "2024-02-29T12:00:00.5Z"}, {Name: "n", Value: "1"}, {Name: "trace", Value: "a"}}
		view, err := r.store.View(ctx(t), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range []store.UnsettledQuery{{Outbox: "events", Limit: 9}, {Outbox: "events", Limit: 9, NoPayload: size > 0}} {
			items, err := view.Unsettled(ctx(t), q)
			if err != nil || len(items) != 1 || (items[0].Payload == nil) != q.NoPayload || slices.Equal(items[0].Attributes, want) == q.NoPayload {
				t.Errorf("a view: %+v, %v", items, err)
			}
		}
		view.Close()

		wanted := row("1")
		wanted.WantPayload = true
		if a := r.claim(t, wanted)[0]; a.Result != store.Claimed || a.Payload == nil || len(a.Payload) != size || !slices.Equal(a.Attributes, want) {
			t.Errorf("a claim: %s with a payload of %d bytes, %t, and %+v", a.Result, len(a.Payload), a.Payload != nil, a.Attributes)
		}
		r.exec(t, "UPDATE outbox_events SET in_progress_until = NULL")
		if a := r.claim(t, store.ClaimRow{Ref: row("1").Ref})[0]; a.Result != store.Claimed || a.Payload != nil || a.Attributes != nil {
			t.Errorf("a claim that wants no payload: %+v", a)
		}
		r.exec(t, "UPDATE outbox_events SET sent_at = CURRENT_TIMESTAMP, in_progress_until = NULL")
		states, err := r.store.ReadStatuses(ctx(t), []store.ClaimRow{wanted})
		if err != nil || states[0].State != store.RowCompleted || len(states[0].Payload) != size || !slices.Equal(states[0].Attributes, want) {
			t.Errorf("a status: %+v, %v", states, err)
		}
	}
}

// TestOwnKind checks that FAILED and delivered rows are found by their attribute kind.
func TestOwnKind(t *testing.T) {
	box := flowBox()
	box.Layout.Attributes = []store.AttributeColumn{{Column: "aggregate", Name: store.AttributeKind}}
	r := newRig(t, strings.Replace(flowTable, "type VARCHAR(20) NOT NULL DEFAULT 'EVENT'", "aggregate TEXT", 1), 0, box)
	r.exec(t, "INSERT INTO outbox_events (id, aggregate, status) VALUES ('1', 'order', 'FAILED'), ('2', NULL, 'FAILED'), ('3', 'order', 'COMPLETED'), ('4', 'invoice', 'COMPLETED')")
	for kind, want := range map[string]string{"order": "1", box.Kind: "2", "invoice": ""} {
		letters, err := r.store.Failed(ctx(t), store.DeadLetterFilter{Outbox: box.Name, Kind: kind}, 10, false)
		if got := fmt.Sprint(letters); err != nil || len(letters) != len(want) || len(want) > 0 && (letters[0].ID != want || letters[0].Kind != kind) {
			t.Errorf("FAILED rows of kind %s: %s, %v", kind, got, err)
		}
	}
	view, err := r.store.View(ctx(t), "")
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	var ids []string
	_, err = view.Delivered(ctx(t), store.DeliveredQuery{Outbox: box.Name, Kinds: []string{"order"}}, 10, func(items []store.Item) error {
		for i := range items {
			ids = append(ids, items[i].ID)
		}
		return nil
	})
	if err != nil || !slices.Equal(ids, []string{"3"}) {
		t.Errorf("delivered rows of a kind: %q, %v", ids, err)
	}
}

// TestGroupOfColumns checks that groups over columns are told apart, and that a view can leave
// out each of them.
func TestGroupOfColumns(t *testing.T) {
	r := newAttributedRig(t, "DATETIME", attributedBox())
	var want []store.Group
	for _, c := range []struct {
		tenant, part any
		group        string
	}{
		{"a", 1, "a/1"}, {"A", 1, "A/1"}, {"a", nil, `a/\N`}, {nil, 1, `\N/1`}, {nil, nil, ""}, {"", nil, `/\N`},
		{`\N`, nil, `\\N/\N`}, {"a/1", 0, `a\/1/0`}, {`☃\`, 2, `☃\\/2`},
	} {
		r.exec(t, "INSERT INTO outbox_events (tenant, part, body) VALUES (?, ?, 'x')", c.tenant, c.part)
		want = append(want, store.Group{Name: c.group, Valid: c.tenant != nil || c.part != nil})
	}
	if got := rigs.CheckExcludeLanes(t, r.store, len(want)); !slices.Equal(got, want) {
		t.Errorf("groups are %q, want %q", got, want)
	}
}

// TestLease checks that a claim writes its end, that another processor's holds a row until then,
// and that every outcome ends it.
func TestLease(t *testing.T) {
	for _, typ := range []string{"DATETIME", "INTEGER"} {
		t.Run(typ, func(t *testing.T) {
			r := newAttributedRig(t, typ, attributedBox())
			if err := r.store.Check(ctx(t)); err != nil {
				t.Error(err)
			}
			at, stored := time.Now().Add(-time.Minute).Truncate(time.Millisecond), func(at time.Time) any {
				if typ == "INTEGER" {
					return at.UnixMilli()
				}
				return at.UTC().Format("2006-01-02 15:04:05.000")
			}
			r.exec(t, `INSERT INTO outbox_events (id, body, in_progress_until) VALUES (1, 'mine', NULL), (2, 'theirs', ?), (3, 'over', ?), (4, 'refused', NULL), (5, 'retried', NULL)`,
				stored(time.Now().Add(5*time.Minute)), stored(time.Now().Add(-time.Second)))
			claim := func(own time.Time, ids ...string) []store.ClaimAnswer {
				t.Helper()
				rows := make([]store.ClaimRow, len(ids))
				for i, id := range ids {
					rows[i] = store.ClaimRow{Ref: row(id).Ref, OwnClaimAt: own}
				}
				answers, err := r.store.Claim(ctx(t), r.epoch, at, rows)
				if err != nil {
					t.Fatal(err)
				}
				return answers
			}
			answers := claim(time.Time{}, "1", "2", "3", "4", "5")
			for i, want := range []store.ClaimResult{store.Claimed, store.Held, store.Claimed, store.Claimed, store.Claimed} {
				if answers[i].Result != want || want == store.Claimed && answers[i].Unwritten {
					t.Errorf("row %d: %+v, want %s", i+1, answers[i], want)
				}
			}
			if left := time.Until(answers[1].Until); (left - 5*time.Minute).Abs() > 5*time.Second {
				t.Errorf("the other claim holds the row for %s, want 5m", left)
			}
			if got, want := ask[string](t, r.db, "SELECT CAST(in_progress_until AS TEXT) FROM outbox_events WHERE id = 1"), fmt.Sprint(stored(at.Add(10*time.Minute))); got != want {
				t.Errorf("the claim ends at %s, want %s", got, want)
			}
			if a := claim(time.Time{}, "1")[0]; a.Result != store.Held || (time.Until(a.Until)-9*time.Minute).Abs() > 5*time.Second {
				t.Errorf("another's claim: %s until %s, want it held until %s", a.Result, a.Until, at.Add(10*time.Minute))
			}
			if a := claim(at, "1")[0]; a.Result != store.Claimed {
				t.Errorf("the leader's own claim: %s", a.Result)
			}
			for i, got := range r.settle(t, outcome("1", store.Completed),
				store.Outcome{Ref: row("4").Ref, Status: store.Failed, RetryCount: 3, Error: "no", At: at},
				store.Outcome{Ref: row("5").Ref, Status: store.Pending, RetryCount: 2, Error: "later", At: at},
			) {
				if got != store.Written {
					t.Errorf("outcome %d: %d", i, got)
				}
			}
			const rows = `SELECT group_concat(id || ' ' || (sent_at IS NOT NULL) || ' ' || (in_progress_until IS NULL) || ' ' || coalesce(failures, '-') || ' ' || coalesce(last_error, '-'), ', ')
				FROM outbox_events WHERE id IN (1, 4, 5)`
			if got, want := ask[string](t, r.db, rows), "1 1 1 - -, 4 0 1 3 no, 5 0 1 2 later"; got != want {
				t.Errorf("rows are %s, want %s", got, want)
			}
		})
	}
}

// TestDeleteWithoutState checks that a row of a table without states is to be sent as long as
// it exists, where the relay deletes delivered rows.
func TestDeleteWithoutState(t *testing.T) {
	box := attributedBox()
	box.Layout = store.Layout{
		Name: store.CustomLayout, State: store.StateNone, DeleteDelivered: true, Columns: store.Columns{ID: "id", Payload: "body"},
	}
	r := newAttributedRig(t, "DATETIME", box)
	if err := r.store.Check(ctx(t)); err != nil {
		t.Error(err)
	}
	r.exec(t, "INSERT INTO outbox_events (id, body) VALUES (1, '{}'), (2, '{}')")
	wanted := row("2")
	wanted.WantPayload = true
	answers := r.claim(t, row("1"), wanted, row("3"))
	for i, want := range []store.ClaimResult{store.Claimed, store.Claimed, store.Gone} {
		if a := answers[i]; a.Result != want || want == store.Claimed && (!a.Unwritten || i == 1 && string(a.Payload) != "{}") {
			t.Errorf("claim %d: %+v, want %s", i, a, want)
		}
	}
	got := r.settle(t, outcome("1", store.Completed), outcome("2", store.Failed), outcome("2", store.Pending), outcome("3", store.Completed))
	if want := []store.SettleResult{store.Written, store.Written, store.Written, store.WasGone}; !slices.Equal(got, want) {
		t.Errorf("outcomes %d, want %d", got, want)
	}
	if left := ask[string](t, r.db, "SELECT group_concat(id) FROM outbox_events"); left != "2" {
		t.Errorf("rows %s are left", left)
	}
	states, err := r.store.ReadStatuses(ctx(t), []store.ClaimRow{row("1"), row("2")})
	if err != nil || states[0].State != store.RowAbsent || states[1].State != store.RowUnsettled {
		t.Errorf("states %+v, %v", states, err)
	}
}

// TestCheckLease: the end of a claim must be nullable; a layout needs no column for FAILED.
func TestCheckLease(t *testing.T) {
	path := newFile(t)
	rigs.Exec(t, openSQL(t, path), fmt.Sprintf(attributedTable, "DATETIME NOT NULL DEFAULT 0"))
	st := openStore(t, path, "rig", time.Minute, attributedBox())
	if err := st.Install(ctx(t)); err != nil {
		t.Fatal(err)
	}
	const want = `column in_progress_until (columns.claimed) of "outbox_events" is NOT NULL, but must be NULL in a row without a claim`
	if err := st.Check(ctx(t)); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a lease that cannot be NULL: %v", err)
	}
}
