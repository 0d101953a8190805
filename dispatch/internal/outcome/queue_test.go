package outcome

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store"
)

func earlyWait(n int) time.Duration { return time.Millisecond << min(n-1, 10) }

// queueModel is the reference model: where each outcome is, and when it may be tried again.
type queueModel struct {
	t      *rapid.T
	q      Queue[int]
	now    time.Time
	all    map[int]*entry // not yet in the store, by number
	added  int
	batch  []Outcome[int] // being written
	tables map[string]*tableModel
}

type place uint8

const (
	waiting place = iota
	writing
	deferred
	aside
)

func (p place) String() string { return [...]string{"waiting", "writing", "deferred", "aside"}[p] }

// entry is the model of an outcome.
type entry struct {
	place    place
	outbox   string
	order    int // of the latest Add
	due      time.Time
	early    int // consecutive early tries
	locked   int
	refusals int
	since    time.Time
}

type tableModel struct {
	locked bool
	due    time.Time
	freed  time.Time
	again  int // locks soon after it was free
}

func newQueueModel(t *rapid.T) *queueModel {
	return &queueModel{
		t: t, q: NewQueue[int](earlyWait), now: time.Unix(1e9, 0), all: map[int]*entry{},
		tables: map[string]*tableModel{"a": {}, "b": {}, "c": {}},
	}
}

func (m *queueModel) drawTable(t *rapid.T) string {
	return rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "outbox")
}

// add adds an outcome, or adds one again.
func (m *queueModel) add(o Outcome[int]) {
	m.added++
	e := m.all[o.Of]
	e.order, e.place = m.added, waiting
	if m.tables[e.outbox].locked {
		e.place = aside
	}
	m.q.Add(o)
}

func (m *queueModel) addNew(t *rapid.T) {
	outbox, n := m.drawTable(t), m.added
	m.all[n] = &entry{outbox: outbox}
	m.add(Outcome[int]{Of: n, Outcome: store.Outcome{Ref: store.Ref{Outbox: outbox, ID: fmt.Sprint(n)}}})
}

// take takes a batch and checks its order, and that a refused outcome is alone.
func (m *queueModel) take(t *rapid.T) {
	limit := rapid.IntRange(1, 5).Draw(t, "limit")
	if len(m.batch) > 0 {
		if more := m.q.Next(limit); more != nil {
			t.Fatalf("a second batch: got %v, want none", more)
		}
		return
	}
	var want []int
	for _, n := range m.in(waiting) {
		refused := m.all[n].refusals > 0
		if len(want) == limit || len(want) > 0 && (refused || m.all[want[0]].refusals > 0) {
			break
		}
		want = append(want, n)
	}
	m.batch = m.q.Next(limit)
	var got []int
	for i := range m.batch {
		got = append(got, m.batch[i].Of)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("batch of at most %d: got %v, want %v", limit, got, want)
	}
	for _, n := range want {
		m.all[n].place = writing
	}
}

// in returns the outcomes in a place, in the order in which they were added.
func (m *queueModel) in(p place) []int {
	var in []int
	for n, e := range m.all {
		if e.place == p {
			in = append(in, n)
		}
	}
	slices.SortFunc(in, func(a, b int) int { return cmp.Compare(m.all[a].order, m.all[b].order) })
	return in
}

// write answers the batch.
func (m *queueModel) write(t *rapid.T) {
	if len(m.batch) == 0 {
		return
	}
	results := make([]store.SettleResult, len(m.batch))
	for i := range results {
		results[i] = rapid.SampledFrom([]store.SettleResult{
			store.Written, store.Written, store.WasSettled, store.WasGone, store.TooEarly, store.WasLocked, store.TableWasLocked, store.Refused, store.Refused,
		}).Draw(t, "result")
	}
	batch := m.q.Written()
	for i := range batch {
		n := batch[i].Of
		want := m.expect(n, results[i])
		if got := m.q.Handle(&batch[i], results[i], m.now); got != want {
			t.Fatalf("outcome %d after result %d: got step %d, want %d", n, results[i], got, want)
		}
	}
	m.q.Recycle(batch)
	m.batch = nil
}

// expect records the result of a try and returns the step that must follow.
func (m *queueModel) expect(n int, result store.SettleResult) Step {
	e := m.all[n]
	e.place = deferred
	if result != store.TooEarly {
		e.early = 0
	}
	switch result {
	case store.TooEarly:
		e.early++
		e.due = m.now.Add(earlyWait(e.early))
	case store.WasLocked:
		wait := min(100*time.Millisecond<<min(e.locked, 20), time.Second)
		e.locked++
		e.due = m.now.Truncate(wait).Add(wait)
	case store.Refused:
		if e.refusals == 0 {
			e.since = m.now
		}
		e.due = m.now.Add(min(time.Second<<min(e.refusals, 20), time.Minute))
		e.refusals++
		return Refused
	case store.TableWasLocked:
		newly := m.lock(e.outbox)
		m.added++
		e.place, e.order = aside, m.added
		if newly {
			return TableLocked
		}
	default:
		delete(m.all, n)
		return Done
	}
	return Deferred
}

// lock locks a table and reports false if it was locked before.
func (m *queueModel) lock(outbox string) bool {
	table := m.tables[outbox]
	if table.locked {
		return false
	}
	if table.again++; m.now.Sub(table.freed) > 10*time.Second {
		table.again = 1
	}
	table.locked, table.due = true, m.now
	if table.again > 1 {
		table.due = m.now.Add(min(50*time.Millisecond<<min(table.again-2, 20), 2*time.Second))
	}
	for _, e := range m.all {
		if e.place == waiting && e.outbox == outbox {
			e.place = aside
		}
	}
	return true
}

// lockTable locks a table that a claim found locked.
func (m *queueModel) lockTable(t *rapid.T) {
	outbox := m.drawTable(t)
	if got, want := m.q.LockTable(outbox, m.now), m.lock(outbox); got != want {
		t.Fatalf("table %s newly locked: got %v, want %v", outbox, got, want)
	}
}

// awaitTable unlocks the table that is due, or asks for it later.
func (m *queueModel) awaitTable(t *rapid.T) {
	outbox, due, ok := m.q.NextTable()
	if !ok || due.After(m.now) {
		return
	}
	if rapid.Bool().Draw(t, "still locked") {
		m.tables[outbox].due = m.now.Add(200 * time.Millisecond)
		m.q.DeferTable(outbox, m.tables[outbox].due)
		return
	}
	m.unlock(outbox)
}

func (m *queueModel) unlock(outbox string) {
	want := slices.DeleteFunc(m.in(aside), func(n int) bool { return m.all[n].outbox != outbox })
	was := m.tables[outbox].locked
	outcomes, ok := m.q.UnlockTable(outbox, m.now)
	var got []int
	for i := range outcomes {
		got = append(got, outcomes[i].Of)
	}
	if ok != was || !slices.Equal(got, want) {
		m.t.Fatalf("table %s is free: got %v, %v, want %v, %v", outbox, ok, got, was, want)
	}
	if m.tables[outbox].locked = false; was {
		m.tables[outbox].freed = m.now
	}
	for _, o := range outcomes {
		m.add(o)
	}
}

// pass lets time pass and adds what is due again.
func (m *queueModel) pass(d time.Duration) {
	m.now = m.now.Add(d)
	for {
		o, ok := m.q.Due(m.now)
		if !ok {
			break
		}
		if e := m.all[o.Of]; e.place != deferred || !e.due.Equal(o.Due()) || e.due.After(m.now) {
			m.t.Fatalf("outcome %d: got due at %v, it is %s until %v", o.Of, o.Due(), e.place, e.due)
		}
		m.add(o)
	}
	for _, n := range m.in(deferred) {
		if next, ok := m.q.NextDue(); !ok || next.After(m.all[n].due) {
			m.t.Fatalf("outcome %d is due at %v, next due: got %v, %v", n, m.all[n].due, next, ok)
		}
	}
}

// check checks that each outcome is in its place, and the counts.
func (m *queueModel) check(t *rapid.T) {
	early, refused, seen := 0, 0, map[int]bool{}
	for _, e := range m.all {
		if e.early > 0 {
			early++
		}
		if e.refusals > 0 {
			refused++
		}
	}
	for o := range m.q.All() {
		e := m.all[o.Of]
		if e == nil || seen[o.Of] || o.WasRefused() != (e.refusals > 0) || o.RowWasLocked() != (e.locked > 0) || !o.Since.Equal(e.since) {
			t.Fatalf("outcome %d is in the queue: %+v, want %+v", o.Of, o, e)
		}
		seen[o.Of] = true
	}
	if len(seen) != len(m.all) {
		t.Fatalf("outcomes: got %d, want %d", len(seen), len(m.all))
	}
	unready := 0
	for o := range m.q.Unready() {
		if p := m.all[o.Of].place; p != deferred && p != aside {
			t.Fatalf("outcome %d is unready, want %s", o.Of, p)
		}
		unready++
	}
	lists := map[place][]Outcome[int]{waiting: m.q.Waiting(), writing: m.q.Writing(), deferred: m.q.Deferred()}
	for p, list := range lists {
		if want := len(m.in(p)); len(list) != want {
			t.Fatalf("%s: got %d, want %d", p, len(list), want)
		}
	}
	busy := len(m.in(waiting))+len(m.in(writing))+early > 0
	piled := max(len(m.in(deferred)), refused, early)
	if m.q.Busy() != busy || m.q.Piled() != piled || m.q.Refused() != refused || unready != len(m.in(deferred))+len(m.in(aside)) {
		t.Fatalf("got busy %v, piled %d, refused %d, unready %d; want %v, %d, %d, %d", m.q.Busy(), m.q.Piled(), m.q.Refused(), unready,
			busy, piled, refused, len(m.in(deferred))+len(m.in(aside)))
	}
	m.checkTables(t)
}

// checkTables checks which tables are locked, and that the earliest is asked for first.
func (m *queueModel) checkTables(t *rapid.T) {
	want, some := "", false
	for _, outbox := range slices.Sorted(maps.Keys(m.tables)) {
		table := m.tables[outbox]
		if m.q.TableLocked(outbox) != table.locked {
			t.Fatalf("table %s is locked: got %v, want %v", outbox, !table.locked, table.locked)
		}
		if table.locked && (!some || table.due.Before(m.tables[want].due)) {
			want, some = outbox, true
		}
	}
	got, due, ok := m.q.NextTable()
	if ok != some || got != want || ok && !due.Equal(m.tables[want].due) {
		t.Fatalf("next table: got %q at %v, %v, want %q, %v", got, due, ok, want, some)
	}
}

// finish repairs everything and expects every outcome to be written.
func (m *queueModel) finish(t *rapid.T) {
	for range 200 {
		for outbox := range m.tables {
			m.unlock(outbox)
		}
		m.pass(time.Minute)
		if len(m.batch) == 0 {
			m.batch = m.q.Next(10)
		}
		batch := m.q.Written()
		for i := range batch {
			m.q.Handle(&batch[i], store.Written, m.now)
			delete(m.all, batch[i].Of)
		}
		m.q.Recycle(batch)
		m.batch = nil
	}
	if len(m.all) > 0 || m.q.Busy() || m.q.Piled() > 0 {
		t.Fatalf("left over: %d outcomes, busy %v, piled %d", len(m.all), m.q.Busy(), m.q.Piled())
	}
}

func TestQueueAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newQueueModel(t)
		actions := map[string]func(*rapid.T){
			"":            m.check,
			"add":         m.addNew,
			"add more":    m.addNew,
			"take":        m.take,
			"write":       m.write,
			"write more":  m.write,
			"lock table":  m.lockTable,
			"await table": m.awaitTable,
			"short time": func(t *rapid.T) {
				m.pass(time.Duration(rapid.IntRange(1, 300).Draw(t, "ms")) * time.Millisecond)
			},
			"long time": func(t *rapid.T) {
				m.pass(time.Duration(rapid.IntRange(1, 20).Draw(t, "s")) * time.Second)
			},
		}
		for range 5 { // longer than one run of rapid
			t.Repeat(actions)
		}
		m.finish(t)
	})
}

// The example of the package documentation: a trigger that rejects FAILED is met ever more
// rarely.
func TestRefusedOutcomeBacksOff(t *testing.T) {
	q, now := NewQueue[int](earlyWait), time.Unix(1e9, 0)
	q.Add(Outcome[int]{})
	for i, seconds := range []int{1, 2, 4, 8, 16, 32, 60, 60} {
		q.Next(1)
		batch := q.Written()
		q.Handle(&batch[0], store.Refused, now)
		q.Recycle(batch)
		due, _ := q.NextDue()
		if got, want := due.Sub(now), time.Duration(seconds)*time.Second; got != want {
			t.Errorf("wait after refusal %d: got %v, want %v", i+1, got, want)
		}
		now = due
		o, _ := q.Due(now)
		q.Add(o)
	}
}
