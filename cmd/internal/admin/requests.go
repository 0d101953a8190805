package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/store"
)

// Requests are what operators ask of the leader: named checkpoints and replay jobs. Its
// methods are safe for concurrent use.
//
// Errors, besides the Client's own:
//   - store.ErrNoSavepoint, store.ErrSavepointExists, store.ErrNoJob and ErrReplayEnded;
//   - sluicebox.ErrNotLeading;
//   - *sluicebox.RequestError for an invalid name or spec, or a checkpoint that cannot be created;
//   - *store.SetupError for missing relay tables or grants.
type Requests interface {
	Checkpoints
	Replays
}

// Checkpoints manages the named checkpoints.
type Checkpoints interface {
	// Checkpoints returns all checkpoints, by name.
	Checkpoints(ctx context.Context) ([]Checkpoint, error)
	// CreateCheckpoint requests a checkpoint. The leader creates it.
	CreateCheckpoint(ctx context.Context, name string, keepLog bool) error
	// DeleteCheckpoint requests the deletion of a checkpoint and of the log retained for it.
	DeleteCheckpoint(ctx context.Context, name string) error
}

// Replays manages the replay jobs.
type Replays interface {
	// Replays returns the jobs, the latest first.
	Replays(ctx context.Context) ([]Replay, error)
	// StartReplay requests a job and returns its id. The leader runs it.
	StartReplay(ctx context.Context, spec *replay.Spec) (id string, err error)
	// ReplayErrors returns at most limit rows of a job that the receiver refused, in commit
	// order.
	ReplayErrors(ctx context.Context, id string, limit int) ([]store.ReplayError, error)
	// ActOnReplay requests a state for a job that has not ended.
	ActOnReplay(ctx context.Context, id string, desired store.DesiredState) error
}

// Checkpoint is the state of a named checkpoint.
type Checkpoint struct {
	Name string `json:"name"`
	// State is one of these; Reason explains it:
	//   - wanted: the leader has not created it yet;
	//   - made: created;
	//   - kept: created, and its log is retained;
	//   - dropped: its retained log was lost or given up;
	//   - refused: it could not be created.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// Deleting is set until the leader has deleted the checkpoint.
	Deleting bool      `json:"deleting,omitempty"`
	KeepLog  bool      `json:"keep_log"`
	MadeAt   time.Time `json:"made_at,omitzero"` // by the server's clock
	Position string    `json:"position"`
	Seq      int64     `json:"seq"`
	// RetainedBytes is the log retained for the checkpoint at the last check.
	// MaxRetainedBytes is the limit.
	RetainedBytes    int64 `json:"retained_bytes"`
	MaxRetainedBytes int64 `json:"max_retained_bytes,omitempty"`
}

// CheckpointOf returns a checkpoint as the API shows it. maxKept is the limit of the log
// retained for one checkpoint.
func CheckpointOf(n *store.Savepoint, maxKept int64) Checkpoint {
	shown := Checkpoint{
		Name: n.Name, State: string(n.State), Reason: n.Reason, Deleting: n.DeleteRequested, KeepLog: n.RetainLog,
		MadeAt: n.At, Position: string(n.Position), Seq: int64(n.Seq), RetainedBytes: n.RetainedBytes,
	}
	if n.RetainLog {
		shown.MaxRetainedBytes = maxKept
	}
	return shown
}

// CheckpointList is the response of GET /api/v1/checkpoints.
type CheckpointList struct {
	Checkpoints []Checkpoint `json:"checkpoints"`
}

// CheckpointRequest names a checkpoint.
type CheckpointRequest struct {
	Name string `json:"name"`
	// KeepLog retains the log for a new checkpoint.
	KeepLog bool `json:"keep_log,omitempty"`
}

// ErrReplayEnded is returned for an action on an ended job.
var ErrReplayEnded = errors.New("the replay has ended")

// Replay is the state of a job.
type Replay struct {
	ID           string             `json:"id"`
	State        string             `json:"state"`         // waiting, copying, playing, paused, done, failed, refused or cancelled
	DesiredState store.DesiredState `json:"desired_state"` // requested by an operator: run, pause or cancel
	Reason       string             `json:"reason,omitempty"`
	Spec         replay.Spec        `json:"spec"`
	// Source is log or table, or "" before the job has chosen one.
	Source string `json:"source"`
	// UntilPosition and UntilAt are the end of the job: its log position, and its time by
	// the server's clock.
	UntilPosition string    `json:"until_position,omitempty"`
	UntilAt       time.Time `json:"until_at,omitzero"`
	// Rows is the number of rows chosen so far. Remaining of them are not finished: not
	// sent yet or, in a dry run, rows that a replay would send.
	Rows        int64     `json:"rows"`
	Sent        int64     `json:"sent"`
	Skipped     int64     `json:"skipped"`
	Refused     int64     `json:"refused"`
	Remaining   int64     `json:"remaining"`
	RequestedAt time.Time `json:"requested_at,omitzero"` // by the server's clock, like the next two
	StartedAt   time.Time `json:"started_at,omitzero"`
	EndedAt     time.Time `json:"ended_at,omitzero"`
}

// Ended reports whether the job has ended.
func (r *Replay) Ended() bool { return store.JobState(r.State).Ended() }

// ReplayOf returns a job as the API shows it. It omits fields of the spec that another
// release wrote.
func ReplayOf(j *store.Job) Replay {
	shown := Replay{
		ID: j.ID, State: string(j.State), DesiredState: j.Desired, Reason: j.Note(), Source: j.Source,
		UntilPosition: string(j.Until.Position), UntilAt: j.UntilAt,
		Rows: j.Total, Sent: j.Sent, Skipped: j.Skipped, Refused: j.Refused, Remaining: j.Total - j.Sent - j.Skipped - j.Refused,
		RequestedAt: j.RequestedAt, StartedAt: j.StartedAt, EndedAt: j.FinishedAt,
	}
	_ = json.Unmarshal([]byte(j.Spec), &shown.Spec)
	return shown
}

// ReplayList is the response of GET /api/v1/replays.
type ReplayList struct {
	Replays []Replay `json:"replays"` // latest first
}

// ReplayErrorList is the response of GET /api/v1/replays/errors.
type ReplayErrorList struct {
	Errors []store.ReplayError `json:"errors"`
}

// ReplayRequest names a job.
type ReplayRequest struct {
	Job string `json:"job"`
}

// ReplayStarted is the response of POST /api/v1/replays.
type ReplayStarted struct {
	ID string `json:"id"`
}

const (
	checkpointsPath     = "/api/v1/checkpoints"
	replaysPath         = "/api/v1/replays"
	defaultReplayErrors = 100
)

// replayActions returns the desired state for each action endpoint.
func replayActions() map[string]store.DesiredState {
	return map[string]store.DesiredState{"pause": store.DesiredPause, "resume": store.DesiredRun, "cancel": store.DesiredCancel}
}

// requestEndpoints serves the named checkpoints and the replay jobs.
func (h *handler) requestEndpoints(mux *http.ServeMux, of Requests) {
	h.get(mux, checkpointsPath, func(ctx context.Context, q *query) (any, error) {
		if err := q.finish(); err != nil {
			return nil, err
		}
		list, err := of.Checkpoints(ctx)
		return CheckpointList{orEmpty(list)}, err
	})
	post(h, mux, checkpointsPath, func(ctx context.Context, req *CheckpointRequest, written rawFields) (any, error) {
		return actOnCheckpoint(ctx, of, req, written, func() error { return of.CreateCheckpoint(ctx, req.Name, req.KeepLog) })
	})
	post(h, mux, checkpointsPath+"/delete", func(ctx context.Context, req *CheckpointRequest, written rawFields) (any, error) {
		return actOnCheckpoint(ctx, of, req, written, func() error {
			if req.KeepLog {
				return badRequest("keep_log is not allowed in a delete, because the log is deleted with the checkpoint")
			}
			return of.DeleteCheckpoint(ctx, req.Name)
		})
	})
	h.get(mux, replaysPath, func(ctx context.Context, q *query) (any, error) {
		if err := q.finish(); err != nil {
			return nil, err
		}
		list, err := of.Replays(ctx)
		return ReplayList{orEmpty(list)}, err
	})
	post(h, mux, replaysPath, func(ctx context.Context, spec *replay.Spec, written rawFields) (any, error) {
		return startReplay(ctx, of, spec, written)
	})
	h.get(mux, replaysPath+"/errors", func(ctx context.Context, q *query) (any, error) { return listReplayErrors(ctx, of, q) })
	for name, desired := range replayActions() {
		post(h, mux, replaysPath+"/"+name, func(ctx context.Context, req *ReplayRequest, written rawFields) (any, error) {
			return actOnReplay(ctx, of, req, written, desired)
		})
	}
}

// orEmpty returns an empty list for nil, which JSON shows as null.
func orEmpty[T any](list []T) []T { return append([]T{}, list...) }

// actOnCheckpoint responds with the checkpoint after the action, or {} if it is gone.
func actOnCheckpoint(ctx context.Context, of Checkpoints, req *CheckpointRequest, written rawFields, do func() error) (any, error) {
	if err := written.rejectNull(); err != nil {
		return nil, err
	}
	if req.Name == "" {
		return nil, badRequest("name is required: the name of the checkpoint")
	}
	if err := do(); err != nil {
		return nil, err
	}
	if c, err := FindCheckpoint(ctx, of, req.Name); err == nil && c != nil { // the action itself succeeded
		return c, nil
	}
	return struct{}{}, nil
}

// FindCheckpoint returns a checkpoint, or nil if there is none.
func FindCheckpoint(ctx context.Context, of Checkpoints, name string) (*Checkpoint, error) {
	list, err := of.Checkpoints(ctx)
	at := slices.IndexFunc(list, func(c Checkpoint) bool { return c.Name == name })
	if err != nil || at < 0 {
		return nil, err
	}
	return &list[at], nil
}

func startReplay(ctx context.Context, of Replays, spec *replay.Spec, written rawFields) (any, error) {
	if err := written.rejectNull(); err != nil {
		return nil, err
	}
	for name, value := range written {
		// An empty list is rejected, because it would choose every row.
		if string(value) == "[]" {
			return nil, badRequest("%s is empty; omit it or list at least one value", name)
		}
	}

	if err := spec.Validate(); err != nil {
		return nil, badRequest("%s", err)
	}
	id, err := of.StartReplay(ctx, spec)
	return ReplayStarted{id}, err
}

func listReplayErrors(ctx context.Context, of Replays, q *query) (any, error) {
	job := q.text("job")
	limit := q.limit(defaultReplayErrors, store.MaxJobErrors)
	if err := q.finish(); err != nil {
		return nil, err
	}

	if job == "" {
		return nil, badRequest("job is required: the id of the replay")
	}
	list, err := of.ReplayErrors(ctx, job, limit)
	return ReplayErrorList{orEmpty(list)}, err
}

// actOnReplay responds with the job. The leader carries the action out within seconds.
func actOnReplay(ctx context.Context, of Replays, req *ReplayRequest, written rawFields, desired store.DesiredState) (any, error) {
	if err := written.rejectNull(); err != nil {
		return nil, err
	}
	if req.Job == "" {
		return nil, badRequest("job is required: the id of the replay")
	}
	if err := of.ActOnReplay(ctx, req.Job, desired); err != nil {
		return nil, err
	}
	if job, err := FindReplay(ctx, of, req.Job); err == nil { // the action itself succeeded
		return job, nil
	}
	return struct{}{}, nil
}

// FindReplay returns a job, or store.ErrNoJob.
func FindReplay(ctx context.Context, of Replays, id string) (*Replay, error) {
	list, err := of.Replays(ctx)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(list, func(r Replay) bool { return r.ID == id })
	if at < 0 {
		return nil, fmt.Errorf("replay %s: %w", id, store.ErrNoJob)
	}
	return &list[at], nil
}

// Checkpoints implements Requests.
func (c *Client) Checkpoints(ctx context.Context) ([]Checkpoint, error) {
	list, err := call[CheckpointList](ctx, c, http.MethodGet, checkpointsPath, nil)
	return list.Checkpoints, err
}

// CreateCheckpoint implements Requests.
func (c *Client) CreateCheckpoint(ctx context.Context, name string, keepLog bool) error {
	return c.do(ctx, http.MethodPost, checkpointsPath, CheckpointRequest{Name: name, KeepLog: keepLog}, &struct{}{})
}

// DeleteCheckpoint implements Requests.
func (c *Client) DeleteCheckpoint(ctx context.Context, name string) error {
	return c.do(ctx, http.MethodPost, checkpointsPath+"/delete", CheckpointRequest{Name: name}, &struct{}{})
}

// Replays implements Requests.
func (c *Client) Replays(ctx context.Context) ([]Replay, error) {
	list, err := call[ReplayList](ctx, c, http.MethodGet, replaysPath, nil)
	return list.Replays, err
}

// StartReplay implements Requests.
func (c *Client) StartReplay(ctx context.Context, spec *replay.Spec) (id string, err error) {
	started, err := call[ReplayStarted](ctx, c, http.MethodPost, replaysPath, spec)
	return started.ID, err
}

// ReplayErrors implements Requests.
func (c *Client) ReplayErrors(ctx context.Context, id string, limit int) ([]store.ReplayError, error) {
	q := url.Values{"job": {id}, "limit": {strconv.Itoa(limit)}}
	list, err := call[ReplayErrorList](ctx, c, http.MethodGet, replaysPath+"/errors?"+q.Encode(), nil)
	return list.Errors, err
}

// ActOnReplay implements Requests.
func (c *Client) ActOnReplay(ctx context.Context, id string, desired store.DesiredState) error {
	for name, of := range replayActions() {
		if of == desired {
			return c.do(ctx, http.MethodPost, replaysPath+"/"+name, ReplayRequest{Job: id}, &struct{}{})
		}
	}
	return desired.Validate()
}
