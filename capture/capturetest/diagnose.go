package capturetest

import (
	"slices"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// examine diagnoses the log with a separate source, beside the sources that read it. It
// returns all findings that are not OK, and checks that each has a remedy.
func examine(t *testing.T, db Database) []store.Finding {
	t.Helper()
	src := db.Source(t, Options{Outbox: outbox, BatchRows: batchRows})
	defer src.Close()
	examiner, ok := src.(store.Diagnoser)
	if !ok {
		t.Fatal("a source whose log can be missing is no store.Examiner")
	}
	found, err := examiner.Diagnose(t.Context())
	if err != nil {
		t.Fatalf("examine: %v", err)
	}
	for _, f := range found {
		if f.Subject == "" || f.Text == "" || (f.Grade == store.GradeOK) != (f.Remedy == "") {
			t.Errorf("an incomplete finding: %+v", f)
		}
	}
	return slices.DeleteFunc(found, func(f store.Finding) bool { return f.Grade == store.GradeOK })
}

// expectWorse checks that a diagnosis has more findings than before.
func expectWorse(t *testing.T, db Database, before []store.Finding) {
	t.Helper()
	if now := examine(t, db); len(now) <= len(before) {
		t.Errorf("examined before: %+v, and now: %+v", before, now)
	}
}

// expectNoFault checks that a diagnosis finds nothing that keeps a relay from reading the
// log.
func expectNoFault(t *testing.T, db Database) {
	t.Helper()
	for _, f := range examine(t, db) {
		if f.Grade == store.GradeFault {
			t.Errorf("mended, and examined: %+v", f)
		}
	}
}
