package mysql_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// attributedTable has a payload that may be NULL, a group over two columns of different
// charsets, and attributes.
const attributedTable = `
CREATE TABLE outbox_events (
    id BIGINT AUTO_INCREMENT PRIMARY KEY,
    aggregate VARCHAR(20) CHARACTER SET latin1,
    tenant VARCHAR(20) COLLATE utf8mb4_general_ci,
    part BINARY(1),
    headers JSON,
    body LONGBLOB,
    state VARCHAR(20) COLLATE utf8mb4_bin NOT NULL DEFAULT 'NEW',
    sent_at DATETIME(3),
    created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
) DEFAULT CHARSET=utf8mb4`

func attributedBox() store.Outbox {
	return store.Outbox{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: store.Layout{
		Name:      store.CustomLayout,
		Columns:   store.Columns{ID: "id", Group: "tenant", Payload: "body", Status: "state", Delivered: "sent_at"},
		GroupRest: []string{"part"},
		State:     store.StateWords,
		Words:     map[store.Status]string{store.Pending: "NEW", store.Processing: "SENDING", store.Completed: "SENT", store.Failed: "DEAD"},
		OrderBy:   []string{"created_at", "id"},
		Attributes: []store.AttributeColumn{
			{Column: "aggregate", Name: store.AttributeKind}, {Column: "created_at", Name: store.AttributeTime}, {Column: "headers", Spread: true},
		},
	}}
}

// TestNullPayload checks that a row whose payload is NULL has an empty one, with attributes, by
// every path: nil would stand for a payload that was not read.
func TestNullPayload(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, attributedTable, 0, attributedBox())
		r.exec(t, `INSERT INTO outbox_events (aggregate, headers, body, created_at) VALUES ('Grüße', '{"n": 1, "trace": "a"}', NULL, '2024-02-29 12:00:00.5')`)
		want := store.Attributes{{Name: "kind", Value: "Grüße"}, {Name: "time", Value: "2024-02-29T12:00:00.5Z"}, {Name: "n", Value: "1"}, {Name: "trace", Value: "a"}}
		check := func(what string, payload []byte, got store.Attributes) {
			t.Helper()
			if payload == nil || len(payload) > 0 || !slices.Equal(got, want) {
				t.Errorf("%s: payload %#v, attributes %v", what, payload, got)
			}
		}

		view, err := r.store.View(ctx(t), "")
		if err != nil {
			t.Fatal(err)
		}
		defer view.Close()
		items, err := view.Unsettled(ctx(t), store.UnsettledQuery{Outbox: "events", Limit: 9, MaxPayload: 1})
		if err != nil || len(items) != 1 {
			t.Fatal(items, err)
		}
		check("a view", items[0].Payload, items[0].Attributes)
		items, err = view.Unsettled(ctx(t), store.UnsettledQuery{Outbox: "events", Limit: 9, NoPayload: true})
		if err != nil || len(items) != 1 || items[0].Payload != nil || items[0].Attributes != nil {
			t.Errorf("a view without payloads: %+v, %v", items, err)
		}

		a := r.claim(t, row("1"), fresh("1"))
		check("a claim", a[0].Payload, a[0].Attributes)
		if got := r.claim(t, fresh("1"))[0]; got.Result != store.Claimed || got.Payload != nil || got.Attributes != nil {
			t.Errorf("a claim without payload: %+v", got)
		}
		r.settle(t, outcome("1", store.Completed))
		states, err := r.store.ReadStatuses(ctx(t), []store.ClaimRow{row("1")})
		if err != nil || states[0].State != store.RowCompleted {
			t.Fatal(states, err)
		}
		check("a status", states[0].Payload, states[0].Attributes)
	})
}

// TestGroupOfColumns checks that groups over columns of several types and collations are told
// apart byte for byte: by views without lanes and by the filters for FAILED and delivered rows.
func TestGroupOfColumns(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, attributedTable, 0, attributedBox())
		var want []store.Group
		for _, c := range []struct {
			tenant any
			part   any
			group  string
		}{
			{"a", []byte("1"), "a/0x31"}, {"A", []byte("1"), "A/0x31"}, {"a", nil, `a/\N`}, {nil, []byte("1"), `\N/0x31`}, {nil, nil, ""},
			{"", nil, `/\N`}, {`\N`, nil, `\\N/\N`}, {"a/0x31", []byte{0}, `a\/0x31/0x00`}, {"☃\\", []byte("2"), `☃\\/0x32`},
		} {
			r.exec(t, "INSERT INTO outbox_events (tenant, part, body) VALUES (?, ?, 'x')", c.tenant, c.part)
			want = append(want, store.Group{Name: c.group, Valid: c.tenant != nil || c.part != nil})
		}
		if got := rigs.CheckExcludeLanes(t, r.store, len(want)); !slices.Equal(got, want) {
			t.Errorf("groups are %q, want %q", got, want)
		}

		rigs.CheckGroupFilters(t, r.store, want, []string{"", "a", "a/0x31/0x31", `\N/\N`, `a\/0x31`, `\x/\N`}, r.setAll(t))
	})
}

// setAll returns a function that gives all rows a status.
func (r *rig) setAll(t *testing.T) func(store.Status) {
	return func(s store.Status) {
		t.Helper()
		r.exec(t, "UPDATE outbox_events SET state = ?", attributedBox().Layout.Words[s])
	}
}

// TestKindAttribute checks that rows are selected by their own kind where it is an attribute. A
// row without one has the kind of its outbox.
func TestKindAttribute(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, attributedTable, 0, attributedBox())
		for _, kind := range []any{"Order", "order", nil} {
			r.exec(t, "INSERT INTO outbox_events (aggregate, body) VALUES (?, 'x')", kind)
		}
		set := r.setAll(t)
		rigs.CheckKindFilters(t, r.store, map[string]string{"Order": "1", "order": "2", "EVENT": "3", "no": ""}, set)
		set(store.Failed)
		items, err := r.store.Requeue(ctx(t), r.epoch, store.DeadLetterFilter{Outbox: "events", Kind: "Order"}, 99)
		if err != nil || len(items) != 1 || items[0].Kind != "EVENT" { // of its lane
			t.Errorf("requeued: %+v, %v", items, err)
		}
	})
}

// TestCheckFew checks the findings on tables of layouts with few statuses: the statements to add
// columns, columns of a wrong type, and times that must be nullable.
func TestCheckFew(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		for _, c := range []struct {
			what, from, to string
			change         func(*store.Layout)
			parts          []string
		}{
			{"no columns of the group and of attributes", "    part BINARY(1),\n    headers JSON,\n", "", func(*store.Layout) {},
				[]string{"ADD COLUMN `part` VARCHAR(255)", "ADD COLUMN `headers` TEXT"}},
			{"no time of delivery", "    sent_at DATETIME(3),\n", "", func(*store.Layout) {}, []string{"ADD COLUMN `sent_at` DATETIME(6)"}},
			{"a word that an ENUM lacks", "state VARCHAR(20) COLLATE utf8mb4_bin", "state ENUM('NEW')", func(l *store.Layout) {
				l.Words = map[store.Status]string{store.Pending: "NEW", store.Completed: "SENT"}
			}, []string{`cannot hold "SENT", which layout custom names for COMPLETED`}},
			{"a text for a boolean", "", "", func(l *store.Layout) { l.State, l.Words = store.StateBoolean, nil }, []string{"needs a BOOLEAN", "MODIFY COLUMN `state` BOOLEAN NOT NULL"}},
			{"a lease that cannot end", "sent_at DATETIME(3)", "sent_at DATETIME(3), until DATETIME(3) NOT NULL", func(l *store.Layout) {
				l.Columns.Claimed, l.Lease = "until", true
			}, []string{"until", "NOT NULL, but NULL marks", "MODIFY COLUMN `until` datetime(3) NULL"}},
		} {
			ddl := strings.Replace(attributedTable, c.from, c.to, 1)
			if c.from != "" && ddl == attributedTable {
				t.Fatalf("%s: no %q", c.what, c.from)
			}
			servers.ExecMySQL(t, url, "DROP TABLE IF EXISTS outbox_events", ddl)
			box := attributedBox()
			c.change(&box.Layout)
			st := openStore(t, url, 0, box)
			if err := st.Install(ctx(t)); err != nil {
				t.Fatal(err)
			}
			rigs.WantSetup(t, c.what, st.Check(ctx(t)), c.parts...)
		}
	})
}
