package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// Claimer moves rows to PROCESSING.
type Claimer interface {
	// Claim answers for each row, by position. The time at is written as the
	// time of the claim, so that a leader knows its own. An error means that
	// nothing is known: claim again, or, after a *RefusedError, fewer at once.
	// ErrNotLeader means that nothing was written and nothing may be sent.
	//
	// Claim waits for locks that somebody else holds for a short while in all, however
	// many rows are locked. After that a locked row is NotYetVisible and all rows of a
	// locked table are TableLocked; the other rows are answered as usual.
	Claim(ctx context.Context, epoch Epoch, at time.Time, rows []ClaimRow) ([]ClaimAnswer, error)
}

// Settler writes outcomes.
type Settler interface {
	// Settle writes outcomes into rows that are not settled, and answers for
	// each, by position. Outcomes with Failed among them are durable when it
	// returns. An error means that nothing is known: writing the same outcomes
	// again is safe, and, after a *RefusedError, fewer at once. ErrNotLeader
	// means that nothing was written.
	//
	// Settle waits for locks as Claim does, and then answers WasLocked and
	// TableWasLocked.
	Settle(ctx context.Context, epoch Epoch, outcomes []Outcome) ([]SettleResult, error)
}

// TableAwaiter waits for locks on whole tables.
type TableAwaiter interface {
	// AwaitTable returns nil as soon as nobody's lock on an outbox's table keeps its
	// rows from being written. It waits for a second or so and then returns a
	// *OutboxLockedError. Meanwhile calls of other kinds go on: they share no session
	// with it.
	AwaitTable(ctx context.Context, outbox string) error
}

// RowWriter writes what becomes of rows into their tables.
type RowWriter interface {
	Claimer
	Settler
	TableAwaiter
}

// Leadership gives out epochs.
type Leadership interface {
	// AcquireLeadership makes the caller the leader: it raises the epoch, durably, and
	// returns it. All writes of earlier epochs are refused from then on, and all
	// of another store's, whatever epoch they name. It does not wait long for
	// writes that an earlier leader left unfinished: it ends them.
	AcquireLeadership(ctx context.Context) (Epoch, error)
	// Leader returns who took the lead last; ErrNotLeader if nobody ever did.
	Leader(ctx context.Context) (Leader, error)
}

// Checkpoints keeps the relay's checkpoint.
type Checkpoints interface {
	// LoadCheckpoint returns the checkpoint, or ErrNoCheckpoint.
	LoadCheckpoint(ctx context.Context) (Checkpoint, error)
	// SaveCheckpoint writes the checkpoint synchronously. When it returns,
	// everything that was written since Lead and before it began survives a
	// crash of the server. Where that cannot be known it writes nothing and
	// returns ErrInterrupted.
	SaveCheckpoint(ctx context.Context, epoch Epoch, cp Checkpoint) error
}

// UnsettledQuery asks for rows that are neither COMPLETED nor FAILED.
type UnsettledQuery struct {
	Outbox string
	// Limit is the most rows to read; it must be positive.
	Limit int
	// ExcludeIDs are ids to leave out: the rows that lanes hold.
	ExcludeIDs []string
	// ExcludeLanes are lanes to leave out, byte for byte: those that stand still. Lanes
	// of another outbox mean nothing.
	ExcludeLanes []LaneKey
	// MaxPayload is the largest payload that is read with its row, in bytes. A longer
	// one leaves Item.Payload nil, and PayloadSize is still set. 0 is no bound.
	MaxPayload int
	// NoPayload reads none at all.
	NoPayload bool
	// MaxBytes ends a page, and what Unsettled returns, with the row that brings it to
	// so many bytes; see Item.Bytes. 0 is no bound.
	MaxBytes int64
}

// MaxInlinePayload returns the size up to which a payload is read with its row, -1 if none is.
func (q *UnsettledQuery) MaxInlinePayload() int {
	switch {
	case q.NoPayload:
		return -1
	case q.MaxPayload > 0:
		return q.MaxPayload
	}
	return math.MaxInt32
}

// MayHaveMore reports whether a bound may have ended the reading that returned items.
func (q *UnsettledQuery) MayHaveMore(items []Item) bool {
	return len(items) == q.Limit || q.MaxBytes > 0 && BytesOf(items) >= q.MaxBytes
}

// ReadLimit is how much memory rows that are read from the tables may take. Bytes of 0 are
// no bound.
type ReadLimit struct {
	Rows  int
	Bytes int64
}

// Query asks for rows of an outbox within the bound: as many as it allows may have their
// payload with them.
func (b ReadLimit) Query(outbox string) UnsettledQuery {
	q := UnsettledQuery{Outbox: outbox, Limit: b.Rows, MaxBytes: b.Bytes}
	if b.Bytes > 0 {
		q.MaxPayload = int(max(1, b.Bytes/int64(max(1, b.Rows))))
	}
	return q
}

// Remaining returns what n rows of some bytes leave of the bound, and one row and one byte
// more, which tell that there are more.
func (b ReadLimit) Remaining(n int, bytes int64) ReadLimit {
	b.Rows += 1 - n
	if b.Bytes > 0 {
		b.Bytes += 1 - bytes
	}
	return b
}

// Exceeded reports whether n rows of some bytes are more than the bound.
func (b ReadLimit) Exceeded(n int, bytes int64) bool {
	return n > b.Rows || b.Bytes > 0 && bytes > b.Bytes
}

// ExcludedLanes returns those lanes of Except that rows of the outbox can have.
func (q *UnsettledQuery) ExcludedLanes(o *Outbox) (lanes []LaneKey) {
	c := &o.Layout.Columns
	for _, k := range q.ExcludeLanes {
		if k.Outbox == o.Name && (c.Kind != "" || k.Kind == o.Kind) && (c.Group != "" || !k.Group.Valid) {
			lanes = append(lanes, k)
		}
	}
	return lanes
}

// LaneSet returns the set of some lanes.
func LaneSet(lanes []LaneKey) map[LaneKey]struct{} {
	set := make(map[LaneKey]struct{}, len(lanes))
	for _, k := range lanes {
		set[k] = struct{}{}
	}
	return set
}

// Viewer opens views of the outbox tables.
type Viewer interface {
	// View opens a consistent view of all tables: the named snapshot that a
	// source exported, or a fresh one for "". Close it soon; while it is open
	// the database keeps old row versions.
	View(ctx context.Context, snapshot string) (View, error)
}

// View is the outbox tables at one moment.
type View interface {
	// Unsettled returns rows in the layout's order-by, at most q.Limit of them,
	// without those that the relay has parked. They carry no Txn and no Seq. Whether
	// there may be more q.More tells.
	Unsettled(ctx context.Context, q UnsettledQuery) ([]Item, error)
	// Pages hands over what Unsettled returns in pages of at most page rows, in
	// order, so that any number of them takes little memory. It ends with the
	// first error that take returns.
	Pages(ctx context.Context, q UnsettledQuery, page int, take func([]Item) error) error
	// Delivered hands over the COMPLETED rows that q chooses, in the layout's order-by
	// and in pages as Pages does, without payload. Committed of each is the time in
	// the first column of order-by. Rows that have none there are not handed over;
	// undated is how many of them the lists of q choose. A *SetupError says that the
	// table cannot tell which rows were delivered, or of which time they are.
	Delivered(ctx context.Context, q DeliveredQuery, page int, take func([]Item) error) (undated int, err error)
	// Position is the place in the log that matches the view, where the
	// database tells it, else "".
	Position() Position
	// Close ends the view. It may be called more than once.
	Close()
}

// Installer makes the relay's own tables.
type Installer interface {
	// Install makes the relay's own tables or brings them up to this version.
	// It changes nothing where they are.
	Install(ctx context.Context) error
	// Check reports everything that keeps the relay from working on these
	// tables, in one error that says what to do: a missing table, column or
	// grant, own tables of another version.
	Check(ctx context.Context) error
	// Script returns the statements that Install runs on an empty database.
	Script() string
}

// Store is everything that a relay asks of a database besides its log. Every
// implementation passes the suite in package storetest.
type Store interface {
	RowWriter
	Locker
	Leadership
	Checkpoints
	StatusReader
	Holds
	DeadLetters
	FailedReader
	SpillStore
	Pruner
	Viewer
	Requester
	ReplayLister
	ReplayWriter
	ReplayFinisher
	ReplayReader
	Installer
	Diagnoser
	// Close ends the sessions. Calls after it fail.
	Close()
}

var (
	// ErrNotLeader says that this relay does not lead: the leader row has another epoch,
	// or the lock was lost, whether or not another relay has taken over. Leader tells.
	ErrNotLeader = errors.New("this relay leads no more")
	// ErrInterrupted says that the session that took leadership was lost. The
	// server may have crashed since and taken back what was committed
	// asynchronously. Lead again, and start at the saved checkpoint.
	ErrInterrupted = errors.New("the session that took leadership was lost")
	// ErrNoCheckpoint says that no checkpoint was ever saved under this name.
	ErrNoCheckpoint = errors.New("no checkpoint")
)

// RefusedError says that the database is there and did not take a claim or an
// outcome: a trigger or a constraint objects, say.
// Nothing was written. It may be one row's doing: the others of the call can be
// written without it.
type RefusedError struct {
	Err error
}

func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns what the database said.
func (e *RefusedError) Unwrap() error { return e.Err }

// OutboxLockedError says that another session keeps rows of an outbox locked, or its
// table. The database is well.
type OutboxLockedError struct {
	Outbox string
	Rows   int   // how many; 0: the table
	Err    error // what the database said; may be nil
}

func (e *OutboxLockedError) Error() string {
	what := "the table is"
	if e.Rows > 0 {
		what = fmt.Sprintf("%d rows are", e.Rows)
	}
	text := "outbox " + e.Outbox + ": " + what + " locked by another session; wait for its transaction, or end it"
	if e.Err != nil {
		text += " (" + e.Err.Error() + ")"
	}
	return text
}

// Unwrap returns what the database said.
func (e *OutboxLockedError) Unwrap() error { return e.Err }

// SetupError is a fault that only the configuration, a grant or an
// administrator mends: trying again does not help. Its text names the way out.
type SetupError struct {
	Problem string // what is wrong, naming the table, column, role or setting
	Remedy  string // what to do, such as the statement to run
}

func (e *SetupError) Error() string {
	if e.Remedy == "" {
		return e.Problem
	}
	return e.Problem + "; " + e.Remedy
}
