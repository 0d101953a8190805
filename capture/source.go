package capture

import (
	"cmp"
	"context"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Batch holds rows of one transaction, or a position without rows. A source whose log has a
// position for each row may put rows of several transactions into one batch. An empty batch
// signals that the source reads the log.
type Batch struct {
	// Position is the position in the log directly after this batch. Once every row up to it
	// is settled, the relay acknowledges it and the database can discard the log before it.
	// It is "" if the transaction continues in the next batch.
	Position store.Position
	// Items are the rows, in the order in which the transaction wrote them. The receiver
	// owns them. Their Seq is not set.
	Items []store.Item
	// Marks are the markers that the log contains at this position, after the rows. Marked is
	// when the last of them was committed, by the server's clock; zero if it is not known.
	Marks  []string
	Marked time.Time
	// Changes are set by Watch alone, in place of Items.
	Changes []Change
}

// Span is a part of a log.
type Span struct {
	// From is the position after which the span starts.
	From store.Position
	// Until is the end of the span: Run returns nil once everything up to it was emitted. ""
	// is no end.
	Until store.Position
}

// OpenResult is the point from which a relay continues.
type OpenResult struct {
	// Origin identifies the log, see store.Checkpoint.
	Origin string
	// From is the position to run from.
	From store.Position
	// View is set if Open took a snapshot. It shows the tables as of From; unsettled rows in
	// it are not in the log. The caller closes it before Run. Nil means that the log is
	// intact from the checkpoint.
	View store.View
	// SnapshotReason is one line for the operator: the reason for the snapshot.
	SnapshotReason string
	// Kept are the outboxes whose rows only the log has and of which the snapshot leaves out
	// none: Tables.Keep got those between the checkpoint and From.
	Kept []string
	// Discard removes the objects that Open created on the server (a slot), for a caller
	// that cannot continue. Nil if Open created none.
	Discard func(ctx context.Context) error
}

// RetainedLog is the size of the log that a database retains for a source.
type RetainedLog struct {
	// Bytes is the size of the log after the last acknowledged position, including log that
	// was not read yet.
	Bytes int64
	// Limit is the size in bytes above which the database discards log that the source still
	// needs. 0 is no limit.
	Limit int64
}

// Tables provides access to the tables while a source opens.
type Tables interface {
	store.Viewer
	// ClearCheckpoint durably removes the saved checkpoint. A source calls it before it
	// changes anything that the log depends on, for example a slot or a publication. A start
	// that fails half-way then takes a snapshot again, whatever part of the new log exists
	// by then.
	ClearCheckpoint(ctx context.Context) error
	// Keep durably stores rows that only the log has (store.Layout.LogOnly), in the order of
	// the log and before all rows that the source sends later. It then saves a checkpoint
	// with at's origin and position, if at has a position: a start that fails later is
	// followed by one at that checkpoint. A source that keeps rows calls it in place of
	// ClearCheckpoint, also once without rows before it opens the view: the first call
	// deletes the rows that the log brings again. After ClearCheckpoint, it calls Keep without
	// rows to save the position of a new log.
	Keep(ctx context.Context, at store.Checkpoint, items []store.Item) error
}

// Retention controls how long the database retains the log of a source.
type Retention interface {
	// Acknowledge lets the database discard the log up to a position. Positions older than
	// the last one are ignored. It does not block.
	Acknowledge(p store.Position)
	// Retained asks the database for the size of the log that it retains for the source. An
	// acknowledgement counts at once, even before the database has received it. The result
	// is zero for a source that reads no log.
	Retained(ctx context.Context) (RetainedLog, error)
}

// Distance is implemented by a source whose positions count the bytes of its log.
type Distance interface {
	// Distance returns the bytes of log from a position to a later one, and 0 if it is not
	// later. known is false if a position cannot tell.
	Distance(from, to store.Position) (bytes int64, known bool)
}

// Source reads the log of one database.
//
// Open and Run belong to one goroutine. Acknowledge and Mark may be called from any
// goroutine at any time, and Retained at any time between Open and the end of Run.
type Source interface {
	// Open finds the log at a checkpoint. If it is not there (the zero Checkpoint, another
	// origin, a lost log), Open takes a snapshot: it clears the old checkpoint, takes a new
	// position, and opens a view of the tables. The error is a *store.SetupError if a retry
	// cannot help.
	Open(ctx context.Context, at store.Checkpoint, tables Tables) (OpenResult, error)
	// Run sends batches in commit order until one of these happens:
	//   - the context ends: it returns the context's error,
	//   - the span ends: it returns nil,
	//   - reading fails.
	//
	// A Resumer does not send again what it sent in an earlier run. Run closes nothing that
	// the caller passed to it.
	Run(ctx context.Context, span Span, out chan<- Batch) error
	Retention
	// Mark writes a marker into the log. Batch.Marks returns it, after every transaction
	// that committed before the call to Mark. A token matches [A-Za-z0-9-]{1,64}.
	Mark(ctx context.Context, token string) error
	// Compare orders two positions of one origin. The result is negative, zero or positive
	// if a is before, at or after b. "" is before every position.
	Compare(a, b store.Position) int
}

// Settings are what a source needs to know of its relay.
type Settings struct {
	// Name is the relay's name, [a-z0-9_]{1,40}.
	Name string
	// Outboxes are the tables to read.
	Outboxes []store.Outbox
	// MaxBatchBytes limits a batch; a single row may exceed it. 0 is the source's default.
	MaxBatchBytes int
}

// Stream is a source that reads the database's log. It holds sessions until Close.
type Stream interface {
	Resumer
	Publisher
	store.Diagnoser
	// Tap sends rows that commit from now on, in place of Open and Run, and changes
	// nothing. It calls begun once when it starts to read.
	Tap(ctx context.Context, out chan<- Batch, begun func()) error
	Close()
}

// Publisher creates what reading a log needs, for example a publication.
type Publisher interface {
	// Publish creates it for the outbox tables.
	Publish(ctx context.Context) error
	// Script returns the statements of Publish; "" if there are none.
	Script() string
}

// ReadinessChecker is a source that reports whether the log can be read. It keeps state
// between calls, because the server may hide from the role how long a transaction has been
// open. A source without it can always be read.
type ReadinessChecker interface {
	// Ready returns nil if Open would find a readable log, else the reason. It changes
	// nothing.
	Ready(ctx context.Context) error
}

// SlotDropper is a source whose log has a slot.
type SlotDropper interface {
	// DropSlot drops the slot of a relay that polls, so that the server retains no log for
	// it.
	DropSlot(ctx context.Context) error
}

// ComparePositions orders two positions of a source by their parsed values. If parse rejects
// either of them, it compares them as strings: such a position is not the source's, and any
// stable order will do.
func ComparePositions[T cmp.Ordered](a, b store.Position, parse func(store.Position) (T, error)) int {
	x, errX := parse(a)
	y, errY := parse(b)
	if errX != nil || errY != nil {
		return cmp.Compare(a, b)
	}
	return cmp.Compare(x, y)
}

// LostError reports that the log from a position on is gone: for example a slot was dropped
// or invalidated, a binlog was purged, or a resume token is too old. A new snapshot fixes
// it.
type LostError struct {
	Reason string
	// Readable is set if the log does not have all rows of the tables, but can still be read
	// from a checkpoint, for rows that no table has.
	Readable bool
}

func (e *LostError) Error() string { return "log lost: " + e.Reason }

// NoStreamError reports that this role cannot read the server's log, because a setting, a
// grant or a publication is missing. The tables can still be polled. For a caller that
// cannot poll, it is a *store.SetupError.
type NoStreamError struct {
	store.SetupError
}

// Unwrap returns the error as a *store.SetupError.
func (e *NoStreamError) Unwrap() error { return &e.SetupError }
