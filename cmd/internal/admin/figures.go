package admin

import (
	"context"
	"net/http"
	"time"
)

// Figure is the throughput and the latency of one interval.
type Figure struct {
	At   time.Time `json:"at"`   // the end of the interval
	Rows int64     `json:"rows"` // COMPLETED
	// P50 and P99 are seconds from a row's commit to its COMPLETED, estimated from the buckets of
	// commit_to_ack_seconds. They are null without rows.
	P50 *float64 `json:"p50"`
	P99 *float64 `json:"p99"`
}

// FigureList is the response of GET /api/v1/figures.
type FigureList struct {
	IntervalSeconds float64  `json:"interval_seconds"`
	Figures         []Figure `json:"figures"` // oldest first
	// Whole is the whole period. Its P50 and P99 are of all its rows.
	Whole Figure `json:"whole"`
}

// Figures returns the figures of the last hour. It returns at once and is safe for concurrent use.
type Figures interface {
	Figures() FigureList
}

// Settings is the configuration in force.
type Settings interface {
	// YAML returns it with placeholders for secrets.
	YAML() ([]byte, error)
	// Outboxes returns the names of the outboxes.
	Outboxes() []string
}

// ConfigText is the response of GET /api/v1/config.
type ConfigText struct {
	YAML     string   `json:"yaml"`
	Outboxes []string `json:"outboxes"` // names
}

// pageEndpoints serves the data of the page that are not part of the status.
func (h *handler) pageEndpoints(mux *http.ServeMux, cfg Config) {
	if cfg.Actions != nil {
		h.actionEndpoint(mux, cfg.Actions)
	}
	if cfg.Figures != nil {
		h.get(mux, "/api/v1/figures", func(_ context.Context, q *query) (any, error) {
			return cfg.Figures.Figures(), q.finish()
		})
	}
	if cfg.Settings != nil {
		h.get(mux, "/api/v1/config", func(_ context.Context, q *query) (any, error) {
			if err := q.finish(); err != nil {
				return nil, err
			}
			text, err := cfg.Settings.YAML()
			return ConfigText{string(text), cfg.Settings.Outboxes()}, err
		})
	}
}
