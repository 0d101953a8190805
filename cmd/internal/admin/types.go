package admin

import (
	"time"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// Lane is a lane at a moment.
type Lane struct {
	Outbox string  `json:"outbox"`
	Kind   string  `json:"kind"`
	Group  *string `json:"group"` // nil: rows without a group
	// RowID is set where rows without a group have a lane each.
	RowID string `json:"row_id,omitempty"`
	// Replay is the id of the replay that sends the lane's rows again; the group's own
	// lane, without one, is replaying meanwhile.
	Replay  string `json:"replay,omitempty"`
	State   string `json:"state"`
	Rows    int    `json:"rows"`    // in memory
	Spilled int    `json:"spilled"` // more rows, that are not in memory
	// Unwritten is how many more rows were delivered and their COMPLETED is refused by
	// the table.
	Unwritten   int       `json:"unwritten"`
	Head        string    `json:"head"` // the id of the first row, or of the first unwritten one
	Attempts    int       `json:"attempts"`
	RetryCount  int       `json:"retry_count"`
	NextAttempt time.Time `json:"next_attempt,omitzero"`
	Error       string    `json:"error,omitempty"`  // the head's latest failure, or what the table refuses
	Reason      string    `json:"reason,omitempty"` // why a lane is paused or replaying
	Since       time.Time `json:"since,omitzero"`   // blocked, paused, stalled or refused by the table
}

// LaneOf returns a lane as the API shows it.
func LaneOf(l *dispatch.LaneInfo) Lane {
	return Lane{
		Outbox: l.Outbox, Kind: l.Kind, Group: groupPointer(l.Group), RowID: l.RowID, Replay: l.Job, State: l.State,
		Rows: l.Rows, Spilled: l.Spilled, Unwritten: l.Unwritten, Head: l.Head, Attempts: l.Attempts, RetryCount: l.RetryCount,
		NextAttempt: l.NextAttempt, Error: l.Error, Reason: l.Reason, Since: l.Since,
	}
}

// groupPointer is nil for the absence of a group.
func groupPointer(g store.Group) *string {
	if !g.Valid {
		return nil
	}
	return &g.Name
}

// groupOf is the group of a name, nil for none.
func groupOf(name *string) store.Group {
	if name == nil {
		return store.Group{}
	}
	return store.GroupOf(*name)
}

// LaneList answers GET /api/v1/lanes.
type LaneList struct {
	Lanes []Lane `json:"lanes"` // those that stand still or fail first
	Total int    `json:"total"` // how many the filter chooses
}

// LaneRequest names a lane to an action.
type LaneRequest struct {
	Outbox string  `json:"outbox"`
	Kind   string  `json:"kind"`
	Group  *string `json:"group"` // nil: the rows without a group
	RowID  string  `json:"row_id,omitempty"`
	Reason string  `json:"reason,omitempty"` // skip and pause need one
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
	// Payload is the row's payload where it was asked for and is text;
	// PayloadBytes where it is not.
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

// DeadLetterList answers GET /api/v1/deadletters.
type DeadLetterList struct {
	DeadLetters []DeadLetter `json:"deadletters"`
}

// DeadLetterRequest chooses FAILED rows of one outbox for an action. A field
// that is left out chooses all.
type DeadLetterRequest struct {
	Outbox  string    `json:"outbox"`
	IDs     []string  `json:"ids,omitempty"`
	Kind    string    `json:"kind,omitempty"`
	Group   *string   `json:"group,omitempty"`
	NoGroup bool      `json:"no_group,omitempty"` // the rows without a group
	Error   string    `json:"error,omitempty"`    // a part of the error's text
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

// DeadLetterCount says how many rows a filter chooses or an action took.
type DeadLetterCount struct {
	Count int `json:"count"`
	// Until is a moment that all the counted rows had FAILED before, where the
	// table tells. An action with this bound leaves rows alone that FAIL later,
	// also those that it requeued itself.
	Until time.Time `json:"until,omitzero"`
}

// wireError is the answer to what was refused or went wrong.
type wireError struct {
	Error string `json:"error"`
}
