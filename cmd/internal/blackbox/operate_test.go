package blackbox

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// laneStateText is a lane in the API.
type laneState struct {
	Outbox, Kind, State, Head, Error string
	Rows                             int
	RetryCount                       int       `json:"retry_count"`
	NextAttempt                      time.Time `json:"next_attempt"`
}

// lane returns the lane of an events group. It is zero if there is none, or if the relay is not
// the leader.
func (r *relay) lane(group string) laneState {
	r.t.Helper()
	status, body := r.get("/api/v1/lanes?outbox=outbox_events&group=" + url.QueryEscape(group))
	if status == http.StatusServiceUnavailable {
		return laneState{}
	}
	var list struct{ Lanes []laneState }
	if err := json.Unmarshal([]byte(body), &list); err != nil || status != http.StatusOK || len(list.Lanes) > 1 {
		r.t.Fatalf("the lanes: %d %s %v", status, body, err)
	}
	if len(list.Lanes) == 0 {
		return laneState{}
	}
	return list.Lanes[0]
}

// retryLater is the error text of an action while an outcome of the row is being written.
const retryLater = "; retry"

// post sends an action to the API.
func (r *relay) post(path string, request any) {
	r.t.Helper()
	text, err := json.Marshal(request)
	if err != nil {
		r.t.Fatal(err)
	}
	within(r.t, testTimeout, func() string {
		status, body := r.ask(http.MethodPost, "/api/v1/"+path, string(text))
		if status != http.StatusOK && !strings.Contains(body, retryLater) {
			r.t.Fatalf("%s of %s: %d %s", path, text, status, body)
		}
		if status != http.StatusOK {
			return body
		}
		return ""
	})
}

// operate runs a command that calls the relay's API.
func (r *relay) operate(args ...string) {
	r.t.Helper()
	args = append(args, "--admin", r.admin)
	within(r.t, testTimeout, func() string {
		stdout, stderr, code := command(r.t, nil, args...)
		if code != 0 && !strings.Contains(stderr, retryLater) {
			r.t.Fatalf("%v: exit code %d\n%s%s", args, code, stdout, stderr)
		}
		if code != 0 {
			return stderr
		}
		return ""
	})
}
