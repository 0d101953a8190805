package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/store"
)

// ActionList is the response of GET /api/v1/actions.
type ActionList struct {
	Actions []store.Action `json:"actions"` // latest first
}

const (
	actionsPath    = "/api/v1/actions"
	defaultActions = 100
	// recordTimeout limits the write of an action, because the operator waits for it.
	recordTimeout = 5 * time.Second
	// maxTarget is enough for a lane or a filter. A request may have 1000 ids.
	maxTarget = 500 // bytes
)

// actionEndpoint serves the log of actions.
func (h *handler) actionEndpoint(mux *http.ServeMux, of store.ActionLog) {
	h.get(mux, actionsPath, func(ctx context.Context, q *query) (any, error) {
		limit := q.limit(defaultActions, store.MaxActions)
		if err := q.finish(); err != nil {
			return nil, err
		}
		list, err := of.Actions(ctx, limit)
		return ActionList{orEmpty(list)}, err
	})
}

// peekBody returns the body of a request and leaves it in place. An unreadable or too large body
// is left to the endpoint, which reports it.
func peekBody(r *http.Request) []byte {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	rest := r.Body
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), rest), rest}
	if err != nil {
		return nil
	}
	return body
}

// record logs an action with its result. An action that cannot be logged has been carried out
// all the same.
func (h *handler) record(r *http.Request, by Session, body []byte, result error) {
	if h.actions == nil || errors.Is(result, sluicebox.ErrNotLeading) {
		return // only the leader acts
	}
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(body, &fields) // the endpoint reports a faulty body
	if string(fields["dry_run"]) == "true" && strings.HasPrefix(r.URL.Path, deadLettersPath) {
		return // it changes nothing
	}
	var reason string
	_ = json.Unmarshal(fields["reason"], &reason)
	delete(fields, "reason")
	a := store.Action{Who: by.Name, What: strings.TrimPrefix(r.URL.Path, "/api/v1/"), Reason: reason, Result: "ok"}
	if len(fields) > 0 {
		target, _ := json.Marshal(fields)
		a.Target = shorten(string(target), maxTarget)
	}
	a.Reason = shorten(a.Reason, maxTarget)
	if a.From, _, _ = net.SplitHostPort(r.RemoteAddr); a.From == "" {
		a.From = r.RemoteAddr
	}
	if result != nil {
		a.Result = shorten(errorText(result), maxTarget)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), recordTimeout)
	defer cancel()
	if err := h.actions.RecordAction(ctx, a); err != nil {
		h.log.Warn("operator action not recorded", "action", a.What, "who", a.Who, "error", err)
	}
}

// shorten cuts a text that is longer than most bytes.
func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// Actions returns the latest actions of operators.
func (c *Client) Actions(ctx context.Context, limit int) ([]store.Action, error) {
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	list, err := call[ActionList](ctx, c, http.MethodGet, actionsPath+"?"+q.Encode(), nil)
	return list.Actions, err
}
