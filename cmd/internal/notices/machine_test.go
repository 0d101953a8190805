package notices

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// model has the whole history of each condition, and says from it what the machine may do.
type model struct {
	*machine
	now     time.Time
	rules   Rules
	holds   map[string]bool
	changed map[string]time.Time // when a condition last began or ceased to hold
	raised  map[string]time.Time // since
	failed  []time.Time
	counted int // FAILED rows in notices
	noticed time.Time
}

// TestMachineAgainstModel: a condition is raised exactly once it has held for raise-after without a
// break, and cleared exactly once it has not held for clear-after. Notices alternate. Each FAILED row
// is counted in one notice, and two such notices are at least the interval apart.
func TestMachineAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		second := func(label string) time.Duration {
			return time.Duration(rapid.IntRange(0, 5).Draw(t, label)) * time.Second
		}
		m := &model{
			now: time.Unix(1000, 0), rules: Rules{RaiseAfter: second("raise"), ClearAfter: second("clear"), Interval: second("interval")},
			holds: map[string]bool{}, changed: map[string]time.Time{}, raised: map[string]time.Time{},
		}
		m.machine = newMachine(m.rules)
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				name := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "condition")
				holds := rapid.Bool().Draw(t, "holds")
				if holds != m.holds[name] {
					m.holds[name], m.changed[name] = holds, m.now
				}
				m.set(m.now, key{BreakerOpen, name}, holds, Details{Sink: name})
			},
			"fail": func(*rapid.T) {
				m.rowFailed(m.now, "s", fmt.Sprint(len(m.failed)))
				m.failed = append(m.failed, m.now)
			},
			"wait": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(1, 3).Draw(t, "seconds")) * time.Second)
			},
			"due": func(t *rapid.T) {
				for _, n := range m.due(m.now) {
					m.check(t, &n)
				}
				m.checkNoneMissing(t)
			},
		})
	})
}

// check checks a notice against the history.
func (m *model) check(t *rapid.T, n *Notice) {
	if n.Event == RowsFailed {
		if n.State == Cleared {
			if last := m.failed[len(m.failed)-1]; m.now.Sub(last) < m.rules.ClearAfter {
				t.Fatalf("FAILED rows cleared %s after the last", m.now.Sub(last))
			}
			return
		}
		if !m.noticed.IsZero() && m.now.Sub(m.noticed) < m.rules.Interval {
			t.Fatalf("two notices of FAILED rows in %s", m.now.Sub(m.noticed))
		}
		if len(n.Details.IDs) != min(n.Details.Rows, maxIDs) || n.Details.IDs[0] != fmt.Sprint(m.counted) {
			t.Fatalf("%d rows with ids %v, counted before %d", n.Details.Rows, n.Details.IDs, m.counted)
		}
		m.counted, m.noticed = m.counted+n.Details.Rows, m.now
		return
	}
	name := n.Details.Sink
	since, raised := m.raised[name]
	for_ := m.now.Sub(m.changed[name])
	switch {
	case n.State == Raised && (raised || !m.holds[name] || for_ < m.rules.RaiseAfter || !n.Since.Equal(m.changed[name])):
		t.Fatalf("%s raised: holds %t for %s, raised before %t, since %s", name, m.holds[name], for_, raised, n.Since)
	case n.State == Cleared && (!raised || m.holds[name] || for_ < m.rules.ClearAfter || !n.Since.Equal(since)):
		t.Fatalf("%s cleared: holds %t for %s, raised before %t, since %s", name, m.holds[name], for_, raised, n.Since)
	case n.State == Raised:
		m.raised[name] = n.Since
	default:
		delete(m.raised, name)
	}
}

// checkNoneMissing expects that nothing else is due, and that next says so.
func (m *model) checkNoneMissing(t *rapid.T) {
	for name, holds := range m.holds {
		_, raised := m.raised[name]
		wait := m.rules.RaiseAfter
		if !holds {
			wait = m.rules.ClearAfter
		}
		if holds != raised && m.now.Sub(m.changed[name]) >= wait {
			t.Fatalf("%s: holds %t, raised %t", name, holds, raised)
		}
	}
	if len(m.failed) > m.counted && (m.noticed.IsZero() || m.now.Sub(m.noticed) >= m.rules.Interval) {
		t.Fatalf("%d of %d FAILED rows are in notices", m.counted, len(m.failed))
	}
	if at := m.next(); !at.IsZero() && !at.After(m.now) {
		t.Fatalf("next is %s, which is over", at)
	}
}

// TestLeaderChanges: changes of leadership are raised while a window has too many of them.
func TestLeaderChanges(t *testing.T) {
	m := newMachine(Rules{RaiseAfter: time.Hour, ClearAfter: 10 * time.Second, LeaderChanges: 3, LeaderWindow: time.Minute})
	at := time.Unix(0, 0)
	step := func(seconds int, changes bool, want string) {
		t.Helper()
		at = at.Add(time.Duration(seconds) * time.Second)
		if changes {
			m.leaderChanged(at)
		}
		got := ""
		for _, n := range m.due(at) {
			got += string(n.State)
		}
		if got != want {
			t.Errorf("at %s: %q, want %q", at, got, want)
		}
	}
	step(0, true, "")
	step(40, true, "")
	step(30, true, "") // the first is 70 s ago
	step(25, true, "raised")
	step(4, false, "")
	step(1, true, "")   // a window of three more
	step(60, false, "") // over
	step(9, false, "")
	step(1, false, "cleared")
	if next := m.next(); !next.IsZero() {
		t.Errorf("next %s, want none", next)
	}
}
