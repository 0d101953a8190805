package admin

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/store"
)

// Rows explains single rows. Explain is safe for concurrent use. Errors: sluicebox.ErrNotLeading, a
// *sluicebox.RequestError for an unknown outbox, and those of the database.
type Rows interface {
	Explain(ctx context.Context, outbox, id string) (*sluicebox.RowReport, error)
}

// Row is the response of GET /api/v1/rows/OUTBOX/ID: the life of one row.
type Row struct {
	store.Ref
	// Leads reports whether the leader answers, from its memory too. Otherwise the answer comes from the
	// tables and the relay's records alone, and Relay says why.
	Leads bool   `json:"leads"`
	Relay string `json:"relay"` // the role of the relay; "" if none was asked
	// Table is the state in the outbox table: UNSETTLED, COMPLETED, FAILED, ABSENT, or NONE if the
	// table keeps no state.
	Table string `json:"table"`
	// Cause and Text are those of the first leg that is not delivered, or of the last one.
	Cause string `json:"cause"`
	Text  string `json:"text"`
	// Legs has one entry for each route that knows the row, or one for the outbox itself.
	Legs []RowLeg `json:"legs"`
}

// RowLeg is the life of a row on one route, or in an outbox without routes.
type RowLeg struct {
	sluicebox.RouteName
	Sink string `json:"sink"`
	Need string `json:"need"` // required or optional

	RowAnswer

	Kind    string      `json:"kind,omitempty"`     // of the lane
	LaneRow string      `json:"lane_row,omitempty"` // the id of the row, if each row without a group has its own lane
	Group   store.Group `json:"group"`
	// CommittedAt is by the database's clock, CapturedAt by the relay's.
	CommittedAt time.Time `json:"committed_at,omitzero"`
	CapturedAt  time.Time `json:"captured_at,omitzero"`

	// Ahead is the number of rows in memory that go first. First is the id of the next of them, or of
	// the FAILED row that blocks the lane; FirstCause is why that one waits.
	Ahead      int    `json:"ahead"`
	First      string `json:"first,omitempty"`
	FirstCause string `json:"first_cause,omitempty"`

	// Since and Until limit the cause: a pause, a backoff, an open circuit breaker.
	Since    time.Time `json:"since,omitzero"`
	Until    time.Time `json:"until,omitzero"`
	Class    string    `json:"class,omitempty"`    // of the failure that keeps the breaker open
	Endpoint string    `json:"endpoint,omitempty"` // whose breaker is open
	Reason   string    `json:"reason,omitempty"`   // of an operator; replays that hold the lane
	Error    string    `json:"error,omitempty"`    // the latest failure
	Spilled  bool      `json:"spilled"`            // the relay's tables have a copy
	Blocks   bool      `json:"blocks"`             // it is FAILED and blocks its group
	// Unsearched: the first 100 000 spilled rows are not it, and the others were not searched.
	Unsearched bool `json:"unsearched,omitempty"`

	RetryCount int `json:"retry_count"` // failures that counted
	// Attempts are the latest attempts, the oldest first. Requests counts all that are known.
	Attempts []RowAttempt `json:"attempts"`
	Requests int          `json:"requests"`
	// Settled is null until the row is COMPLETED or FAILED.
	Settled *RowSettled `json:"settled"`
}

// RowAnswer says why a leg is where it is.
type RowAnswer struct {
	// Cause is a stable word; deploy/operating.md lists them. Text is a sentence. Remedy is what to do,
	// and Commands do it; empty if there is nothing to do.
	Cause    string   `json:"cause"`
	Text     string   `json:"text"`
	Remedy   string   `json:"remedy,omitempty"`
	Commands []string `json:"commands,omitempty"`
}

// RowAttempt is a request that carried the row.
type RowAttempt struct {
	StartedAt time.Time `json:"started_at"`
	Seconds   float64   `json:"seconds"`
	Class     string    `json:"class"` // see deploy/delivery.md
	Error     string    `json:"error,omitempty"`
}

// RowSettled is the final outcome of a row.
type RowSettled struct {
	Status string    `json:"status"`      // COMPLETED or FAILED
	At     time.Time `json:"at,omitzero"` // by the relay's clock; absent if unknown
	Error  string    `json:"error,omitempty"`
}

const rowsPath = "/api/v1/rows"

// rowEndpoint serves single rows.
func (h *handler) rowEndpoint(mux *http.ServeMux, rows Rows) {
	mux.Handle("GET "+rowsPath+"/{outbox}/{id}", h.api(func(_ http.ResponseWriter, r *http.Request) (any, error) {
		if err := newQuery(r.URL).finish(); err != nil {
			return nil, err
		}
		rep, err := rows.Explain(r.Context(), r.PathValue("outbox"), r.PathValue("id"))
		if err != nil {
			return nil, err
		}
		return RowOf(rep, time.Now()), nil
	}))
}

// Outboxes returns the names of the outboxes.
func (c *Client) Outboxes(ctx context.Context) ([]string, error) {
	text, err := call[ConfigText](ctx, c, http.MethodGet, "/api/v1/config", nil)
	return text.Outboxes, err
}

// Row explains a row of an outbox.
func (c *Client) Row(ctx context.Context, outbox, id string) (Row, error) {
	return call[Row](ctx, c, http.MethodGet, rowsPath+"/"+url.PathEscape(outbox)+"/"+url.PathEscape(id), nil)
}
