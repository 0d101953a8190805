package admin

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
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
	mux.Handle("GET /api/v1/lanes", h.api(func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return listLanes(lanes, r)
	}))
	for name, do := range laneActions(lanes) {
		mux.Handle("POST /api/v1/lanes/"+name, h.api(func(w http.ResponseWriter, r *http.Request) (any, error) {
			return actOnLane(lanes, do, w, r)
		}))
	}
}

func listLanes(lanes Lanes, r *http.Request) (any, error) {
	q := newQuery(r.URL)
	f := dispatch.LaneFilter{
		Outbox: q.text("outbox"), Kind: q.text("kind"), Group: q.group(), State: q.enum("state", laneStates()),
	}

	limit := q.limit(defaultLanes, maxLanes)
	if err := q.finish(); err != nil {
		return nil, err
	}

	found, total, err := lanes.List(f, limit)
	if err != nil {
		return nil, err
	}

	answer := LaneList{Lanes: make([]Lane, len(found)), Total: total}
	for i := range found {
		answer.Lanes[i] = LaneOf(&found[i])
	}
	return answer, nil
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
		if strings.TrimSpace(reason) == "" {
			return badRequest("%s needs a reason, which is recorded for other operators", name)
		}
		return do(ctx, lane, reason)
	}
}

// actOnLane responds with the lane after the action, or {} if it has no rows left.
func actOnLane(lanes Lanes, do laneAction, w http.ResponseWriter, r *http.Request) (any, error) {
	var req LaneRequest
	written, err := decodeRequest(w, r, &req)
	if err != nil {
		return nil, err
	}

	switch _, kind := written["kind"]; {
	case req.Outbox == "":
		return nil, badRequest("outbox is required: the name of the lane's outbox")
	case !kind:
		return nil, badRequest("kind is required: the kind of the lane's rows")
	case req.RowID != "" && req.Group != nil:
		return nil, badRequest("row_id is only for rows without a group; omit row_id or group")
	case utf8.RuneCountInString(req.Reason) > maxReason:
		return nil, badRequest("reason is longer than %d characters", maxReason)
	case strings.ContainsFunc(req.Reason, unicode.IsControl):
		return nil, badRequest("reason holds a line break or another control character; write one line")
	}

	name := req.laneName()
	if err := do(r.Context(), name, req.Reason); err != nil {
		return nil, err
	}
	return currentLane(lanes, name), nil
}

// currentLane returns a lane, or {} if it is gone or is one of several lanes of rows
// without a group.
func currentLane(lanes Lanes, name dispatch.LaneName) any {
	f := dispatch.LaneFilter{Outbox: name.Outbox, Kind: name.Kind, Group: &store.Group{Name: name.Group.Name, Valid: name.Group.Valid}}
	found, _, err := lanes.List(f, 1+maxReplayLanes)
	at := slices.IndexFunc(found, func(l dispatch.LaneInfo) bool {
		return l.Job == "" && l.LaneKey == name.LaneKey && l.RowID == name.RowID
	})
	if err != nil || at < 0 {
		return struct{}{} // the action itself succeeded
	}
	return LaneOf(&found[at])
}
