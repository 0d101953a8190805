package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Checkpoints are the named checkpoints. They are called from several goroutines.
// Errors: store.ErrNoSavepoint, store.ErrSavepointExists, ErrNotLeading, a *RequestError for
// what is no name or cannot be made, a *store.SetupError for own tables or a grant
// that is missing; those of a Client are its own.
type Checkpoints interface {
	// List returns all checkpoints, by name.
	List(ctx context.Context) ([]Checkpoint, error)
	// Create asks the relay that leads for a checkpoint.
	Create(ctx context.Context, name string, keepLog bool) error
	// Delete asks the relay that leads to forget a checkpoint, with the log that is
	// kept for it.
	Delete(ctx context.Context, name string) error
}

// Checkpoint is a named checkpoint at a moment.
type Checkpoint struct {
	Name string `json:"name"`
	// State is wanted until the relay that leads has made it, then made, or kept where
	// its log is kept for it; dropped where that log was given up or is lost, and
	// refused where it could not be made. Reason says how.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// Deleting is set until the relay that leads has forgotten it.
	Deleting bool      `json:"deleting,omitempty"`
	KeepLog  bool      `json:"keep_log"`
	MadeAt   time.Time `json:"made_at,omitzero"` // by the server's clock
	Position string    `json:"position"`
	Seq      int64     `json:"seq"`
	// RetainedBytes is the log that is kept for it, as of the latest look, and
	// MaxRetainedBytes how much that may become.
	RetainedBytes    int64 `json:"retained_bytes"`
	MaxRetainedBytes int64 `json:"max_retained_bytes,omitempty"`
}

// CheckpointOf returns a checkpoint as the API shows it. maxKeptBytes is the limit of the
// log that is kept for one.
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

// CheckpointList answers GET /api/v1/checkpoints.
type CheckpointList struct {
	Checkpoints []Checkpoint `json:"checkpoints"`
}

// CheckpointRequest names a checkpoint.
type CheckpointRequest struct {
	Name string `json:"name"`
	// RetainLog has the log kept for a new one.
	KeepLog bool `json:"keep_log,omitempty"`
}

const checkpointsPath = "/api/v1/checkpoints"

// checkpointEndpoints serves the named checkpoints.
func (h *handler) checkpointEndpoints(mux *http.ServeMux, of Checkpoints) {
	mux.Handle("GET "+checkpointsPath, h.api(func(_ http.ResponseWriter, r *http.Request) (any, error) {
		if err := newQuery(r.URL).finish(); err != nil {
			return nil, err
		}
		list, err := of.List(r.Context())
		if list == nil {
			list = []Checkpoint{}
		}
		return CheckpointList{list}, err
	}))
	act := func(path string, do func(ctx context.Context, req *CheckpointRequest) error) {
		mux.Handle("POST "+path, h.api(func(w http.ResponseWriter, r *http.Request) (any, error) {
			return actOnCheckpoint(of, do, w, r)
		}))
	}
	act(checkpointsPath, func(ctx context.Context, req *CheckpointRequest) error { return of.Create(ctx, req.Name, req.KeepLog) })
	act(checkpointsPath+"/delete", func(ctx context.Context, req *CheckpointRequest) error {
		if req.KeepLog {
			return badRequest("keep_log has no place in a delete: the log goes with the checkpoint")
		}
		return of.Delete(ctx, req.Name)
	})
}

// actOnCheckpoint answers with the checkpoint as it is then, {} where it is gone.
func actOnCheckpoint(of Checkpoints, do func(ctx context.Context, req *CheckpointRequest) error, w http.ResponseWriter, r *http.Request) (any, error) {
	var req CheckpointRequest
	written, err := decodeRequest(w, r, &req)
	if err == nil {
		err = written.rejectNull()
	}
	if err == nil && req.Name == "" {
		err = badRequest("name is required: that of the checkpoint")
	}
	if err == nil {
		err = do(r.Context(), &req)
	}
	if err != nil {
		return nil, err
	}
	list, _ := of.List(r.Context()) // what was asked for is done
	for i := range list {
		if list[i].Name == req.Name {
			return list[i], nil
		}
	}
	return struct{}{}, nil
}

// Checkpoints returns the relay's named checkpoints.
func (c *Client) Checkpoints() Checkpoints { return clientCheckpoints{c} }

type clientCheckpoints struct{ *Client }

// List implements Checkpoints.
func (c clientCheckpoints) List(ctx context.Context) ([]Checkpoint, error) {
	var list CheckpointList
	err := c.do(ctx, http.MethodGet, checkpointsPath, nil, &list)
	return list.Checkpoints, err
}

// Create implements Checkpoints.
func (c clientCheckpoints) Create(ctx context.Context, name string, keepLog bool) error {
	return c.do(ctx, http.MethodPost, checkpointsPath, CheckpointRequest{Name: name, KeepLog: keepLog}, &struct{}{})
}

// Delete implements Checkpoints.
func (c clientCheckpoints) Delete(ctx context.Context, name string) error {
	return c.do(ctx, http.MethodPost, checkpointsPath+"/delete", CheckpointRequest{Name: name}, &struct{}{})
}
