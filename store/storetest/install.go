package storetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

func (s *suite) testInstall(t *testing.T) {
	box := s.outbox("a")
	db := s.setup(t, box)
	open := func() Store {
		st := db.Store(t, Config{Outboxes: []store.Outbox{box}})
		t.Cleanup(st.Close)
		return st
	}
	const relays = 4
	errs := make(chan error, relays)
	for range relays {
		st := open()
		ctx := s.ctx(t)
		go func() { errs <- st.Install(ctx) }()
	}

	for range relays {
		if err := <-errs; err != nil {
			t.Errorf("concurrent Install: %v", err)
		}
	}

	st := open()
	if err := st.SaveCheckpoint(s.ctx(t), 1, store.Checkpoint{}); !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("checkpoint before the first leader: got %v, want ErrNotLeader", err)
	}

	epoch, err := st.AcquireLeadership(s.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := st.SaveCheckpoint(s.ctx(t), epoch, store.Checkpoint{Position: "kept"}); err != nil {
		t.Fatal(err)
	}
	if err := st.Install(s.ctx(t)); err != nil {
		t.Fatalf("install again: %v", err)
	}
	if cp, err := st.LoadCheckpoint(s.ctx(t)); err != nil || cp.Position != "kept" {
		t.Errorf("after another install the checkpoint is %+v, %v", cp, err)
	}
	if err := st.Check(s.ctx(t)); err != nil {
		t.Errorf("check after install: %v", err)
	}
	if strings.TrimSpace(st.Script()) == "" {
		t.Error("the script is empty")
	}
}

// testCheck: one error names everything that is missing, with a remedy.
func (s *suite) testCheck(t *testing.T) {
	box := s.outbox("a")
	db := s.setup(t, box)
	_, commit := db.Begin(t, "a", row("1"))
	commit()
	bad := box
	bad.Layout.Columns.Payload = "no_such_payload"
	lacks := []string{"no_such_payload", "no_such_table"}
	_, schemaless := db.(Schemaless)
	if !schemaless { // schemaless rows without a group may lack the field
		bad.Layout.Columns.Group = "no_such_group"
		lacks = append(lacks, "no_such_group")
	}

	absent := s.outbox("b")
	absent.Table = "no_such_table"
	check := func(want []string, not []string, boxes ...store.Outbox) {
		t.Helper()
		st := db.Store(t, Config{Outboxes: boxes})
		defer st.Close()
		err := st.Check(s.ctx(t))
		var setup *store.SetupError
		if !errors.As(err, &setup) || setup.Remedy == "" {
			t.Fatalf("check says %v, want a setup error with a remedy", err)
		}
		for _, name := range want {
			if !strings.Contains(err.Error(), name) {
				t.Errorf("check does not name %q: %v", name, err)
			}
		}
		for _, name := range not {
			if strings.Contains(err.Error(), name) {
				t.Errorf("check names %q without cause: %v", name, err)
			}
		}
	}

	const initialize = "sluicebox init"
	check([]string{initialize}, []string{"no_such"}, box)
	check(append(lacks, initialize), nil, bad, absent)
	st := db.Store(t, Config{Outboxes: []store.Outbox{box}})
	defer st.Close()
	if err := st.Install(s.ctx(t)); err != nil {
		t.Fatal(err)
	}

	check(lacks, []string{initialize}, bad, absent)
	s.claimMissingColumn(t, db.Store(t, Config{Outboxes: []store.Outbox{bad}}), schemaless)
}

// claimMissingColumn: a call on a missing column returns a SetupError too.
func (s *suite) claimMissingColumn(t *testing.T, broken Store, schemaless bool) {
	t.Helper()
	defer broken.Close()
	epoch, err := broken.AcquireLeadership(s.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	var setup *store.SetupError
	var refused *store.RefusedError
	_, err = broken.Claim(s.ctx(t), epoch, now(), []store.ClaimRow{{Ref: ref("a", "1"), WantPayload: true}})
	if says := errors.As(err, &setup) || schemaless && errors.As(err, &refused); !says {
		t.Errorf("a claim without the payload column: %v", err)
	}
}

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

	s.checkCapacity(t, st)
	closed := open(box)
	closed.Close()
	if _, err := closed.Diagnose(s.ctx(t)); err == nil {
		t.Error("Diagnose of a closed store succeeded")
	}
}

// capacityChecker is a store whose server limits its relays together.
type capacityChecker interface {
	DiagnoseCapacity(ctx context.Context, relays []string) ([]store.Finding, error)
}

// checkCapacity: a server has room for two relays, and for a hundred thousand it gets advice for each limit.
func (s *suite) checkCapacity(t *testing.T, st Store) {
	by, limits := st.(capacityChecker)
	if !limits {
		return
	}
	for relays, want := range map[int]store.Grade{2: store.GradeOK, 100_000: store.GradeAdvice} {
		found, err := by.DiagnoseCapacity(s.ctx(t), make([]string, relays))
		if err != nil || len(found) == 0 {
			t.Errorf("capacity for %d relays: %v, %v", relays, found, err)
		}
		for _, f := range found {
			if f.Grade != want || (f.Remedy != "") != (want == store.GradeAdvice) {
				t.Errorf("capacity for %d relays: %+v, want grade %v", relays, f, want)
			}
		}
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
