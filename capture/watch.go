package capture

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// ChangeKind is what a transaction did to a row.
type ChangeKind uint8

// Kinds of changes.
const (
	// Inserted: Lane is set.
	Inserted ChangeKind = iota + 1
	// Updated: Lane has only the outbox.
	Updated
	// Deleted: as Updated. ID is "" if the log does not have it, because the table's primary key
	// is another column.
	Deleted
	// Truncated: all rows of the outbox are gone.
	Truncated
)

// Change is a change of a row of an outbox, by any program.
type Change struct {
	Kind ChangeKind
	Lane store.LaneKey
	ID   string
	// Status is the row's status after the change, 0 if the change does not tell; see
	// store.Layout.StatusOf.
	Status store.Status
	// Txn differs between two transactions that follow each other.
	Txn store.Txn
	// Committed is when the transaction committed, by the server's clock; zero if the log does
	// not tell. Captured is when the change was received.
	Committed, Captured time.Time
}

// Watcher is a source that reads every change of the outbox rows, not only the new ones.
type Watcher interface {
	// Watch sends the changes that commit from now on, in place of Open and Run, as
	// Batch.Changes. It is as Tap otherwise, and needs less: neither a publication nor the
	// relay's tables. It writes nothing and leaves nothing on the server.
	Watch(ctx context.Context, out chan<- Batch, begun func()) error
}
