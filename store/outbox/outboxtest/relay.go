package outboxtest

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
	"github.com/sluicebox/sluicebox/store/outbox"
)

// Service writes rows in a transaction of a service, and ends it.
type Service func(t *testing.T, o *outbox.Outbox, commit bool, rows ...outbox.Row) ([]string, error)

// RunRelays runs RunRelay on the table of each named layout, whose rows have no id yet. of is the
// database of the relay.
func RunRelays(t *testing.T, db Database, of sluicebox.Database, names ...string) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			p, _ := layouts.Named(name)
			d, err := p.Define(db.Kind(), p.Schemas[db.Kind()].Table)
			if err != nil {
				t.Fatal(err)
			}
			db.Create(t, d)
			s := &suite{db: db, box: store.Outbox{Name: "box", Table: d.Table, Kind: p.Kind, Layout: *p.Layout(db.Kind() == layouts.MongoDB)}}
			var rows []outbox.Row
			for n := range 3 {
				row := s.row(t, n)
				row.ID, row.Payload = "", fmt.Appendf(nil, `{"n": %d}`, n) // as JSON columns store it
				rows = append(rows, row)
			}
			RunRelay(t, of, s.box, db.Service, rows...)
		})
	}
}

// RunRelay runs a relay beside a service. The rows of a transaction that commits arrive in order
// and whole, and those of one that is rolled back never do.
func RunRelay(t *testing.T, db sluicebox.Database, of store.Outbox, write Service, rows ...outbox.Row) {
	t.Helper()
	arrived, connected := make(chan sink.Message, 100), make(logWatch, 10)
	relay, err := sluicebox.New(sluicebox.Options{
		Database: db,
		Outboxes: []sluicebox.Outbox{{Outbox: of, Sink: "recorder"}},
		Sinks: map[string]sluicebox.Sink{"recorder": {Sink: sink.Func(func(_ context.Context, rows []sink.Message) (res sink.Result) {
			for _, row := range rows {
				arrived <- row
				res.Items = append(res.Items, sink.Outcome{Class: sink.Delivered})
			}
			return res
		})}},
		Logger: slog.New(slog.NewTextHandler(connected, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	o, err := outbox.New(of)
	if err != nil {
		t.Fatal(err)
	}
	// A table without a state has no rows of before: the relay must read its log first.
	receive(t, connected, ended)
	rolled := slices.Clone(rows)
	for i := range rolled {
		rolled[i].Payload = []byte(`{"rolled": "back"}`)
	}
	if _, err := write(t, o, false, rolled...); err != nil {
		t.Fatal(err)
	}
	ids, err := write(t, o, true, rows...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		m := receive(t, arrived, ended)
		if ids[i] != "" && m.ID != ids[i] || string(m.Payload) != string(rows[i].Payload) {
			t.Errorf("row %d arrives as %q with %q, want %q with %q", i, m.ID, m.Payload, ids[i], rows[i].Payload)
		}
		for _, want := range rows[i].Attributes {
			if got, _ := m.Attributes.Get(want.Name); got != want.Value {
				t.Errorf("row %d: attribute %s is %q, want %q", i, want.Name, got, want.Value)
			}
		}
	}
}

// receive waits for a value from a relay that runs.
func receive[V any](t *testing.T, from <-chan V, ended chan error) (v V) {
	t.Helper()
	select {
	case v = <-from:
	case err := <-ended:
		ended <- err
		t.Fatalf("the relay ended: %v", err)
	case <-time.After(time.Minute):
		t.Fatalf("no %T comes", v)
	}
	return v
}

// logWatch receives a value when the log says that the source is connected.
type logWatch chan struct{}

func (c logWatch) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("source connected")) {
		c <- struct{}{}
	}
	return len(line), nil
}
