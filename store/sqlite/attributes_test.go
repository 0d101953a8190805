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
	r.exec(t, "INSERT INTO outbox_events (id, aggregate) VALUES ('1', 'order'), ('2', 'Order'), ('3', NULL)")
	rigs.CheckKindFilters(t, r.store, map[string]string{"order": "1", "Order": "2", box.Kind: "3", "invoice": ""}, func(s store.Status) {
		r.exec(t, "UPDATE outbox_events SET status = ?", s.String())
	})
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
