package store

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// A named checkpoint is a place to replay from later. A replay is a job: the rows of a
// part of the log, or of the table, are copied into an own table in the order of their
// commits, and are sent from there lane by lane. What is left of them there is the
// job's cursor. Anybody may write wishes; all else is the leader's.

// SavepointState is what became of a named checkpoint.
type SavepointState string

// The states of a named checkpoint.
const (
	SavepointRequested SavepointState = "wanted"  // nobody has made it yet
	SavepointMade      SavepointState = "made"    // its log is the server's to keep or to drop
	SavepointRetained  SavepointState = "kept"    // its log is kept for it
	SavepointLogLost   SavepointState = "dropped" // its log was kept, and is lost; Why says how
	SavepointRefused   SavepointState = "refused" // it could not be made; Why says why
)

// Savepoint is a checkpoint that somebody named.
type Savepoint struct {
	Name string
	Checkpoint
	// At is when the checkpoint was made, by the server's clock; zero if it is not.
	At              time.Time
	RetainLog       bool // its log is to be kept
	DeleteRequested bool // it is to be deleted
	State           SavepointState
	Reason          string
	RetainedBytes   int64 // the size of the log that is kept for it, as of the latest look
}

// savepointNamePattern leaves room for a relay's name beside it in the name of a replication
// slot, which has 63 bytes.
var savepointNamePattern = regexp.MustCompile(`^[a-z0-9_]{1,18}$`)

// ValidateSavepointName reports what keeps a text from being the name of a checkpoint.
func ValidateSavepointName(name string) error {
	if !savepointNamePattern.MatchString(name) {
		return fmt.Errorf("%q is no name of a checkpoint: it has 1 to 18 of the characters a to z, 0 to 9 and _", name)
	}
	return nil
}

// DesiredState is what somebody wants of a replay.
type DesiredState string

// The wishes.
const (
	DesiredRun    DesiredState = "run"
	DesiredPause  DesiredState = "pause"
	DesiredCancel DesiredState = "cancel"
)

// Validate reports whether a wish is one of these.
func (w DesiredState) Validate() error {
	switch w {
	case DesiredRun, DesiredPause, DesiredCancel:
		return nil
	}
	return fmt.Errorf("%q is no wish for a replay; wish for %s, %s or %s", string(w), DesiredRun, DesiredPause, DesiredCancel)
}

// JobState is what became of a replay.
type JobState string

// The states of a replay. The last four are ends.
const (
	JobWaiting   JobState = "waiting" // for the leader, or for another job
	JobCopying   JobState = "copying"
	JobPlaying   JobState = "playing"
	JobPaused    JobState = "paused"
	JobDone      JobState = "done"
	JobFailed    JobState = "failed"
	JobRefused   JobState = "refused"
	JobCancelled JobState = "cancelled"
)

// Ended reports whether nothing more comes of a job.
func (s JobState) Ended() bool {
	return s == JobDone || s == JobFailed || s == JobRefused || s == JobCancelled
}

// Started reports whether a job that comes to a state has begun.
func (s JobState) Started() bool { return s == JobCopying || s == JobPlaying || s == JobDone }

const (
	// MaxEndedJobs is how many jobs are kept that have ended: when one ends, those are
	// forgotten that ended before the latest so many.
	MaxEndedJobs = 100
	// EndedJobRetention is how long a job is kept that has ended.
	EndedJobRetention = 7 * 24 * time.Hour
	// MaxJobErrors is the most errors that are kept of a job.
	MaxJobErrors = 10_000
)

// Job is a replay. Whoever asks for one writes Spec; the leader writes the rest.
type Job struct {
	ID      string
	Desired DesiredState
	// Spec says what to replay, in a form that the store does not read.
	Spec   string
	State  JobState
	Reason string // of a state that needs one
	// Source is what it reads: "log" or "table", "" before that is known.
	Source string
	// Until is the place in the log at which it ends, UntilAt the moment, by the
	// server's clock.
	Until   Checkpoint
	UntilAt time.Time
	// Cursor is how far the copy has come, and Total the rows that it copied: those
	// that are done with, and those that are still there.
	Cursor ReplayCursor
	Total  int64
	// Sent, Skipped and Refused count the rows that are done with.
	Sent, Skipped, Refused             int64
	RequestedAt, StartedAt, FinishedAt time.Time // by the server's clock; zero if not yet
}

// ReplayCursor is a place in the log between two rows of a transaction.
type ReplayCursor struct {
	Position Position
	Skip     int // rows of the transaction behind Position that were read
}

// ReplayRow is a row of a job. N numbers the rows of a job from 1, in the order of
// their commits. Seq, RetryCount and Captured are not kept: they are zero in what is
// read. A nil payload stays one.
type ReplayRow struct {
	N int64
	Item
}

// ReplayLane is a lane with rows of a job.
type ReplayLane struct {
	LaneKey
	Hash  LaneHash
	First int64 // the N of its first row
}

// ReplayResult is what became of a row of a job.
type ReplayResult uint8

// The results.
const (
	ReplaySent ReplayResult = iota
	ReplaySkipped
	ReplayRefused
)

// FinishedRow is a row of a job that is done with.
type FinishedRow struct {
	N      int64
	Lane   LaneKey
	ID     string
	Result ReplayResult
	Error  string // of a refused one
}

// ReplayError is a row that its receiver refused.
type ReplayError struct {
	N int64
	Ref
	Kind   string
	Group  Group
	Reason string
	At     time.Time // by the server's clock
}

// RowState is what a table says of a row.
type RowState uint8

// The states of a row.
const (
	RowUnsettled RowState = iota // neither COMPLETED nor FAILED, or not yet visible
	RowCompleted
	RowFailed
	RowAbsent
)

var (
	// ErrNoSavepoint says that there is no checkpoint of that name.
	ErrNoSavepoint = errors.New("there is no checkpoint of this name")
	// ErrSavepointExists says that there is a checkpoint of that name.
	ErrSavepointExists = errors.New("there is a checkpoint of this name already")
	// ErrNoJob says that there is no such replay.
	ErrNoJob = errors.New("there is no such replay")
	// ErrJobExists says that there is a replay of that id.
	ErrJobExists = errors.New("there is a replay of this id already")
)

// Requester are what anybody may write, beside any leader.
type Requester interface {
	// RequestSavepoint asks for a checkpoint; ErrSavepointExists if there is one.
	RequestSavepoint(ctx context.Context, name string, keep bool) error
	// RequestSavepointDeletion asks for the end of a checkpoint; ErrNoSavepoint if there is none.
	RequestSavepointDeletion(ctx context.Context, name string) error
	// RequestReplay asks for a job of an id that nobody has used; ErrJobExists if
	// somebody has.
	RequestReplay(ctx context.Context, id, spec string) error
	// RequestJobState changes what is wanted of a job; ErrNoJob if there is none. A job that
	// has ended stays as it is.
	RequestJobState(ctx context.Context, id string, wish DesiredState) error
}

// ReplayLister shows checkpoints and jobs. It needs no leader.
type ReplayLister interface {
	// Savepoints returns all named checkpoints, by name.
	Savepoints(ctx context.Context) ([]Savepoint, error)
	// Jobs returns all jobs that there are, the one asked for last first: MaxEndedJobs that
	// have ended, and all that have not.
	Jobs(ctx context.Context) ([]Job, error)
	// JobErrors returns refused rows of a job in the order of N, at most limit.
	JobErrors(ctx context.Context, id string, limit int) ([]ReplayError, error)
}

// SavepointWriter keeps the named checkpoints. It is the leader's: ErrNotLeader means that
// nothing was written.
type SavepointWriter interface {
	// SaveSavepoint writes all of a named checkpoint but Keep and Drop; ErrNoSavepoint if
	// there is none. Why is cut as error texts are.
	SaveSavepoint(ctx context.Context, epoch Epoch, n Savepoint) error
	// DeleteSavepoint deletes a named checkpoint; none is no error.
	DeleteSavepoint(ctx context.Context, epoch Epoch, name string) error
}

// ReplayWriter is the leader's. ErrNotLeader means that nothing was written.
type ReplayWriter interface {
	SavepointWriter
	// SaveJob writes State, Why, Source, Until and UntilAt of a job, and the time at
	// which it began or finished where the state is the first such one; ErrNoJob if
	// there is none. Why is cut as error texts are. A state that ends the job also
	// forgets ended jobs that are too many or too old, with their errors: see MaxEndedJobs
	// and EndedJobRetention. One that still has rows stays, see ClearRows.
	SaveJob(ctx context.Context, epoch Epoch, j Job) error
	// CopyRows adds rows to a job, moves its cursor and counts them into Total, durably
	// and in one transaction; ErrNoJob if there is none. A row that is there already is
	// left, and not counted. No rows only move the cursor.
	CopyRows(ctx context.Context, epoch Epoch, id string, rows []ReplayRow, at ReplayCursor) error
	// SetRowCounts sets Total and Skipped of a job that copies no rows; ErrNoJob if there
	// is none.
	SetRowCounts(ctx context.Context, epoch Epoch, id string, total, skipped int64) error
	// ClearRows deletes at most limit rows of a job, takes them off its Total, and
	// returns how many.
	ClearRows(ctx context.Context, epoch Epoch, id string, limit int) (int, error)
}

// ReplayFinisher takes what became of a job's rows.
type ReplayFinisher interface {
	// FinishRows deletes rows from a job, counts them, and notes the errors of refused
	// ones, at most MaxJobErrors of a job, in one transaction; ErrNoJob if there is
	// none. A row that is not there is not counted. Error texts are cut as those of
	// outcomes are. A crash of the server may take it back. ErrNotLeader means that
	// nothing was written.
	FinishRows(ctx context.Context, epoch Epoch, id string, done []FinishedRow) error
}

// ReplayReader reads what a job has to send.
type ReplayReader interface {
	// ReplayLanes returns lanes of a job with rows, in the order of their first row, at
	// most limit of those whose first row is behind N after. It goes through the rows
	// from there to the last of these lanes, so ask on behind the First of that.
	ReplayLanes(ctx context.Context, id string, after int64, limit int) ([]ReplayLane, error)
	// ReplayRows returns, for each lane by position, at most each of its rows behind
	// an N, in the order of N.
	ReplayRows(ctx context.Context, id string, from []ReplayRange, each int) ([][]ReplayRow, error)
	// ReadStatuses returns the state of each row, by position, as a claim would see it, and
	// the payload of COMPLETED ones that want it. Where a table keeps no state every
	// row is RowAbsent.
	ReadStatuses(ctx context.Context, rows []ClaimRow) ([]RowStatus, error)
}

// ReplayRange asks for the rows of a lane behind an N.
type ReplayRange struct {
	Outbox string
	Lane   LaneHash
	After  int64
}

// RowStatus is what a table says of a row, with its payload if it was wanted.
type RowStatus struct {
	State   RowState
	Payload []byte
}
