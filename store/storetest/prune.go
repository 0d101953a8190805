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
