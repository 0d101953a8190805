package shadow

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

const (
	stuckAfter = 40 * time.Second
	lostAfter  = 90 * time.Second
)

func newTestComparer(maxRows int) *Comparer {
	return NewComparer([]store.Outbox{{Name: "box", Layout: store.FlowCatalyst()}}, Limits{StuckAfter: stuckAfter, LostAfter: lostAfter, MaxRows: maxRows})
}

// modelRow is a row of a history.
type modelRow struct {
	id      string
	group   int
	changes []capture.Change // of the row, the insert first
}

func (r *modelRow) status() store.Status { return r.changes[len(r.changes)-1].Status }

func (r *modelRow) open() bool { return !r.status().Settled() && !r.gone() }

func (r *modelRow) gone() bool { return r.changes[len(r.changes)-1].Kind == capture.Deleted }

// history makes the changes of a table, and applies them.
type history struct {
	c      *Comparer
	now    time.Time
	txn    store.Txn
	rows   []*modelRow
	looked []time.Time // when overdue rows were looked for
}

func (h *history) change(r *modelRow, kind capture.ChangeKind, status store.Status) {
	ch := capture.Change{
		Kind: kind, ID: r.id, Status: status, Txn: h.txn, Committed: h.now, Captured: h.now.Add(3 * time.Millisecond),
		Lane: store.LaneKey{Outbox: "box"},
	}
	if kind == capture.Inserted {
		ch.Lane.Group = store.GroupOf(fmt.Sprint(r.group))
	}
	r.changes = append(r.changes, ch)
	h.c.Apply([]capture.Change{ch})
}

// look looks for overdue rows. The reader is 3 ms behind.
func (h *history) look() {
	h.c.Advance(h.now.Add(3 * time.Millisecond))
	h.looked = append(h.looked, h.now)
}

// candidates returns the first unfinished rows of each group, or any unfinished rows.
func (h *history) candidates(anyRow bool) (list []*modelRow) {
	seen := map[int]bool{}
	for _, r := range h.rows {
		if r.open() && (anyRow || !seen[r.group]) {
			list = append(list, r)
		}
		seen[r.group] = seen[r.group] || r.open()
	}
	return list
}

// step writes a transaction.
func (h *history) step(t *rapid.T, faults bool) {
	h.txn++
	h.now = h.now.Add(time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * time.Millisecond)
	if rapid.IntRange(0, 2).Draw(t, "insert") == 0 {
		for range rapid.IntRange(1, 3).Draw(t, "rows") {
			r := &modelRow{id: fmt.Sprintf("r%d", len(h.rows)), group: rapid.IntRange(0, 2).Draw(t, "group")}
			h.rows = append(h.rows, r)
			h.change(r, capture.Inserted, store.Pending)
		}
		return
	}
	if faults && rapid.IntRange(0, 9).Draw(t, "pause") == 0 {
		h.now = h.now.Add(time.Minute)
		h.look()
		h.now = h.now.Add(time.Millisecond)
	}
	for range rapid.IntRange(1, 3).Draw(t, "rows of the transaction") {
		list := h.candidates(faults && rapid.Bool().Draw(t, "any row"))
		if len(list) == 0 {
			return
		}
		r := rapid.SampledFrom(list).Draw(t, "row")
		switch fault := rapid.IntRange(0, 19).Draw(t, "fault"); {
		case faults && fault == 0:
			h.change(r, capture.Deleted, 0)
		case faults && fault == 1:
			h.change(r, capture.Updated, store.Failed)
		case r.status() == store.Pending:
			h.change(r, capture.Updated, store.Processing)
		case fault == 2:
			h.change(r, capture.Updated, store.Pending)
		default:
			h.change(r, capture.Updated, store.Completed)
			if faults && fault == 3 {
				h.txn++
				h.change(r, capture.Updated, store.Pending)
			}
		}
	}
}

// delivered returns the transaction of the first delivery of a row, 0 if it failed first or was not delivered.
func (r *modelRow) delivered() store.Txn {
	for i := range r.changes {
		if r.changes[i].Status.Settled() {
			if r.changes[i].Status == store.Completed {
				return r.changes[i].Txn
			}
			return 0 // failed first
		}
	}
	return 0
}

// count returns what is found if all changes are known at once.
func (h *history) count() (n Counts) {
	for i, r := range h.rows {
		n.Seen++
		late := false
		for _, later := range h.rows[i+1:] {
			late = late || later.group == r.group && later.delivered() != 0 && later.delivered() < r.delivered()
		}
		if late {
			n.OutOfOrder++
		}
		for j := 1; j < len(r.changes); j++ {
			was, is := r.changes[j-1].Status, r.changes[j].Status
			switch {
			case r.changes[j].Kind == capture.Deleted && !was.Settled():
				n.Deleted++
			case was == store.Completed:
				n.Returned++
			case is == store.Completed:
				n.Delivered++
			case is == store.Failed:
				n.Failed++
			case was == store.Processing && is == store.Pending:
				n.Retried++
			}
		}
		n.Stuck += h.overdue(r, store.Processing, stuckAfter)
		n.Unreached += h.overdue(r, store.Pending, lostAfter)
	}
	return n
}

// overdue returns how often a row was found to be in a status for too long.
func (h *history) overdue(r *modelRow, status store.Status, limit time.Duration) (n int) {
	for j := range r.changes {
		if r.changes[j].Status != status || r.changes[j].Kind == capture.Deleted {
			continue
		}
		end := h.now.Add(time.Hour)
		if j+1 < len(r.changes) {
			end = r.changes[j+1].Committed
		}
		if slices.ContainsFunc(h.looked, func(at time.Time) bool {
			return at.Sub(r.changes[j].Committed) > limit && at.Before(end)
		}) {
			n++
		}
	}
	return n
}

// TestComparerModel compares the findings with those of nested loops over the whole history. A
// history without faults has none.
func TestComparerModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		faults := rapid.Bool().Draw(t, "faults")
		h := &history{c: newTestComparer(1000), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			h.step(t, faults)
		}
		h.now = h.now.Add(time.Millisecond)
		h.look()
		got := h.c.Report()[0]
		want := h.count()
		for _, c := range []struct {
			what      string
			got, want int
		}{
			{"seen", got.Seen, want.Seen},
			{"delivered", got.Delivered, want.Delivered},
			{"out of order", got.OutOfOrder, want.OutOfOrder},
			{"deleted", got.Deleted, want.Deleted},
			{"returned", got.Returned, want.Returned},
			{"failed", got.Failed, want.Failed},
			{"retried", got.Retried, want.Retried},
			{"stuck", got.Stuck, want.Stuck},
			{"unreached", got.Unreached, want.Unreached},
			{"unknown", got.Unknown, 0},
		} {
			if c.got != c.want {
				t.Fatalf("%s: %d, want %d", c.what, c.got, c.want)
			}
		}
		if !faults && (got.OutOfOrder+got.Deleted+got.Returned+got.Failed > 0) {
			t.Fatalf("findings without a fault: %+v", got.Counts)
		}
		open := 0
		for _, r := range h.rows {
			if r.open() {
				open++
			}
		}
		if got.Open != open || h.c.open != open {
			t.Fatalf("%d rows are open, want %d", got.Open, open)
		}
		lanes := map[int]bool{}
		for _, r := range h.rows {
			if r.open() {
				lanes[r.group] = true
			}
		}
		if len(h.c.lanes) != len(lanes) {
			t.Fatalf("%d groups in memory, want %d", len(h.c.lanes), len(lanes))
		}
	})
}

// scene applies changes in order, a second apart, each in its transaction.
type scene struct {
	*Comparer
	txn store.Txn
	now time.Time
}

func newScene(maxRows int) *scene {
	return &scene{Comparer: newTestComparer(maxRows), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
}

func (s *scene) apply(kind capture.ChangeKind, id string, status store.Status) {
	s.txn++
	s.same(kind, id, status)
}

// same is in the same transaction as the change before.
func (s *scene) same(kind capture.ChangeKind, id string, status store.Status) {
	s.now = s.now.Add(time.Second)
	s.Apply([]capture.Change{{
		Kind: kind, ID: id, Status: status, Txn: s.txn, Committed: s.now, Captured: s.now.Add(time.Hour),
		Lane: store.LaneKey{Outbox: "box", Group: store.GroupOf("g")},
	}})
}

func (s *scene) counts() Counts {
	s.Advance(s.captured)
	return s.Report()[0].Counts
}

// A reader that is behind finds no row overdue although its own clock is past the limit.
func TestComparerCountsByTheLog(t *testing.T) {
	s := newScene(10)
	s.apply(capture.Inserted, "a", store.Pending)
	s.apply(capture.Updated, "a", store.Processing)
	s.Advance(s.now.Add(time.Hour + stuckAfter)) // the last change was captured an hour after its commit
	if got := s.Report()[0]; got.Stuck != 0 {
		t.Fatalf("%d rows are stuck", got.Stuck)
	}
	s.Advance(s.now.Add(time.Hour + stuckAfter + time.Second))
	got := s.Report()[0]
	if got.Stuck != 1 || got.StuckNow != 1 || got.Examples.Stuck[0].ID != "a" {
		t.Fatalf("the stuck row was not found: %+v", got)
	}
	s.apply(capture.Updated, "a", store.Completed)
	if got := s.Report()[0]; got.Stuck != 1 || got.StuckNow != 0 || got.Delivered != 1 || got.TakenLatency.Max != 1 {
		t.Fatalf("after its end: %+v", got)
	}
}

// A row that moves to another partition is deleted and inserted in one transaction.
func TestComparerMovedRow(t *testing.T) {
	s := newScene(10)
	s.apply(capture.Inserted, "a", store.Pending)
	s.apply(capture.Deleted, "a", 0)
	s.same(capture.Inserted, "a", store.Processing)
	s.apply(capture.Deleted, "a", 0)
	s.same(capture.Inserted, "a", store.Completed)
	if n := s.counts(); n.Seen != 1 || n.Deleted != 0 || n.Delivered != 1 || n.Taken != 1 {
		t.Errorf("%+v", n)
	}
}

func TestComparerDeleteDelivers(t *testing.T) {
	layout := store.FlowCatalyst()
	layout.DeleteDelivered = true
	s := newScene(10)
	s.Comparer = NewComparer([]store.Outbox{{Name: "box", Layout: layout}}, s.limits)
	for _, id := range []string{"a", "b"} {
		s.apply(capture.Inserted, id, store.Pending)
	}
	s.apply(capture.Deleted, "b", 0)
	s.apply(capture.Deleted, "a", 0)
	if n := s.counts(); n.Delivered != 2 || n.OutOfOrder != 1 || n.Deleted != 0 {
		t.Errorf("%+v", n)
	}
}

// Beyond the bound rows are counted and not followed, and finished rows are dropped first.
func TestComparerBound(t *testing.T) {
	s := newScene(3)
	for i := range 5 {
		s.apply(capture.Inserted, fmt.Sprint(i), store.Pending)
	}
	for i := range 5 {
		s.apply(capture.Updated, fmt.Sprint(4-i), store.Completed)
	}
	n := s.counts()
	if n.Seen != 5 || n.Untracked != 2 || n.Unknown != 2 || n.Delivered != 3 || n.OutOfOrder != 2 {
		t.Errorf("%+v", n)
	}
	for i := range 5 {
		s.apply(capture.Inserted, fmt.Sprint("more", i), store.Pending)
		s.apply(capture.Updated, fmt.Sprint("more", i), store.Completed)
	}
	if len(s.rows) != 3 || s.settled.Len() != 3 {
		t.Errorf("%d rows in memory, want 3", len(s.rows))
	}
}

func TestComparerTruncateAndForget(t *testing.T) {
	s := newScene(10)
	for _, id := range []string{"a", "b", "c"} {
		s.apply(capture.Inserted, id, store.Pending)
	}
	s.apply(capture.Updated, "c", store.Completed)
	s.apply(capture.Truncated, "", 0)
	s.apply(capture.Inserted, "d", store.Pending)
	s.Forget()
	s.apply(capture.Updated, "d", store.Completed)
	s.apply(capture.Deleted, "", 0)
	n := s.counts()
	if n.Deleted != 2 || n.Forgotten != 1 || n.Unknown != 1 || n.Unidentified != 1 || s.open != 0 {
		t.Errorf("%+v", n)
	}
}

func TestComparerInterval(t *testing.T) {
	s := newScene(10)
	s.apply(capture.Inserted, "a", store.Pending)
	if n := s.Interval()[0]; n.Seen != 1 || n.Captured.Rows != 1 {
		t.Errorf("%+v", n)
	}
	s.apply(capture.Inserted, "b", store.Pending)
	s.apply(capture.Updated, "b", store.Completed)
	if n := s.Interval()[0]; n.Seen != 1 || n.Delivered != 1 || n.DeliveredLatency.Rows != 1 || n.LaneFree != 0 {
		t.Errorf("%+v", n)
	}
	if n := s.Report()[0]; n.Seen != 2 || n.LaneFree != 1 || n.Captured.Rows != 2 {
		t.Errorf("%+v", n)
	}
}

func TestReportText(t *testing.T) {
	s := newScene(10)
	s.apply(capture.Inserted, "a", store.Pending)
	s.apply(capture.Inserted, "b c", store.Pending)
	s.apply(capture.Updated, "b c", store.Completed)
	s.apply(capture.Updated, "a", store.Completed)
	r := Report{Since: s.now.Add(-time.Minute), Until: s.now, Interruptions: 1, Outboxes: s.Report()}
	text := r.Text()
	for _, want := range []string{
		"shadow               1m0s, since 20", "interruptions        1:", "OUTBOX               box",
		"rows                 2 new, 2 delivered, 0 FAILED, 0 unfinished", "old: delivered       p50 1.01s  p99 1.01s  max 3s",
		"free lanes           50.0 %", "OUT OF ORDER         1 rows", `row a of group g, after row "b c"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
}

func TestShorten(t *testing.T) {
	a, b := strings.Repeat("é", 1000)+"a", strings.Repeat("é", 1000)+"b"
	if got := shorten(a); len(got) > maxName || got == shorten(b) || got != shorten(a) {
		t.Errorf("the names are %q and %q", got, shorten(b))
	}
}
