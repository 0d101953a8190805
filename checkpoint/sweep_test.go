package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// meadow is a fake log with tables and lanes. The test decides when a marker comes
// back.
type meadow struct {
	mu    sync.Mutex
	lines []string
	marks []string
	rows  []store.Item // the unsettled rows of the tables
	held  []string
	asked store.UnsettledQuery
	fail  error // error of the next call
	watch bool
}

func (m *meadow) note(format string, args ...any) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lines = append(m.lines, fmt.Sprintf(format, args...))
	err := m.fail
	m.fail = nil
	return err
}

func (m *meadow) Mark(_ context.Context, token string) error {
	err := m.note("mark")
	if err == nil {
		m.marks = append(m.marks, token)
	}
	return err
}

func (m *meadow) View(context.Context, string) (store.View, error) { return m, m.note("view") }
func (m *meadow) Position() store.Position                         { return "" }
func (m *meadow) Close()                                           { _ = m.note("close") }

func (m *meadow) Pages(context.Context, store.UnsettledQuery, int, func([]store.Item) error) error {
	return errors.New("a sweep reads no pages")
}

func (m *meadow) Delivered(context.Context, store.DeliveredQuery, int, func([]store.Item) error) (int, error) {
	return 0, errors.New("a sweep reads no delivered rows")
}

func (m *meadow) Unsettled(_ context.Context, q store.UnsettledQuery) ([]store.Item, error) {
	m.asked = q
	err := m.note("read %s, %d at most, but %v", q.Outbox, q.Limit, q.ExcludeIDs)
	return slices.Clone(m.rows), err
}

func (m *meadow) Held(string) []string { return m.held }

func (m *meadow) TrackSettled(on bool) { m.watch = on }

func (m *meadow) InsertFound(items []store.Item) int {
	_ = m.note("found %d", len(items))
	if !m.watch {
		_ = m.note("unwatched")
	}
	return len(items) - 1 // the log has brought one meanwhile
}

func (m *meadow) Swept(n int)           { _ = m.note("swept %d", n) }
func (m *meadow) SweepFailed(err error) { _ = m.note("failed: %v", err) }

func (m *meadow) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Equal(m.lines, want) {
		t.Errorf("it did %q, want %q", m.lines, want)
	}
	m.lines = nil
}

// sweeping runs a test with a Sweeper in fake time.
func sweeping(t *testing.T, test func(m *meadow, s *Sweeper, back func())) {
	synctest.Test(t, func(t *testing.T) {
		m := &meadow{held: []string{"7"}}
		s := &Sweeper{
			Interval: time.Minute, Outboxes: []store.Outbox{{Name: "events"}}, Bound: store.ReadLimit{Rows: 9, Bytes: 90},
			Source: m, Tables: m, Lanes: m, Observer: m,
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		back := func() {
			synctest.Wait()
			marks := m.marks
			m.marks = nil
			for _, token := range marks {
				s.OnMarker(token)
			}
		}
		test(m, s, back)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestASweepPlacesWhatTheLogDidNotBring(t *testing.T) {
	sweeping(t, func(m *meadow, s *Sweeper, back func()) {
		m.rows = []store.Item{{Ref: store.Ref{ID: "1"}}, {Ref: store.Ref{ID: "2"}}}
		m.expect(t, "mark")
		pass(time.Hour)
		m.expect(t) // the log is read up to the present first
		back()
		m.expect(t, "view", "read events, 9 at most, but [7]", "close", "mark")
		s.OnMarker("somebody else's")
		pass(time.Hour)
		m.expect(t)
		back()
		m.expect(t, "found 2", "swept 1")
		pass(time.Minute - time.Second)
		m.expect(t)
		pass(time.Second)
		m.expect(t, "mark")
	})
}

func TestASweepThatFindsNothingWritesOneMarker(t *testing.T) {
	sweeping(t, func(m *meadow, _ *Sweeper, back func()) {
		back()
		m.expect(t, "mark", "view", "read events, 9 at most, but [7]", "close")
	})
}

func TestASweepThatFailsIsTriedAgain(t *testing.T) {
	for name, at := range map[string]int{"mark": 0, "view": 1} {
		t.Run(name, func(t *testing.T) {
			sweeping(t, func(m *meadow, s *Sweeper, back func()) {
				m.expect(t, "mark")
				back()
				m.expect(t, "view", "read events, 9 at most, but [7]", "close")
				pass(time.Minute - time.Second)
				fail := func() { m.mu.Lock(); m.fail = errors.New("down"); m.mu.Unlock() }
				if at == 0 {
					fail()
				}
				pass(time.Second)
				want := []string{"mark", "failed: down"}
				if at == 1 {
					m.expect(t, "mark")
					fail()
					back()
					want = []string{"view", "failed: find requeued rows: down"}
				}
				m.expect(t, want...)
				pass(sweepRetryInterval)
				m.expect(t, "mark")
				if len(s.waiting) != 1 {
					t.Errorf("%d markers are waited for", len(s.waiting))
				}
			})
		})
	}
}

// TestASweepTakesNoMoreBytesThanTheBuffer: a sweep reads at most the bytes of the
// buffer, all outboxes together, and only payloads within their share. If the bytes
// are the limit, it returns that there are more rows.
func TestASweepTakesNoMoreBytesThanTheBuffer(t *testing.T) {
	sweeping(t, func(m *meadow, s *Sweeper, back func()) {
		m.rows = []store.Item{{Group: store.GroupOf(strings.Repeat("g", 100))}}
		sweep := func(payload int, bytes int64, want ...string) {
			back()
			synctest.Wait()
			if q := m.asked; q.MaxPayload != payload || q.MaxBytes != bytes {
				t.Errorf("it asked for %+v", q)
			}
			m.lines = nil
			back()
			pass(sweepMoreInterval)
			m.expect(t, want...)
		}
		sweep(10, 90, "found 1", "mark")
		s.Outboxes = append(s.Outboxes, store.Outbox{Name: "others"})
		sweep(5, 45, "found 2", "swept 1", "mark")
	})
}

func TestASweepThatFindsMoreThanItMayTakeGoesOnSoon(t *testing.T) {
	sweeping(t, func(m *meadow, s *Sweeper, back func()) {
		m.rows = make([]store.Item, s.Bound.Rows)
		caughtUp := 0
		m.expect(t, "mark")
		s.OnCaughtUp = func() { caughtUp++ }
		for range 3 {
			back()
			m.expect(t, "view", "read events, 9 at most, but [7]", "close", "mark")
			back()
			m.expect(t, "found 9", "swept 8")
			pass(sweepMoreInterval)
			m.expect(t, "mark")
		}
		if caughtUp != 1 {
			t.Errorf("caught up %d times", caughtUp)
		}
	})
}

func TestTheMarkersOfAnEarlierLeaderAreNotOurs(t *testing.T) {
	sweeping(t, func(m *meadow, s *Sweeper, _ func()) {
		m.expect(t, "mark")
		m.mu.Lock()
		mine := m.marks[0]
		m.mu.Unlock()
		other := &Sweeper{Source: m, Epoch: s.Epoch + 1}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = other.awaitMarker(ctx, func() {})
		if theirs := m.marks[1]; theirs == mine {
			t.Errorf("two leaders write the marker %s", mine)
		}
	})
}
