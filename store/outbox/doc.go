// Package outbox writes rows into outbox tables, as the layout of the table says: the inverse of
// what a relay reads.
//
// # Services
//
// A service writes a row in the transaction that changes the data which the row reports, so that
// both are committed or neither is:
//
//	preset, _ := layouts.Named("outbox-messages")
//	orders, err := outbox.New(store.Outbox{Table: "outbox_messages", Layout: *preset.Tables})
//	…
//	ids, err := orders.WriteSQL(ctx, tx, outbox.MySQL(), outbox.Row{Kind: "EVENT", Group: []string{"order-7"}, Payload: body})
//
// The functions take a transaction, so that a write outside of one does not compile:
//
//   - database/sql: [Outbox.WriteSQL], with PostgreSQL, MySQL, MariaDB or SQLite.
//   - pgx: Write of store/outbox/postgres. It also writes logical messages, which have no table.
//   - MongoDB: Write of store/outbox/mongo, with a session.
//   - Anything else: [Outbox.Insert] returns the statement and its parameters.
//
// The layout is one of package layouts, or made by hand. A row without an id gets a UUID of
// version 7, or another form, see [store.IDForm]. Columns that neither the row nor the layout
// fills keep the table's defaults. [Traceparent] adds the trace context.
//
// # Order
//
// Rows of one transaction keep the order in which they were written, because a relay reads them
// from the log. A relay that reads the table, after its first start or while it polls, has the
// order of Layout.OrderBy. There
//
//   - rows with a time each keep their order, as long as the column stores microseconds,
//   - rows with equal times keep the order of their insertion if the table numbers them, and
//     otherwise that of their ids. Ids that this package makes ascend within a process.
//
// # Rows of others
//
// [Writer] writes rows that a program receives, in transactions of its own. It recognises rows that
// are there, so that a sender may repeat a request. The packages below this one have a NewWriter
// for their database. A writer of SQL databases sends one INSERT for a batch. If the database
// refuses a row, the batch is halved until the row is alone.
package outbox
