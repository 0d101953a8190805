package legs

import (
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store"
)

// invariants holds after every step.
func (m *model) invariants(t *rapid.T) {
	m.t = t
	p := newPlan(&m.box)
	for n, matched := range m.log {
		if m.tables.status(id(n)) != store.Completed {
			continue
		}
		legs, anyOf := p.rule.Needed(matched)
		if discarded := m.discarded(n); anyOf && legs&discarded != 0 {
			legs = matched // one of those that are left
		} else {
			legs &^= discarded
		}
		delivered := 0
		for i := range legs.All() {
			if tr := m.legs[i][n]; tr.delivered > 0 || tr.free {
				delivered++
			}
		}
		if legs != 0 && (delivered == 0 || !anyOf && delivered < legs.Len()) {
			t.Fatalf("row %d is COMPLETED, and %d of %d needed legs delivered it", n, delivered, legs.Len())
		}
	}
}

// drain delivers everything, and looks at what is left.
func (m *model) drain(t *rapid.T) {
	m.t = t
	for m.read < len(m.log) {
		m.readLog(t)
	}
	for rounds := 0; ; rounds++ {
		m.sweep(t)
		for i := range m.lanes {
			m.reloadLeg(i, 1<<20)
		}
		left := 0
		for i, lane := range m.lanes {
			for _, n := range slices.Sorted(maps.Keys(lane)) {
				left++
				if h := lane[n]; m.claim(i, n, h) {
					m.finish(i, n, h, store.Completed)
				}
			}
		}
		if left == 0 {
			break
		}
		if rounds > 6 {
			t.Fatalf("%d rows stay", left)
		}
	}
	m.invariants(t)

	for row, e := range m.s.rows {
		if !m.isFree(index(row.ID)) {
			t.Fatalf("the join of row %s is left in memory: %+v", row.ID, e.join)
		}
	}
	p := newPlan(&m.box)
	failed := map[int]bool{}
	for i := range m.legs {
		letters, err := m.s.Failed(m.ctx, store.DeadLetterFilter{Outbox: m.leg(i)}, 1<<20, true)
		m.check(err)
		dead := map[int]bool{}
		for _, d := range letters {
			dead[index(d.ID)], failed[index(d.ID)] = true, true
			if string(d.Payload) != "row "+d.ID || d.Error != "no" {
				t.Fatalf("FAILED row of %s: %+v", m.leg(i), d)
			}
		}
		for n, tr := range m.legs[i] {
			if m.tables.status(id(n)) == store.Completed && tr.delivered > 0 {
				continue // what comes of a row that was sent again is nobody's concern
			}
			if !tr.free && !tr.discarded && tr.delivered == 0 && !dead[n] || !tr.free && tr.failed != dead[n] {
				t.Fatalf("row %d of %s, FAILED record %v: %+v", n, m.leg(i), dead[n], tr)
			}
		}
	}
	m.check(m.s.EachLegRow(m.ctx, m.box.Name, func(r *store.LegRow) {
		if m.tables.status(r.ID).Settled() && len(r.Spilled) == 0 && (len(r.Failed) == 0 || m.everyLegDelivered(index(r.ID))) {
			return // of a row that was found settled when it was read again: nobody reads it
		}
		if !failed[index(r.ID)] && !m.isFree(index(r.ID)) {
			t.Fatalf("a record is left: %+v", r)
		}
	}))
	for n, matched := range m.log {
		j := join{matched: matched, discarded: m.discarded(n)}
		for i := range (matched &^ j.discarded).All() {
			if m.legs[i][n].failed {
				j.failed = j.failed.With(i)
			} else {
				j.done = j.done.With(i)
			}
		}
		got, want := m.tables.status(id(n)), j.verdict(p)
		if got == store.Completed && (m.anyOf(n) || m.everyLegDelivered(n)) {
			continue // a leg that delivered it may have failed when it was sent again; see invariants
		}
		if legs, _ := p.rule.Needed(matched); got == store.Failed && legs&j.discarded != 0 {
			continue // it stays FAILED while other legs have it, and may be discarded as a row
		}
		if got != want && !m.isFree(n) {
			t.Fatalf("row %d is %s, want %s: matched %b, failed %b, discarded %b", n, got, want, matched, j.failed, j.discarded)
		}
	}
}

// discarded returns the legs of a row whose FAILED record was discarded.
func (m *model) discarded(n int) (legs store.LegSet) {
	for i := range m.log[n].All() {
		if m.legs[i][n].discarded {
			legs = legs.With(i)
		}
	}
	return legs
}

// isFree reports whether nothing is expected of a row for one of its legs.
func (m *model) isFree(n int) bool {
	for i := range m.log[n].All() {
		if m.legs[i][n].free {
			return true
		}
	}
	return false
}

// everyLegDelivered reports whether every needed leg has delivered a row at least once.
func (m *model) everyLegDelivered(n int) bool {
	legs, _ := m.box.LegRule().Needed(m.log[n])
	for i := range legs.All() {
		if tr := m.legs[i][n]; tr.delivered == 0 && !tr.free {
			return false
		}
	}
	return true
}
