package capturetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// AttributeTable is what RunAttributes needs from a database.
type AttributeTable struct {
	// Setup creates an empty table for the outbox, in a separate database. Its columns hold
	// texts, except delivered_at and occurred_at, which hold times, and those of Columns.
	Setup func(t *testing.T, box store.Outbox) Database
	// Insert commits a row. A column without a literal is NULL, or missing.
	Insert func(t *testing.T, db Database, literals map[string]string)
	// Quote returns the literal of a text.
	Quote func(text string) string
	// Time is the literal of 2026-02-03 04:05:06.789 UTC.
	Time string
	// Columns are columns of the types that services use.
	Columns []TypedColumn
	// Untyped: any column takes a value of any type, so a part of the group has each of them.
	Untyped bool
}

// TypedColumn is a column of a table of RunAttributes.
type TypedColumn struct {
	Name   string
	Values []TypedValue
}

// TypedValue is a value of a column.
type TypedValue struct {
	Literal string // in the database's language
	Text    string // of the attribute; "" if the log and the table only need to agree
}

// attributed is an outbox with attributes and a group over two columns.
func attributed(typed []TypedColumn) store.Outbox {
	l := store.Layout{
		Name:      store.CustomLayout,
		Columns:   store.Columns{ID: "id", Group: "tenant_id", Payload: "payload", Delivered: "delivered_at"},
		GroupRest: []string{"partition_id"},
		State:     store.StateTimestamps,
		Attributes: []store.AttributeColumn{
			{Column: "aggregate_type", Name: store.AttributeKind},
			{Column: "event_type", Name: store.AttributeType},
			{Column: "occurred_at", Name: store.AttributeTime},
		},
	}
	for _, c := range typed {
		l.Attributes = append(l.Attributes, store.AttributeColumn{Column: c.Name, Name: c.Name})
	}
	l.Attributes = append(l.Attributes, store.AttributeColumn{Column: "headers", Spread: true})
	return store.Outbox{Name: outbox, Table: "outbox_attributes", Kind: "a row", Layout: l}
}

// attributeRow is a row of RunAttributes with what must be read of it.
type attributeRow struct {
	literals   map[string]string
	group      store.Group
	attributes map[string]string // some of them
	only       bool              // there are no others
}

// rows returns the rows to insert, by id.
func (a *AttributeTable) rows() map[string]attributeRow {
	rows := map[string]attributeRow{
		"plain": {
			literals: map[string]string{
				"tenant_id": a.Quote("a/b"), "partition_id": a.Quote(`c\d`), "aggregate_type": a.Quote("order"),
				"event_type": a.Quote("OrderPaid"), "occurred_at": a.Time,
				"headers": a.Quote(`{"trace": "a \"1\"", "hops": 12, "list": [1, 2], "gone": null, "type": "shadowed"}`),
			},
			group: store.GroupOf(`a\/b/c\\d`),
			attributes: map[string]string{
				store.AttributeKind: "order", store.AttributeType: "OrderPaid", store.AttributeTime: "2026-02-03T04:05:06.789Z",
				"trace": `a "1"`, "hops": "12", "list": "[1,2]",
			},
			only: true,
		},
		"nothing": {only: true},
		"half":    {literals: map[string]string{"partition_id": a.Quote("7")}, group: store.GroupOf(`\N/7`), only: true},
		"empty": {
			literals: map[string]string{"tenant_id": a.Quote(""), "partition_id": a.Quote(""), "event_type": a.Quote("")},
			group:    store.GroupOf("/"), attributes: map[string]string{store.AttributeType: ""}, only: true,
		},
	}
	for _, c := range a.Columns {
		for i, v := range c.Values {
			r := attributeRow{literals: map[string]string{c.Name: v.Literal}}
			if v.Text != "" {
				r.attributes, r.only = map[string]string{c.Name: v.Text}, true
			}
			if a.Untyped {
				r.literals["partition_id"] = v.Literal
				r.group = store.GroupOf(`\N/` + strings.NewReplacer(`\`, `\\`, "/", `\/`).Replace(v.Text))
			}
			rows[fmt.Sprintf("%s-%d", c.Name, i)] = r
		}
	}
	return rows
}

// RunAttributes runs the tests of attributes and of groups over several columns: the log and
// the table give a row the same ones, for each type of column.
func RunAttributes(t *testing.T, a AttributeTable) {
	rows := a.rows()
	db := a.Setup(t, attributed(a.Columns))
	r, _ := follow(t, db, store.Checkpoint{})
	for id, row := range rows {
		literals := map[string]string{"id": a.Quote(id), "payload": a.Quote("payload of " + id)}
		for column, literal := range row.literals {
			literals[column] = literal
		}
		a.Insert(t, db, literals)
	}
	r.rows(len(rows))
	logged := map[string]store.Item{}
	for _, b := range r.batches {
		for _, it := range b.Items {
			logged[it.ID] = it
		}
	}
	shown := unsettled(t, db, store.UnsettledQuery{})
	for id, row := range rows {
		row.check(t, id, logged[id], shown[id])
	}

	r.close()
	a.testDropped(t, db, len(rows))
	a.testKept(t)
}

// check compares a row as the log and the table have it.
func (row *attributeRow) check(t *testing.T, id string, logged, shown store.Item) {
	t.Helper()
	if logged.Kind != "a row" || logged.Group != row.group || string(logged.Payload) != "payload of "+id {
		t.Errorf("%s: the log has %+v, want group %v", id, logged, row.group)
	}
	if logged.Kind != shown.Kind || logged.Group != shown.Group || string(logged.Payload) != string(shown.Payload) || !slices.Equal(logged.Attributes, shown.Attributes) {
		t.Errorf("%s: the log has\n%+v, the table\n%+v", id, logged, shown)
	}
	for name, want := range row.attributes {
		if got, ok := logged.Attributes.Get(name); !ok || got != want {
			t.Errorf("%s: attribute %s is %q, %v; want %q", id, name, got, ok, want)
		}
	}
	if n := len(logged.Attributes); row.only && n != len(row.attributes) || n < len(row.attributes) || !row.only && n == 0 {
		t.Errorf("%s: attributes %+v, want %v", id, logged.Attributes, row.attributes)
	}
}

// testDropped: attributes are dropped with their payload.
func (a *AttributeTable) testDropped(t *testing.T, db Database, rows int) {
	for _, q := range []store.UnsettledQuery{{NoPayload: true}, {MaxPayload: 1}} {
		shown := unsettled(t, db, q)
		if len(shown) != rows {
			t.Errorf("a view has %d rows, want %d", len(shown), rows)
		}
		for _, it := range shown {
			if it.Payload != nil || it.Attributes != nil {
				t.Errorf("a view without payloads has %+v", it)
			}
		}
	}

	r := newReader(t, db.Source(t, Options{Outbox: outbox, BatchRows: batchRows}))
	r.src.Resume().MaxPayload = 1
	r.start(open(t, r.src, db, store.Checkpoint{}).From)
	a.Insert(t, db, map[string]string{"id": a.Quote("large"), "payload": a.Quote("xx"), "event_type": a.Quote("Large")})
	r.rows(1)
	for _, b := range r.batches {
		for _, it := range b.Items {
			if it.Payload != nil || it.Attributes != nil {
				t.Errorf("without its payload, a row of the log has attributes %+v", it.Attributes)
			}
		}
	}
}

// testKept: a row of an outbox with routes has its attributes even without its payload, because
// they decide which routes it takes.
func (a *AttributeTable) testKept(t *testing.T) {
	box := attributed(a.Columns)
	box.Routes = []store.Route{{Name: "bus"}}
	db := a.Setup(t, box)
	r := newReader(t, db.Source(t, Options{Outbox: outbox, BatchRows: batchRows}))
	r.src.Resume().MaxPayload = 1
	r.start(open(t, r.src, db, store.Checkpoint{}).From)
	a.Insert(t, db, map[string]string{"id": a.Quote("large"), "payload": a.Quote("xx"), "event_type": a.Quote("Large")})
	r.rows(1)
	logged := r.batches[len(r.batches)-1].Items[0]
	for place, it := range map[string]store.Item{"log": logged, "table": unsettled(t, db, store.UnsettledQuery{MaxPayload: 1})["large"]} {
		if kind, _ := it.Attributes.Get(store.AttributeType); kind != "Large" || it.Payload != nil {
			t.Errorf("the %s has %+v, want type Large without a payload", place, it)
		}
	}
}

// unsettled reads all rows of a view.
func unsettled(t *testing.T, db Database, q store.UnsettledQuery) map[string]store.Item {
	t.Helper()
	view, err := db.Viewer(t).View(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	q.Outbox, q.Limit = outbox, 1000
	items, err := view.Unsettled(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	byID := map[string]store.Item{}
	for _, it := range items {
		byID[it.ID] = it
	}
	return byID
}
