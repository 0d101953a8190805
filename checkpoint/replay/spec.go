package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Source is where a job reads its rows.
type Source string

// Sources of a job. SourceAny is the log if it is available, else the table.
const (
	SourceAny   Source = ""
	SourceLog   Source = "log"
	SourceTable Source = "table"
)

// Spec selects the rows of a job and how to send them. The store keeps it as JSON.
type Spec struct {
	// From is the named checkpoint after which the job starts, Since the time at
	// which it starts. Exactly one of them is set.
	From  string    `json:"from,omitempty"`
	Since time.Time `json:"since,omitzero"`

	// Until is the exclusive end of the range. If it is zero, the range ends at the
	// current position of the log when the job starts.
	Until time.Time `json:"until,omitzero"`

	// Outboxes, Groups, Kinds and IDs select rows. An empty list selects all. NoGroup
	// selects rows without a group, which no name in Groups does. With neither Groups
	// nor NoGroup, rows with and without a group are selected.
	Outboxes []string `json:"outboxes,omitempty"`
	Groups   []string `json:"groups,omitempty"`
	NoGroup  bool     `json:"no_group,omitempty"`
	Kinds    []string `json:"kinds,omitempty"`
	IDs      []string `json:"ids,omitempty"`

	// Sink receives the rows, "" for the sink of each row's outbox.
	Sink string `json:"sink,omitempty"`

	// Rate is the maximum number of rows per second, 0 for no limit.
	Rate int `json:"rate,omitempty"`

	// Read is where the rows are read.
	Read Source `json:"read,omitempty"`

	// DryRun counts the rows and sends none.
	DryRun bool `json:"dry_run,omitempty"`
}

// Validate reports an error of the spec that does not depend on the configuration.
func (s *Spec) Validate() error {
	switch {
	case s.From == "" && s.Since.IsZero():
		return errors.New("replay start missing; set from (checkpoint) or since (time)")
	case s.From != "" && !s.Since.IsZero():
		return errors.New("replay start ambiguous; set from (checkpoint) or since (time), not both")
	case !s.Since.IsZero() && !s.Until.IsZero() && !s.Since.Before(s.Until):
		return fmt.Errorf("since (%s) is not before until (%s)", s.Since.Format(time.RFC3339), s.Until.Format(time.RFC3339))
	case s.Rate < 0:
		return fmt.Errorf("invalid rate %d; must be 0 (no limit) or more", s.Rate)
	case s.Read != SourceAny && s.Read != SourceLog && s.Read != SourceTable:
		return fmt.Errorf("invalid replay source %q; use %s or %s", string(s.Read), SourceLog, SourceTable)
	}

	if s.From != "" {
		return store.ValidateSavepointName(s.From)
	}
	return nil
}

// NeedsRoute returns an error if the spec selects an outbox with routes and no leg of it.
func (s *Spec) NeedsRoute(outboxes []store.Outbox) error {
	for i := range outboxes {
		o := &outboxes[i]
		none := len(s.Outboxes) == 0 || slices.Contains(s.Outboxes, o.Name)
		if len(o.Routes) > 0 && none {
			return fmt.Errorf("outbox %q has routes; name the route to send to, for example %q", o.Name, store.LegName(o.Name, o.Routes[0].Name))
		}
	}
	return nil
}

// Text returns the JSON of the spec for the store.
func (s *Spec) Text() (string, error) {
	text, err := json.Marshal(s)
	return string(text), err
}

// ParseSpec parses the result of Text. An unknown field is an error, because it may
// narrow the rows that a newer release would send.
func ParseSpec(text string) (*Spec, error) {
	var s Spec
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return nil, fmt.Errorf("parse replay spec: %w", err)
	}
	return &s, s.Validate()
}

// Match reports whether the spec selects a row. It ignores times.
func (s *Spec) Match(item *store.Item) bool {
	chosen := func(of []string, value string) bool { return len(of) == 0 || slices.Contains(of, value) }
	return chosen(s.Outboxes, item.Outbox) && chosen(s.Kinds, item.Kind) && chosen(s.IDs, item.ID) && s.matchGroup(item.Group)
}

func (s *Spec) matchGroup(group store.Group) bool {
	switch {
	case len(s.Groups) == 0 && !s.NoGroup:
		return true
	case !group.Valid:
		return s.NoGroup
	}
	return slices.Contains(s.Groups, group.Name)
}
