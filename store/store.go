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
	// Claim returns an answer for each row, by position. It writes at as the claim time, so
	// that a leader recognizes its own claim.
	//
	// Claim waits a short time in total for locks of other sessions, however many rows are
	// locked. After that a locked row is NotYetVisible and all rows of a locked table are
	// TableLocked; the other rows are answered as usual.
	//
	// Errors:
	//   - ErrNotLeader: nothing was written, and nothing may be sent.
	//   - *RefusedError: the database rejected at least one row; claim fewer rows at once.
	//   - Any other error: the result is unknown; claim again.
	Claim(ctx context.Context, epoch Epoch, at time.Time, rows []ClaimRow) ([]ClaimAnswer, error)
}

// Settler writes outcomes.
type Settler interface {
	// Settle writes outcomes into rows that are not settled, and returns a result for each,
	// by position. If one of the outcomes is Failed, all are durable when it returns.
	//
	// Settle waits for locks as Claim does, and then returns WasLocked or TableWasLocked
	// for the rows.
	//
	// Two calls may run at once, with outcomes of different rows.
	//
	// Errors:
	//   - ErrNotLeader: nothing was written.
	//   - *RefusedError: the database rejected at least one row; write fewer outcomes at once.
	//   - Any other error: the result is unknown; writing the same outcomes again is safe.
	Settle(ctx context.Context, epoch Epoch, outcomes []Outcome) ([]SettleResult, error)
}

// TableAwaiter waits for table locks of other sessions.
type TableAwaiter interface {
	// AwaitTable returns nil once no other session's lock on the outbox's table prevents
	// writes to its rows. After about a second it returns a *OutboxLockedError. Other calls
	// continue meanwhile, because AwaitTable uses its own session.
	AwaitTable(ctx context.Context, outbox string) error
}

// RowWriter writes claims and outcomes into the outbox tables.
type RowWriter interface {
	Claimer
	UntriedReader
	Settler
	TableAwaiter
}

// Leadership assigns epochs.
type Leadership interface {
	// AcquireLeadership makes the caller the leader: it raises the epoch, durably, and
	// returns it. From then on the store refuses all writes of earlier epochs, and all
	// writes of other stores, whatever epoch they name. Unfinished writes of an earlier
	// leader are terminated after a short wait.
	AcquireLeadership(ctx context.Context) (Epoch, error)
	// Leader returns the current or last leader, or ErrNotLeader if there never was one.
	Leader(ctx context.Context) (Leader, error)
}

// CommitWaiter reports whether commits wait for a standby.
type CommitWaiter interface {
	// CommitsWait returns the setting that makes commits wait for a standby, for example
	// "synchronous_standby_names = 's1'"; "" if none does. The log shows the rows of a
	// waiting commit already, and a failover loses those that the standby does not have. So
	// a row that was only read from the log may not be safe yet.
	//
	// CommitsWait returns the setting whether or not a standby is connected, because a
	// commit waits for a missing one too.
	CommitsWait(ctx context.Context) (setting string, err error)
}

// Checkpoints loads and saves the relay's checkpoint.
type Checkpoints interface {
	// LoadCheckpoint returns the checkpoint, or ErrNoCheckpoint.
	LoadCheckpoint(ctx context.Context) (Checkpoint, error)
	// SaveCheckpoint writes the checkpoint synchronously. When it returns, every write
	// finished between AcquireLeadership and this call survives a server crash. If that is
	// uncertain, SaveCheckpoint writes nothing and returns ErrInterrupted.
	SaveCheckpoint(ctx context.Context, epoch Epoch, cp Checkpoint) error
}

// UnsettledQuery selects rows that are neither COMPLETED nor FAILED.
type UnsettledQuery struct {
	Outbox string
	// Limit is the maximum number of rows to read; it must be positive.
	Limit int
	// ExcludeIDs are the ids to omit, for example rows that are in lanes already.
	ExcludeIDs []string
	// ExcludeLanes are the lanes to omit, byte for byte, for example held lanes. Lanes of
	// another outbox are ignored.
	ExcludeLanes []LaneKey
	// IncludeSpilled are the ids of rows to read although they are spilled; see legs.Store.
	IncludeSpilled []string
	// MaxPayload is the size in bytes up to which a payload is read with its row. A longer
	// payload leaves Item.Payload nil and still sets PayloadSize. 0 means no limit.
	MaxPayload int
	// NoPayload omits all payloads.
	NoPayload bool
	// MaxBytes limits a page, and the result of Unsettled, in bytes as counted by
	// Item.Bytes: the row that reaches MaxBytes is the last. 0 means no limit.
	MaxBytes int64
	// After, for a layout that ReadsByPosition, selects the rows behind a place, in the order of
	// transactions and ids, that no transaction can precede any more: all older ones have ended.
	// Item.Txn is then the value of Columns.Transaction. Nil selects no row of such a layout.
	After *RowPlace
}

// RowPlace is the place of a row in the order of transactions and ids. An ID of "" is before all
// rows of the transaction.
type RowPlace struct {
	Txn uint64
	ID  string
}

// MaxInlinePayload returns the size up to which a payload is read with its row, -1 if no
// payload is read.
func (q *UnsettledQuery) MaxInlinePayload() int {
	switch {
	case q.NoPayload:
		return -1
	case q.MaxPayload > 0:
		return q.MaxPayload
	}
	return math.MaxInt32
}

// MayHaveMore reports whether a limit may have ended the read that returned items.
func (q *UnsettledQuery) MayHaveMore(items []Item) bool {
	return len(items) == q.Limit || q.MaxBytes > 0 && BytesOf(items) >= q.MaxBytes
}

// ReadLimit limits the rows read from the tables into memory. Bytes of 0 means no limit.
type ReadLimit struct {
	Rows  int
	Bytes int64
}

// Query returns a query for rows of an outbox within the limit. It sets MaxPayload so that
// Rows payloads fit into Bytes. Rows of an outbox with routes come whole, because a leg may still
// need one after its table has lost it.
func (b ReadLimit) Query(o *Outbox) UnsettledQuery {
	q := UnsettledQuery{Outbox: o.Name, Limit: b.Rows, MaxBytes: b.Bytes}
	if b.Bytes > 0 && len(o.Routes) == 0 {
		q.MaxPayload = int(max(1, b.Bytes/int64(max(1, b.Rows))))
	}
	return q
}

// Remaining returns the limit that is left after n rows of the given bytes, plus one row
// and one byte, which show whether there are more.
func (b ReadLimit) Remaining(n int, bytes int64) ReadLimit {
	b.Rows += 1 - n
	if b.Bytes > 0 {
		b.Bytes += 1 - bytes
	}
	return b
}

// Exceeded reports whether n rows of the given bytes exceed the limit.
func (b ReadLimit) Exceeded(n int, bytes int64) bool {
	return n > b.Rows || b.Bytes > 0 && bytes > b.Bytes
}

// ExcludedLanes returns the lanes of ExcludeLanes that rows of the outbox can have.
func (q *UnsettledQuery) ExcludedLanes(o *Outbox) (lanes []LaneKey) {
	c := &o.Layout.Columns
	for _, k := range q.ExcludeLanes {
		if k.Outbox == o.Name && (c.Kind != "" || k.Kind == o.Kind) && (c.Group != "" || !k.Group.Valid) {
			lanes = append(lanes, k)
		}
	}
	return lanes
}

// LaneSet returns lanes as a set.
func LaneSet(lanes []LaneKey) map[LaneKey]struct{} {
	set := make(map[LaneKey]struct{}, len(lanes))
	for _, k := range lanes {
		set[k] = struct{}{}
	}
	return set
}

// Viewer opens views of the outbox tables.
type Viewer interface {
	// View opens a consistent view of all tables: the named snapshot that a source
	// exported, or a fresh one for "". Close it soon, because the database keeps old row
	// versions while it is open.
	View(ctx context.Context, snapshot string) (View, error)
}

// View is a snapshot of the outbox tables.
type View interface {
	// Unsettled returns up to q.Limit rows in the layout's order-by, without spilled rows.
	// The rows have no Txn and no Seq. q.MayHaveMore reports whether there may be more.
	Unsettled(ctx context.Context, q UnsettledQuery) ([]Item, error)
	// Pages passes the rows of Unsettled to take in pages of up to page rows, in order, so
	// that any number of rows needs little memory. It stops at the first error of take and
	// returns it.
	Pages(ctx context.Context, q UnsettledQuery, page int, take func([]Item) error) error
	// Delivered passes the COMPLETED rows that q selects to take, in the layout's order-by
	// and in pages, without payload. Item.Committed is the time in the first column of
	// order-by. Rows without such a time are omitted; undated is the number of them that
	// match the lists of q. Delivered returns a *SetupError if the table does not record
	// which rows were delivered, or when.
	Delivered(ctx context.Context, q DeliveredQuery, page int, take func([]Item) error) (undated int, err error)
	// Position returns the log position that matches the view, "" if the database does not
	// provide it. On PostgreSQL it is the snapshot (pg_snapshot) of a view that imported none.
	Position() Position
	// Close closes the view. It may be called more than once.
	Close()
}

// Installer creates the relay's tables.
type Installer interface {
	// Install creates the relay's tables or upgrades them to this version. It does not
	// change tables that are current.
	Install(ctx context.Context) error
	// Check returns every reason why the relay cannot work on these tables, with remedies,
	// in one error: for example a missing table, column or grant, or relay tables of
	// another version.
	Check(ctx context.Context) error
	// Script returns the statements that Install runs on an empty database.
	Script() string
}

// Tables is what a relay needs of a database for the outbox tables and its leadership. The
// relay's own records are in package ledger. Every implementation passes the test suite in
// package storetest.
type Tables interface {
	RowWriter
	Locker
	Leadership
	CommitWaiter
	StatusReader
	RowStatusReader
	DeadLetters
	FailedReader
	Pruner
	Viewer
	Installer
	Diagnoser
	// Close closes the sessions. Later calls fail.
	Close()
}

var (
	// ErrNotLeader reports that this relay is not the leader: the leader row has another
	// epoch, or the lock was lost. Another relay may or may not have taken over; Leader
	// returns the current one.
	ErrNotLeader = errors.New("not the leader")
	// ErrInterrupted reports that the session that acquired leadership was lost. The server
	// may have crashed since and undone asynchronous commits. Call AcquireLeadership again,
	// and start at the saved checkpoint.
	ErrInterrupted = errors.New("leader session lost; acquire leadership again and start at the saved checkpoint")
	// ErrNoCheckpoint reports that no checkpoint was ever saved under this name.
	ErrNoCheckpoint = errors.New("no checkpoint saved")
)

// RefusedError reports that the database is reachable and rejected a claim or an outcome,
// for example by a trigger or a constraint. Nothing was written. A single row may be the
// cause: the other rows of the call can be written without it.
type RefusedError struct {
	Err error
}

func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns the database's error.
func (e *RefusedError) Unwrap() error { return e.Err }

// OutboxLockedError reports that another session keeps rows or the table of an outbox
// locked. The database is otherwise available.
type OutboxLockedError struct {
	Outbox string
	Rows   int   // number of locked rows; 0: the table
	Err    error // database error; may be nil
}

func (e *OutboxLockedError) Error() string {
	what := "table"
	if e.Rows > 0 {
		what = fmt.Sprintf("%d rows", e.Rows)
	}
	text := "outbox " + e.Outbox + ": " + what + " locked by another session; wait for its transaction, or end it"
	if e.Err != nil {
		text += " (" + e.Err.Error() + ")"
	}
	return text
}

// Unwrap returns the database's error.
func (e *OutboxLockedError) Unwrap() error { return e.Err }

// SetupError is a fault that retries cannot fix: it needs a change of the configuration, a
// grant or an administrator. Its text names the remedy.
type SetupError struct {
	Problem string // the fault, with the table, column, role or setting
	Remedy  string // the fix, for example the statement to run
}

func (e *SetupError) Error() string {
	if e.Remedy == "" {
		return e.Problem
	}
	return e.Problem + "; " + e.Remedy
}
