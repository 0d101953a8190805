package sinktest

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
)

func kindOf(path string) string {
	for suffix, kind := range map[string]string{
		"/api/events/batch":        "EVENT",
		"/api/dispatch/jobs/batch": "DISPATCH_JOB",
		"/api/dispatch-jobs/batch": "DISPATCH_JOB",
		"/api/audit-logs/batch":    "AUDIT_LOG",
	} {
		if strings.HasSuffix(path, suffix) {
			return kind
		}
	}
	return ""
}

// parse splits a body of either wire into its items.
func parse(body []byte) (items []Received, wireItems bool, err error) {
	var list []json.RawMessage
	if err := json.Unmarshal(body, &list); err != nil {
		var object struct {
			Items []json.RawMessage `json:"items"`
		}
		if err := json.Unmarshal(body, &object); err != nil || object.Items == nil {
			return nil, false, errors.New("neither an array nor an object with items")
		}
		list, wireItems = object.Items, true
	}

	items = make([]Received, len(list))
	for i, payload := range list {
		var head struct {
			ID string `json:"id"`
		}
		// A payload without an id is logged under "".
		_ = json.Unmarshal(payload, &head)
		items[i] = Received{ID: head.ID, Payload: payload}
	}
	return items, wireItems, nil
}

// webhook reads a request with one row. Its id is webhook-id, its kind Sluicebox-Kind
// or else ce-type, its payload the body. ok is false for a request without a
// webhook-id.
func webhook(h http.Header, body []byte) (kind string, items []Received, ok bool) {
	decoded := func(name string) string {
		v, err := url.PathUnescape(h.Get(name))
		if err != nil {
			return h.Get(name)
		}
		return v
	}

	if h.Get("Webhook-Id") == "" {
		return "", nil, false
	}

	kind = cmp.Or(decoded("Sluicebox-Kind"), decoded("Ce-Type"))
	return kind, []Received{{ID: decoded("Webhook-Id"), Payload: body}}, true
}
