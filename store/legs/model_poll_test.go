package legs

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store"
)

// pollModel is a relay that polls a table with rows of one group, and crashes. As in dispatch, each leg has a
// lane: its first rows are in memory, and spilled rows are behind them. A lane is spilled from its front.
type pollModel struct {
	*model
	lanes []*pollLane
}

// pollLane is the lane of a leg.
type pollLane struct {
	rows      []*held
	spilled   bool         // rows are spilled behind those in memory
	delivered map[int]bool // or FAILED
}

func (m *pollModel) start() {
	m.s = m.open(Options{Polling: true})
	var err error
	m.epoch, err = m.s.AcquireLeadership(m.ctx)
	m.check(err)
	m.check(m.s.AdoptMissing(m.ctx, m.epoch))
	m.counted = 0
	for i, l := range m.lanes {
		l.rows, l.spilled = nil, len(m.copies(i, 1)) > 0
	}
}

// copies reads spilled rows of a leg.
func (m *pollModel) copies(leg, each int) []store.Item {
	it := m.pollItem(0, leg, 0)
	lanes, err := m.s.ReadSpilled(m.ctx, []store.SpilledRange{{Outbox: it.Outbox, Lane: it.Lane().Hash()}}, each)
	m.check(err)
	return lanes[0]
}

func (m *pollModel) pollItem(n, leg int, seq store.Seq) store.Item {
	it := m.item(n, seq)
	it.Outbox, it.Group = m.leg(leg), store.GroupOf("g")
	return it
}

func (m *pollModel) insert(t *rapid.T) {
	m.t = t
	m.tables.set(id(len(m.log)), store.Pending)
	m.log = append(m.log, store.LegSet(rapid.IntRange(1, 1<<len(m.box.Routes)-1).Draw(t, "matched")))
}

// poll reads rows that no lane holds, in the order of the table.
func (m *pollModel) poll(t *rapid.T) {
	m.t = t
	m.pollRows(rapid.IntRange(1, 4).Draw(t, "rows"))
}

func (m *pollModel) pollRows(most int) (some bool) {
	missing := m.s.Missing(m.box.Name)
	for _, row := range m.tables.unsettled(m.ctx, missing...) {
		holds := func(l *pollLane) bool {
			return slices.ContainsFunc(l.rows, func(h *held) bool { return h.it.ID == row })
		}
		if !slices.Contains(missing, row) && slices.ContainsFunc(m.lanes, holds) {
			continue
		}
		if most--; most < 0 {
			break
		}
		some = true
		m.placePolled(index(row), holds)
	}
	return some
}

func (m *pollModel) placePolled(n int, holds func(*pollLane) bool) {
	r := Row{Ref: store.Ref{Outbox: m.box.Name, ID: id(n)}, Matched: m.log[n], Unmarked: true}
	known, err := m.s.LegRows(m.ctx, []store.Ref{r.Ref})
	m.check(err)
	r.Known = known[0]
	to, err := m.s.Begin(m.ctx, m.epoch, []Row{r})
	m.check(err)
	m.counted++
	for i := range to[0].All() {
		l, it := m.lanes[i], m.pollItem(n, i, store.NewSeq(m.epoch, m.counted))
		switch {
		case holds(l):
		case l.spilled:
			m.check(m.s.Spill(m.ctx, m.epoch, []store.Item{it}))
		default:
			l.rows = append(l.rows, &held{it: it})
		}
	}
	m.s.Placed([]Row{r})
}

// deliver sends the head of a lane.
func (m *pollModel) deliver(t *rapid.T) {
	m.t = t
	m.deliverHead(rapid.IntRange(0, len(m.lanes)-1).Draw(t, "leg"), rapid.SampledFrom([]store.Status{store.Completed, store.Completed, store.Failed}).Draw(t, "outcome"))
}

func (m *pollModel) deliverHead(leg int, status store.Status) {
	l := m.lanes[leg]
	if len(l.rows) == 0 {
		return
	}
	h := l.rows[0]
	n := index(h.it.ID)
	answers, err := m.s.Claim(m.ctx, m.epoch, m.at, []store.ClaimRow{{Ref: h.it.Ref}})
	m.check(err)
	l.rows = l.rows[1:]
	if answers[0].Result != store.Claimed {
		if !l.delivered[n] {
			m.t.Fatalf("row %d of %s is dropped", n, h.it.Outbox)
		}
		if h.copied {
			m.check(m.s.DeleteSpilled(m.ctx, m.epoch, []store.SpilledRef{{Ref: h.it.Ref, Seq: h.it.Seq}}))
		}
		return
	}
	for before := range n {
		if m.log[before].Has(leg) && !l.delivered[before] && !l.delivered[n] {
			m.t.Fatalf("%s gets row %d before row %d", h.it.Outbox, n, before)
		}
	}
	l.delivered[n] = true
	o := store.Outcome{Ref: h.it.Ref, Status: status, At: m.at}
	if h.copied {
		o.SpilledSeq = h.it.Seq
	}
	if status == store.Failed {
		o.Error, o.Row = "no", &h.it
	}
	_, err = m.s.Settle(m.ctx, m.epoch, []store.Outcome{o})
	m.check(err)
}

// spill spills the first rows of a lane. If these are all, they may leave memory.
func (m *pollModel) spill(t *rapid.T) {
	m.t = t
	l := rapid.SampledFrom(m.lanes).Draw(t, "lane")
	if len(l.rows) == 0 {
		return
	}
	n := rapid.IntRange(1, len(l.rows)).Draw(t, "rows")
	var items []store.Item
	for _, h := range l.rows[:n] {
		if !h.copied {
			items = append(items, h.it)
		}
		h.copied = true
	}
	m.check(m.s.Spill(m.ctx, m.epoch, items))
	if n == len(l.rows) && rapid.Bool().Draw(t, "leave") {
		l.rows, l.spilled = nil, true
	}
}

// reload reads spilled rows back.
func (m *pollModel) reload(t *rapid.T) {
	m.t = t
	m.reloadLane(rapid.IntRange(0, len(m.lanes)-1).Draw(t, "leg"), rapid.IntRange(1, 3).Draw(t, "rows"))
}

func (m *pollModel) reloadLane(leg, each int) {
	l := m.lanes[leg]
	if !l.spilled || len(l.rows) > 0 {
		return
	}
	for _, it := range m.copies(leg, each) {
		l.rows = append(l.rows, &held{it: it, copied: true})
	}
	l.spilled = len(l.rows) == each
}

func (m *pollModel) crash(t *rapid.T) {
	m.t = t
	m.start()
}

// TestLegsAgainstModelByPolling: while polling, each leg gets all rows in the order of the table,
// however often the relay crashes while legs have spilled rows.
func TestLegsAgainstModelByPolling(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &pollModel{model: newModel(rt, t.Context())}
		for range m.box.Routes {
			m.lanes = append(m.lanes, &pollLane{delivered: map[int]bool{}})
		}
		m.start()
		rt.Repeat(map[string]func(*rapid.T){
			"insert": m.insert, "poll": m.poll, "poll more": m.poll, "deliver": m.deliver, "deliver more": m.deliver,
			"spill": m.spill, "reload": m.reload, "crash": m.crash,
		})
		m.t = rt
		for more := true; more; {
			more = m.pollRows(1 << 20)
			for i, l := range m.lanes {
				for m.reloadLane(i, 1<<20); len(l.rows) > 0; more = true {
					m.deliverHead(i, store.Completed)
				}
			}
		}
		for n, matched := range m.log {
			for i := range matched.All() {
				if !m.lanes[i].delivered[n] {
					rt.Fatalf("%s never got row %d", m.leg(i), n)
				}
			}
			if !m.tables.status(id(n)).Settled() {
				rt.Fatalf("row %d is open", n)
			}
		}
	})
}
