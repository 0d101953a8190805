package spill

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	"github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// spillModel is the reference model: the log, the spilled rows of the store, and the rows
// that each group has yet to deliver. It stands for the core too.
type spillModel struct {
	t     *rapid.T
	now   time.Time
	cfg   Config
	lanes *lane.Set
	sp    *Spiller

	order  map[store.LaneKey][]string // ids in log order; of parallel rows, in any order
	rows   map[string]*loggedRow
	stored map[store.SpilledRef]store.Item

	spilling []store.Item
	ranges   []store.SpilledRange
	each     int
	read     [][]store.Item
}

// loggedRow is a row of the log, and its ticket.
type loggedRow struct {
	id          string
	key         store.LaneKey
	unspillable bool
	refused     bool // once
	delivered   bool
	passed      bool // by the checkpoint
}

func (r *loggedRow) Done(int) { r.passed = true }

func newSpillModel(t *rapid.T) *spillModel {
	m := &spillModel{
		t: t, now: time.Unix(1e9, 0), order: map[store.LaneKey][]string{}, rows: map[string]*loggedRow{},
		stored: map[store.SpilledRef]store.Item{},
		cfg:    Config{BatchRows: rapid.IntRange(1, 4).Draw(t, "batch"), BufferRows: rapid.IntRange(4, 16).Draw(t, "buffer"), Unwritten: true, Whole: rapid.Bool().Draw(t, "whole")},
	}
	m.lanes = lane.NewSet(lane.Config{
		BatchRows: m.cfg.BatchRows, Senders: 2, ClaimAhead: 1, BufferRows: m.cfg.BufferRows, BufferBytes: 1 << 20,
		RowLanes: rapid.Bool().Draw(t, "row lanes"),
		Breaker:  &breaker.Config{Backoff: func(int) time.Duration { return time.Second }, MaxConcurrentEager: 1},
		Limits: func(kind string) sink.Limits {
			return sink.Limits{Mode: sink.Atomic, MaxItems: 100, MaxBytes: 1 << 20, Endpoint: kind}
		},
		Random: func() float64 { return 0 },
	})
	m.sp = New(m.cfg, m.lanes, m)
	return m
}

// Wake is that of the core.
func (m *spillModel) Wake(l *lane.Lane) {
	switch {
	case l.State != lane.Idle:
	case l.OnHold():
		l.Hold()
	case len(l.Rows) > 0:
		m.lanes.Queue(l)
	case !l.HasSpilled:
		m.lanes.Remove(l)
		m.sp.Forget(l)
	}
	m.sp.Reloads.Request(l)
}

// Unclaim does nothing, because no row is claimed.
func (m *spillModel) Unclaim(*lane.Row) {}

// Enqueue queues the delete of a copy that was being written.
func (m *spillModel) Enqueue(o lane.Outcome) { m.sp.Delete(o.Of.Row) }

// Left does nothing: check counts the rows.
func (m *spillModel) Left(*lane.Row) {}

func (m *spillModel) append(t *rapid.T) {
	for range rapid.IntRange(1, 4).Draw(t, "rows") {
		n := len(m.rows) + 1
		r := &loggedRow{
			id: fmt.Sprint(n), unspillable: rapid.IntRange(0, 9).Draw(t, "unspillable") == 0,
			key: store.LaneKey{Outbox: "a", Kind: "EVENT", Group: rapid.SampledFrom([]store.Group{{}, store.GroupOf("g"), store.GroupOf("h")}).Draw(t, "group")},
		}
		m.rows[r.id], m.order[r.key] = r, append(m.order[r.key], r.id)
		rw := &lane.Row{Ticket: r, Item: store.Item{
			Ref: store.Ref{Outbox: "a", ID: r.id}, Kind: "EVENT", Group: r.key.Group, Seq: store.Seq(n), Payload: []byte("{}"), PayloadSize: 2,
		}}
		m.lanes.Memory.Enter(rw, lane.Buffered)
		l := m.sp.Lane(m.lanes.NameOf(&rw.Item))
		m.sp.Append(l, rw)
		m.Wake(l)
	}
}

// lane picks one of the lanes in memory; nil if there is none.
func (m *spillModel) lane(t *rapid.T) *lane.Lane {
	if all := m.lanes.ByAge(); len(all) > 0 {
		return rapid.SampledFrom(all).Draw(t, "lane")
	}
	return nil
}

// deliver delivers the head of a ready lane.
func (m *spillModel) deliver(t *rapid.T) {
	if l := m.lane(t); l != nil && l.State == lane.Ready {
		m.deliverHead(l)
	}
}

func (m *spillModel) deliverHead(l *lane.Lane) {
	m.lanes.Dequeue(l)
	rw := l.Rows[0]
	r := m.rows[rw.ID]
	if r.delivered {
		m.t.Fatalf("row %s is delivered twice", r.id)
	}
	if !m.lanes.HasRowLanes(r.key) {
		for _, id := range m.order[r.key] {
			if id == r.id {
				break
			}
			if !m.rows[id].delivered {
				m.t.Fatalf("row %s is delivered before row %s", r.id, id)
			}
		}
	}
	r.delivered = true
	rw.Finish()
	m.sp.Delete(rw)
	m.sp.Remove(rw)
	rw.ReleaseTicket()
	l.RemoveDone(1)
	m.Wake(l)
}

// send sends the head of a ready lane.
func (m *spillModel) send(t *rapid.T) {
	if l := m.lane(t); l != nil && l.State == lane.Ready {
		m.lanes.Dequeue(l)
		l.Send(1)
	}
}

// answer answers a request: the row is delivered, is tried again, or its failure is written.
func (m *spillModel) answer(t *rapid.T) {
	l := m.lane(t)
	if l == nil || l.State != lane.Sending && l.State != lane.Writing {
		return
	}
	wrote := l.State == lane.Writing
	how := rapid.IntRange(0, 2).Draw(t, "answer")
	switch {
	case !wrote && how == 0 && l.Rows[0].Copy != lane.CopyWriting: // an outcome waits for the copy
		l.Write()
		return
	case !wrote && how == 1:
		l.Rest()
		m.deliverHead(l)
		return
	}
	l.Rest()
	m.sp.Rested(l)
	if wrote {
		m.sp.Retried(l)
	}
	m.Wake(l)
}

// checkWhole checks that undelivered rows in front of a spilled one are spilled.
func (m *spillModel) checkWhole(t *rapid.T) {
	for key, ids := range m.order {
		if m.lanes.HasRowLanes(key) {
			continue
		}
		behind := ""
		for _, id := range slices.Backward(ids) {
			r := m.rows[id]
			_, stored := m.find(id)
			switch {
			case r.delivered:
			case stored:
				behind = id
			case behind != "" && !r.refused:
				t.Fatalf("row %s is spilled, and row %s in front of it is not", behind, id)
			}
		}
	}
}

// checkCovered checks that no row is left out in front of the row from which the next look starts.
func (m *spillModel) checkCovered(t *rapid.T) {
	for _, l := range m.lanes.Live() {
		for i, rw := range l.Rows[:min(l.Covered, len(l.Rows))] {
			if mayCopy(l, rw) {
				t.Fatalf("lane %s: row %s may be spilled and is row %d of %d that need no look", l.Name, rw.ID, i+1, l.Covered)
			}
		}
	}
}

// spill begins or ends a statement that spills rows.
func (m *spillModel) spill(t *rapid.T) {
	if len(m.spilling) == 0 {
		if m.ranges == nil {
			m.spilling = m.sp.Next(rapid.IntRange(1, 10).Draw(t, "most"))
		}
		return
	}
	refused := make([]bool, len(m.spilling))
	for i := range m.spilling {
		it := &m.spilling[i]
		if refused[i] = m.rows[it.ID].unspillable; refused[i] {
			m.rows[it.ID].refused = true
		} else {
			m.stored[store.SpilledRef{Ref: it.Ref, Seq: it.Seq}] = *it
		}
	}
	m.spilling = nil
	m.sp.Written(refused)
}

func (m *spillModel) delete(*rapid.T) {
	if len(m.spilling) > 0 || m.ranges != nil {
		return // one statement at a time
	}
	refs := m.sp.NextDeletes(3)
	for _, ref := range refs {
		delete(m.stored, ref)
	}
	m.sp.Deleted(refs...)
}

// reload begins or ends a reload. Its result is that of its start.
func (m *spillModel) reload(*rapid.T) {
	switch {
	case m.ranges != nil:
		m.ranges = nil
		m.sp.Reloads.Add(m.read, m.each, nil)
	case len(m.spilling) == 0:
		m.ranges, m.each = m.sp.Reloads.Next(m.now)
		m.read = nil
		for _, from := range m.ranges {
			m.read = append(m.read, m.readRange(from))
		}
	}
}

func (m *spillModel) readRange(from store.SpilledRange) (items []store.Item) {
	for _, it := range m.stored {
		key := it.Lane()
		if it.Seq > from.After && key.Hash() == from.Lane {
			items = append(items, it)
		}
	}
	slices.SortFunc(items, func(a, b store.Item) int { return int(a.Seq) - int(b.Seq) })
	return items[:min(m.each, len(items))]
}

// hold holds a lane or releases it.
func (m *spillModel) hold(t *rapid.T) {
	l := m.lane(t)
	if l == nil || m.lanes.IsRowLane(l) {
		return
	}
	if l.Paused == nil {
		l.Paused = &store.Hold{}
	} else {
		l.Paused = nil
	}
	m.lanes.Dequeue(l)
	m.Wake(l)
}

// toggleBreaker opens the breaker of the receiver or closes it.
func (m *spillModel) toggleBreaker(*rapid.T) {
	recv := m.lanes.Endpoints.Of("EVENT")
	for open := recv.Breaker.Open(); recv.Breaker.Open() == open; {
		a := breaker.Answer{Started: m.now, Accepted: open, Failure: sink.Outcome{Class: sink.Unavailable}}
		m.lanes.BreakerChanged(recv, recv.Breaker.Answered(&a, m.now))
	}
}

// check checks the counts, that each row is where it can be delivered from, and that the
// checkpoint passes only rows that are delivered or spilled.
func (m *spillModel) check(t *rapid.T) {
	held, inMemory, spilling := 0, map[string]bool{}, map[*lane.Lane]int{}
	for p := range m.sp.All() {
		spilling[p.Lane]++
	}
	for _, l := range m.lanes.Live() {
		for _, rows := range [][]*lane.Row{l.Rows, l.UnspillableTail} {
			for _, rw := range rows {
				if inMemory[rw.ID] {
					t.Fatalf("row %s is twice in memory", rw.ID)
				}
				held++
				inMemory[rw.ID] = true
			}
		}
		if l.Spilling != spilling[l] {
			t.Fatalf("lane %s: rows being spilled: got %d, want %d", l.Name, l.Spilling, spilling[l])
		}
		if l.Spilling == 0 && m.sp.Shrinking()[l] {
			t.Fatalf("lane %s shrinks, and nothing is being spilled", l.Name)
		}
	}
	for l := range m.sp.Shrinking() {
		if m.lanes.Get(l.Name) != l {
			t.Fatalf("lane %s shrinks and is forgotten", l.Name)
		}
	}
	for p := range m.sp.All() {
		if !p.Copied {
			held++
		}
		inMemory[p.Row.ID] = true
	}
	counts := m.sp.Counts()
	if held != m.lanes.Memory.Total() || counts.Stored != len(m.stored) {
		t.Fatalf("rows: got %d in memory, %d stored, want %d, %d", m.lanes.Memory.Total(), counts.Stored, held, len(m.stored))
	}
	if n, most := m.lanes.Memory.Rows(lane.Reloaded), max(1, m.cfg.BufferRows/2)+m.each; n > most {
		t.Fatalf("reloaded rows: got %d, want at most %d", n, most)
	}
	if m.cfg.Whole {
		m.checkWhole(t)
		m.checkCovered(t)
	}
	for _, r := range m.rows {
		_, stored := m.find(r.id)
		switch {
		case r.passed && !r.delivered && !stored:
			t.Fatalf("the checkpoint passes row %s, neither delivered nor spilled", r.id)
		case !r.delivered && !stored && !inMemory[r.id]:
			t.Fatalf("row %s is lost", r.id)
		case r.delivered && stored && !inMemory[r.id] && !m.settling(r.id):
			t.Fatalf("the copy of delivered row %s is not deleted", r.id)
		}
	}
}

func (m *spillModel) find(id string) (store.SpilledRef, bool) {
	for ref := range m.stored {
		if ref.ID == id {
			return ref, true
		}
	}
	return store.SpilledRef{}, false
}

func (m *spillModel) settling(id string) bool {
	ref, _ := m.find(id)
	return m.sp.IsSettling(ref)
}

// finish repairs everything and expects every row to be delivered and nothing to be left.
func (m *spillModel) finish(t *rapid.T) {
	if m.lanes.Endpoints.Of("EVENT").Breaker.Open() {
		m.toggleBreaker(t)
	}
	for _, r := range m.rows {
		r.unspillable = false
	}
	m.sp.RetryUnspillable()
	for range 200 + 20*len(m.rows) {
		for _, l := range m.lanes.ByAge() {
			if l.Paused != nil {
				l.Paused = nil
				m.lanes.Dequeue(l)
				m.Wake(l)
			}
		}
		for _, l := range m.lanes.ByAge() {
			switch l.State {
			case lane.Sending, lane.Writing:
				l.Rest()
				m.sp.Rested(l)
				m.sp.Retried(l)
				m.Wake(l)
			case lane.Ready:
				m.deliverHead(l)
			}
		}
		for _, step := range []func(*rapid.T){m.spill, m.spill, m.delete, m.reload, m.reload, m.check} {
			step(t)
		}
		m.now = m.now.Add(time.Second)
		done := !slices.ContainsFunc(slices.Collect(maps.Values(m.rows)), func(r *loggedRow) bool { return !r.delivered })
		if done && len(m.stored) == 0 && m.sp.Counts() == (Counts{}) && m.lanes.Memory.Total() == 0 {
			return
		}
	}
	t.Fatalf("left over: %d stored, %+v, %d in memory", len(m.stored), m.sp.Counts(), m.lanes.Memory.Total())
}

func TestSpillerAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newSpillModel(t)
		seldom := func(do func(*rapid.T)) func(*rapid.T) {
			return func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "seldom") == 0 {
					do(t)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"append":       m.append,
			"append more":  m.append,
			"deliver":      m.deliver,
			"deliver more": m.deliver,
			"send":         m.send,
			"answer":       m.answer,
			"spill":        m.spill,
			"spill more":   m.spill,
			"delete":       m.delete,
			"reload":       m.reload,
			"reload more":  m.reload,
			"hold":         m.hold,
			"breaker":      seldom(m.toggleBreaker),
			"excess":       func(t *rapid.T) { m.sp.Excess(rapid.Bool().Draw(t, "others"), m.now) },
			"log":          seldom(func(t *rapid.T) { m.sp.ForLog(rapid.Bool().Draw(t, "all")) }),
			"try":          seldom(func(*rapid.T) { m.sp.RetryUnspillable() }),
			"time": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(1, 50).Draw(t, "ms")) * time.Millisecond)
			},
			"": m.check,
		})
		m.finish(t)
	})
}

// An ended spiller spills, deletes and reloads nothing.
func TestEndedSpillerDoesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newSpillModel(t)
		m.append(t)
		m.sp.ForLog(true)
		m.sp.End()
		if items, refs := m.sp.Next(10), m.sp.NextDeletes(10); items != nil || refs != nil {
			t.Fatalf("after the end: %d rows to spill, %d to delete", len(items), len(refs))
		}
		if from, _ := m.sp.Reloads.Next(m.now); from != nil {
			t.Fatalf("after the end: %d lanes to reload", len(from))
		}
		for _, l := range m.lanes.Live() {
			if i := slices.IndexFunc(l.Rows, func(rw *lane.Row) bool { return rw.Copy != lane.NoCopy }); i >= 0 {
				t.Fatalf("row %s: copy: got %d, want none", l.Rows[i].ID, l.Rows[i].Copy)
			}
		}
	})
}

// A row in flight is spilled before the rows behind it. They wait while its failure is written.
func TestWholeLanesAreSpilledFromTheFront(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newSpillModel(t)
		m.sp.SpillWhole()
		l := m.sp.Lane(lane.Name{LaneKey: store.LaneKey{Outbox: "a", Kind: "EVENT", Group: store.GroupOf("g")}})
		for n := range 3 {
			rw := &lane.Row{Item: store.Item{Ref: store.Ref{Outbox: "a", ID: fmt.Sprint(n)}, Kind: "EVENT", Group: l.Name.Group, Seq: store.Seq(n + 1)}}
			m.lanes.Memory.Enter(rw, lane.Buffered)
			m.sp.Append(l, rw)
		}
		writing := rapid.Bool().Draw(t, "writing")
		if l.Send(1); writing {
			l.Write()
		}
		m.sp.Row(l, l.Rows[2])
		if writing {
			if items := m.sp.Next(10); len(items) > 0 {
				t.Fatalf("row %s is spilled past the head", items[0].ID)
			}
			l.Rest()
			m.sp.Rested(l)
			m.sp.Retried(l)
		}
		var ids []string
		for _, it := range m.sp.Next(10) {
			ids = append(ids, it.ID)
		}
		if !slices.Equal(ids, []string{"0", "1", "2"}) {
			t.Fatalf("spilled: got %v, want them in order", ids)
		}
	})
}

// A requeued row without a seq is found in its table again, so its retry does not spill it.
func TestRetriedRowWithoutSeqIsNotSpilled(t *testing.T) {
	sp, l := polledLane(1)
	l.HasSpilled, l.Rows[0].Seq = true, 0
	sp.Retried(l)
	if items := sp.Next(10); len(items) > 0 {
		t.Errorf("row %s is spilled under seq %d", items[0].ID, items[0].Seq)
	}
}
