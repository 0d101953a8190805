package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/shadow"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// RelayStatus is the response of GET /api/v1/status. Every field is present; null, 0 or
// "" mean unknown, or not applicable on a standby.
type RelayStatus struct {
	Name      string    `json:"name"`
	Version   string    `json:"version"`
	Holder    string    `json:"holder"` // identifies this process
	StartedAt time.Time `json:"started_at"`
	Uptime    float64   `json:"uptime_seconds"`

	Ready  bool              `json:"ready"`
	Checks []sluicebox.Check `json:"checks"` // the same as /readyz

	IsLeader bool        `json:"is_leader"`
	Epoch    store.Epoch `json:"epoch"`
	// Leader identifies the leader's process.
	Leader string `json:"leader"`

	Mode         sluicebox.Mode `json:"mode"`          // stream or poll
	SourceDetail string         `json:"source_detail"` // the source and the reason for it

	Claims     sluicebox.ClaimsStatus     `json:"claims"`
	Source     sluicebox.SourceStatus     `json:"source"`
	Checkpoint sluicebox.CheckpointStatus `json:"checkpoint"`
	Lag        Lag                        `json:"lag"`
	Captured   Rates                      `json:"captured_per_second"`
	Sinks      []SinkStatus               `json:"sinks"`
	// Routes are empty unless an outbox has routes, or is paused.
	Routes []Route `json:"routes"`
	// Lanes are the first held or failing lanes. LanesTotal is their number.
	Lanes      []dispatch.LaneInfo `json:"lanes"`
	LanesTotal int                 `json:"lanes_total"`
	Replays    ReplayStatus        `json:"replays"`
	// Shadow is what a shadow has found, which relays nothing; absent for a relay.
	Shadow *shadow.Report `json:"shadow,omitempty"`
	// Failed is null unless requested.
	Failed []FailedRows `json:"failed"`
}

// ReplayStatus is the work of the replay controller. It is at most a second old while a
// replay runs.
type ReplayStatus struct {
	// Current is the active replay, or null if all are paused. Its Reason also names what
	// it waits for.
	Current *Replay `json:"current"`
	Waiting int     `json:"waiting"` // queued replays
	Paused  int     `json:"paused"`
}

// MaxStatusLanes is the most lanes in a status.
const MaxStatusLanes = 5

// Lag describes the rows captured and not settled.
type Lag struct {
	Rows   int        `json:"rows"`
	Oldest *time.Time `json:"oldest"` // of the rows in memory; commit time if known
	// Seconds is the age of the oldest row.
	Seconds *float64 `json:"seconds"`
}

// Rates are rows per second over two windows.
type Rates struct {
	TenSeconds float64 `json:"10s"`
	Minute     float64 `json:"1m"`
}

// SinkStatus is the state of one sink.
type SinkStatus struct {
	Name         string         `json:"name"`
	Waiting      int            `json:"waiting"` // in memory or spilled
	Rows         int            `json:"rows"`    // in memory
	Spilled      int            `json:"spilled"`
	Bytes        int64          `json:"bytes"`        // of payload in memory
	InFlight     int            `json:"in_flight"`    // claims and requests
	Lanes        map[string]int `json:"lanes"`        // by state
	OpenBreakers []OpenBreaker  `json:"breaker_open"` // endpoints that receive only probes

	Delivered Rates `json:"delivered_per_second"`
	Failed    Rates `json:"failed_per_second"`
	Retried   Rates `json:"retried_per_second"`
}

// OpenBreaker is an endpoint whose circuit breaker is open.
type OpenBreaker struct {
	Endpoint string    `json:"endpoint"`
	Class    string    `json:"class"`
	Since    time.Time `json:"since"`
	Error    string    `json:"error"` // latest failure
	Idle     bool      `json:"idle"`  // without waiting rows; does not fail readiness
	Named    bool      `json:"named"` // by rows: the sink's other endpoints go on; does not fail readiness
}

// FailedRows is the number of FAILED rows of an outbox.
type FailedRows struct {
	Outbox string `json:"outbox"`
	// Rows is null if the count failed; Error is the reason.
	Rows  *int   `json:"rows"`
	Error string `json:"error,omitempty"`
	// At is the time of the count, because counts are cached.
	At time.Time `json:"at"`
}

// Reporter reports the relay's status. It is safe for concurrent use.
type Reporter interface {
	// Report returns the status without Ready and Checks. With failed it counts FAILED
	// rows, which may take seconds; without, it returns at once.
	Report(ctx context.Context, failed bool) RelayStatus
}

const statusPath = "/api/v1/status"

// statusEndpoint serves the status.
func (h *handler) statusEndpoint(mux *http.ServeMux, of Reporter) {
	h.get(mux, statusPath, func(ctx context.Context, q *query) (any, error) {
		failed := q.flag("count")
		if err := q.finish(); err != nil {
			return nil, err
		}
		s := of.Report(ctx, failed)
		s.Checks, s.Ready = h.status.Checks(), true
		for _, c := range s.Checks {
			s.Ready = s.Ready && c.OK
		}
		return s, nil
	})
}
