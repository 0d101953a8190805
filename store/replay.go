package store

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// A named checkpoint is a position to replay from later. A replay is a job: the leader
// copies the rows of a part of the log, or of the table, into a table of the relay, in
// commit order. It sends them from there lane by lane, and the remaining copies are the
// job's cursor. Any process may write requests; only the leader writes the rest.

// SavepointState is the state of a named checkpoint.
type SavepointState string

// States of a named checkpoint.
const (
	SavepointRequested SavepointState = "requested" // not processed yet
	SavepointMade      SavepointState = "made"      // the server decides how long to retain its log
	SavepointRetained  SavepointState = "retained"  // its log is retained
	SavepointLogLost   SavepointState = "lost"      // its log was retained and is lost; see Reason
	SavepointRefused   SavepointState = "refused"   // it could not be made; see Reason
)

// Savepoint is a named checkpoint.
type Savepoint struct {
	Name string
	Checkpoint
	// At is when the checkpoint was made, by the server's clock; zero before that.
	At              time.Time
	RetainLog       bool // retain its log
	DeleteRequested bool // delete it
	State           SavepointState
	Reason          string
	RetainedBytes   int64 // size of its retained log at the last check
}

// savepointNamePattern keeps a name from looking like a flag.
var savepointNamePattern = regexp.MustCompile(`^[a-z0-9_][a-z0-9_-]{0,62}$`)

// ValidateSavepointName reports whether name is a valid name for a checkpoint.
func ValidateSavepointName(name string) error {
	if !savepointNamePattern.MatchString(name) {
		return fmt.Errorf("invalid checkpoint name %q: use 1 to 63 of the characters a to z, 0 to 9, _ and -, and begin with another than -", name)
	}
	return nil
}

// DesiredState is the requested state of a replay.
type DesiredState string

// Desired states.
const (
	DesiredRun    DesiredState = "run"
	DesiredPause  DesiredState = "pause"
	DesiredCancel DesiredState = "cancel"
)

// Validate reports whether w is a known state.
func (w DesiredState) Validate() error {
	switch w {
	case DesiredRun, DesiredPause, DesiredCancel:
		return nil
	}
	return fmt.Errorf("invalid replay action %q: use %s, %s or %s", string(w), DesiredRun, DesiredPause, DesiredCancel)
}

// JobState is the state of a replay.
type JobState string

// States of a replay. The last four are final.
const (
	JobWaiting   JobState = "waiting" // for the leader or another job
	JobCopying   JobState = "copying"
	JobPlaying   JobState = "playing"
	JobPaused    JobState = "paused"
	JobDone      JobState = "done"
	JobFailed    JobState = "failed"
	JobRefused   JobState = "refused"
	JobCancelled JobState = "cancelled"
)

// Ended reports whether the state is final.
func (s JobState) Ended() bool {
	return s == JobDone || s == JobFailed || s == JobRefused || s == JobCancelled
}

// Started reports whether a job that enters the state has begun.
func (s JobState) Started() bool { return s == JobCopying || s == JobPlaying || s == JobDone }

const (
	// MaxEndedJobs is the number of ended jobs to keep. When a job ends, SaveJob deletes
	// the oldest ended jobs above this number.
	MaxEndedJobs = 100
	// EndedJobRetention is how long an ended job is kept.
	EndedJobRetention = 7 * 24 * time.Hour
	// MaxJobErrors is the maximum number of errors stored per job.
	MaxJobErrors = 10_000
)

// Job is a replay. The requester writes Spec; the leader writes the rest.
type Job struct {
	ID      string
	Desired DesiredState
	// Spec describes the rows to replay; the store does not interpret it.
	Spec   string
	State  JobState
	Reason string // where its rows come from, or why it failed or was refused
	// WaitsFor is the condition for which it waits; "" if it does not.
	WaitsFor string
	// Undated is the number of rows of the table that have no time and are not sent.
	Undated int
	// Source is "log" or "table", the origin of the rows; "" before it is chosen.
	Source string
	// Until is the log position where the replay ends, and UntilAt its time by the server's
	// clock.
	Until   Checkpoint
	UntilAt time.Time
	// Cursor is the position of the copy. Total is the number of copied rows, finished and
	// remaining.
	Cursor ReplayCursor
	Total  int64
	// Sent, Skipped and Refused count the finished rows.
	Sent, Skipped, Refused             int64
	RequestedAt, StartedAt, FinishedAt time.Time // by the server's clock; zero before
}

// JobWaitsFor separates Reason from WaitsFor in Note.
const JobWaitsFor = "; waits for "

// Note returns Reason, Undated and WaitsFor in one text.
func (j *Job) Note() string {
	note := j.Reason
	if j.Undated > 0 {
		note += fmt.Sprintf("; rows without a time, not sent: %d", j.Undated)
	}
	if j.WaitsFor != "" {
		note += JobWaitsFor + j.WaitsFor
	}
	return note
}

// ReplayCursor is a log position between two rows of a transaction.
type ReplayCursor struct {
	Position Position
	Skip     int // rows already read of the transaction after Position
}

// ReplayRow is a row of a job. N numbers the rows of a job from 1, in commit order. Seq,
// RetryCount and Captured are not stored and are zero when read. A nil payload stays nil.
type ReplayRow struct {
	N int64
	Item
}

// ReplayLane is a lane with rows of a job.
type ReplayLane struct {
	LaneKey
	Hash  LaneHash
	First int64 // N of its first row
}

// ReplayResult is the result of a row of a job.
type ReplayResult uint8

// Results of rows of a job.
const (
	ReplaySent ReplayResult = iota
	ReplaySkipped
	ReplayRefused
)

// FinishedRow is a row of a job that needs no more work.
type FinishedRow struct {
	N      int64
	Lane   LaneKey
	ID     string
	Result ReplayResult
	Error  string // set for ReplayRefused
}

// ReplayError is a row of a job that its receiver refused.
type ReplayError struct {
	N int64 `json:"n"` // number of the row within the job
	Ref
	Kind   string    `json:"kind"`
	Group  Group     `json:"group"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"` // by the server's clock
}

// RowState is the state of a row in its table.
type RowState uint8

// States of a row.
const (
	RowUnsettled RowState = iota // neither COMPLETED nor FAILED, or not yet visible
	RowCompleted
	RowFailed
	RowAbsent
)

var (
	// ErrNoSavepoint reports that no checkpoint has this name.
	ErrNoSavepoint = errors.New("checkpoint not found")
	// ErrSavepointExists reports that a checkpoint already has this name.
	ErrSavepointExists = errors.New("checkpoint already exists")
	// ErrNoJob reports that no replay has this id.
	ErrNoJob = errors.New("replay not found")
	// ErrJobExists reports that a replay already has this id.
	ErrJobExists = errors.New("replay already exists")
)

// Requester writes requests to the leader. Any process may call it.
type Requester interface {
	// RequestSavepoint requests a named checkpoint. It returns ErrSavepointExists if the
	// name is in use.
	RequestSavepoint(ctx context.Context, name string, keep bool) error
	// RequestSavepointDeletion requests the deletion of a named checkpoint. It returns
	// ErrNoSavepoint if there is none.
	RequestSavepointDeletion(ctx context.Context, name string) error
	// RequestReplay requests a replay with an unused id. It returns ErrJobExists if the id
	// is in use.
	RequestReplay(ctx context.Context, id, spec string) error
	// RequestJobState changes the desired state of a replay. It returns ErrNoJob if there
	// is none. A replay that has ended is unchanged.
	RequestJobState(ctx context.Context, id string, state DesiredState) error
}

// ReplayLister lists named checkpoints and replays. It needs no leader.
type ReplayLister interface {
	// Savepoints returns all named checkpoints, ordered by name.
	Savepoints(ctx context.Context) ([]Savepoint, error)
	// Jobs returns all replays, latest request first: all active ones and up to
	// MaxEndedJobs ended ones.
	Jobs(ctx context.Context) ([]Job, error)
	// JobErrors returns up to limit refused rows of a job, ordered by N.
	JobErrors(ctx context.Context, id string, limit int) ([]ReplayError, error)
}

// SavepointWriter updates named checkpoints. Only the leader may call it. After
// ErrNotLeader nothing was written.
type SavepointWriter interface {
	// SaveSavepoint writes all fields of a named checkpoint except RetainLog and
	// DeleteRequested. It returns ErrNoSavepoint if there is none. Reason is truncated like
	// error texts.
	SaveSavepoint(ctx context.Context, epoch Epoch, n Savepoint) error
	// DeleteSavepoint deletes a named checkpoint. A missing one is not an error.
	DeleteSavepoint(ctx context.Context, epoch Epoch, name string) error
}

// ReplayWriter updates replays. Only the leader may call it. After ErrNotLeader nothing was
// written.
type ReplayWriter interface {
	SavepointWriter
	// SaveJob writes State, Reason, WaitsFor, Undated, Source, Until and UntilAt of a job,
	// and returns ErrNoJob if there is none. The first state that starts or ends the job also sets
	// StartedAt or FinishedAt. Reason and WaitsFor are truncated like error texts.
	//
	// A final state also deletes surplus or expired ended jobs and their errors, see
	// MaxEndedJobs and EndedJobRetention. A job that still has rows is kept, see ClearRows.
	SaveJob(ctx context.Context, epoch Epoch, j Job) error
	// CopyRows adds rows to a job, advances its cursor and adds the rows to Total, durably
	// and in one transaction. It returns ErrNoJob if there is none. A row that already
	// exists is skipped and not counted. Without rows only the cursor moves.
	CopyRows(ctx context.Context, epoch Epoch, id string, rows []ReplayRow, at ReplayCursor) error
	// SetRowCounts sets Total and Skipped of a job that copies no rows. It returns ErrNoJob
	// if there is none.
	SetRowCounts(ctx context.Context, epoch Epoch, id string, total, skipped int64) error
	// ClearRows deletes up to limit rows of a job, subtracts them from its Total, and
	// returns their number.
	ClearRows(ctx context.Context, epoch Epoch, id string, limit int) (int, error)
}

// ReplayFinisher records the results of a job's rows.
type ReplayFinisher interface {
	// FinishRows deletes rows from a job, counts them and stores the errors of refused
	// rows, up to MaxJobErrors per job, in one transaction. It returns ErrNoJob if there is
	// none.
	//
	//   - A row that does not exist is not counted.
	//   - Error texts are truncated like those of outcomes.
	//   - A server crash may undo the transaction.
	//   - After ErrNotLeader nothing was written.
	FinishRows(ctx context.Context, epoch Epoch, id string, done []FinishedRow) error
}

// ReplayReader reads the rows that a job has to send.
type ReplayReader interface {
	// ReplayLanes returns lanes of a job, ordered by their first row: up to limit lanes
	// whose first row has an N greater than after. It scans the rows from there to the last
	// returned lane. To continue, pass the First of that lane as after.
	ReplayLanes(ctx context.Context, id string, after int64, limit int) ([]ReplayLane, error)
	// ReplayRows returns, for each range by position, up to each rows of the lane behind
	// After, ordered by N.
	ReplayRows(ctx context.Context, id string, from []ReplayRange, each int) ([][]ReplayRow, error)
}

// RowStatusReader reads the state of rows of a job.
type RowStatusReader interface {
	// ReadStatuses returns the state of each row, by position, as a claim would see it. It
	// adds the payload and attributes of COMPLETED rows if requested. If the table keeps no state, every
	// row is RowAbsent.
	ReadStatuses(ctx context.Context, rows []ClaimRow) ([]RowStatus, error)
}

// ReplayRange selects the rows of a lane whose N is greater than After.
type ReplayRange struct {
	Outbox string
	Lane   LaneHash
	After  int64
}

// RowStatus is the state of a row in its table, with its content if requested.
type RowStatus struct {
	State      RowState
	Payload    []byte
	Attributes Attributes
}

// MaxActions is the number of operator actions that a relay keeps. Older ones are deleted.
const MaxActions = 1000

// Action is one action of an operator, as the relay's log of actions keeps it.
type Action struct {
	At time.Time `json:"at"` // by the server's clock
	// Who is the name of the token: that of a person or program, operator for the shared one, or
	// local without any. From is the address of the client.
	Who  string `json:"who"`
	From string `json:"from"`
	// What is the action, for example lanes/skip. Target names what it acted on, as JSON.
	What   string `json:"what"`
	Target string `json:"target"`
	Reason string `json:"reason,omitempty"`
	// Result is "ok", or the error.
	Result string `json:"result"`
}

// ActionLog keeps the latest MaxActions actions of operators. Any process may call it.
type ActionLog interface {
	// RecordAction adds an action and sets its time.
	RecordAction(ctx context.Context, a Action) error
	// Actions returns up to limit actions, the latest first.
	Actions(ctx context.Context, limit int) ([]Action, error)
}
