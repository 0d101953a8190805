package quickstart

import (
	"context"
	"time"
)

// database is where the orders and their outbox are. Its methods are called from
// one goroutine.
type database interface {
	// setUp makes the tables. What an error leaves behind, leave takes away. The
	// note is what is worth telling of the database, if anything.
	setUp(ctx context.Context) (note string, err error)
	// session opens what one writer writes with.
	session(ctx context.Context) (session, error)
	// countByStatus counts the outbox's rows by their status.
	countByStatus(ctx context.Context) (map[string]int, error)
	// isStreaming reports whether the relay, which has delivered a row by now, reads
	// the database's log.
	isStreaming(ctx context.Context) (bool, error)
	// cleanUp closes the database and, unless it is to be kept, removes what was
	// made, also what the relay made, which has ended. It may be called whatever
	// became of setUp.
	cleanUp(ctx context.Context, keep bool) error
}

// session is one writer's. It serves one goroutine.
type session interface {
	// commit writes an order and its outbox row in one transaction.
	commit(ctx context.Context, o order) error
	close()
}

// databaseInfo says in words and addresses where a database is.
type databaseInfo struct {
	name           string // of the relay, and of what it has in the database
	url            string // for the configuration, secrets included
	table          string // the outbox, [schema.]table
	description    string // for the first line
	inspectCommand string // a command that shows the states of the rows
	removeCommand  string // a command that removes what is kept, but for the folder; may be empty
	remainsNote    string // what that command leaves, and what keeping costs; may be empty
}

const (
	// callTimeout bounds a statement or transaction, a wait for a lock
	// included.
	callTimeout = 15 * time.Second
	// removeTimeout bounds the removal of everything.
	removeTimeout = 60 * time.Second
)

// The columns that a service writes.
const (
	orderColumns = "(id, customer, amount_cents, created_at)"
	eventColumns = "(id, type, message_group, payload, status, created_at)"
)
