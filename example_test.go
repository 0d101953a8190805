package sluicebox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/capture/sqlite"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// A relay of one SQLite table inside of a program. After Run has returned, the outcomes of
// all delivered rows are in the table.
func Example() {
	dir, err := os.MkdirTemp("", "sluicebox")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "shop.db")
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)")
	if err != nil {
		panic(err)
	}
	defer func() { _ = db.Close() }()
	execute := func(query string) {
		if _, err := db.ExecContext(context.Background(), query); err != nil {
			panic(err)
		}
	}
	execute(`CREATE TABLE outbox_events (id TEXT PRIMARY KEY, message_group TEXT, payload TEXT NOT NULL,
		status TEXT NOT NULL DEFAULT 'PENDING', retry_count INT NOT NULL DEFAULT 0,
		created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, processed_at TIMESTAMP, error_message TEXT, printed_line INT)`)

	printed, line := make(chan struct{}, 2), 0
	printer := sink.Func(func(_ context.Context, rows []sink.Message) (res sink.Result) {
		for _, row := range rows {
			fmt.Println(row.Group.Name, string(row.Payload))
			printed <- struct{}{}
			line++
			receipt := sink.Receipt{Name: "line", Value: strconv.Itoa(line)}
			res.Items = append(res.Items, sink.Outcome{Class: sink.Delivered, Receipt: []sink.Receipt{receipt}})
		}
		return res
	})
	layout := store.FlowCatalyst()
	layout.Record = []store.RecordColumn{{Receipt: "line", Column: "printed_line", Max: math.MaxInt32}}
	relay, err := sluicebox.New(sluicebox.Options{
		Database: sqlite.Database{URL: "sqlite://" + file},
		Outboxes: []sluicebox.Outbox{{
			Outbox: store.Outbox{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: layout}, Sink: "printer",
		}},
		Sinks:  map[string]sluicebox.Sink{"printer": {Sink: printer}},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()

	execute(`INSERT INTO outbox_events (id, message_group, payload) VALUES
		('1', 'order 7', '{"state": "new"}'), ('2', 'order 7', '{"state": "paid"}')`)
	<-printed
	<-printed
	stop()
	if err := <-ended; err != nil {
		panic(err)
	}
	var completed, last int
	err = db.QueryRowContext(context.Background(), "SELECT count(*), max(printed_line) FROM outbox_events WHERE status = 'COMPLETED'").Scan(&completed, &last)
	if err != nil {
		panic(err)
	}
	fmt.Println(completed, "rows completed, the last on line", last)
	// Output:
	// order 7 {"state": "new"}
	// order 7 {"state": "paid"}
	// 2 rows completed, the last on line 2
}
