package capture

import (
	"cmp"
	"context"

	"github.com/sluicebox/sluicebox/store"
)

// Batch is some rows of one transaction, or a position without rows. A source
// whose log has a position for every row may put rows of several transactions
// into one. One of nothing at all says that the log is being read.
type Batch struct {
	// Position is the place in the log just after this batch: once everything
	// up to it is settled, acknowledging it gives the log before it away. It is
	// "" while the transaction goes on in the next batch.
	Position store.Position
	// Items are rows in the order in which the transaction wrote them. The
	// receiver owns them. Their Seq is not set.
	Items []store.Item
	// Marks are the markers that the log holds at this place, after the rows.
	Marks []string
}

// Span is a part of a log.
type Span struct {
	// From is the position to go on after.
	From store.Position
	// Until ends the run with nil once everything up to it was emitted. "" is
	// for ever.
	Until store.Position
}

// OpenResult is the place from which a relay goes on.
type OpenResult struct {
	// Origin names the log, see store.Checkpoint.
	Origin string
	// From is where to run from.
	From store.Position
	// View is set when the log begins anew at From: it shows the tables as of
	// From, and rows that it shows unsettled are not in the log. The caller
	// closes it before Run. Nil says that the log is intact from the checkpoint.
	View store.View
	// Overlap says that View may be younger than From: a row that the stream
	// brings up to a marker written after the view was read may be in both, and
	// the streamed copy is the one to keep.
	Overlap bool
	// SnapshotReason says in one line why the log begins anew, for the operator.
	SnapshotReason string
	// Discard gives up what Open made on the server (a slot), for a caller that
	// cannot go on from here. Nil if it made nothing.
	Discard func(ctx context.Context) error
}

// RetainedLog is how much log a database keeps for a source.
type RetainedLog struct {
	// Bytes is the log behind the last acknowledged position, what was not yet
	// read included.
	Bytes int64
	// Limit is how much the database keeps at most before it takes the log away,
	// in bytes; 0 if there is no such bound.
	Limit int64
}

// Tables is what a source asks of the tables while it opens.
type Tables interface {
	store.Viewer
	// ClearCheckpoint makes durable that no checkpoint holds any more. A source calls it
	// before it changes anything that the log depends on (a slot, a
	// publication): a start that ends half-way then begins with a cut again,
	// whatever of the new log is there by then.
	ClearCheckpoint(ctx context.Context) error
}

// Retention is how long a source's log is kept.
type Retention interface {
	// Acknowledge gives the log up to a position away. Older positions than
	// the last are ignored. It does not wait.
	Acknowledge(p store.Position)
	// Retained asks the database how much log it keeps for the source. The answer
	// counts an acknowledgement as soon as it was made, also one that the database
	// has yet to hear of. It is zero for a source that reads no log.
	Retained(ctx context.Context) (RetainedLog, error)
}

// Source reads the log of one database.
//
// Open and Run belong to one goroutine; Acknowledge and Mark may be called from
// any, at any time, and Retained at any time between Open and the end of Run.
type Source interface {
	// Open finds the log at a checkpoint, or, if there is none there (the zero
	// Checkpoint, another origin, a lost log), makes a cut: it has the old
	// checkpoint forgotten, takes a new place, and opens a view of the tables.
	// An error is a *store.SetupError where trying again does not help.
	Open(ctx context.Context, at store.Checkpoint, tables Tables) (OpenResult, error)
	// Run sends batches in commit order until the context ends (it then
	// returns the context's error), the span ends (nil), or it fails. A source
	// that is a Resumer sends nothing again that it sent in an earlier run. It
	// closes nothing that the caller gave it.
	Run(ctx context.Context, span Span, out chan<- Batch) error
	Retention
	// Mark writes a marker into the log. It comes back in Batch.Marks, behind
	// every transaction that committed before Mark was called. A token is
	// [A-Za-z0-9-]{1,64}.
	Mark(ctx context.Context, token string) error
	// Compare orders two positions of one origin: negative, zero or positive as
	// a is before, at or after b. "" is before everything.
	Compare(a, b store.Position) int
}

// ComparePositions orders two positions of a source by what they stand for. One
// that parse refuses is not the source's: any fixed order will do.
func ComparePositions[T cmp.Ordered](a, b store.Position, parse func(store.Position) (T, error)) int {
	x, errX := parse(a)
	y, errY := parse(b)
	if errX != nil || errY != nil {
		return cmp.Compare(a, b)
	}
	return cmp.Compare(x, y)
}

// LostError says that the log from a position on is no longer to be had: a slot
// dropped or invalidated, a binlog purged, a resume token too old. A new cut
// mends it.
type LostError struct {
	Reason string
}

func (e *LostError) Error() string { return "the log is lost: " + e.Reason }

// NoStreamError says that the server, as it is set up, does not let this role
// read its log: a setting, a grant or a publication is missing. What the tables
// hold can still be polled. It is a *store.SetupError to those who cannot poll.
type NoStreamError struct {
	store.SetupError
}

// Unwrap makes the error a *store.SetupError.
func (e *NoStreamError) Unwrap() error { return &e.SetupError }
