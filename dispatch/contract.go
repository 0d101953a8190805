package dispatch

import (
	"context"
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Store is the part of the store that a dispatcher uses.
type Store interface {
	store.RowWriter
	store.Holds
	store.DeadLetters
	store.Spiller
}

// Ticket is notified when rows of a batch settle; see checkpoint.Ticket.
type Ticket = lanes.Ticket

// Options are what a dispatcher works with. Store, Sink and Observer are required.
type Options struct {
	Store    Store
	Sink     sink.Sink
	Observer Observer
	Epoch    store.Epoch // of the leader

	// Destination, if not nil, is shared with the dispatchers of other relays. Close the dispatcher
	// then.
	Destination *Destination

	// DrainTimeout limits the requests in flight during shutdown.
	DrainTimeout time.Duration

	// LogOnly are the outboxes whose rows only the log has; see store.Layout.LogOnly. The
	// content of such a row stays in memory until the row is delivered or spilled.
	LogOnly map[string]bool

	// Frontiers, if not nil, are the frontiers of the outboxes in LogOnly, by name. Outboxes whose
	// rows share a checkpoint share one, also among dispatchers. Rows of an outbox without one
	// hold no checkpoint, or their table tells which of them were delivered.
	Frontiers map[string]*Frontier

	// Lease, if not nil, is checked before each request.
	Lease Lease

	// Late, if not nil, reports whether fresh rows may be sent before they are claimed; see
	// Dispatcher.AppendFresh. It is called with each claim and must return at once.
	Late func() bool

	// Unwritten are the outboxes whose claims write nothing into the table, so that no row of
	// theirs is claimed late.
	Unwritten map[string]bool

	// Replays records the results of replayed rows. It is required if Replay is used.
	Replays store.ReplayFinisher

	// Replayed, if not nil, is called with the numbers of replayed rows sent and refused
	// once their results are recorded. It must return at once.
	Replayed func(sent, refused int)

	// Spill: rows whose outcome the table refuses may be spilled.
	Spill bool

	// SpillWhole: no row is spilled before those in front of it in its lane. A source without
	// positions needs it to keep the order over a crash.
	SpillWhole bool

	// Freed, if not nil, is signaled without blocking whenever the buffer may have room
	// again. Several dispatchers may share it.
	Freed chan<- struct{}
}

// RequestInfo describes a request to an observer.
type RequestInfo struct {
	Kind  string // of all rows
	Rows  int
	Lanes int

	// Probe: a single row that tests an endpoint with an open circuit breaker.
	Probe bool

	// Split: the request bisects an earlier failure.
	Split bool
}

// Observer receives the events of a dispatcher. Its methods are called from several
// goroutines and must return at once.
type Observer interface {
	// Claimed: a claim answered n rows with this result.
	Claimed(result store.ClaimResult, n int)

	// Requested: a request was answered.
	Requested(req RequestInfo, res *sink.Result, took time.Duration)

	// BreakersChanged reports all endpoints with an open circuit breaker; nil if there is
	// none. It is called again when one becomes idle or ceases to be idle.
	BreakersChanged(all []OpenBreaker)

	// Stalled: the lane's head has been unanswered for proof-wait while the receiver
	// accepted other rows.
	Stalled(lane *LaneInfo)
	StoreObserver
}

// StoreObserver receives the results of store operations.
type StoreObserver interface {
	// Settled: an outcome of the row is in the store.
	Settled(it *store.Item, o *store.Outcome)

	// Vanished: a statement found these rows deleted from their tables, so they are done.
	Vanished(rows []*store.Item)

	// StoreFailed: an operation did not reach the store and will be retried.
	StoreFailed(op string, err error)
	SpillObserver
}

// SpillObserver receives the results of spilling.
type SpillObserver interface {
	// RowsSpilled: n rows were written to the spilled rows of the store.
	RowsSpilled(n int)

	// RowUnspillable: the store refuses to spill this row. It stays in memory, in its
	// place, and the checkpoint waits for it.
	RowUnspillable(it *store.Item, err error)

	// UnspillableCleared: no unspillable row is left.
	UnspillableCleared()

	// Refused: the store refuses an operation of this row: Claim, LateClaim or the status of an
	// outcome. A LateClaim is not retried, because the row is in flight and its outcome follows.
	// The others are retried. An outcome is listed by Dispatcher.RefusedRows until the store
	// accepts it.
	Refused(row store.Ref, op string, err error)
}

// Operations that an observer gets, beside the statuses of outcomes.
const (
	// Claim claims a row before it is sent.
	Claim = "claim"

	// LateClaim claims a row whose request is not answered yet; see Options.Late.
	LateClaim = "late claim"
)

// Lease reports whether this relay is still the leader.
type Lease interface {
	// Await returns nil while the relay is the leader, and blocks while that is uncertain.
	// Its error is the context's or wraps store.ErrNotLeader. With a context that has ended it returns
	// at once, nil if the relay certainly leads.
	Await(ctx context.Context) error

	// Lost is closed when leadership is lost.
	Lost() <-chan struct{}
}
