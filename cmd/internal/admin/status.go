package admin

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// RelayStatus answers GET /api/v1/status: where a relay stands at a moment. Every
// field is always there; null, 0 or "" is what is not known, or does not apply to
// a relay that stands by.
type RelayStatus struct {
	Name      string    `json:"name"`
	Version   string    `json:"version"`
	Holder    string    `json:"holder"` // what this process calls itself
	StartedAt time.Time `json:"started_at"`
	Uptime    float64   `json:"uptime_seconds"`

	Ready  bool    `json:"ready"`
	Checks []Check `json:"checks"` // those of /readyz

	IsLeader bool  `json:"leads"`
	Epoch    int64 `json:"epoch"`
	// Leader is what the relay that leads calls itself.
	Leader string `json:"leader"`

	Mode         string `json:"mode"`    // stream or poll
	SourceDetail string `json:"reading"` // what is read, and why

	Source     SourceStatus     `json:"source"`
	Checkpoint CheckpointStatus `json:"checkpoint"`
	Lag        Lag              `json:"lag"`
	Captured   Rates            `json:"captured_per_second"`
	Sinks      []SinkStatus     `json:"sinks"`
	// Lanes are the first of those that stand still or fail, and LanesTotal is how
	// many there are.
	Lanes      []Lane       `json:"lanes"`
	LanesTotal int          `json:"lanes_total"`
	Replays    ReplayStatus `json:"replays"`
	// Failed is null where it was not asked for.
	Failed []FailedRows `json:"failed"`
}

// ReplayStatus is what there is to replay, as the relay knew it a second ago at the most
// while it is at one.
type ReplayStatus struct {
	// Current is the replay that the relay is at; null if there is none that is not
	// paused. Reason also says what it waits for.
	Current *Replay `json:"current"`
	Waiting int     `json:"waiting"` // for their turn
	Paused  int     `json:"paused"`
}

// MaxStatusLanes is how many lanes a status shows.
const MaxStatusLanes = 5

// SourceStatus is how the database's log, or its tables, are read.
type SourceStatus struct {
	Connected bool `json:"connected"`
	Paused    bool `json:"paused"` // for want of room in the sinks' buffers
	// Position is the latest that was read, and LastReceivedAt when something last came.
	Position       string     `json:"position"`
	LastReceivedAt *time.Time `json:"last_received_at"`
	// RetainedBytes is the log from the checkpoint to its head, which the database
	// keeps for the relay, and RetainedLimitBytes how much that may become before rows are
	// parked; null where there is no log, or before it was looked at.
	RetainedBytes      *int64 `json:"retained_bytes"`
	RetainedLimitBytes *int64 `json:"retained_limit_bytes"`
}

// CheckpointStatus is the place below which every row is settled or parked.
type CheckpointStatus struct {
	Position string     `json:"position"`
	Seq      int64      `json:"seq"`
	SavedAt  *time.Time `json:"saved_at"` // null: not yet by this leadership
}

// Lag is what is captured and not settled.
type Lag struct {
	Rows   int        `json:"rows"`
	Oldest *time.Time `json:"oldest"` // of the rows in memory; by commit where that is known
	// Seconds is the age of the oldest.
	Seconds *float64 `json:"seconds"`
}

// Rates are rows a second in the latest past.
type Rates struct {
	TenSeconds float64 `json:"10s"`
	Minute     float64 `json:"1m"`
}

// SinkStatus is one destination.
type SinkStatus struct {
	Name         string         `json:"name"`
	Waiting      int            `json:"waiting"` // in memory or spilled
	Rows         int            `json:"rows"`    // in memory
	Spilled      int            `json:"spilled"`
	Bytes        int64          `json:"bytes"`        // of payload in memory
	InFlight     int            `json:"in_flight"`    // claims and requests
	Lanes        map[string]int `json:"lanes"`        // by state
	OpenBreakers []OpenBreaker  `json:"breaker_open"` // endpoints that get probes alone

	Delivered Rates `json:"delivered_per_second"`
	Failed    Rates `json:"failed_per_second"`
	Retried   Rates `json:"retried_per_second"`
}

// OpenBreaker is an endpoint that fails for all.
type OpenBreaker struct {
	Endpoint string    `json:"endpoint"`
	Class    string    `json:"class"`
	Since    time.Time `json:"since"`
	Error    string    `json:"error"` // its latest failure
	Idle     bool      `json:"idle"`  // no row waits for it: it fails no readiness
}

// FailedRows is how many FAILED rows an outbox has.
type FailedRows struct {
	Outbox string `json:"outbox"`
	// Rows is null where they could not be counted, for the reason that Error
	// names.
	Rows  *int   `json:"rows"`
	Error string `json:"error,omitempty"`
	// At is when they were counted: a count is kept for some time.
	At time.Time `json:"at"`
}

// Reporter tells where the relay stands. It is called from several goroutines.
type Reporter interface {
	// Report returns all but Ready and Checks. With failed, FAILED rows are
	// counted, which may take some seconds; without, it returns at once.
	Report(ctx context.Context, failed bool) RelayStatus
}

// statusEndpoint serves the status.
func (h *handler) statusEndpoint(mux *http.ServeMux, of Reporter) {
	mux.Handle("GET /api/v1/status", h.api(func(_ http.ResponseWriter, r *http.Request) (any, error) {
		q := newQuery(r.URL)
		failed := q.flag("count")
		if err := q.finish(); err != nil {
			return nil, err
		}
		s := of.Report(r.Context(), failed)
		s.Checks = h.status.Checks()
		s.Ready = true
		for _, c := range s.Checks {
			s.Ready = s.Ready && c.OK
		}
		return s, nil
	}))
}

// Status returns where the relay stands; with failed, how many rows FAILED too.
func (c *Client) Status(ctx context.Context, failed bool) (RelayStatus, error) {
	q := url.Values{"count": {strconv.FormatBool(failed)}}
	var s RelayStatus
	err := c.do(ctx, http.MethodGet, "/api/v1/status?"+q.Encode(), nil, &s)
	return s, err
}
