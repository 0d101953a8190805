// Package outboxtest is the test suite of every writer: it writes rows into the tables of all
// layouts as their projects create them, and a store claims, reads and settles them.
package outboxtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
	"github.com/sluicebox/sluicebox/store/outbox"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
)

// Database is a database of the suite. Its methods fail the test on an error.
type Database interface {
	// Kind is the kind of the database.
	Kind() layouts.Database
	// Create creates a table.
	Create(t *testing.T, d *layouts.Definition)
	// Writer returns a writer, which the suite closes.
	Writer(t *testing.T) outbox.Writer
	// Store returns a store with the relay's tables, which the database closes.
	Store(t *testing.T, o store.Outbox) store.Tables
	// Service writes rows in a transaction of a service, and ends it.
	Service(t *testing.T, o *outbox.Outbox, commit bool, rows ...outbox.Row) ([]string, error)
}

// Run runs the suite with the named layouts, or with all of them.
func Run(t *testing.T, db Database, names ...string) {
	for _, p := range layouts.All() {
		schema, has := p.Schemas[db.Kind()]
		layout := p.Layout(db.Kind() == layouts.MongoDB)
		if len(names) > 0 && !slices.Contains(names, p.Name) {
			continue
		}
		if !has || p.Name == "modulith" && db.Kind() == layouts.MongoDB { // its payload is a document
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			d, err := p.Define(db.Kind(), schema.Table+"_"+strings.ReplaceAll(p.Name, "-", "_"))
			if err != nil {
				t.Fatal(err)
			}
			db.Create(t, d)
			kind := p.Kind
			if p.Name == "flowcatalyst" {
				kind = "EVENT"
			}
			w := db.Writer(t)
			defer w.Close()
			s := &suite{db, w, store.Outbox{Name: "box", Table: d.Table, Kind: kind, Layout: *layout}}
			s.testRepeats(t)
			for round := range 3 { // the first one opens sessions
				s.testConcurrent(t, 1000+100*round)
			}
			s.testService(t)
			if p.Name == "outbox-messages" && db.Kind() != layouts.MongoDB {
				s.testRefused(t)
			}
			if !s.box.Layout.LogOnly() {
				s.testRelay(t)
			}
		})
	}
}

type suite struct {
	db  Database
	w   outbox.Writer
	box store.Outbox
}

// row returns a row as a service of the layout's project writes it. Each n is another row.
func (s *suite) row(t *testing.T, n int) outbox.Row {
	t.Helper()
	row := outbox.Row{ID: uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, n)).String(), Payload: fmt.Appendf(nil, "{ \"n\": %d, \"price\": 1.0,\n \"text\": \"é\u2028<&>\\\\ \\\"'?$1:x\" }", n)}
	attributes := func(pairs ...string) {
		for pair := range slices.Chunk(pairs, 2) {
			row.Attributes = append(row.Attributes, store.Attribute{Name: pair[0], Value: pair[1]})
		}
	}
	switch s.box.Layout.Name {
	case "flowcatalyst":
		row.ID, row.Group = fmt.Sprintf("0EVENT%07d", n), []string{"order/1\\"}
	case "outbox-messages", "outbox-messages-text":
		row.ID, row.Kind, row.Group = fmt.Sprintf("0MESSAGE%018d", n), "EVENT", []string{"order 'é'"}
	case "catbox":
		row.ID, row.Kind, row.Group = fmt.Sprint(1_000_000+n), "order", []string{"order", "7"}
		attributes(store.AttributeType, "OrderPaid")
	case "crablet":
		row.ID = fmt.Sprint(1_000_000 + n)
		attributes(store.AttributeType, "OrderPaid", "tags", "{order=7,\"a b\"}", "correlation_id", uuid.NameSpaceDNS.String())
	case "debezium":
		row.Kind, row.Group = "order", []string{"order", "7/8"}
		attributes(store.AttributeType, "OrderPaid")
	case "eventuate":
		row.Kind, row.Group = "orders", []string{"7"}
		attributes("event-type", "com.example.OrderPaid", "ID", row.ID)
	case "modulith", "modulith-v1":
		attributes(store.AttributeType, "com.example.OrderPaid", "listener_id", "orders")
	case "namastack":
		row.Group = []string{"order-7"}
		handler := "handler_id"
		if s.db.Kind() == layouts.MongoDB {
			handler = "handlerId"
		}
		attributes(store.AttributeType, "com.example.OrderPaid", handler, "orders", "traceId", "<1>")
	case "postbox":
		row.Kind, row.Group = "EVENT", []string{"1001", "orders"}
		attributes("event_type", "order.paid", "empty", "")
	case "zeebe":
		row.Group = []string{"order-7"}
		attributes(store.AttributeType, "Message_OrderPaid")
	default:
		t.Fatalf("the suite has no row of layout %s", s.box.Layout.Name)
	}
	return row
}

// write writes rows, whose results must have no error.
func (s *suite) write(t *testing.T, rows ...outbox.Row) []outbox.Written {
	t.Helper()
	all, err := s.w.Write(rigs.Context(t), &s.box, rows)
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if all[i].Err != nil {
			t.Fatalf("row %d: %v", i, all[i].Err)
		}
	}
	return all
}

// want checks results: n for a new row, r for a repeated one, c for a conflict, x for an error.
func want(t *testing.T, what string, all []outbox.Written, results string) {
	t.Helper()
	got := ""
	for _, w := range all {
		switch {
		case w.Err != nil:
			got += "x"
		case w.Conflict:
			got += "c"
		case w.Repeated:
			got += "r"
		default:
			got += "n"
		}
	}
	if got != results {
		t.Errorf("%s: got %s, want %s", what, got, results)
	}
}

// testRepeats writes rows of one id, with the same and with other contents.
func (s *suite) testRepeats(t *testing.T) {
	a, b := s.row(t, 1), s.row(t, 2)
	other := a
	other.Payload = []byte(`{"n": 1}`)
	first := s.write(t, a, b, a, other)
	want(t, "in one call", first, "nnrc")
	a.Created = time.Now().Add(-time.Hour)
	again := s.write(t, s.row(t, 3), other, a, b)
	want(t, "in another call", again, "ncrr")
	hasTime := len(outbox.TimeColumns(&s.box.Layout)) > 0
	for _, w := range []outbox.Written{first[2], again[2]} {
		if hasTime == w.Created.IsZero() || !w.Created.Equal(first[0].Created) {
			t.Errorf("a repeated row was created at %s, the first one at %s", w.Created, first[0].Created)
		}
	}
	if hasTime && !first[2].Created.Equal(again[2].Created) {
		t.Errorf("a repeated row was created at %s, and then at %s", first[2].Created, again[2].Created)
	}
	for i := range a.Attributes {
		changed := a
		changed.Attributes = slices.Clone(a.Attributes)
		if changed.Attributes[i].Value = changed.Attributes[i].Value + "2"; changed.Attributes[i].Name == "tags" {
			changed.Attributes[i].Value = "{}"
		} else if changed.Attributes[i].Name == "correlation_id" {
			changed.Attributes[i].Value = uuid.NameSpaceURL.String()
		}
		want(t, "another attribute "+a.Attributes[i].Name, s.write(t, changed), "c")
	}
	if last := len(a.Group) - 1; last >= 0 {
		changed := a
		changed.Group = slices.Clone(a.Group)
		changed.Group[last] += "2"
		want(t, "another group", s.write(t, changed), "c")
	}
}

// testConcurrent writes the same rows by several writers at once: one of them writes each. Their ids
// are made from numbers from a first one.
func (s *suite) testConcurrent(t *testing.T, from int) {
	t.Helper()
	var rows, back []outbox.Row
	for n := range 20 {
		rows = append(rows, s.row(t, from+n))
		back = append([]outbox.Row{rows[n]}, back...)
	}
	results := make([][]outbox.Written, 4)
	var writers sync.WaitGroup
	for i := range results {
		writers.Go(func() {
			mine := rows
			if i%2 == 1 {
				mine = back // which deadlocks
			}
			all, err := s.w.Write(rigs.Context(t), &s.box, mine)
			if err != nil {
				t.Error(err)
				return
			}
			if results[i] = all; i%2 == 1 {
				slices.Reverse(results[i])
			}
		})
	}
	writers.Wait()
	if t.Failed() {
		return
	}
	for n := range rows {
		fresh, repeated := 0, 0
		for i := range results {
			if w := results[i][n]; w.Err == nil && w.Repeated {
				repeated++
			} else if w.Err == nil && !w.Conflict {
				fresh++
			}
		}
		if fresh != 1 || repeated != 3 {
			t.Errorf("row %d: %d times new, %d times repeated, want 1 and 3", n, fresh, repeated)
		}
	}
}

// testRefused writes rows that the layout or the database refuses among others.
func (s *suite) testRefused(t *testing.T) {
	var rows []outbox.Row
	for n := range 40 {
		rows = append(rows, s.row(t, 300+n))
	}
	for _, i := range []int{3, 4, 39} {
		rows[i].Kind = "" // NOT NULL
	}
	rows[7].Attributes = store.Attributes{{Name: "colour", Value: "red"}}
	rows[20] = rows[19]
	all, err := s.w.Write(rigs.Context(t), &s.box, rows)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "with refused rows", all, "nnnxxnnxnnnnnnnnnnnnrnnnnnnnnnnnnnnnnnnx")
	for i, part := range map[int]string{3: "type", 7: "attributes.colour: layout outbox-messages has no column for it; name one in columns.attributes"} {
		if text := fmt.Sprint(all[i].Err); !strings.Contains(text, part) || !errors.As(all[i].Err, new(*outbox.RowError)) {
			t.Errorf("the error of row %d is %q, want %q", i, text, part)
		}
	}
	rows[3].Kind = "EVENT"
	want(t, "corrected", s.write(t, rows[3]), "n")
}

// testService writes in transactions of a service.
func (s *suite) testService(t *testing.T) {
	o, err := outbox.New(s.box, outbox.Traceparent(func(context.Context) string { return "00-1-2-01" }))
	if err != nil {
		t.Fatal(err)
	}
	rolled, kept := s.row(t, 200), s.row(t, 201)
	if _, err := s.db.Service(t, o, false, rolled); err != nil {
		t.Fatal(err)
	}
	ids, err := s.db.Service(t, o, true, kept)
	if err != nil || len(ids) != 1 || ids[0] != kept.ID {
		t.Fatalf("ids %q, %v, want %q", ids, err, kept.ID)
	}
	if s.box.Layout.HasAttribute("traceparent") {
		kept.Attributes = append(kept.Attributes, store.Attribute{Name: "traceparent", Value: "00-1-2-01"})
	}
	want(t, "what a service wrote", s.write(t, rolled, kept), "nr")

	// A row without an id.
	unnamed := []outbox.Row{s.row(t, 202), s.row(t, 203)}
	unnamed[0].ID, unnamed[1].ID = "", ""
	ids, err = s.db.Service(t, o, true, unnamed...)
	if s.box.Layout.NewID == store.IDGiven {
		if !errors.As(err, new(*outbox.RowError)) || !strings.Contains(err.Error(), "set Row.ID") {
			t.Errorf("a row without an id: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(ids) != 2 || ids[0] == "" || ids[0] == ids[1] || s.box.Layout.NewID != store.IDDatabase && ids[0] > ids[1] {
		t.Errorf("new ids %q, want two that ascend", ids)
	}
}

// testRelay claims, reads and settles what was written.
func (s *suite) testRelay(t *testing.T) {
	st := s.db.Store(t, s.box)
	epoch := rigs.InstallAndLead(t, st)
	row := s.row(t, 1)
	ref := store.Ref{Outbox: "box", ID: row.ID}
	view, err := st.View(rigs.Context(t), "")
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	items, err := view.Unsettled(rigs.Context(t), store.UnsettledQuery{Outbox: "box", Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(items, func(it store.Item) bool { return it.ID == row.ID })
	if i < 0 {
		t.Fatalf("row %s is not among %d unsettled rows", row.ID, len(items))
	}
	s.checkLane(t, &row, &items[i])
	a := rigs.Claim(t, st, epoch, []store.ClaimRow{{Ref: ref, WantPayload: true}})[0]
	if a.Result != store.Claimed || a.RetryCount != 0 {
		t.Fatalf("the claim is %s with retry count %d", a.Result, a.RetryCount)
	}
	if string(a.Payload) != string(row.Payload) {
		t.Errorf("the payload is %q, want %q", a.Payload, row.Payload)
	}
	for _, want := range row.Attributes {
		if got, _ := a.Attributes.Get(want.Name); got != want.Value {
			t.Errorf("attribute %s is %q, want %q", want.Name, got, want.Value)
		}
	}
	if r := rigs.Settle(t, st, epoch, []store.Outcome{{Ref: ref, Status: store.Completed, At: time.Now()}})[0]; r != store.Written {
		t.Errorf("the outcome is %d, want Written", r)
	}
	result := "r"
	if s.box.Layout.DeleteDelivered {
		result = "n" // the table has forgotten it
	}
	want(t, "a delivered row again", s.write(t, row), result)
}

// checkLane compares the lane and the kind of a row with what was written.
func (s *suite) checkLane(t *testing.T, row *outbox.Row, it *store.Item) {
	t.Helper()
	group := store.Group{}
	if row.Group != nil {
		group = s.box.Layout.GroupOfColumns(func(i int) []byte { return []byte(row.Group[i]) })
		if len(s.box.Layout.GroupPath) > 0 {
			group = store.GroupOf(row.Group[0])
		}
	}
	if it.Group != group {
		t.Errorf("the group is %v, want %v", it.Group, group)
	}
	if kind := it.OwnKind(); row.Kind != "" && kind != row.Kind {
		t.Errorf("the kind is %q, want %q", kind, row.Kind)
	}
}

// WriteSQL writes rows in a transaction of database/sql.
func WriteSQL(t *testing.T, db *sql.DB, d *outbox.Dialect, o *outbox.Outbox, commit bool, rows []outbox.Row) (ids []string, err error) {
	t.Helper()
	tx, err := db.BeginTx(rigs.Context(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	ids, err = o.WriteSQL(rigs.Context(t), tx, d, rows...)
	if err == nil && commit {
		err = tx.Commit()
	}
	return ids, err
}
