package admin

import (
	"time"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// Lane is the state of a lane.
type Lane struct {
	Outbox string  `json:"outbox"`
	Kind   string  `json:"kind"`
	Group  *string `json:"group"` // nil: rows without a group
	// RowID is set if each row without a group has its own lane.
	RowID string `json:"row_id,omitempty"`
	// Replay is the id of the replay that sends the lane's rows. The group's live lane
	// has no Replay and is replaying meanwhile.
	Replay  string `json:"replay,omitempty"`
	State   string `json:"state"`
	Rows    int    `json:"rows"`    // in memory
	Spilled int    `json:"spilled"` // further rows, not in memory
	// Unwritten is the number of further rows that were delivered but whose COMPLETED
	// status the table refuses.
	Unwritten   int       `json:"unwritten"`
	Head        string    `json:"head"` // id of the first row, or of the first unwritten row
	Attempts    int       `json:"attempts"`
	RetryCount  int       `json:"retry_count"`
	NextAttempt time.Time `json:"next_attempt,omitzero"`
	Error       string    `json:"error,omitempty"`  // latest failure of the head, or the table's error
	Reason      string    `json:"reason,omitempty"` // of a pause or a replay
	Since       time.Time `json:"since,omitzero"`   // start of a block, pause, stall or refusal by the table
}

// LaneOf returns a lane as the API shows it.
func LaneOf(l *dispatch.LaneInfo) Lane {
	return Lane{
		Outbox: l.Outbox, Kind: l.Kind, Group: groupPointer(l.Group), RowID: l.RowID, Replay: l.Job, State: l.State,
		Rows: l.Rows, Spilled: l.Spilled, Unwritten: l.Unwritten, Head: l.Head, Attempts: l.Attempts, RetryCount: l.RetryCount,
		NextAttempt: l.NextAttempt, Error: l.Error, Reason: l.Reason, Since: l.Since,
	}
}

// groupPointer returns nil for no group.
func groupPointer(g store.Group) *string {
	if !g.Valid {
		return nil
	}
	return &g.Name
}

// groupOf returns the group with a name, or no group for nil.
func groupOf(name *string) store.Group {
	if name == nil {
		return store.Group{}
	}
	return store.GroupOf(*name)
}

// LaneList is the response of GET /api/v1/lanes.
type LaneList struct {
	Lanes []Lane `json:"lanes"` // held and failing lanes first
	Total int    `json:"total"` // number of lanes that match the filter
}

// LaneRequest names the lane of an action.
type LaneRequest struct {
	Outbox string  `json:"outbox"`
	Kind   string  `json:"kind"`
	Group  *string `json:"group"` // nil: rows without a group
	RowID  string  `json:"row_id,omitempty"`
	Reason string  `json:"reason,omitempty"` // required for skip and pause
}

func (q *LaneRequest) laneName() dispatch.LaneName {
	return dispatch.LaneName{LaneKey: store.LaneKey{Outbox: q.Outbox, Kind: q.Kind, Group: groupOf(q.Group)}, RowID: q.RowID}
}

// DeadLetter is one FAILED row.
type DeadLetter struct {
	Outbox      string    `json:"outbox"`
	ID          string    `json:"id"`
	Kind        string    `json:"kind"`
	Group       *string   `json:"group"`
	RetryCount  int       `json:"retry_count"`
	Error       string    `json:"error"`
	FailedAt    time.Time `json:"failed_at,omitzero"` // by the relay's clock
	PayloadSize int       `json:"payload_size"`       // bytes
	// Payload is the payload if requested and valid text, else PayloadBytes is.
	Payload      *string `json:"payload,omitempty"`
	PayloadBytes []byte  `json:"payload_base64,omitempty"`
}

// DeadLetterOf returns a FAILED row as the API shows it.
func DeadLetterOf(d *store.DeadLetter) DeadLetter {
	shown := DeadLetter{
		Outbox: d.Outbox, ID: d.ID, Kind: d.Kind, Group: groupPointer(d.Group), RetryCount: d.RetryCount,
		Error: d.Error, FailedAt: d.FailedAt, PayloadSize: d.PayloadSize,
	}
	switch {
	case d.Payload == nil:
	case utf8.Valid(d.Payload):
		text := string(d.Payload)
		shown.Payload = &text
	default:
		shown.PayloadBytes = d.Payload
	}
	return shown
}

// DeadLetterList is the response of GET /api/v1/deadletters.
type DeadLetterList struct {
	DeadLetters []DeadLetter `json:"deadletters"`
}

// DeadLetterRequest chooses FAILED rows of one outbox for an action. An omitted field
// does not filter.
type DeadLetterRequest struct {
	Outbox  string    `json:"outbox"`
	IDs     []string  `json:"ids,omitempty"`
	Kind    string    `json:"kind,omitempty"`
	Group   *string   `json:"group,omitempty"`
	NoGroup bool      `json:"no_group,omitempty"` // rows without a group
	Error   string    `json:"error,omitempty"`    // substring of the error
	Since   time.Time `json:"since,omitzero"`
	Until   time.Time `json:"until,omitzero"`
	// Limit is the most rows to act on; 0 is the default.
	Limit int `json:"limit,omitempty"`
	// DryRun counts and changes nothing.
	DryRun bool `json:"dry_run,omitempty"`
	// Expect refuses the action if the filter chooses another number of rows.
	Expect *int `json:"expect,omitempty"`
}

func (q *DeadLetterRequest) filter() store.DeadLetterFilter {
	f := store.DeadLetterFilter{Outbox: q.Outbox, IDs: q.IDs, Kind: q.Kind, Error: q.Error, Since: q.Since, Until: q.Until}
	if q.Group != nil || q.NoGroup {
		g := groupOf(q.Group)
		f.Group = &g
	}
	return f
}

// DeadLetterCount is the number of rows that a filter chooses or an action changed.
type DeadLetterCount struct {
	Count int `json:"count"`
	// Until is a time after the failure of every counted row, if the table records times.
	// An action with this bound does not touch rows that FAIL later, for example rows
	// that it requeued itself.
	Until time.Time `json:"until,omitzero"`
}

// wireError is the response for an error.
type wireError struct {
	Error string `json:"error"`
}
