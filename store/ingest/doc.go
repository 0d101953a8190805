// Package ingest takes rows over HTTP and writes them into outbox tables, for services that
// cannot write into the database themselves.
//
// A row is durable before its request is answered with 201. Rows of requests that arrive while a
// write is in flight share the next one, so the load makes the batches and no timer does. One
// write of an outbox is in flight at a time.
//
// A server needs no leadership: every relay of a name runs one, also while it stands by. A
// request may be repeated at any of them, because the id of a row says whether the table has it.
package ingest
