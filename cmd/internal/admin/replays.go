package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/store"
)

// Replays manages the replay jobs. Its methods are safe for concurrent use.
//
// Errors, besides the Client's own:
//   - store.ErrNoJob, store.ErrNoSavepoint and ErrReplayEnded;
//   - sluicebox.ErrNotLeading;
//   - *sluicebox.RequestError for an invalid spec;
//   - *store.SetupError for missing relay tables or grants.
type Replays interface {
	// List returns the jobs, the latest first.
	List(ctx context.Context) ([]Replay, error)
	// Start requests a job and returns its id. The leader runs it.
	Start(ctx context.Context, spec *replay.Spec) (id string, err error)
	// Errors returns at most limit rows of a job that the receiver refused, in commit
	// order.
	Errors(ctx context.Context, id string, limit int) ([]ReplayError, error)
	// Act requests a state for a job that has not ended.
	Act(ctx context.Context, id string, desired store.DesiredState) error
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
		ID: j.ID, State: string(j.State), DesiredState: j.Desired, Reason: j.Reason, Source: j.Source,
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

// ReplayError is a row of a job that the receiver refused.
type ReplayError struct {
	N      int64     `json:"n"` // number of the row within the job
	Outbox string    `json:"outbox"`
	ID     string    `json:"id"`
	Kind   string    `json:"kind"`
	Group  *string   `json:"group"` // nil for a row without a group
	Reason string    `json:"reason"`
	At     time.Time `json:"at"` // by the server's clock
}

// ReplayErrorOf returns a refused row as the API shows it.
func ReplayErrorOf(e *store.ReplayError) ReplayError {
	return ReplayError{N: e.N, Outbox: e.Outbox, ID: e.ID, Kind: e.Kind, Group: groupPointer(e.Group), Reason: e.Reason, At: e.At}
}

// ReplayErrorList is the response of GET /api/v1/replays/errors.
type ReplayErrorList struct {
	Errors []ReplayError `json:"errors"`
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
	replaysPath         = "/api/v1/replays"
	defaultReplayErrors = 100
)

// replayActions returns the desired state for each action endpoint.
func replayActions() map[string]store.DesiredState {
	return map[string]store.DesiredState{"pause": store.DesiredPause, "resume": store.DesiredRun, "cancel": store.DesiredCancel}
}

// replayEndpoints serves the jobs.
func (h *handler) replayEndpoints(mux *http.ServeMux, of Replays) {
	mux.Handle("GET "+replaysPath, h.api(func(_ http.ResponseWriter, r *http.Request) (any, error) {
		if err := newQuery(r.URL).finish(); err != nil {
			return nil, err
		}
		list, err := of.List(r.Context())
		if list == nil {
			list = []Replay{}
		}
		return ReplayList{list}, err
	}))
	mux.Handle("POST "+replaysPath, h.api(func(w http.ResponseWriter, r *http.Request) (any, error) {
		return startReplay(of, w, r)
	}))
	mux.Handle("GET "+replaysPath+"/errors", h.api(func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return listReplayErrors(of, r)
	}))
	for name, desired := range replayActions() {
		mux.Handle("POST "+replaysPath+"/"+name, h.api(func(w http.ResponseWriter, r *http.Request) (any, error) {
			return actOnReplay(of, desired, w, r)
		}))
	}
}

func startReplay(of Replays, w http.ResponseWriter, r *http.Request) (any, error) {
	var spec replay.Spec
	written, err := decodeRequest(w, r, &spec)
	if err != nil {
		return nil, err
	}

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
	id, err := of.Start(r.Context(), &spec)
	return ReplayStarted{id}, err
}

func listReplayErrors(of Replays, r *http.Request) (any, error) {
	q := newQuery(r.URL)
	job := q.text("job")
	limit := q.limit(defaultReplayErrors, store.MaxJobErrors)
	if err := q.finish(); err != nil {
		return nil, err
	}

	if job == "" {
		return nil, badRequest("job is required: the id of the replay")
	}
	list, err := of.Errors(r.Context(), job, limit)
	if list == nil {
		list = []ReplayError{}
	}

	return ReplayErrorList{list}, err
}

// actOnReplay responds with the job. The leader carries the action out within seconds.
func actOnReplay(of Replays, desired store.DesiredState, w http.ResponseWriter, r *http.Request) (any, error) {
	var req ReplayRequest
	written, err := decodeRequest(w, r, &req)
	if err == nil {
		err = written.rejectNull()
	}

	if err == nil && req.Job == "" {
		err = badRequest("job is required: the id of the replay")
	}
	if err == nil {
		err = of.Act(r.Context(), req.Job, desired)
	}

	if err != nil {
		return nil, err
	}
	list, _ := of.List(r.Context()) // the action itself succeeded
	for i := range list {
		if list[i].ID == req.Job {
			return list[i], nil
		}
	}

	return struct{}{}, nil
}

// Replays returns the relay's replay jobs.
func (c *Client) Replays() Replays { return clientReplays{c} }

type clientReplays struct{ *Client }

// List implements Replays.
func (c clientReplays) List(ctx context.Context) ([]Replay, error) {
	var list ReplayList
	err := c.do(ctx, http.MethodGet, replaysPath, nil, &list)
	return list.Replays, err
}

// Start implements Replays.
func (c clientReplays) Start(ctx context.Context, spec *replay.Spec) (id string, err error) {
	var started ReplayStarted
	err = c.do(ctx, http.MethodPost, replaysPath, spec, &started)
	return started.ID, err
}

// Errors implements Replays.
func (c clientReplays) Errors(ctx context.Context, id string, limit int) ([]ReplayError, error) {
	q := url.Values{"job": {id}, "limit": {strconv.Itoa(limit)}}
	var list ReplayErrorList
	err := c.do(ctx, http.MethodGet, replaysPath+"/errors?"+q.Encode(), nil, &list)
	return list.Errors, err
}

// Act implements Replays.
func (c clientReplays) Act(ctx context.Context, id string, desired store.DesiredState) error {
	for name, of := range replayActions() {
		if of == desired {
			return c.do(ctx, http.MethodPost, replaysPath+"/"+name, ReplayRequest{Job: id}, &struct{}{})
		}
	}
	return desired.Validate()
}
