package columns_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// TestMistypedColumn: a column that the table has under nearly the same name is asked
// about, and is not added a second time.
func TestMistypedColumn(t *testing.T) {
	have := []string{"id", "customer", "body", "sent_at", "failed_at", "error", "created_at"}
	add := func(missing []string) (statements []string) {
		for _, column := range missing {
			if column != "odd" {
				statements = append(statements, "ADD COLUMN "+column+";")
			}
		}
		return statements
	}
	for _, tt := range []struct {
		name    string
		change  func(*store.Layout)
		problem string
		remedy  string
	}{
		{"a letter left out", func(l *store.Layout) { l.Columns.Group = "custmer" },
			"no column custmer (columns.group; did you mean customer?), which layout custom names; its columns are id, ",
			"in layout custom, name customer in columns.group"},
		{"another case and order-by", func(l *store.Layout) { l.Columns.Error, l.OrderBy = "ERROR", []string{"createdAt"} },
			"no column createdAt (order-by; did you mean created_at?), ERROR (columns.error; did you mean error?), which",
			"in layout custom, name created_at in order-by, error in columns.error"},
		{"one mistyped, one missing", func(l *store.Layout) { l.Columns.Group, l.Columns.RetryCount = "custmer", "tries" },
			"no column custmer (columns.group; did you mean customer?), tries (columns.retry-count), which",
			"-- in layout custom, name customer in columns.group\nADD COLUMN tries;"},
		{"one mistyped, one that nobody can add", func(l *store.Layout) { l.Columns.Group, l.Columns.RetryCount = "custmer", "odd" },
			"no column custmer (columns.group; did you mean customer?), odd (columns.retry-count), which",
			"in layout custom, name customer in columns.group; add the other columns to t, or name others in layout custom"},
		{"nothing near", func(l *store.Layout) { l.Columns.RetryCount = "tries" },
			"no column tries (columns.retry-count), which", "-- or name others in layout custom\nADD COLUMN tries;"},
		{"near a column that another key names", func(l *store.Layout) { l.Columns.Claimed = "claimed_at" },
			"no column claimed_at (columns.claimed), which", "-- or name others in layout custom\nADD COLUMN claimed_at;"},
		{"a preset", func(l *store.Layout) { l.Name, l.Columns.Group = "flowcatalyst", "custmer" },
			"no column custmer (columns.group), which", "-- or name others in layout flowcatalyst\nADD COLUMN custmer;"},
	} {
		o := &store.Outbox{Name: "o", Layout: store.Layout{
			Name: store.CustomLayout, State: store.StateTimestamps,
			Columns: store.Columns{ID: "id", Group: "customer", Payload: "body", Delivered: "sent_at", Failed: "failed_at"},
		}}
		tt.change(&o.Layout)
		missing := columns.Missing(&o.Layout, func(name string) bool { return slices.Contains(have, name) })
		problem, remedy := columns.MissingText(o, "t", missing, have), columns.Remedy(o, "t", missing, have, add)
		if !strings.Contains(problem, tt.problem) || remedy != tt.remedy {
			t.Errorf("%s: problem %q, remedy %q; want %q, %q", tt.name, problem, remedy, tt.problem, tt.remedy)
		}
	}
}

// TestGivenBackClaimTime: where the claim time alone marks a claimed row, an unsettled outcome
// clears it, unless the column rejects NULL.
func TestGivenBackClaimTime(t *testing.T) {
	words := store.FlowCatalyst()
	boolean := store.Layout{State: store.StateBoolean, Columns: store.Columns{Status: "sent", Claimed: "taken_at"}}
	for _, tt := range []struct {
		layout  *store.Layout
		to      store.Status
		notNull bool
		clears  bool
	}{
		{&boolean, store.Pending, false, true},
		{&boolean, store.Failed, false, true}, // not stored, so the row stays PENDING
		{&boolean, store.Completed, false, false},
		{&boolean, store.Pending, true, false},
		{&words, store.Pending, false, false},
	} {
		set := columns.Outcome(tt.layout, tt.to, func(string) bool { return tt.notNull })
		clears := slices.Contains(set, columns.Assignment{Column: tt.layout.Columns.Claimed, Value: columns.Null})
		if clears != tt.clears {
			t.Errorf("%s of state %d, NOT NULL %t: the claim time is cleared: %t, want %t", tt.to, tt.layout.State, tt.notNull, clears, tt.clears)
		}
	}
}
