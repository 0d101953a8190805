package flowcatalyst

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
)

// arrayResult classifies a 2xx of WireArray, whose body is not specified: nothing, an
// array or an object. It is a delivery unless the body reports a failure. For
// example, some gateways answer 200 with an error in the body.
func arrayResult(a *httpsink.Answer, body []byte, r *route, n int, red *redact.Redactor) (sink.Result, error) {
	switch {
	case len(body) == 0 && strings.HasPrefix(strings.ToLower(a.ContentType), "text/html"):
		return sink.Result{}, errors.New("empty HTML page")
	case len(body) == 0:
		return delivered(), nil
	case body[0] == '{':
		var obj bodyStatus
		if err := json.Unmarshal(body, &obj); err != nil {
			return sink.Result{}, errNotObject
		}
		return obj.result(a, r, red), nil
	}

	var list []json.RawMessage
	if err := json.Unmarshal(body, &list); err != nil {
		return sink.Result{}, fmt.Errorf("%w, nor an array, nor empty", errNotObject)
	}
	return arrayItemResults(a, list, r, n, red), nil
}

// arrayItemResults classifies an array. Its entries belong to the items by position.
func arrayItemResults(a *httpsink.Answer, list []json.RawMessage, r *route, n int, red *redact.Redactor) sink.Result {
	items := make([]sink.Outcome, len(list))
	failed := false
	for i := range list {
		items[i] = sink.Outcome{Class: sink.Delivered}
		var obj bodyStatus
		if !bytes.HasPrefix(list[i], []byte("{")) || json.Unmarshal(list[i], &obj) != nil {
			continue // for example an id
		}
		word, reason, failure := obj.failure()
		if !failure {
			continue
		}
		failed = true
		items[i] = refusedOutcome(r, word, reason, red)
		if len(list) != n { // the entry cannot be matched to an item
			return obj.result(a, r, red)
		}
	}

	if !failed {
		return delivered()
	}
	return sink.Result{Items: items}
}

// bodyStatus has the fields by which an object may report a failure.
type bodyStatus struct {
	Status  json.RawMessage `json:"status"`
	Error   json.RawMessage `json:"error"`
	Errors  json.RawMessage `json:"errors"`
	Success *bool           `json:"success"`
	Message json.RawMessage `json:"message"`
}

// result returns the outcome of a request whose body is one object. An HTTP status in
// the object is classified like the status of a response.
func (v *bodyStatus) result(a *httpsink.Answer, r *route, red *redact.Redactor) sink.Result {
	word, reason, failure := v.failure()
	if !failure {
		return delivered()
	}

	class, statusReason := sink.Classify(500)
	if code, err := strconv.Atoi(word); err == nil && code >= 400 && code <= 599 {
		class, statusReason = sink.Classify(code)
	}

	text := fmt.Sprintf(": body reports %s: %s", word, reason)
	if red.HidesBody() {
		text = ": body reports a failure"
	}
	return sink.Result{Outcome: sink.Outcome{Class: class, Reason: statusReason, Detail: a.Detail(r.name(), text, red)}}
}

// failure reports whether an object reports a failure, and returns its status word
// and its reason.
func (v *bodyStatus) failure() (word, reason string, failure bool) {
	word = strings.Trim(string(v.Status), `"`)
	cause := v.Error
	if !hasValue(cause) {
		cause = v.Errors
	}
	switch {
	case hasValue(v.Status) && !isSuccessWord(word):
	case hasValue(cause):
		word = "an error"
	case v.Success != nil && !*v.Success:
		word = "success: false"
	default:
		return "", "", false
	}

	if !hasValue(cause) {
		cause = v.Message
	}
	return word, errorText(cause), true
}

// hasValue reports whether a value is present and not empty.
func hasValue(raw json.RawMessage) bool {
	empty := []string{"", "null", `""`, "false", "0", "[]", "{}"}
	return !slices.Contains(empty, strings.Join(strings.Fields(string(raw)), ""))
}

// isSuccessWord reports whether a status means success: an HTTP status below 400, or
// a word that APIs use for an accepted or known item.
func isSuccessWord(word string) bool {
	if code, err := strconv.ParseFloat(word, 64); err == nil {
		return code < 400
	}
	switch strings.ToLower(word) {
	case "success", "succeeded", "successful", "ok", "okay", "true", "skipped", "duplicate", "accepted", "created",
		"received", "stored", "saved", "queued", "enqueued", "scheduled", "pending", "processing", "processed",
		"published", "sent", "delivered", "done", "complete", "completed", "new", "active":
		return true
	}
	return false
}
