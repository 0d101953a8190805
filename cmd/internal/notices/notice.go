// Package notices tells people and programs about conditions of a relay: a webhook or a command gets
// a [Notice] when a condition begins and another when it has ended.
//
// A condition is raised once it has held for a time, and cleared once it has not held for a time. So
// one that comes and goes makes few notices. FAILED rows are counted: at most one notice per interval
// has their number and some ids.
//
// Observers report to a [Notifier], which never waits: each target has a queue and a goroutine.
package notices

import "time"

// Event is the kind of a condition.
type Event string

// Events.
const (
	// BreakerOpen: rows wait behind an open circuit breaker.
	BreakerOpen Event = "breaker-open"

	// RowsFailed: rows became FAILED.
	RowsFailed Event = "rows-failed"

	// LogNearLimit: the database retains almost as much log as the relay may make it retain.
	LogNearLimit Event = "log-near-limit"

	// LeaderChanges: this relay won or lost the lead several times in a window.
	LeaderChanges Event = "leader-changes"

	// RowsLate: the oldest waiting row is older than the threshold.
	RowsLate Event = "rows-late"
)

// State is the state of a condition.
type State string

// States.
const (
	Raised  State = "raised"
	Cleared State = "cleared"
)

// Details are the facts of a notice; see the table in deploy/operating.md. Names and meanings of the
// fields are stable.
type Details struct {
	Sink     string `json:"sink,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
	Class    string `json:"class,omitempty"`
	Error    string `json:"error,omitempty"`

	Rows int      `json:"rows,omitempty"` // since the notice before
	IDs  []string `json:"ids,omitempty"`  // the first few, as outbox/id

	RetainedBytes int64 `json:"retained_bytes,omitempty"`
	LimitBytes    int64 `json:"limit_bytes,omitempty"`

	Changes int     `json:"changes,omitempty"`
	Seconds float64 `json:"seconds,omitempty"` // the window of changes, or the age of the oldest row
}

// Notice is what a target gets, as a JSON object.
type Notice struct {
	// ID is unique. It is the same for each attempt to deliver the notice.
	ID string `json:"id"`

	Event Event `json:"event"`
	State State `json:"state"`

	// Since is when the condition began to hold. It is the same in both notices of a condition.
	Since time.Time `json:"since"`

	// At is when the notice was made.
	At time.Time `json:"at"`

	Relay  string `json:"relay"`  // its name
	Holder string `json:"holder"` // the process

	Details Details `json:"details"`
}
