// Program embed relays the table outbox_events of an SQLite file to its standard output.
package main

import (
	"context"
	"os"
	"os/signal"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/capture/sqlite"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

type printer struct{}

func (printer) Limits(string) sink.Limits {
	return sink.Limits{Mode: sink.Atomic, MaxItems: 100, MaxBytes: 1 << 20}
}

func (printer) Deliver(_ context.Context, rows []sink.Message) sink.Result {
	for _, row := range rows {
		_, _ = os.Stdout.Write(append(row.Payload, '\n'))
	}
	return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	relay, err := sluicebox.New(sluicebox.Options{
		Database: sqlite.Database{URL: "sqlite://" + os.Args[1]},
		Outboxes: []sluicebox.Outbox{{Outbox: store.Outbox{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: store.FlowCatalyst()}, Sink: "out"}},
		Sinks:    map[string]sluicebox.Sink{"out": {Sink: printer{}}},
	})
	if err == nil {
		err = relay.Run(ctx)
	}
	if err != nil {
		panic(err)
	}
}
