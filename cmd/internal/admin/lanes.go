package admin

import (
	"context"
	"net/http"
	"slices"

	"github.com/sluicebox/sluicebox/dispatch"
)

// Lanes lists lanes and acts on them. Its methods are safe for concurrent use. Errors:
// dispatch.ErrNoLane, dispatch.ErrLaneState, store.ErrNotLeader, sluicebox.ErrNotLeading, and a
// *sluicebox.RequestError for an unknown outbox.
type Lanes interface {
	// List returns at most limit of the chosen lanes, held and failing ones first, and
	// their total number.
	List(f dispatch.LaneFilter, limit int) (lanes []dispatch.LaneInfo, total int, err error)
	// RetryNow retries a waiting lane at once.
	RetryNow(lane dispatch.LaneName) error
	// Skip durably skips the first row of a lane.
	Skip(ctx context.Context, lane dispatch.LaneName, reason string) error
	// Pause durably holds a lane until Resume.
	Pause(ctx context.Context, lane dispatch.LaneName, reason string) error
	// Resume durably ends a pause.
	Resume(ctx context.Context, lane dispatch.LaneName) error
}

const (
	lanesPath    = "/api/v1/lanes"
	defaultLanes = 100
	maxLanes     = 10_000
	maxReason    = 500 // characters, because it is part of the row's error and of logs
	// maxReplayLanes exceeds the number of replays that can send rows of one group
	// concurrently.
	maxReplayLanes = 8
)

// laneStates lists the values of dispatch.LaneInfo.State.
func laneStates() []string {
	return []string{"ready", "claiming", "sending", "writing", "waiting", "stalled", "blocked", "paused", "replaying", "spilled"}
}

// laneEndpoints serves the lanes.
func (h *handler) laneEndpoints(mux *http.ServeMux, lanes Lanes) {
	h.get(mux, lanesPath, func(_ context.Context, q *query) (any, error) { return listLanes(lanes, q) })
	for name, do := range laneActions(lanes) {
		post(h, mux, lanesPath+"/"+name, func(ctx context.Context, req *LaneRequest, written rawFields) (any, error) {
			if err := req.validate(written); err != nil {
				return nil, err
			}
			if err := do(ctx, req.LaneName, req.Reason); err != nil {
				return nil, err
			}
			return currentLane(lanes, req.LaneName), nil
		})
	}
}

func listLanes(lanes Lanes, q *query) (any, error) {
	f := dispatch.LaneFilter{
		Outbox: q.text("outbox"), Kind: q.text("kind"), Group: q.group(), State: q.enum("state", laneStates()),
	}
	limit := q.limit(defaultLanes, maxLanes)
	if err := q.finish(); err != nil {
		return nil, err
	}

	found, total, err := lanes.List(f, limit)
	return LaneList{Lanes: orEmpty(found), Total: total}, err
}

// laneAction acts on a lane.
type laneAction func(ctx context.Context, lane dispatch.LaneName, reason string) error

func laneActions(lanes Lanes) map[string]laneAction {
	return map[string]laneAction{
		"retry-now": func(_ context.Context, lane dispatch.LaneName, _ string) error { return lanes.RetryNow(lane) },
		"skip":      requireReason("skip", lanes.Skip),
		"pause":     requireReason("pause", lanes.Pause),
		"resume":    func(ctx context.Context, lane dispatch.LaneName, _ string) error { return lanes.Resume(ctx, lane) },
	}
}

// requireReason returns an action that needs a reason.
func requireReason(name string, do laneAction) laneAction {
	return func(ctx context.Context, lane dispatch.LaneName, reason string) error {
		if err := checkReason(name, reason); err != nil {
			return err
		}
		return do(ctx, lane, reason)
	}
}

// validate reports missing or contradictory fields.
func (q *LaneRequest) validate(written rawFields) error {
	switch _, kind := written["kind"]; {
	case q.Outbox == "":
		return badRequest("outbox is required: the name of the lane's outbox")
	case !kind:
		return badRequest("kind is required: the kind of the lane's rows")
	case q.RowID != "" && q.Group.Valid:
		return badRequest("row_id is only for rows without a group; omit row_id or group")
	}
	return checkReasonText(q.Reason)
}

// currentLane returns a lane, or {} if it is gone or is one of several lanes of rows
// without a group.
func currentLane(lanes Lanes, name dispatch.LaneName) any {
	f := dispatch.LaneFilter{Outbox: name.Outbox, Kind: name.Kind, Group: &name.Group}
	found, _, err := lanes.List(f, 1+maxReplayLanes)
	at := slices.IndexFunc(found, func(l dispatch.LaneInfo) bool {
		return l.Job == "" && l.LaneKey == name.LaneKey && l.RowID == name.RowID
	})
	if err != nil || at < 0 {
		return struct{}{} // the action itself succeeded
	}
	return found[at]
}
