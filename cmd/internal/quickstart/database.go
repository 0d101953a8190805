package quickstart

import (
	"context"
	"time"
)

// database holds the orders and their outbox. Its methods are called from one
// goroutine.
type database interface {
	// setUp creates the tables. After an error, cleanUp removes the tables that it
	// had created by then. The note is for the user and may be empty; for example,
	// it lists the leftovers of earlier quickstarts.
	setUp(ctx context.Context) (note string, err error)
	// session opens the session of one writer.
	session(ctx context.Context) (session, error)
	// countByStatus counts the outbox's rows by their status.
	countByStatus(ctx context.Context) (map[string]int, error)
	// isStreaming reports whether the relay reads the database's log. The answer
	// counts once the relay has delivered a row.
	isStreaming(ctx context.Context) (bool, error)
	// cleanUp closes the database and, unless keep is set, removes everything that
	// the quickstart and its relay created there. The relay must have ended. It may
	// be called after setUp has failed.
	cleanUp(ctx context.Context, keep bool) error
}

// session is the database session of one writer. It serves one goroutine.
type session interface {
	// commit writes an order and its outbox row in one transaction.
	commit(ctx context.Context, o order) error
	close()
}

// databaseInfo describes a database to the relay and to the user.
type databaseInfo struct {
	name           string // of the relay, its slot, its schema or database
	url            string // for the configuration, secrets included
	table          string // the outbox, [schema.]table
	description    string // for the first line
	inspectCommand string // a command that counts the rows by status
	removeCommand  string // a command that removes everything but the folder; may be empty
	remainsNote    string // leftovers of removeCommand and the cost of keeping; may be empty
}

const (
	// callTimeout limits a statement or transaction, including its wait for locks.
	callTimeout = 15 * time.Second
	// removeTimeout limits the whole cleanup.
	removeTimeout = 60 * time.Second
)

// The columns that a service writes.
const (
	orderColumns = "(id, customer, amount_cents, created_at)"
	eventColumns = "(id, type, message_group, payload, status, created_at)"
)
