package notices

import (
	"cmp"
	"slices"
	"time"
)

const (
	// maxConditions limits the conditions, because rows may name endpoints.
	maxConditions = 1000

	// maxIDs limits the ids of FAILED rows in a notice.
	maxIDs = 5
)

// key identifies a condition.
type key struct {
	event   Event
	subject string // the sink and the endpoint; "" if there is one condition of the event
}

// condition is something that holds or not.
type condition struct {
	holds   bool
	changed time.Time // when holds last changed
	raised  bool
	since   time.Time // when it began to hold, if raised
	details Details
}

// failures are the FAILED rows of a sink.
type failures struct {
	rows    int // since the last notice
	ids     []string
	first   time.Time
	last    time.Time
	noticed time.Time
	raised  bool
	total   int // while raised
}

// machine decides which notices are due. It has no clock: the caller says what time it is, and time
// never goes back.
type machine struct {
	rules      Rules
	conditions map[key]*condition
	failed     map[string]*failures // by sink
	changes    []time.Time          // of leadership, the last ones
}

func newMachine(r Rules) *machine {
	return &machine{rules: r, conditions: map[key]*condition{}, failed: map[string]*failures{}}
}

// set says whether a condition holds.
func (m *machine) set(now time.Time, k key, holds bool, d Details) {
	c := m.conditions[k]
	if c == nil {
		if !holds || len(m.conditions) >= maxConditions {
			return
		}
		c = &condition{}
		m.conditions[k] = c
	}
	if c.holds != holds {
		c.holds, c.changed = holds, now
	}
	if holds {
		c.details = d
	}
}

// setOnly says that of the conditions of an event, under the given subjects only these hold.
func (m *machine) setOnly(now time.Time, event Event, mine func(subject string) bool, hold map[string]Details) {
	for k := range m.conditions {
		if _, still := hold[k.subject]; k.event == event && mine(k.subject) && !still {
			m.set(now, k, false, Details{})
		}
	}
	for subject, d := range hold {
		m.set(now, key{event, subject}, true, d)
	}
}

// rowFailed counts a FAILED row.
func (m *machine) rowFailed(now time.Time, sink, id string) {
	f := m.failed[sink]
	if f == nil {
		f = &failures{}
		m.failed[sink] = f
	}
	if f.rows == 0 && !f.raised {
		f.first = now
	}
	f.rows, f.last = f.rows+1, now
	if len(f.ids) < maxIDs {
		f.ids = append(f.ids, id)
	}
}

// leaderChanged counts a change of leadership.
func (m *machine) leaderChanged(now time.Time) {
	m.changes = append(m.changes, now)
	if most := m.rules.LeaderChanges; len(m.changes) > most {
		m.changes = m.changes[len(m.changes)-most:]
	}
}

// updateChanges decides whether leadership changes too often.
func (m *machine) updateChanges(now time.Time) {
	n := m.rules.LeaderChanges
	holds := n > 0 && len(m.changes) == n && now.Sub(m.changes[0]) < m.rules.LeaderWindow
	m.set(now, key{event: LeaderChanges}, holds, Details{Changes: n, Seconds: m.rules.LeaderWindow.Seconds()})
}

// due returns the notices that are due, and counts them as sent.
func (m *machine) due(now time.Time) []Notice {
	m.updateChanges(now)
	var all []Notice
	for k, c := range m.conditions {
		for at := m.turn(k, c); !at.IsZero() && !at.After(now); at = m.turn(k, c) {
			if c.holds {
				c.raised, c.since = true, c.changed
				all = append(all, Notice{Event: k.event, State: Raised, Since: c.since, At: now, Details: c.details})
				continue
			}
			all = append(all, Notice{Event: k.event, State: Cleared, Since: c.since, At: now, Details: c.details})
			delete(m.conditions, k)
			break
		}
		if !c.holds && !c.raised {
			delete(m.conditions, k)
		}
	}
	for sink, f := range m.failed {
		for n := f.due(sink, now, &m.rules); n != nil; n = f.due(sink, now, &m.rules) {
			all = append(all, *n)
		}
		if f.rows == 0 && !f.raised && now.Sub(f.noticed) >= m.rules.Interval {
			delete(m.failed, sink)
		}
	}
	slices.SortFunc(all, func(a, b Notice) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Event, b.Event), cmp.Compare(a.Details.Sink, b.Details.Sink), cmp.Compare(a.Details.Endpoint, b.Details.Endpoint))
	})
	return all
}

// turn returns when the next notice of a condition is due if it stays as it is; zero if none.
func (m *machine) turn(k key, c *condition) time.Time {
	switch {
	case c.holds && !c.raised && k.event == LeaderChanges:
		return c.changed
	case c.holds && !c.raised:
		return c.changed.Add(m.rules.RaiseAfter)
	case !c.holds && c.raised:
		return c.changed.Add(m.rules.ClearAfter)
	}
	return time.Time{}
}

// turn returns when the next notice of FAILED rows is due; zero if none.
func (f *failures) turn(r *Rules) time.Time {
	switch {
	case f.rows > 0 && f.noticed.IsZero():
		return f.first
	case f.rows > 0:
		return f.noticed.Add(r.Interval)
	case f.raised:
		return f.last.Add(r.ClearAfter)
	}
	return time.Time{}
}

// due returns the notice of FAILED rows that is due, or nil.
func (f *failures) due(sink string, now time.Time, r *Rules) *Notice {
	at := f.turn(r)
	switch {
	case at.IsZero() || at.After(now):
		return nil
	case f.rows > 0:
		n := &Notice{Event: RowsFailed, State: Raised, Since: f.first, At: now, Details: Details{Sink: sink, Rows: f.rows, IDs: f.ids}}
		f.total += f.rows
		f.rows, f.ids, f.noticed, f.raised = 0, nil, now, true
		return n
	}
	n := &Notice{Event: RowsFailed, State: Cleared, Since: f.first, At: now, Details: Details{Sink: sink, Rows: f.total}}
	f.raised, f.total = false, 0
	return n
}

// clear returns notices that clear every raised condition, because this relay no longer knows whether
// they hold. Without all, changes of leadership stay.
func (m *machine) clear(now time.Time, all bool) []Notice {
	m.updateChanges(now)
	var cleared []Notice
	for k, c := range m.conditions {
		if k.event == LeaderChanges && !all {
			continue
		}
		if c.raised {
			cleared = append(cleared, Notice{Event: k.event, State: Cleared, Since: c.since, At: now, Details: c.details})
		}
		delete(m.conditions, k)
	}
	for sink, f := range m.failed {
		if f.rows > 0 {
			f.noticed = time.Time{} // whatever the interval
			cleared = append(cleared, *f.due(sink, now, &m.rules))
		}
		if f.raised {
			cleared = append(cleared, Notice{Event: RowsFailed, State: Cleared, Since: f.first, At: now, Details: Details{Sink: sink, Rows: f.total}})
		}
		delete(m.failed, sink)
	}
	return cleared
}

// next returns when due has to be called, unless something changes before; zero for never.
func (m *machine) next() (at time.Time) {
	sooner := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	for k, c := range m.conditions {
		sooner(m.turn(k, c))
		if k.event == LeaderChanges && c.holds {
			sooner(m.changes[0].Add(m.rules.LeaderWindow))
		}
	}
	for _, f := range m.failed {
		sooner(f.turn(&m.rules))
	}
	return at
}
