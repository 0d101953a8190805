package capture

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// StartPoint is a point in a log from which HistoryReader reads again.
type StartPoint struct {
	// Checkpoint holds the position and the origin of its log. Its Seq is ignored.
	store.Checkpoint
	// Skip is the number of rows after Position that were read already. They belong to a
	// transaction that was read in part. It is 0 if Position is "".
	Skip int
	// Slot is the value that RetainLog returned for this point. It is "" if no log is
	// retained for it.
	Slot string
	// Since replaces Position if that is "": the range starts at the rows committed at this
	// time or later. Origin may be "" then. Rows after Position that were committed earlier may be
	// left out. Zero is no time.
	Since time.Time
}

// HistoryReader is a source that can read a part of the log again, for example for a replay.
// It runs beside the relay and changes none of the relay's state.
type HistoryReader interface {
	// CheckReachable returns nil if the log can be read from a start point. The errors:
	//   - *LostError: the log is no longer there,
	//   - *OriginError: the position belongs to another log,
	//   - anything else: as for Open.
	//
	// It leaves nothing on the server. It may be called at any time except concurrently with
	// Close, also on the relay's own source. It requests log from the server, so do not call
	// it every second.
	CheckReachable(ctx context.Context, at StartPoint) error
	// ReadRange sends the rows committed after a start point, up to a position of the same
	// log, and returns nil when all of them are sent. It may be called once, in place of
	// Open, Run and Tap. It acknowledges nothing. Markers in the range are sent again. A
	// range that starts at a time (Since) may include some earlier rows, and a position
	// before the first part of a transaction.
	//
	// It ends with the context's error or an error of CheckReachable. Any error but a
	// *LostError or *OriginError is a lost connection. ReadRange does not reconnect: another
	// source continues from the received Position and Skip. The caller counts repeated
	// failures at the same position.
	ReadRange(ctx context.Context, at StartPoint, until store.Position, out chan<- Batch) error
}

// SlotRetainer is a source that can make the server retain log for a named checkpoint. A
// name is valid if store.ValidateSavepointName returns nil. The methods may be called at any
// time except concurrently with Close.
type SlotRetainer interface {
	// RetainLog makes the server retain its log from a position at or before the call, until
	// ReleaseLog. It returns the value for StartPoint.Slot. It first releases the log
	// retained under that name. It returns a *LostError if the relay has no log at present.
	RetainLog(ctx context.Context, name string) (kept string, err error)
	// RetainedSlots returns the slots retained for this relay, ordered by name.
	RetainedSlots(ctx context.Context) ([]RetainedSlot, error)
	// ReleaseLog drops the slot of a name, if there is one. A session that is reading it is
	// not interrupted.
	ReleaseLog(ctx context.Context, name string) error
	// SlotFor returns the value for StartPoint.Slot of the log retained under a name. It
	// does not contact the server.
	SlotFor(name string) string
}

// RetentionChecker is a source whose server retains log by its own settings, whether a
// reader needs the log or not. Examples are binlog expiry and the size of the oplog.
type RetentionChecker interface {
	// LostReasons returns for each checkpoint the reason why the log after it is gone, or ""
	// if it may still be there. It asks the server once for the start of its log and does no
	// other check; CheckReachable finds everything else. The result for a checkpoint of
	// another log is "". It may be called at any time except concurrently with Close, also
	// on the relay's own source.
	LostReasons(ctx context.Context, of []store.Checkpoint) ([]string, error)
}

// RetainedSlot is log retained for a named checkpoint.
type RetainedSlot struct {
	// Name is the checkpoint's name, or a substitute if the server's names are too short for
	// it. SlotFor returns the same for both, and ReleaseLog accepts both.
	Name string
	// Bytes is the size of the log that the slot retains, including log that other slots
	// retain too.
	Bytes int64
	// Lost is the reason why the log is gone, "" if it is still there.
	Lost string
}

// OriginError reports that a position does not belong to the present log. The server, its
// database or its publication is a different one, or the server was restored to an earlier
// state.
type OriginError struct {
	Reason string
}

func (e *OriginError) Error() string { return "position belongs to another log: " + e.Reason }
