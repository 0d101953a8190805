package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Checkpoints manages the named checkpoints. Its methods are safe for concurrent use.
//
// Errors, besides the Client's own:
//   - store.ErrNoSavepoint and store.ErrSavepointExists;
//   - sluicebox.ErrNotLeading;
//   - *sluicebox.RequestError for an invalid name, or a checkpoint that cannot be created;
//   - *store.SetupError for missing relay tables or grants.
type Checkpoints interface {
	// List returns all checkpoints, by name.
	List(ctx context.Context) ([]Checkpoint, error)
	// Create requests a checkpoint. The leader creates it.
	Create(ctx context.Context, name string, keepLog bool) error
	// Delete requests the deletion of a checkpoint and of the log retained for it.
	Delete(ctx context.Context, name string) error
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
			return badRequest("keep_log is not allowed in a delete, because the log is deleted with the checkpoint")
		}
		return of.Delete(ctx, req.Name)
	})
}

// actOnCheckpoint responds with the checkpoint after the action, or {} if it is gone.
func actOnCheckpoint(of Checkpoints, do func(ctx context.Context, req *CheckpointRequest) error, w http.ResponseWriter, r *http.Request) (any, error) {
	var req CheckpointRequest
	written, err := decodeRequest(w, r, &req)
	if err == nil {
		err = written.rejectNull()
	}

	if err == nil && req.Name == "" {
		err = badRequest("name is required: the name of the checkpoint")
	}
	if err == nil {
		err = do(r.Context(), &req)
	}

	if err != nil {
		return nil, err
	}
	list, _ := of.List(r.Context()) // the action itself succeeded
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
