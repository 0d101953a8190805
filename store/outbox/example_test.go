package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/sluicebox/sluicebox"
	capture "github.com/sluicebox/sluicebox/capture/sqlite"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
	"github.com/sluicebox/sluicebox/store/outbox"
)

func must[V any](v V, err error) V {
	if err != nil {
		panic(err)
	}
	return v
}

// A service changes an order and writes the rows that report it, in one transaction. The relay
// delivers the rows of the transaction that commits. Those of the other were never there.
func ExampleOutbox_WriteSQL() {
	ctx := context.Background()
	dir := must(os.MkdirTemp("", "sluicebox"))
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "shop.db")
	db := must(sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)&_txlock=immediate"))
	defer func() { _ = db.Close() }()
	must(db.ExecContext(ctx, "CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)"))
	preset, _ := layouts.Named("outbox-messages")
	table := must(preset.Define(layouts.SQLite, ""))
	for _, statement := range table.Statements {
		must(db.ExecContext(ctx, statement))
	}
	of := store.Outbox{Name: "orders", Table: table.Table, Layout: *preset.Tables}

	box := must(outbox.New(of))
	pay := func(end func(*sql.Tx) error, order int) {
		tx := must(db.BeginTx(ctx, nil))
		must(tx.ExecContext(ctx, "INSERT INTO orders VALUES (?, 'paid')", order))
		group := []string{fmt.Sprint("order ", order)}
		must(box.WriteSQL(ctx, tx, outbox.SQLite(),
			outbox.Row{Kind: "EVENT", Group: group, Payload: []byte(`{"state": "new"}`)},
			outbox.Row{Kind: "EVENT", Group: group, Payload: []byte(`{"state": "paid"}`)}))
		must(0, end(tx))
	}
	pay((*sql.Tx).Rollback, 1)
	pay((*sql.Tx).Commit, 2)

	printed := make(chan struct{}, 2)
	relay := must(sluicebox.New(sluicebox.Options{
		Database: capture.Database{URL: "sqlite://" + file},
		Outboxes: []sluicebox.Outbox{{Outbox: of, Sink: "printer"}},
		Sinks: map[string]sluicebox.Sink{"printer": {Sink: sink.Func(func(_ context.Context, rows []sink.Message) (res sink.Result) {
			for _, row := range rows {
				fmt.Println(row.Group.Name, string(row.Payload))
				printed <- struct{}{}
				res.Items = append(res.Items, sink.Outcome{Class: sink.Delivered})
			}
			return res
		})}},
		Logger: slog.New(slog.DiscardHandler),
	}))
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(run) }()
	<-printed
	<-printed
	stop()
	must(0, <-ended)
	// Output:
	// order 2 {"state": "new"}
	// order 2 {"state": "paid"}
}
