package sqlite

import (
	"slices"
	"testing"
)

// TestConstraints finds the CHECK constraints in the statement of a table.
func TestConstraints(t *testing.T) {
	const create = `CREATE TABLE "checks" (id INTEGER PRIMARY KEY CHECK (id > 0), "check" TEXT,
	status TEXT NOT NULL DEFAULT 'x)' check(status IN ('a (1)', 'b)', "c")), -- CHECK it
	CONSTRAINT named CHECK
	  (length(note) < 10), note TEXT)`
	var got []string
	for _, k := range constraints(create) {
		got = append(got, k.Expression)
	}
	want := []string{"id > 0", `status IN ('a (1)', 'b)', "c")`, "length(note) < 10"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
