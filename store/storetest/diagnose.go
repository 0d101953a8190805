package storetest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// testDiagnose: Diagnose finds the faults of Check, reports healthy parts too, and changes
// nothing.
func (s *suite) testDiagnose(t *testing.T) {
	box := s.outbox("a")
	db := s.setup(t, box)
	_, commit := db.Begin(t, "a", row("1"))
	commit()
	bad := s.outbox("b")
	bad.Table = box.Table
	bad.Layout.Columns.Payload = "no_such_payload"
	absent := s.outbox("c")
	absent.Table = "no_such_table"
	open := func(boxes ...store.Outbox) Store {
		st := db.Store(t, Config{Outboxes: boxes})
		t.Cleanup(st.Close)
		return st
	}
	st, wrong := open(box), open(bad, absent)
	s.checkDiagnosis(t, st, "sluicebox init")
	s.checkDiagnosis(t, wrong, "sluicebox init", "no_such_payload", "no_such_table")
	if _, err := st.Leader(s.ctx(t)); err == nil || errors.Is(err, store.ErrNotLeader) {
		t.Errorf("Diagnose created the relay's tables: %v", err)
	}
	if err := st.Install(s.ctx(t)); err != nil {
		t.Fatal(err)
	}

	s.checkDiagnosis(t, st)
	s.checkDiagnosis(t, wrong, "no_such_payload", "no_such_table")
	lock, err := st.Lock(s.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	for _, of := range []Store{st, open(box)} {
		s.checkDiagnosis(t, of)
	}

	var locked *store.LockedError
	if _, err := open(box).Lock(s.ctx(t)); !errors.As(err, &locked) {
		t.Errorf("lock during Diagnose: got %v, want LockedError", err)
	}
	if _, err := st.Leader(s.ctx(t)); !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("Diagnose acquired leadership: %v", err)
	}

	closed := open(box)
	closed.Close()
	if _, err := closed.Diagnose(s.ctx(t)); err == nil {
		t.Error("Diagnose of a closed store succeeded")
	}
}

// checkDiagnosis checks that Diagnose and Check find exactly these faults.
func (s *suite) checkDiagnosis(t *testing.T, st Store, faults ...string) {
	t.Helper()
	found, err := st.Diagnose(s.ctx(t))
	if err != nil {
		t.Fatalf("Diagnose: %v", err)
	}

	check := ""
	if err := st.Check(s.ctx(t)); err != nil {
		check = err.Error()
	}

	var said []string
	fine := false
	for _, f := range found {
		if f.Subject == "" || f.Text == "" || f.Grade == store.GradeOK && f.Remedy != "" || f.Grade == store.GradeFault && f.Remedy == "" {
			t.Errorf("incomplete finding: %+v", f)
		}
		fine = fine || f.Grade == store.GradeOK
		if f.Grade != store.GradeFault {
			continue
		}
		said = append(said, f.Text+f.Remedy)
		if !strings.Contains(check, f.Text) {
			t.Errorf("check does not say %q: %s", f.Text, check)
		}
	}

	if len(said) != len(faults) || !fine || (len(faults) == 0) != (check == "") {
		t.Errorf("the faults are %q, want %q; check says %q", said, faults, check)
	}

	for _, name := range faults {
		if !slices.ContainsFunc(said, func(text string) bool { return strings.Contains(text, name) }) {
			t.Errorf("no fault names %q: %q", name, said)
		}
	}
}
