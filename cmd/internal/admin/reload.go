package admin

import (
	"context"
	"net/http"
)

// reloadPath is where the configuration is read again.
const reloadPath = "/api/v1/reload"

// Reloaded is the response of POST /api/v1/reload.
type Reloaded struct {
	// Changed are the keys that differ from the configuration before, all of which are in force.
	Changed []string `json:"changed"`

	// Restarted: the relay ended its requests in flight and began a new session.
	Restarted bool `json:"session_restarted"`

	Took float64 `json:"took_seconds"`
}

// ReloadError says why a configuration was not applied: what may not change, or where it is invalid.
// Nothing has changed then.
type ReloadError struct{ Err error }

// Error returns the cause.
func (e *ReloadError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ReloadError) Unwrap() error { return e.Err }

// Reloader reads the configuration of a program again. The error is a *ReloadError unless the changes
// are in force and their session has not begun yet.
type Reloader interface {
	Reload(ctx context.Context) (Reloaded, error)
}

// reloadEndpoint serves the reload of the configuration. The request is an empty object.
func (h *handler) reloadEndpoint(mux *http.ServeMux, of Reloader) {
	post(h, mux, reloadPath, func(ctx context.Context, _ *struct{}, _ rawFields) (any, error) {
		done, err := of.Reload(ctx)
		return done, err
	})
}

// Reload makes the relay read its configuration again.
func (c *Client) Reload(ctx context.Context) (Reloaded, error) {
	return call[Reloaded](ctx, c, http.MethodPost, reloadPath, struct{}{})
}
