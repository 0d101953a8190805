package dispatch

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Store is what a dispatcher asks of a store.
type Store interface {
	store.RowWriter
	store.Holds
	store.DeadLetters
	store.Spiller
}

// RequestInfo is what an observer is told of a request.
type RequestInfo struct {
	Kind  string // of all rows
	Rows  int
	Lanes int
	// Probe: a single row, to see whether a suspect sink has come back.
	Probe bool
	// Split: it looks for the row to blame for an earlier failure.
	Split bool
}

// Observer is told what a dispatcher does. Calls come from several goroutines
// and must return at once.
type Observer interface {
	// Claimed: a claim answered n rows in this way.
	Claimed(result store.ClaimResult, n int)
	// Requested: a request was answered.
	Requested(req RequestInfo, res *sink.Result, took time.Duration)
	// BreakersChanged: these endpoints of the sink are suspect now; nil: none is. It is
	// called again when one begins or ceases to be idle.
	BreakersChanged(all []OpenBreaker)
	// Stalled: for proof-wait the receiver has left the lane's first row unanswered
	// while it took other rows.
	Stalled(lane *LaneInfo)
	StoreObserver
}

// StoreObserver is told what became of writes to the store.
type StoreObserver interface {
	// Settled: an outcome of the row is in the store.
	Settled(it *store.Item, o *store.Outcome)
	// Vanished: a statement found these rows no longer in their tables, and they are
	// done with.
	Vanished(rows []*store.Item)
	// StoreFailed: a claim or an outcome did not reach the store and is tried
	// again.
	StoreFailed(op string, err error)
	SpillObserver
}

// SpillObserver is told what became of rows that were to be parked.
type SpillObserver interface {
	// RowsSpilled: n rows are in the store's parked rows.
	RowsSpilled(n int)
	// RowUnspillable: the store does not take a row for its own sake. It stays in memory,
	// in its place, and the checkpoint waits for it.
	RowUnspillable(it *store.Item, err error)
	// UnspillableCleared: no such row is left.
	UnspillableCleared()
	// Refused: the store refuses the claim or the outcome of one row, for the row's
	// sake. It is tried again; Dispatcher.Refused tells until when.
	Refused(row store.Ref, what string, err error)
}

// Lease tells whether this relay still leads.
type Lease interface {
	// Await returns nil while it does, and waits while that is in doubt. Its error
	// is the context's or wraps store.ErrNotLeader.
	Await(ctx context.Context) error
	// Lost is closed once it leads no more.
	Lost() <-chan struct{}
}
