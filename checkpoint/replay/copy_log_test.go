package replay

import (
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// TestMatchesSince: a commit time in whole seconds may stand for the end of its second.
func TestMatchesSince(t *testing.T) {
	at := func(clock string) time.Time {
		t.Helper()
		when, err := time.Parse(time.RFC3339Nano, "2026-01-02T"+clock+"Z")
		if err != nil {
			t.Fatal(err)
		}
		return when
	}

	for _, tt := range []struct {
		since, committed string
		want             bool
	}{
		{"12:00:00.5", "12:00:00", true},
		{"12:00:00.5", "11:59:59", false},
		{"12:00:00.5", "12:00:00.499999", false},
		{"12:00:00.5", "12:00:00.5", true},
		{"12:00:00.5", "12:00:01", true},
		{"12:00:00", "12:00:00", true},
		{"12:00:00", "11:59:59", false},
		{"12:00:00", "11:59:59.999999", false},
	} {
		r := &jobRun{spec: &Spec{Since: at(tt.since)}}
		if got := r.matches(&store.Item{Committed: at(tt.committed)}); got != tt.want {
			t.Errorf("since %s, a row of %s is wanted: %t", tt.since, tt.committed, got)
		}
	}

	r := &jobRun{spec: &Spec{From: "a"}}
	if !r.matches(&store.Item{Committed: at("12:00:00")}) {
		t.Error("a row behind a checkpoint is not wanted")
	}

	r = &jobRun{spec: &Spec{Since: at("12:00:00.5"), Until: at("12:00:01")}}
	if r.matches(&store.Item{Committed: at("12:00:01")}) {
		t.Error("a row of the end is wanted")
	}
}
