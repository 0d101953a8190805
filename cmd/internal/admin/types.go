package admin

import (
	"time"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// LaneList is the response of GET /api/v1/lanes.
type LaneList struct {
	Lanes []dispatch.LaneInfo `json:"lanes"` // held and failing lanes first
	Total int                 `json:"total"` // number of lanes that match the filter
}

// LaneRequest names the lane of an action.
type LaneRequest struct {
	dispatch.LaneName
	Reason string `json:"reason,omitempty"` // required for skip and pause
}

// Payload is a payload in JSON: Text if it is valid, else Bytes. Both are nil if it was
// not requested.
type Payload struct {
	Text  *string `json:"payload,omitempty"`
	Bytes []byte  `json:"payload_base64,omitempty"`
}

// PayloadOf returns a payload in JSON.
func PayloadOf(payload []byte) Payload {
	if !utf8.Valid(payload) {
		return Payload{Bytes: payload}
	}
	text := string(payload)
	return Payload{Text: &text}
}

// DeadLetter is one FAILED row.
type DeadLetter struct {
	store.DeadLetter
	Payload
}

// DeadLetterOf returns a FAILED row as the API shows it.
func DeadLetterOf(d *store.DeadLetter) DeadLetter {
	shown := DeadLetter{DeadLetter: *d}
	shown.DeadLetter.Payload = nil
	if d.Payload != nil {
		shown.Payload = PayloadOf(d.Payload)
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
	switch {
	case q.Group != nil:
		f.Group = &store.Group{Name: *q.Group, Valid: true}
	case q.NoGroup:
		f.Group = &store.Group{}
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
