package storetest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// prune scans an outbox's table to its end and returns the number of deleted rows.
func (b *bench) prune(t *testing.T, outbox string, before time.Time, limit int) int {
	t.Helper()
	p, n := store.PruneRequest{Outbox: outbox, Before: before, Limit: limit}, 0
	for range 10_000 {
		done, err := b.store.Prune(b.ctx(t), b.epoch, p)
		if err != nil {
			t.Fatal(err)
		}
		if done.Rows > limit {
			t.Fatalf("%d rows were deleted at once, the limit is %d", done.Rows, limit)
		}
		n += done.Rows
		if p.From = done.Next; p.From == "" {
			return n
		}
	}

	t.Fatal("Prune does not reach the end of the table")
	return 0
}

// testPrune deletes only the rows delivered before a time.
func (s *suite) testPrune(t *testing.T) {
	b := s.start(t, 0)
	old, young, border := origin(), origin().Add(2*time.Hour), origin().Add(time.Hour)
	var list []Row
	var keep, gone []string
	var outcomes []store.Outcome
	for i := range 50 {
		for _, c := range []struct {
			name   string
			status store.Status
			at     time.Time
		}{
			{"old", store.Completed, old}, {"at", store.Completed, border}, {"young", store.Completed, young},
			{"failed", store.Failed, old}, {"retried", store.Pending, old}, {"pending", 0, old}, {"taken", store.Processing, old},
		} {
			id := fmt.Sprintf("%s %d", c.name, i)
			list = append(list, row(id))
			if c.name == "old" {
				gone = append(gone, id)
			} else {
				keep = append(keep, id)
			}
			if c.status != 0 && c.status != store.Processing {
				outcomes = append(outcomes, store.Outcome{Ref: ref("a", id), Status: c.status, Error: "x", At: c.at})
			}
		}
	}

	b.insert(t, "a", list...)
	b.insert(t, "b", row("other"))
	for _, r := range list {
		if strings.HasPrefix(r.ID, "taken") {
			b.take(t, "a", r.ID)
		}
	}
	b.settle(t, append(outcomes, store.Outcome{Ref: ref("b", "other"), Status: store.Completed, At: old})...)
	if n := b.prune(t, "a", old, 10); n != 0 {
		t.Errorf("%d rows are older than the oldest", n)
	}
	if n := b.prune(t, "a", border.In(time.FixedZone("far", 9*3600)), 7); n != len(gone) {
		t.Errorf("%d rows were deleted, want %d", n, len(gone))
	}
	for _, id := range gone {
		if b.read(t, "a", id).Exists {
			t.Errorf("row %q is still there", id)
		}
	}
	for _, id := range keep {
		if !b.read(t, "a", id).Exists {
			t.Errorf("row %q is gone", id)
		}
	}
	if !b.read(t, "b", "other").Exists {
		t.Error("a row of the other outbox is gone")
	}
	if n := b.prune(t, "a", young.Add(time.Hour), 1000); n != 100 {
		t.Errorf("%d rows of %d are older than now", n, 100)
	}
	if left := b.count(t, store.DeadLetterFilter{Outbox: "a"}); left != 50 {
		t.Errorf("%d FAILED rows are left", left)
	}
}

// testClock compares the database's time with this machine's, on which the test servers
// run.
func (s *suite) testClock(t *testing.T) {
	b := s.start(t, 0)
	before := time.Now()
	at, err := b.store.Clock(b.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	const slack = 2 * time.Second
	if at.Before(before.Add(-slack)) || at.After(time.Now().Add(slack)) {
		t.Errorf("the database's time is %s, it is %s", at, before)
	}
}

// testPruneMany prunes a table of 5000 rows, in small steps and in one.
func (s *suite) testPruneMany(t *testing.T) {
	b := s.start(t, 0)
	const n = 5000
	list := rows(n)
	b.insert(t, "a", list...)
	var outcomes []store.Outcome
	for i, r := range list {
		outcomes = append(outcomes, store.Outcome{Ref: ref("a", r.ID), Status: store.Completed, At: origin().Add(time.Duration(i) * time.Second)})
	}

	b.settle(t, outcomes...)
	began := time.Now()
	if got := b.prune(t, "a", origin().Add(1000*time.Second), 93); got != 1000 {
		t.Errorf("%d were deleted, want 1000", got)
	}
	if got := b.prune(t, "a", origin().Add(n*time.Second), n); got != n-1000 {
		t.Errorf("%d were deleted, want %d", got, n-1000)
	}

	t.Logf("%d rows in %s", n, time.Since(began))
}

// testPruneFence: an old leader deletes nothing.
func (s *suite) testPruneFence(t *testing.T) {
	b := s.start(t, 0)
	b.insert(t, "a", row("1"))
	b.settle(t, store.Outcome{Ref: ref("a", "1"), Status: store.Completed, At: origin()})
	b.lead(t, b.open(t, 0))
	for _, epoch := range []store.Epoch{0, b.epoch, b.epoch + 1, b.epoch + 2} {
		done, err := b.store.Prune(b.ctx(t), epoch, store.PruneRequest{Outbox: "a", Before: now(), Limit: 10})
		if !errors.Is(err, store.ErrNotLeader) || done.Rows != 0 {
			t.Errorf("epoch %d: %+v, %v", epoch, done, err)
		}
	}

	if !b.read(t, "a", "1").Exists {
		t.Error("the row is gone")
	}

	b.epoch = b.lead(t, b.store)
	if n := b.prune(t, "a", now(), 10); n != 1 {
		t.Errorf("the leader deleted %d rows", n)
	}
}

// testPruneRefused: invalid requests are rejected by name.
func (s *suite) testPruneRefused(t *testing.T) {
	b := s.start(t, 0)
	want := func(p store.PruneRequest, part string) {
		t.Helper()
		_, err := b.store.Prune(b.ctx(t), b.epoch, p)
		if err == nil || errors.Is(err, store.ErrNotLeader) || !strings.Contains(err.Error(), part) {
			t.Errorf("%+v: %v, want %q", p, err, part)
		}
	}

	good := store.PruneRequest{Outbox: "a", Before: now(), Limit: 1}
	if !prunes(&s.layout) {
		want(good, "layout "+s.layout.Name)
		return
	}

	for part, change := range map[string]func(*store.PruneRequest){
		"no outbox":    func(p *store.PruneRequest) { p.Outbox = "c" },
		"limit":        func(p *store.PruneRequest) { p.Limit = 0 },
		"prune cursor": func(p *store.PruneRequest) { p.From = "?" },
	} {
		p := good
		change(&p)
		want(p, part)
	}

	b.store.Close()
	want(good, "")
}

func prunes(l *store.Layout) bool { return l.DeliveredTime() != "" }

// testArchive moves old rows into the table of outbox b. A row that the archive does not take
// stays where it is.
func (s *suite) testArchive(t *testing.T) {
	b := s.start(t, 0)
	old, young := origin(), origin().Add(2*time.Hour)
	var list []Row
	var outcomes []store.Outcome
	for i := range 30 {
		list = append(list, row(fmt.Sprint("old ", i)), row(fmt.Sprint("young ", i)), row(fmt.Sprint("failed ", i)))
		for name, o := range map[string]store.Outcome{
			"old":    {Status: store.Completed, At: old},
			"young":  {Status: store.Completed, At: young},
			"failed": {Status: store.Failed, Error: "x", At: old},
		} {
			o.Ref = ref("a", fmt.Sprint(name, " ", i))
			outcomes = append(outcomes, o)
		}
	}
	b.insert(t, "a", list...)
	b.settle(t, outcomes...)

	box := b.boxes[0]
	box.Retention, box.ArchiveSchema, box.Archive = time.Hour, b.boxes[1].Schema, b.boxes[1].Table
	moves := *b
	moves.boxes = []store.Outbox{box}
	moves.store = moves.open(t, 0)
	if err := moves.store.Check(b.ctx(t)); err != nil {
		t.Errorf("check: %v", err)
	}
	moves.epoch = b.lead(t, moves.store)
	if n := moves.prune(t, "a", old.Add(time.Hour), 7); n != 30 {
		t.Errorf("rows moved: got %d, want 30", n)
	}
	var both []store.ClaimRow
	for i := range 30 {
		for outbox, there := range map[string]bool{"a": false, "b": true} {
			if id := fmt.Sprint("old ", i); b.read(t, outbox, id).Exists != there {
				t.Errorf("row %q in %s: got %v, want %v", id, outbox, !there, there)
			}
			for _, id := range []string{fmt.Sprint("young ", i), fmt.Sprint("failed ", i)} {
				if b.read(t, outbox, id).Exists == there {
					t.Errorf("row %q in %s: got %v, want %v", id, outbox, there, !there)
				}
			}
		}
		both = append(both, store.ClaimRow{Ref: ref("b", fmt.Sprint("old ", i)), WantPayload: true})
	}
	states, err := b.store.ReadStatuses(b.ctx(t), both)
	if err != nil {
		t.Fatal(err)
	}
	for i, st := range states {
		if want := row(both[i].ID).Payload; st.State != store.RowCompleted || string(st.Payload) != want {
			t.Fatalf("row %q of the archive is %v with the payload %s, want %s", both[i].ID, st.State, st.Payload, want)
		}
	}
	if got := b.read(t, "b", "old 7"); !got.Settled.Equal(old) && !got.Settled.IsZero() {
		t.Errorf("a row of the archive was settled at %s, want %s", got.Settled, old)
	}
	s.testArchiveRefuses(t, b, &moves)
}

// testArchiveRefuses: rows whose ids are in the archive already are not deleted.
func (s *suite) testArchiveRefuses(t *testing.T, b, moves *bench) {
	absent := moves.boxes[0]
	absent.Archive = "no_such_archive"
	st := b.db.Store(t, Config{Outboxes: []store.Outbox{absent}})
	defer st.Close()
	if err := st.Check(b.ctx(t)); err == nil || !strings.Contains(err.Error(), "no_such_archive") {
		t.Errorf("check of an archive that does not exist: %v", err)
	}
	if _, ok := b.db.(Schemaless); ok {
		return // it replaces the copy
	}

	b.insert(t, "b", row("young 5"))
	p := store.PruneRequest{Outbox: "a", Before: origin().Add(10 * time.Hour), Limit: 1000}
	var refused *store.RefusedError
	if done, err := moves.store.Prune(b.ctx(t), moves.epoch, p); !errors.As(err, &refused) || done.Rows != 0 {
		t.Fatalf("%+v, %v, want a refusal", done, err)
	}
	for i := range 30 {
		if id := fmt.Sprint("young ", i); !b.read(t, "a", id).Exists {
			t.Errorf("row %q was deleted without its copy", id)
		}
	}
}
