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

// newQueue returns a queue whose halves are the even and the odd numbers.
func newQueue(minHalf int) Queue[int] {
	return NewQueue(Config[int]{EarlyWait: earlyWait, Half: func(n int) int { return n % 2 }, MinHalf: minHalf})
}

// queueModel is the reference model: where each outcome is, and when it may be tried again.
type queueModel struct {
	t       *rapid.T
	q       Queue[int]
	now     time.Time
	all     map[int]*entry // not yet in the store, by number
	added   int
	batches [Writers][]Outcome[int] // being written
	minHalf int
	tables  map[string]*tableModel
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
	minHalf := rapid.IntRange(1, 4).Draw(t, "outcomes of a half")
	return &queueModel{
		t: t, q: newQueue(minHalf), minHalf: minHalf, now: time.Unix(1e9, 0), all: map[int]*entry{},
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

// take takes a batch and checks which outcomes it has.
func (m *queueModel) take(t *rapid.T) {
	writer, limit := rapid.IntRange(0, Writers-1).Draw(t, "writer"), rapid.IntRange(1, 5).Draw(t, "limit")
	waits, other := [2][]int{m.half(waiting, 0), m.half(waiting, 1)}, m.batches[1-writer]
	ready := m.q.Ready()
	batch := m.q.Next(writer, limit)
	if len(m.batches[writer]) > 0 {
		if batch != nil {
			t.Fatalf("a second batch: got %v, want none", batch)
		}
		return
	}
	m.batches[writer] = batch
	if ready != (len(batch) > 0) {
		t.Fatalf("ready %v for the batch %v", ready, batch)
	}
	var got [2][]int
	for i := range batch {
		half := batch[i].Of % 2
		got[half] = append(got[half], batch[i].Of)
		m.all[batch[i].Of].place = writing
		if len(batch) > 1 && m.all[batch[i].Of].refusals > 0 {
			t.Fatalf("outcome %d was refused before, and is not alone", batch[i].Of)
		}
	}
	for half := range got {
		if !slices.Equal(got[half], waits[half][:len(got[half])]) {
			t.Fatalf("half %d: got %v, want the first of %v", half, got[half], waits[half])
		}
		if len(got[half]) > 0 && slices.ContainsFunc(other, func(o Outcome[int]) bool { return o.Of%2 == half }) {
			t.Fatalf("half %d is in both batches", half)
		}
	}
	m.checkSize(t, len(batch), limit, waits, got, other)
}

// checkSize checks that no outcome is left out without a reason.
func (m *queueModel) checkSize(t *rapid.T, size, limit int, waits, got [2][]int, other []Outcome[int]) {
	least := min(len(waits[0]), len(waits[1]))
	refused := func(half int) bool { // the next one of the half
		left := waits[half][len(got[half]):]
		return len(left) > 0 && m.all[left[0]].refusals > 0 || len(got[half]) > 0 && m.all[got[half][0]].refusals > 0
	}
	switch all := len(waits[0]) + len(waits[1]); {
	case size > limit:
		t.Fatalf("%d outcomes, at most %d", size, limit)
	case len(other) > 0:
		if size > max(1, limit/2) {
			t.Fatalf("%d outcomes beside another batch, at most %d", size, limit/2)
		}
	case all > 0 && size == 0:
		t.Fatalf("none of %d outcomes is written", all)
	case least < m.minHalf && size < min(limit, all) && !refused(0) && !refused(1):
		t.Fatalf("%d of %d outcomes, at most %d: got %v of %v", size, all, limit, got, waits)
	case least >= m.minHalf && len(got[0]) > 0 && len(got[1]) > 0:
		t.Fatalf("both halves are in one batch: %v of %v", got, waits)
	}
}

// half returns the outcomes of a half in a place, in the order in which they were added.
func (m *queueModel) half(p place, half int) []int {
	return slices.DeleteFunc(m.in(p), func(n int) bool { return n%2 != half })
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
	writer := rapid.IntRange(0, Writers-1).Draw(t, "writer")
	if len(m.batches[writer]) == 0 {
		return
	}
	results := make([]store.SettleResult, len(m.batches[writer]))
	for i := range results {
		results[i] = rapid.SampledFrom([]store.SettleResult{
			store.Written, store.Written, store.WasSettled, store.WasGone, store.TooEarly, store.WasLocked, store.TableWasLocked, store.Refused, store.Refused,
		}).Draw(t, "result")
	}
	batch := m.q.Written(writer)
	for i := range batch {
		n := batch[i].Of
		want := m.expect(n, results[i])
		if got := m.q.Handle(&batch[i], results[i], m.now); got != want {
			t.Fatalf("outcome %d after result %d: got step %d, want %d", n, results[i], got, want)
		}
	}
	m.q.Recycle(batch)
	m.batches[writer] = nil
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
	byHalf := func(a, b int) int { return cmp.Compare(a%2, b%2) }
	slices.SortStableFunc(got, byHalf)
	slices.SortStableFunc(want, byHalf)
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
	for p, got := range map[place]int{waiting: m.q.Waiting(), writing: m.q.Writing(), deferred: len(m.q.Deferred())} {
		if want := len(m.in(p)); got != want {
			t.Fatalf("%s: got %d, want %d", p, got, want)
		}
	}
	for o := range m.q.InFlight() {
		if p := m.all[o.Of].place; p != writing {
			t.Fatalf("outcome %d is in flight, want %s", o.Of, p)
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
		for writer := range m.batches {
			m.q.Next(writer, 10)
			batch := m.q.Written(writer)
			for i := range batch {
				m.q.Handle(&batch[i], store.Written, m.now)
				delete(m.all, batch[i].Of)
			}
			m.q.Recycle(batch)
		}
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
	q, now := newQueue(1), time.Unix(1e9, 0)
	q.Add(Outcome[int]{})
	for i, seconds := range []int{1, 2, 4, 8, 16, 32, 60, 60} {
		q.Next(0, 1)
		batch := q.Written(0)
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

// An outcome that the store refuses again and again holds back neither those behind it nor the other half, nor
// do new outcomes of the other half.
func TestNoHalfWaitsForever(t *testing.T) {
	q, now := newQueue(3), time.Unix(1e9, 0)
	write := func() (written []int) {
		batch := q.Next(0, 10)
		q.Written(0)
		for i := range batch {
			result := store.Written
			if batch[i].Of == 1 {
				result = store.Refused
			}
			q.Handle(&batch[i], result, now)
			written = append(written, batch[i].Of)
		}
		q.Recycle(batch)
		return written
	}
	q.Add(Outcome[int]{Of: 1})
	write()
	var got []int
	for i := range 8 {
		now = now.Add(time.Minute)
		if o, due := q.Due(now); due {
			q.Add(o)
		}
		if q.Add(Outcome[int]{Of: 10 + 2*i}); i == 0 {
			q.Add(Outcome[int]{Of: 3})
		}
		got = append(got, write()...)
	}
	if !slices.Contains(got, 3) || !slices.Contains(got, 20) {
		t.Errorf("written: %v, want 3 and 20 too", got)
	}
}
