package sluicebox

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

// fakeLanes is a fake log with tables and lanes. The test decides when a marker comes
// back.
type fakeLanes struct {
	mu    sync.Mutex
	lines []string
	marks []string
	rows  []store.Item // the unsettled rows of the tables
	held  []string
	query store.UnsettledQuery
	fail  error // error of the next call
	watch bool
}

func (m *fakeLanes) note(format string, args ...any) error {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.lines = append(m.lines, fmt.Sprintf(format, args...))
	err := m.fail
	m.fail = nil
	return err
}

func (m *fakeLanes) Mark(_ context.Context, token string) error {
	err := m.note("mark")
	if err == nil {
		m.marks = append(m.marks, token)
	}
	return err
}

func (m *fakeLanes) View(context.Context, string) (store.View, error) { return m, m.note("view") }
func (m *fakeLanes) Position() store.Position                         { return "" }
func (m *fakeLanes) Close()                                           { _ = m.note("close") }

func (m *fakeLanes) Pages(context.Context, store.UnsettledQuery, int, func([]store.Item) error) error {
	return errors.New("a sweep reads no pages")
}

func (m *fakeLanes) Delivered(context.Context, store.DeliveredQuery, int, func([]store.Item) error) (int, error) {
	return 0, errors.New("a sweep reads no delivered rows")
}

func (m *fakeLanes) Unsettled(_ context.Context, q store.UnsettledQuery) ([]store.Item, error) {
	m.query = q
	err := m.note("read %s, %d at most, but %v", q.Outbox, q.Limit, q.ExcludeIDs)
	return slices.Clone(m.rows), err
}

func (m *fakeLanes) Held(string) []string { return m.held }

func (m *fakeLanes) TrackSettled(on bool) { m.watch = on }

func (m *fakeLanes) LegRows(context.Context, []store.Item) (map[store.Ref]*store.LegRow, error) {
	return nil, nil
}

func (m *fakeLanes) InsertFound(_ context.Context, items []store.Item, _ map[store.Ref]*store.LegRow) int {
	_ = m.note("found %d", len(items))
	if !m.watch {
		_ = m.note("unwatched")
	}
	return len(items) - 1 // the log has brought one meanwhile
}

func (m *fakeLanes) Swept(n int)           { _ = m.note("swept %d", n) }
func (m *fakeLanes) SweepFailed(err error) { _ = m.note("failed: %v", err) }

func (m *fakeLanes) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()

	if !slices.Equal(m.lines, want) {
		t.Errorf("it did %q, want %q", m.lines, want)
	}
	m.lines = nil
}

// withsweeper runs a test with a sweeper in fake time.
func withsweeper(t *testing.T, test func(m *fakeLanes, s *sweeper, back func())) {
	synctest.Test(t, func(t *testing.T) {
		m := &fakeLanes{held: []string{"7"}}
		s := &sweeper{
			interval: time.Minute, outboxes: []store.Outbox{{Name: "events"}}, bound: store.ReadLimit{Rows: 9, Bytes: 90},
			source: m, tables: m, lanes: m, swept: m.Swept, failed: m.SweepFailed,
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.run(ctx) }()
		back := func() {
			synctest.Wait()
			marks := m.marks
			m.marks = nil
			for _, token := range marks {
				s.onMarker(token)
			}
		}
		test(m, s, back)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestSweepInsertsRequeuedRows(t *testing.T) {
	withsweeper(t, func(m *fakeLanes, s *sweeper, back func()) {
		m.rows = []store.Item{{Ref: store.Ref{ID: "1"}}, {Ref: store.Ref{ID: "2"}}}
		m.expect(t, "mark")
		advance(time.Hour)
		m.expect(t) // the log is read up to the present first
		back()
		m.expect(t, "view", "read events, 9 at most, but [7]", "close", "mark")
		s.onMarker("somebody else's")
		advance(time.Hour)
		m.expect(t)
		back()
		m.expect(t, "found 2", "swept 1")
		advance(time.Minute - time.Second)
		m.expect(t)
		advance(time.Second)
		m.expect(t, "mark")
	})
}

// TestSweepLeavesOutTablesWithoutAState: such a table shows all its rows, delivered ones too.
func TestSweepLeavesOutTablesWithoutAState(t *testing.T) {
	withsweeper(t, func(m *fakeLanes, s *sweeper, back func()) {
		kept := store.Outbox{Name: "kept", Layout: store.Layout{State: store.StateNone}}
		deleted := store.Outbox{Name: "deleted", Layout: store.Layout{State: store.StateNone, DeleteDelivered: true}}
		s.outboxes = []store.Outbox{kept, deleted}
		m.expect(t, "mark")
		back()
		m.expect(t, "view", "read deleted, 9 at most, but [7]", "close")
	})
}

func TestSweepWithoutRowsWritesOneMarker(t *testing.T) {
	withsweeper(t, func(m *fakeLanes, _ *sweeper, back func()) {
		back()
		m.expect(t, "mark", "view", "read events, 9 at most, but [7]", "close")
	})
}

func TestSweepRetriesAfterFailure(t *testing.T) {
	for name, at := range map[string]int{"mark": 0, "view": 1} {
		t.Run(name, func(t *testing.T) {
			withsweeper(t, func(m *fakeLanes, s *sweeper, back func()) {
				m.expect(t, "mark")
				back()
				m.expect(t, "view", "read events, 9 at most, but [7]", "close")
				advance(time.Minute - time.Second)
				fail := func() { m.mu.Lock(); m.fail = errors.New("down"); m.mu.Unlock() }
				if at == 0 {
					fail()
				}
				advance(time.Second)
				want := []string{"mark", "failed: down"}
				if at == 1 {
					m.expect(t, "mark")
					fail()
					back()
					want = []string{"view", "failed: find requeued rows: down"}
				}
				m.expect(t, want...)
				advance(sweepRetryInterval)
				m.expect(t, "mark")
				if len(s.waiting) != 1 {
					t.Errorf("%d markers pending", len(s.waiting))
				}
			})
		})
	}
}

// TestSweepKeepsWithinBufferBytes: a sweep reads at most the bytes of the
// buffer, all outboxes together, and only payloads within their share. If the bytes
// are the limit, it returns that there are more rows.
func TestSweepKeepsWithinBufferBytes(t *testing.T) {
	withsweeper(t, func(m *fakeLanes, s *sweeper, back func()) {
		m.rows = []store.Item{{Group: store.GroupOf(strings.Repeat("g", 100))}}
		sweep := func(payload int, bytes int64, want ...string) {
			back()
			synctest.Wait()
			if q := m.query; q.MaxPayload != payload || q.MaxBytes != bytes {
				t.Errorf("got query %+v", q)
			}
			m.lines = nil
			back()
			advance(sweepMoreInterval)
			m.expect(t, want...)
		}
		sweep(10, 90, "found 1", "mark")
		s.outboxes = append(s.outboxes, store.Outbox{Name: "others"})
		sweep(5, 45, "found 2", "swept 1", "mark")
	})
}

func TestSweepContinuesSoonIfThereAreMoreRows(t *testing.T) {
	withsweeper(t, func(m *fakeLanes, s *sweeper, back func()) {
		m.rows = make([]store.Item, s.bound.Rows)
		caughtUp := 0
		m.expect(t, "mark")
		s.onCaughtUp = func() { caughtUp++ }
		for range 3 {
			back()
			m.expect(t, "view", "read events, 9 at most, but [7]", "close", "mark")
			back()
			m.expect(t, "found 9", "swept 8")
			advance(sweepMoreInterval)
			m.expect(t, "mark")
		}
		if caughtUp != 1 {
			t.Errorf("caught up %d times", caughtUp)
		}
	})
}

func TestSweepIgnoresMarkersOfEarlierLeader(t *testing.T) {
	withsweeper(t, func(m *fakeLanes, s *sweeper, _ func()) {
		m.expect(t, "mark")
		m.mu.Lock()
		mine := m.marks[0]
		m.mu.Unlock()
		other := &sweeper{source: m, epoch: s.epoch + 1}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = other.awaitMarker(ctx, func() {})
		if theirs := m.marks[1]; theirs == mine {
			t.Errorf("two leaders write the marker %s", mine)
		}
	})
}
