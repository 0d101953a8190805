// Package sluicebox relays the rows of outbox tables: it reads them from the database's log
// as soon as they commit, delivers them to sinks, and writes the outcome back into each row.
// The program cmd/sluicebox is a command line around it. A Go program embeds a relay so:
//
//	relay, err := sluicebox.New(sluicebox.Options{
//		Database: postgres.Database{URL: "postgres://relay@db.example/shop"},
//		Outboxes: []sluicebox.Outbox{{Outbox: store.Outbox{Name: "outbox", Table: "outbox_messages", Layout: store.OutboxMessages()}, Sink: "bus"}},
//		Sinks:    map[string]sluicebox.Sink{"bus": {Sink: bus}},
//	})
//	if err != nil {
//		return err
//	}
//	return relay.Run(ctx)
//
// [Database] is implemented by capture/postgres, capture/mysql, capture/mongo and
// capture/sqlite, so a program links only the driver of the database that it uses. Sinks
// over HTTP are in dispatch/sink; a [sink.Func] is a function.
//
// A relay needs a few times the memory of its buffers (dispatch.Config.BufferBytes), because a
// large row passes through several of them. The program sets a soft memory limit for that; a
// program that embeds a relay may set GOMEMLIMIT.
//
// # Life
//
// [Relay.Run] competes with other relays of its name for leadership. The leader runs
// sessions, one after another. A session opens the sinks and the log, delivers rows, and
// ends when the context ends, the log is lost, or leadership is lost. When the context ends,
// requests in flight finish and their outcomes are saved before Run returns.
//
//   - leadership.go: standby, leadership, one session after another
//   - relay.go, database.go: one session
//   - intake.go: from the source into the lanes
//   - pressure.go: when to pause the source, when to spill rows, when to save
//   - sweep.go, prune.go: rows that came back to PENDING; delivered rows past their retention
//   - sinks.go: sinks whose credentials change while the relay runs
//   - status.go, observers.go: what Checks, Status, the log and the Observer report
//   - operators.go: lanes, FAILED rows and requests
package sluicebox
