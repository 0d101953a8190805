// Program embed relays the table outbox_events of an SQLite file to its standard output.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/capture/sqlite"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

func deliver(_ context.Context, rows []sink.Message) sink.Result {
	for _, row := range rows {
		fmt.Println(row.ID, string(row.Payload))
	}
	return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	relay, err := sluicebox.New(sluicebox.Options{
		Database: sqlite.Database{URL: "sqlite://" + os.Args[1]},
		Outboxes: []sluicebox.Outbox{{Outbox: store.Outbox{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: store.FlowCatalyst()}, Sink: "out"}},
		Sinks:    map[string]sluicebox.Sink{"out": {Sink: sink.Func(deliver)}},
	})
	if err == nil {
		err = relay.Run(ctx)
	}
	if err != nil {
		panic(err)
	}
}
