package store_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

func TestDeadLetterFilterValidate(t *testing.T) {
	box := store.Outbox{Name: "o", Table: "t", Layout: store.FlowCatalyst()}
	at := time.Unix(1000, 0)
	good := []store.DeadLetterFilter{
		{}, {IDs: []string{"1"}, Kind: "k", Group: &store.Group{}, Error: "e", Since: at, Until: at.Add(1)}, {Since: at}, {Until: at},
	}
	bare, none := box, box
	bare.Layout.Columns.Claimed, bare.Layout.Columns.Error = "", ""
	none.Layout = store.Layout{State: store.StateNone} // its FAILED rows are in records
	for _, f := range good {
		for _, o := range []*store.Outbox{&box, &none} {
			if err := f.Validate(o); err != nil {
				t.Errorf("%+v: %v", f, err)
			}
		}
	}

	for _, c := range []struct {
		box    *store.Outbox
		filter store.DeadLetterFilter
		parts  []string
	}{
		{&box, store.DeadLetterFilter{Since: at, Until: at}, []string{"outbox o", "not before"}},
		{&bare, store.DeadLetterFilter{Since: at, Error: "e"}, []string{"layout flowcatalyst", "no error column", "no settlement time column"}},
		{&bare, store.DeadLetterFilter{Until: at}, []string{"no settlement time column"}},
	} {
		err := c.filter.Validate(c.box)
		for _, part := range c.parts {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%+v: %v, want %q", c.filter, err, part)
			}
		}
	}
}

func TestFailedColumns(t *testing.T) {
	l := store.FlowCatalyst()
	if got := l.FailedTime(); got != "processed_at" {
		t.Errorf("one column for both times: %q", got)
	}

	l.Columns.Settled = "ended_at"
	if got := l.FailedTime(); got != "ended_at" {
		t.Errorf("a column of its own: %q", got)
	}

	l.State, l.Columns.Failed = store.StateTimestamps, "failed_at"
	if got := l.FailedTime(); got != "failed_at" {
		t.Errorf("timestamps: %q", got)
	}

	l.State = store.StateNone
	if got := l.FailedTime(); got != "" {
		t.Errorf("no state: %q", got)
	}

	numbers := store.OutboxMessages()
	if got := numbers.FailedCodes(); !slices.Equal(got, []int{2, 3, 4, 5, 6}) {
		t.Errorf("the codes of failure are %v", got)
	}
}
