package storetest

import (
	"errors"
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
