package capture

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// StartPoint is a point in a log from which it is to be read once more.
type StartPoint struct {
	// Checkpoint is the place and the log that it is of. Its Seq means nothing here.
	store.Checkpoint
	// Skip is how many rows behind Position were read before, of a transaction that
	// was read in part. It is 0 where Position is "".
	Skip int
	// Slot is what RetainLog answered when the log was kept for the place, "" if it was
	// not.
	Slot string
	// Since stands for the place where Position is "": all that was committed then or
	// later is to be read. Origin may be "" then.
	Since time.Time
}

// HistoryReader is a source that reads a part of the log once more, beside a relay that runs
// and without changing anything that it works with.
type HistoryReader interface {
	// CheckReachable returns nil if the log can be read from a place on. A *LostError says why
	// it is no longer there, an *OriginError why the place is one of another log. Other
	// errors are those of Open. It leaves nothing on the server, and may be called at
	// any time but beside Close, also of the relay's own source. It asks the server for
	// its log, so it is not for every second.
	CheckReachable(ctx context.Context, at StartPoint) error
	// ReadRange sends the rows that were committed behind a place, up to a position of the
	// same log, as Run does, and returns nil when it has sent them all. It may be called
	// once, in place of Open, Run and Tap, and nothing is acknowledged. Markers of that
	// time come again. From a time on, some earlier rows may come too, and a position
	// before the first part of a transaction.
	//
	// It ends with the context's error, or with an error of Reach; one that is neither
	// of the two kinds above is a lost connection. It does not connect again: another
	// source goes on behind what was received, by its Position and by Skip. What keeps
	// failing at one place is for the caller to count.
	ReadRange(ctx context.Context, at StartPoint, until store.Position, out chan<- Batch) error
}

// SlotRetainer is a source that can have its log kept for a checkpoint with a name of
// 1 to 18 of a-z, 0-9 and _. Its methods may be called at any time but beside Close.
type SlotRetainer interface {
	// RetainLog has the log kept from before the call on, until ReleaseLog, and returns what
	// Place.Kept is to hold. What is kept under that name already is given up. A
	// *LostError says that the relay has no log now.
	RetainLog(ctx context.Context, name string) (kept string, err error)
	// RetainedSlots returns what is kept for this relay, by name.
	RetainedSlots(ctx context.Context) ([]RetainedSlot, error)
	// ReleaseLog gives up what is kept under a name, if anything is. Who reads it at the
	// moment reads on.
	ReleaseLog(ctx context.Context, name string) error
	// SlotFor returns what Place.Kept is to hold for log that is kept under a name. It
	// asks nobody.
	SlotFor(name string) string
}

// RetentionChecker is a source whose server keeps its log for as long as it is set up to,
// whoever needs it.
type RetentionChecker interface {
	// LostReasons says of each checkpoint, by position, why the log behind it is no longer to
	// be had, "" where it may be. It asks the server once where its log begins, and no
	// more: what it does not see, Reach does. Of a checkpoint of another log it says
	// nothing. It may be called at any time but beside Close, also of the relay's own
	// source.
	LostReasons(ctx context.Context, of []store.Checkpoint) ([]string, error)
}

// RetainedSlot is log that is kept for a checkpoint.
type RetainedSlot struct {
	Name string
	// Bytes is the size of the log that may not go because of it. What others keep
	// too is counted.
	Bytes int64
	// Lost says why it is not to be had any more, "" if it is.
	Lost string
}

// OriginError says that a place is not one of the log that is there: the server, its
// database or what it publishes is another one, or it was restored to a state of
// before.
type OriginError struct {
	Reason string
}

func (e *OriginError) Error() string { return "the place is of another log: " + e.Reason }
