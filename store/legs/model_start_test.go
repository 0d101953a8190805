package legs

import (
	"errors"
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store"
)

// begin starts a relay, without reading anything.
func (m *model) begin() {
	m.s = m.open(Options{})
	var err error
	m.epoch, err = m.s.AcquireLeadership(m.ctx)
	m.check(err)
	m.counted, m.known, m.backlog = 0, len(m.log), 0
	m.marks, m.markSeqs = make([]int, len(m.box.Routes)), make([]store.Seq, len(m.box.Routes))
	m.lanes, m.pending = nil, nil
	for range m.box.Routes {
		m.lanes, m.pending = append(m.lanes, map[int]*held{}), append(m.pending, map[int]bool{})
	}
}

// crash ends the relay, perhaps within a write, and starts another at the saved marks.
func (m *model) crash(t *rapid.T) {
	m.t = t
	m.interrupt(t)
	cp, err := m.s.LoadCheckpoint(m.ctx)
	m.check(err)
	if cp.Position == "" {
		m.restartFromSnapshot()
		return
	}
	m.begin()
	m.call(func() error {
		_, err := m.s.DeleteSpilledAfter(m.ctx, m.epoch, cp)
		return err
	})
	m.read = index(string(cp.Position))
	for i := range m.marks {
		m.marks[i], m.markSeqs[i] = index(string(cp.Legs[m.leg(i)].Position)), cp.Legs[m.leg(i)].Seq
		for n, tr := range m.legs[i] {
			tr.again = tr.again || n >= m.marks[i]
		}
	}
}

// interrupt makes the answer to the last outcome or spill unknown.
func (m *model) interrupt(t *rapid.T) {
	if rapid.IntRange(0, 2).Draw(t, "interrupts") > 0 {
		return
	}
	for i, lane := range m.lanes {
		for _, n := range slices.Sorted(maps.Keys(lane)) {
			h, tr := lane[n], m.legs[i][n]
			if tr.ended && !tr.again && !tr.free || h.found || h.copied && !h.claimed {
				continue // it is not in flight
			}
			o := store.Outcome{Ref: h.it.Ref, Status: store.Completed, At: m.at}
			if h.copied {
				o.SpilledSeq = h.it.Seq
			}
			tr.delivered++
			tr.again = true // nobody knows of its end
			m.tables.fault = unread
			if _, err := m.s.Settle(m.ctx, m.epoch, []store.Outcome{o}); err != nil && !errors.Is(err, errFault) {
				m.t.Fatal(err)
			}
			m.tables.fault = noFault
			tr.ended = true
			return
		}
	}
}

// loseLog restarts the relay with a snapshot, because the log is lost.
func (m *model) loseLog(t *rapid.T) {
	m.t = t
	m.interrupt(t)
	m.restartFromSnapshot()
}

func (m *model) restartFromSnapshot() {
	spilled := m.spilled()
	m.begin()
	m.call(func() error {
		return m.s.SaveCheckpoint(m.ctx, m.epoch, store.Checkpoint{Seq: store.NewSeq(m.epoch, 0)})
	})
	m.call(func() error { return m.s.AdoptMissing(m.ctx, m.epoch) })
	for i := range m.legs {
		for n, tr := range m.legs[i] {
			tr.again = true // the marks are void
			// Only the log had the row for this leg: no table shows it, and no copy is left.
			if m.tables.status(id(n)).Settled() && !tr.ended && !spilled[n] {
				tr.free = true
			}
		}
	}
	m.read, m.backlog = len(m.log), len(m.log)
	for n := range m.log {
		m.seqs[n] = 0
	}
	for _, some := range m.tables.unsettled(m.ctx, m.s.Missing(m.box.Name)...) {
		m.counted++
		n := index(some)
		m.seqs[n] = store.NewSeq(m.epoch, m.counted)
		m.place(n, m.seqs[n], Row{}, true)
		m.s.Placed([]Row{{Ref: store.Ref{Outbox: m.box.Name, ID: some}}})
	}
}

// spilled returns the rows of which a leg has a copy.
func (m *model) spilled() map[int]bool {
	all := map[int]bool{}
	for i := range m.box.Routes {
		var from []store.SpilledRange
		m.check(m.s.SpilledLanes(m.ctx, func(l store.SpilledLane) {
			if l.Outbox == m.leg(i) {
				from = append(from, store.SpilledRange{Outbox: l.Outbox, Lane: l.Hash})
			}
		}))
		lanes, err := m.s.ReadSpilled(m.ctx, from, 1<<20)
		m.check(err)
		for _, items := range lanes {
			for _, it := range items {
				all[index(it.ID)] = true
			}
		}
	}
	return all
}
