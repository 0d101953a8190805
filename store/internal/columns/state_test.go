package columns_test

import (
	"fmt"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// TestOptionalStatuses: no condition and no value names a status or a column that the table
// does not have.
func TestOptionalStatuses(t *testing.T) {
	base := store.Columns{ID: "id", Payload: "body", Status: "state", RetryCount: "tries"}
	timed := base
	timed.Status, timed.Delivered = "", "sent_at"
	leased := timed
	leased.Claimed = "until"
	failed := store.Outcome{Status: store.Failed, Reason: store.ReasonGateway}
	for _, tt := range []struct {
		name                                  string
		layout                                store.Layout
		unsettled, pending, delivered, failed string
		written                               string
		stored                                any // of a FAILED outcome
	}{
		{"two words", store.Layout{Columns: base, State: store.StateWords, Words: map[store.Status]string{store.Pending: "NEW", store.Completed: "SENT"}},
			"(state = NEW)", "(state = NEW)", "(state = SENT)", "false", "[NEW SENT]", "NEW"},
		{"two numbers", store.Layout{Columns: base, State: store.StateNumbers, Numbers: map[store.Status]int{store.Pending: 1, store.Completed: 2}},
			"(state = 1)", "(state = 1)", "(state = 2)", "false", "[1 2]", 1},
		{"a boolean", store.Layout{Columns: base, State: store.StateBoolean},
			"(state = false)", "false", "(state = true)", "false", "[false true]", false},
		{"a time", store.Layout{Columns: timed, State: store.StateTimestamps},
			"(sent_at IS NULL)", "false", "(sent_at IS NOT NULL)", "false", "[]", nil},
		{"a lease", store.Layout{Columns: leased, State: store.StateTimestamps, Lease: true},
			"(sent_at IS NULL)", "false", "(sent_at IS NOT NULL)", "false", "[]", nil},
		{"deleted", store.Layout{Columns: store.Columns{ID: "id", Payload: "body"}, State: store.StateNone, DeleteDelivered: true},
			"true", "false", "false", "false", "[]", nil},
	} {
		s := columns.State{
			Layout: &tt.layout, Column: func(name string) string { return name },
			Bind: func(value any) string { return fmt.Sprint(value) },
		}
		got := fmt.Sprint(s.Unsettled(), s.Pending(), s.Delivered(), s.Failed())
		if want := fmt.Sprint(tt.unsettled, tt.pending, tt.delivered, tt.failed); got != want {
			t.Errorf("%s: conditions %s, want %s", tt.name, got, want)
		}
		if got := fmt.Sprint(columns.WrittenStatuses(&tt.layout)); got != tt.written {
			t.Errorf("%s: written statuses %s, want %s", tt.name, got, tt.written)
		}
		if tt.stored != nil {
			if got := columns.StoredOutcome(&tt.layout, &failed); got != tt.stored {
				t.Errorf("%s: FAILED is stored as %v, want %v", tt.name, got, tt.stored)
			}
		}
	}
}
