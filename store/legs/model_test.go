package legs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store"
)

// model is a relay over a log and a table. It delivers rows for 1 to 3 legs, crashes, and starts
// again from saved marks or from a snapshot. What is true of each leg of each row is recorded
// apart from the code under test.
type model struct {
	t      *rapid.T
	ctx    context.Context
	tables *fakeTables
	open   func(Options) *Store
	box    store.Outbox

	log  []store.LegSet // by index, the legs that match the row
	legs []map[int]*truth
	// cut are the FAILED legs of rows that an operator, or a requeue without an answer, may have set back.
	cut map[int]store.LegSet

	// The relay.
	s       *Store
	epoch   store.Epoch
	counted int64
	read    int         // rows of the log that were read
	known   int         // rows that were in the log at the start
	seqs    []store.Seq // under which the rows of the log were read, by index
	marks   []int       // of the start: rows that each leg had passed
	// markSeqs are the seqs of marks.
	markSeqs []store.Seq
	backlog  int // rows of a snapshot, before which no mark may be saved
	lanes    []map[int]*held
	pending  []map[int]bool // rows of each leg that its mark cannot pass
	at       time.Time
}

// truth is what happened to a row for a leg.
type truth struct {
	delivered int
	ended     bool // delivered or FAILED, as the relay was told
	failed    bool
	retries   int
	// again allows the row once more: the leg's mark was below it at a start, or the answer
	// about its end was lost.
	again bool
	// discarded: it was FAILED, and nobody is to deliver it any more.
	discarded bool
	// free: nothing is expected of the row, because another program settled it, or its content
	// was lost with the log.
	free bool
}

// held is a row in a lane.
type held struct {
	it      store.Item
	claimed bool
	copied  bool // among the spilled rows
	found   bool // by a sweep
	settled bool // its table showed its end when it was placed, and no other leg takes it
}

func id(index int) string { return fmt.Sprintf("%04d", index) }

func position(index int) store.Position { return store.Position(id(index)) }

func index(id string) (i int) {
	_, _ = fmt.Sscanf(id, "%d", &i)
	return i
}

func (m *model) check(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *model) leg(i int) string { return store.LegName(m.box.Name, m.box.Routes[i].Name) }

// call repeats a call until it is answered. It reports whether an answer was lost.
func (m *model) call(do func() error) (lost bool) {
	m.t.Helper()
	m.tables.fault = rapid.SampledFrom([]fault{noFault, noFault, noFault, noFault, unwritten, unread}).Draw(m.t, "fault")
	m.tables.later = rapid.IntRange(0, 1).Draw(m.t, "later")
	for {
		err := do()
		if !errors.Is(err, errFault) && !errors.Is(err, store.ErrUnsure) {
			m.tables.fault, m.tables.later = noFault, 0
			m.check(err)
			return lost
		}
		lost = true
	}
}

// insert commits a row.
func (m *model) insert(t *rapid.T) {
	m.t = t
	matched := store.LegSet(rapid.IntRange(1, 1<<len(m.box.Routes)-1).Draw(t, "matched"))
	m.tables.set(id(len(m.log)), store.Pending)
	m.log = append(m.log, matched)
	for i := range m.legs {
		m.legs[i][len(m.log)-1] = &truth{free: !matched.Has(i)}
	}
}

func (m *model) item(index int, seq store.Seq) store.Item {
	return store.Item{
		Ref: store.Ref{Outbox: m.box.Name, ID: id(index)}, Kind: "EVENT", Group: store.GroupOf(fmt.Sprint(index % 2)),
		Payload: []byte("row " + id(index)), PayloadSize: 8, Seq: seq,
	}
}

// place begins a row and appends it to the lanes of its legs.
func (m *model) place(index int, seq store.Seq, r Row, ticket bool) {
	r.Ref = store.Ref{Outbox: m.box.Name, ID: id(index)}
	r.Matched = m.log[index]
	if index < m.known {
		known, err := m.s.LegRows(m.ctx, []store.Ref{r.Ref})
		m.check(err)
		r.Known = known[0]
	}
	var to []store.LegSet
	m.call(func() (err error) {
		to, err = m.s.Begin(m.ctx, m.epoch, []Row{r})
		return err
	})
	open := !m.tables.status(id(index)).Settled()
	forgot := open && m.discarded(index) != 0 && m.cut[index] != 0
	for i := range to[0].All() {
		tr := m.legs[i][index]
		if tr.failed && m.cut[index].Has(i) && open {
			m.reopen(i, index)
		}
		if forgot {
			// The row was set back, and perhaps no record is left that tells of the discard.
			tr.again = tr.again || tr.ended && !tr.discarded
			tr.ended, tr.discarded = tr.ended && !tr.discarded, false
		}
		if m.lanes[i][index] != nil {
			continue // a sweep found it again
		}
		it := m.item(index, seq)
		it.Outbox = m.leg(i)
		m.lanes[i][index] = &held{it: it, found: !ticket, settled: m.sole(index) && m.tables.status(id(index)).Settled()}
		m.pending[i][index] = ticket
	}
}

// readLog reads the next row of the log.
func (m *model) readLog(t *rapid.T) {
	m.t = t
	if m.read == len(m.log) {
		t.Skip("no row")
	}
	n := m.read
	m.read++
	m.counted++
	seq := store.NewSeq(m.epoch, m.counted)
	m.seqs[n] = seq
	var r Row
	for i, mark := range m.marks {
		if n < mark {
			r.Passed = r.Passed.With(i)
		}
	}
	r.Settled = n < m.known && rapid.Bool().Draw(t, "looks") && m.tables.status(id(n)).Settled()
	m.place(n, seq, r, true)
}

// some selects a row in a lane.
func (m *model) some(t *rapid.T, ok func(leg, index int, h *held) bool) (leg, row int, h *held) {
	m.t = t
	type place struct{ leg, index int }
	var all []place
	for i, lane := range m.lanes {
		for _, n := range slices.Sorted(maps.Keys(lane)) {
			if ok(i, n, lane[n]) {
				all = append(all, place{i, n})
			}
		}
	}
	if len(all) == 0 {
		t.Skip("no row")
	}
	p := rapid.SampledFrom(all).Draw(t, "row")
	return p.leg, p.index, m.lanes[p.leg][p.index]
}

func anyRow(int, int, *held) bool { return true }

// leave takes a row from its lane, because its leg has ended.
func (m *model) leave(leg, index int) {
	delete(m.lanes[leg], index)
	delete(m.pending[leg], index)
}

// claim claims a row for a leg; false if it is not to be sent.
func (m *model) claim(leg, index int, h *held) bool {
	m.at = m.at.Add(time.Millisecond)
	var answers []store.ClaimAnswer
	m.call(func() (err error) {
		answers, err = m.s.Claim(m.ctx, m.epoch, m.at, []store.ClaimRow{{Ref: h.it.Ref}})
		return err
	})
	tr := m.legs[leg][index]
	switch a := answers[0]; a.Result {
	case store.Claimed:
		if a.RetryCount != tr.retries && !tr.again {
			m.t.Fatalf("row %d of %s: %d retries, want %d", index, h.it.Outbox, a.RetryCount, tr.retries)
		}
		if h.settled && m.tables.status(id(index)).Settled() {
			m.t.Fatalf("row %d of %s is to be sent, and its only leg had ended", index, h.it.Outbox)
		}
		h.claimed = true
		return true
	case store.AlreadySettled, store.Gone:
		if !tr.ended && !tr.again && !tr.free && tr.delivered == 0 {
			m.t.Fatalf("row %d of %s is dropped, and was not delivered: %+v", index, h.it.Outbox, tr)
		}
		if h.copied {
			m.call(func() error {
				return m.s.DeleteSpilled(m.ctx, m.epoch, []store.SpilledRef{{Ref: h.it.Ref, Seq: h.it.Seq}})
			})
		}
		m.leave(leg, index)
		return false
	default:
		m.t.Fatalf("row %d of %s: %s", index, h.it.Outbox, a.Result)
		return false
	}
}

// deliver sends a row and writes its outcome.
func (m *model) deliver(t *rapid.T) {
	leg, n, h := m.some(t, anyRow)
	status := rapid.SampledFrom([]store.Status{store.Completed, store.Completed, store.Completed, store.Failed, store.Pending}).Draw(t, "outcome")
	if h.copied || h.found || rapid.Bool().Draw(t, "claims") {
		if !m.claim(leg, n, h) {
			return
		}
	}
	m.finish(leg, n, h, status)
}

// finish sends a row and writes its outcome.
func (m *model) finish(leg, n int, h *held, status store.Status) {
	tr := m.legs[leg][n]
	if tr.ended && !tr.again && !tr.free {
		m.t.Fatalf("row %d of %s is sent again: %+v", n, h.it.Outbox, tr)
	}
	if status == store.Completed {
		tr.delivered++
	}
	o := store.Outcome{Ref: h.it.Ref, Status: status, At: m.at, RetryCount: tr.retries}
	if h.copied {
		o.SpilledSeq = h.it.Seq
	}
	switch status {
	case store.Failed:
		o.Error, o.Row = "no", &h.it
	case store.Pending:
		o.Error = "later"
		o.RetryCount++
	}
	var result store.SettleResult
	lost := m.call(func() error {
		results, err := m.s.Settle(m.ctx, m.epoch, []store.Outcome{o})
		if err == nil {
			result = results[0]
		}
		return err
	})
	if result.NeedsRetry() || result == store.WasGone && !tr.free {
		m.t.Fatalf("outcome %s of row %d of %s: %d", status, n, h.it.Outbox, result)
	}
	tr.again = n >= m.read && n >= m.marks[leg] // the log is to bring it again, and no record tells of its copy
	if status == store.Pending && result == store.Written {
		h.claimed, tr.ended = false, false
		tr.retries++
		return
	}
	if result == store.WasSettled && !lost && !m.anyOf(n) {
		tr.free = true // another program settled the row: nothing is expected of the leg
	}
	tr.ended, tr.failed = true, status == store.Failed
	if status == store.Completed {
		tr.retries = 0
	}
	m.leave(leg, n)
}

// anyOf reports whether the delivery of one leg completes a row.
func (m *model) anyOf(n int) bool {
	_, anyOf := m.box.LegRule().Needed(m.log[n])
	return anyOf
}

// sole reports whether a row takes one leg, without which it is not settled. However far its mark is
// behind, the leg gets no settled row again; see Options.frontiers of the root.
func (m *model) sole(n int) bool {
	legs, anyOf := m.box.LegRule().Needed(m.log[n])
	return !anyOf && legs == m.log[n] && legs.Len() == 1
}

// giveBack returns a claim.
func (m *model) giveBack(t *rapid.T) {
	leg, n, h := m.some(t, func(_, _ int, h *held) bool { return h.claimed })
	m.unclaim(leg, n, h)
}

func (m *model) unclaim(leg, n int, h *held) {
	o := store.Outcome{Ref: h.it.Ref, Status: store.Pending, RetryCount: m.legs[leg][n].retries, At: m.at}
	if h.copied {
		o.SpilledSeq = h.it.Seq
	}
	var result store.SettleResult
	m.call(func() error {
		results, err := m.s.Settle(m.ctx, m.epoch, []store.Outcome{o})
		if err == nil {
			result = results[0]
		}
		return err
	})
	h.claimed = false
	if result != store.Written { // found settled: it leaves the lane, as by a claim
		if h.copied {
			m.call(func() error {
				return m.s.DeleteSpilled(m.ctx, m.epoch, []store.SpilledRef{{Ref: h.it.Ref, Seq: h.it.Seq}})
			})
		}
		if tr := m.legs[leg][n]; !tr.ended && !tr.again && !tr.free && tr.delivered == 0 {
			m.t.Fatalf("row %d of %s is dropped with its claim: %+v", n, h.it.Outbox, tr)
		}
		m.leave(leg, n)
	}
}

// spill writes the rows of a lane. Some of them stay in memory too.
func (m *model) spill(t *rapid.T) {
	leg, _, _ := m.some(t, func(_, _ int, h *held) bool { return !h.copied && h.it.Seq != 0 })
	var items []store.Item
	for _, n := range slices.Sorted(maps.Keys(m.lanes[leg])) {
		if h := m.lanes[leg][n]; !h.copied && h.it.Seq != 0 {
			items = append(items, h.it)
		}
	}
	m.call(func() error { return m.s.Spill(m.ctx, m.epoch, items) })
	stays := rapid.Bool().Draw(t, "stays")
	for _, n := range slices.Sorted(maps.Keys(m.lanes[leg])) {
		h := m.lanes[leg][n]
		if h.it.Seq == 0 {
			continue // a sweep found it, and finds it again
		}
		h.copied = true
		delete(m.pending[leg], n)
		if stays {
			continue
		}
		if h.claimed {
			m.unclaim(leg, n, h)
		}
		delete(m.lanes[leg], n)
	}
}

// reload reads spilled rows of a leg back.
func (m *model) reload(t *rapid.T) {
	m.t = t
	m.reloadLeg(rapid.IntRange(0, len(m.lanes)-1).Draw(t, "leg"), rapid.IntRange(1, 3).Draw(t, "rows"))
}

func (m *model) reloadLeg(leg, each int) {
	var from []store.SpilledRange
	m.check(m.s.SpilledLanes(m.ctx, func(l store.SpilledLane) {
		if l.Outbox == m.leg(leg) {
			from = append(from, store.SpilledRange{Outbox: l.Outbox, Lane: l.Hash})
		}
	}))
	lanes, err := m.s.ReadSpilled(m.ctx, from, each)
	m.check(err)
	for _, items := range lanes {
		for _, it := range items {
			n := index(it.ID)
			if m.lanes[leg][n] == nil {
				if string(it.Payload) != "row "+it.ID {
					m.t.Fatalf("row %s of %s has the payload %q", it.ID, it.Outbox, it.Payload)
				}
				m.lanes[leg][n] = &held{it: it, copied: true}
			}
		}
	}
}

// save saves the marks, as a checkpoint does between two writes.
func (m *model) save(t *rapid.T) {
	m.t = t
	cp := store.Checkpoint{Legs: map[string]store.LegMark{}}
	least := m.read
	for i := range m.lanes {
		mark := max(m.read, m.marks[i])
		for n, ticket := range m.pending[i] {
			if ticket {
				mark = min(mark, n)
			}
		}
		if mark < m.backlog {
			t.Skip("the backlog is not settled")
		}
		cp.Legs[m.leg(i)] = store.LegMark{Position: position(mark), Seq: m.seqAt(mark)}
		if mark == m.marks[i] {
			cp.Legs[m.leg(i)] = store.LegMark{Position: position(mark), Seq: m.markSeqs[i]}
		}
		least = min(least, mark)
	}
	cp.Position, cp.Seq = position(least), m.seqAt(least)
	m.call(func() error { return m.s.SaveCheckpoint(m.ctx, m.epoch, cp) })
}

// seqAt returns the seq of the last row below a mark.
func (m *model) seqAt(mark int) (seq store.Seq) {
	for n := range mark {
		seq = max(seq, m.seqs[n])
	}
	return max(seq, store.NewSeq(m.epoch, 0))
}

// sweep places the rows that the table shows and no lane holds.
func (m *model) sweep(t *rapid.T) {
	m.t = t
	for _, some := range m.tables.unsettled(m.ctx) {
		n := index(some)
		if n >= m.read || slices.ContainsFunc(m.lanes, func(l map[int]*held) bool { return l[n] != nil }) {
			continue
		}
		known := m.known
		m.known = len(m.log)
		m.place(n, 0, Row{Unmarked: true}, false)
		m.known = known
	}
}

// forget drops a row that a sweep found, as a full lane does.
func (m *model) forget(t *rapid.T) {
	leg, n, _ := m.some(t, func(_, _ int, h *held) bool { return h.found && !h.claimed && !h.copied })
	delete(m.lanes[leg], n)
}

// requeue requeues FAILED rows of a leg. If its answer is lost, the relay goes on or begins again.
func (m *model) requeue(t *rapid.T) {
	m.t = t
	leg := rapid.IntRange(0, len(m.lanes)-1).Draw(t, "leg")
	f := store.DeadLetterFilter{Outbox: m.leg(leg)}
	m.tables.fault = rapid.SampledFrom([]fault{noFault, unwritten, unread}).Draw(t, "fault")
	m.tables.later = rapid.IntRange(0, 2).Draw(t, "later")
	items, err := m.s.Requeue(m.ctx, m.epoch, f, rapid.IntRange(1, 2).Draw(t, "rows"))
	m.tables.fault, m.tables.later = noFault, 0
	for _, it := range items {
		m.reopen(leg, index(it.ID))
	}
	if err == nil {
		return
	}
	if !errors.Is(err, errFault) && !errors.Is(err, store.ErrUnsure) {
		t.Fatal(err)
	}
	for n, tr := range m.legs[leg] {
		if tr.failed {
			m.cut[n] = m.cut[n].With(leg)
		}
	}
	if rapid.Bool().Draw(t, "crashes") {
		m.crash(t)
	}
	left, err := m.s.Failed(m.ctx, f, 1<<20, false)
	m.check(err)
	for n, tr := range m.legs[leg] {
		if tr.failed && !slices.ContainsFunc(left, func(d store.DeadLetter) bool { return index(d.ID) == n }) {
			m.reopen(leg, n)
		}
	}
}

// discard deletes FAILED rows of a leg. If its answer is lost, the relay goes on or begins again.
func (m *model) discard(t *rapid.T) {
	m.t = t
	leg := rapid.IntRange(0, len(m.lanes)-1).Draw(t, "leg")
	f := store.DeadLetterFilter{Outbox: m.leg(leg)}
	m.tables.fault = rapid.SampledFrom([]fault{noFault, unwritten, unread}).Draw(t, "fault")
	m.tables.later = rapid.IntRange(0, 1).Draw(t, "later")
	_, err := m.s.Discard(m.ctx, m.epoch, f, rapid.IntRange(1, 2).Draw(t, "rows"))
	m.tables.fault, m.tables.later = noFault, 0
	if err != nil && !errors.Is(err, errFault) {
		t.Fatal(err)
	}
	crashes := err != nil && rapid.Bool().Draw(t, "crashes")
	left, err := m.s.Failed(m.ctx, f, 1<<20, false)
	m.check(err)
	for n, tr := range m.legs[leg] {
		if tr.failed && !slices.ContainsFunc(left, func(d store.DeadLetter) bool { return index(d.ID) == n }) {
			tr.failed, tr.discarded, tr.retries = false, true, 0
		}
	}
	for n := range m.log {
		for i := range m.legs {
			tr, status := m.legs[i][n], m.tables.status(id(n))
			tr.free = tr.free || status == 0                                      // the call was cut short behind the row
			tr.again = tr.again || m.cut[n] != 0 && !status.Settled() && tr.ended // the row is open, and perhaps no record is left
		}
	}
	if crashes {
		m.crash(t)
	}
}

// setBack lets an operator set a FAILED row back in its table.
func (m *model) setBack(t *rapid.T) {
	m.t = t
	for n := range m.log {
		if m.tables.status(id(n)) == store.Failed && rapid.Bool().Draw(t, "this") {
			m.tables.set(id(n), store.Pending)
			m.cut[n] = m.log[n]
		}
	}
}

// reopen records that FAILED rows of a leg are to be delivered again.
func (m *model) reopen(leg, n int) {
	tr := m.legs[leg][n]
	tr.again, tr.failed, tr.ended, tr.retries = tr.again || !tr.failed, false, false, 0
}

// interfere lets another program settle a row.
func (m *model) interfere(t *rapid.T) {
	m.t = t
	if len(m.log) == 0 {
		t.Skip("no row")
	}
	n := rapid.IntRange(0, len(m.log)-1).Draw(t, "row")
	if m.tables.status(id(n)).Settled() {
		t.Skip("settled")
	}
	m.tables.set(id(n), store.Completed)
	for i := range m.legs {
		m.legs[i][n].free = true
	}
}

func newModel(t *rapid.T, ctx context.Context) *model {
	box := store.Outbox{Name: "orders", Table: "orders", Layout: store.FlowCatalyst(), AnyRequired: rapid.Bool().Draw(t, "any")}
	m := &model{t: t, ctx: ctx, at: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), seqs: make([]store.Seq, 1000), cut: map[int]store.LegSet{}}
	for i := range rapid.IntRange(1, 3).Draw(t, "legs") {
		box.Routes = append(box.Routes, store.Route{Name: string(rune('a' + i)), Optional: rapid.IntRange(0, 2).Draw(t, "optional") == 0})
		m.legs = append(m.legs, map[int]*truth{})
	}
	m.box = box
	m.tables, m.open = newTables(box)
	m.begin()
	m.save(t)
	return m
}

// TestLegsAgainstModel: whatever crashes, COMPLETED means that the needed legs delivered the row,
// every leg delivers every row or has it among its FAILED rows, none delivers a row twice but those
// above its mark, and nothing is left in memory or in records.
func TestLegsAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(rt, t.Context())
		rt.Repeat(map[string]func(*rapid.T){
			"": m.invariants, "insert": m.insert, "read": m.readLog, "read more": m.readLog, "deliver": m.deliver, "deliver more": m.deliver,
			"give back": m.giveBack, "spill": m.spill, "reload": m.reload, "save": m.save, "crash": m.crash, "lose log": m.loseLog,
			"sweep": m.sweep, "forget": m.forget, "requeue": m.requeue, "discard": m.discard, "set back": m.setBack, "interfere": m.interfere,
		})
		m.drain(rt)
	})
}
