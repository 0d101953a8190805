package replay

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store"
)

// jobsModel is the reference model: the rows of each job in memory, and where their results
// are.
type jobsModel struct {
	js        Jobs[string]
	rows      map[string]map[int64]*entry
	open      map[string]*Job // with rows in memory
	withdrawn map[string]bool
	finished  []string // waiting to be recorded, in order
	recording []string
	changed   bool
}

// entry is a row in memory.
type entry struct {
	key      store.LaneKey
	size     int
	finished bool
}

func label(id string, n int64) string { return fmt.Sprintf("%s#%d", id, n) }

func drawJob(t *rapid.T) string { return rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "job") }

// enter brings rows of a job, some of which are in memory already.
func (m *jobsModel) enter(t *rapid.T) {
	id := drawJob(t)
	j := m.js.Open(id)
	if before := m.open[id]; before != nil && j != before || j.ID() != id || j.Withdrawing() {
		t.Fatalf("job %s: got another job %s, withdrawing %v", id, j.ID(), j.Withdrawing())
	}
	m.open[id], m.withdrawn[id] = j, false
	if m.rows[id] == nil {
		m.rows[id] = map[int64]*entry{}
	}
	for range rapid.IntRange(1, 5).Draw(t, "rows") {
		n := int64(rapid.IntRange(1, 20).Draw(t, "n"))
		e := &entry{
			key:  store.LaneKey{Outbox: "box", Kind: "EVENT", Group: store.GroupOf(fmt.Sprint(n % 3))},
			size: rapid.IntRange(0, 9).Draw(t, "size"),
		}
		there := m.rows[id][n] != nil
		if m.js.Enter(j, n, e.key, e.size) == there {
			t.Fatalf("row %s enters: got %v, want %v", label(id, n), there, !there)
		}
		if !there {
			m.rows[id][n] = e
		}
	}
}

// drawRow returns a row of a job that is in memory and not finished.
func (m *jobsModel) drawRow(t *rapid.T) (id string, n int64, ok bool) {
	id = drawJob(t)
	var open []int64
	for n, e := range m.rows[id] {
		if !e.finished {
			open = append(open, n)
		}
	}
	if len(open) == 0 {
		return "", 0, false
	}
	slices.Sort(open)
	return id, rapid.SampledFrom(open).Draw(t, "row"), true
}

// finish ends a row: it is accepted or refused for good.
func (m *jobsModel) finish(t *rapid.T) {
	if id, n, ok := m.drawRow(t); ok {
		m.rows[id][n].finished = true
		m.js.Finish(m.open[id], store.FinishedRow{N: n, Lane: m.rows[id][n].key}, id)
		m.finished = append(m.finished, label(id, n))
	}
}

// leave removes a row from memory.
func (m *jobsModel) leave(id string, n int64) {
	e := m.rows[id][n]
	m.js.Leave(m.open[id], n, e.key, e.size)
	delete(m.rows[id], n)
	if m.changed = true; len(m.rows[id]) == 0 {
		delete(m.open, id)
	}
}

// withdraw withdraws a job: rows that are not finished leave.
func (m *jobsModel) withdraw(t *rapid.T) {
	id := drawJob(t)
	if j := m.js.Withdraw(id); j != m.open[id] {
		t.Fatalf("withdraw job %s: got %v, want %v", id, j, m.open[id])
	}
	m.withdrawn[id] = m.open[id] != nil
	for _, n := range slices.Sorted(maps.Keys(m.rows[id])) {
		if !m.rows[id][n].finished && rapid.Bool().Draw(t, "in no request") {
			m.leave(id, n)
		}
	}
}

// next begins to record results and checks that they are of one job, in order.
func (m *jobsModel) next(t *rapid.T) {
	limit := rapid.IntRange(1, 4).Draw(t, "limit")
	id, rows := m.js.Next(limit)
	var got []string
	for i := range rows {
		got = append(got, label(id, rows[i].N))
	}
	n := 0
	for len(m.recording) == 0 && n < min(limit, len(m.finished)) && m.finished[n][0] == m.finished[0][0] {
		n++
	}
	if want := m.finished[:n]; !slices.Equal(got, want) {
		t.Fatalf("results to record: got %v, want %v", got, want)
	}
	if n > 0 {
		m.recording, m.finished = m.finished[:n:n], m.finished[n:]
	}
}

// recorded ends the batch.
func (m *jobsModel) recorded(t *rapid.T) {
	batch := m.js.Recorded()
	if len(batch) != len(m.recording) {
		t.Fatalf("recorded results: got %d, want %d", len(batch), len(m.recording))
	}
	for i := range batch {
		if got := label(batch[i].Of, batch[i].N); got != m.recording[i] {
			t.Fatalf("recorded result %d: got %s, want %s", i, got, m.recording[i])
		}
		m.leave(batch[i].Of, batch[i].N)
	}
	m.recording = nil
}

func (m *jobsModel) check(t *rapid.T) {
	for _, id := range []string{"a", "b", "c"} {
		bytes, byLane := int64(0), map[store.LaneKey]int{}
		for _, e := range m.rows[id] {
			bytes += int64(e.size)
			byLane[e.key]++
		}
		gotRows, gotBytes, gotLanes := m.js.Load(id)
		if gotRows != len(m.rows[id]) || gotBytes != bytes || !maps.Equal(gotLanes, byLane) {
			t.Fatalf("load of job %s: got %d rows, %d bytes, %v, want %d, %d, %v", id, gotRows, gotBytes, gotLanes, len(m.rows[id]), bytes, byLane)
		}
		if j := m.open[id]; j != nil && j.Withdrawing() != m.withdrawn[id] {
			t.Fatalf("job %s is withdrawing: got %v, want %v", id, j.Withdrawing(), m.withdrawn[id])
		}
	}
	if got, want := slices.Sorted(m.js.All()), slices.Sorted(maps.Keys(m.open)); !slices.Equal(got, want) {
		t.Fatalf("jobs: got %v, want %v", got, want)
	}
	var results []string
	for f := range m.js.Results() {
		results = append(results, label(f.Of, f.N))
	}
	if want := slices.Concat(m.finished, m.recording); !slices.Equal(results, want) || m.js.Unrecorded() != len(want) || m.js.Waiting() != len(m.finished) {
		t.Fatalf("results: got %v, %d and %d, want %v, %d", results, m.js.Unrecorded(), m.js.Waiting(), want, len(m.finished))
	}
}

func TestJobsAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &jobsModel{js: NewJobs[string](), rows: map[string]map[int64]*entry{}, open: map[string]*Job{}, withdrawn: map[string]bool{}}
		t.Repeat(map[string]func(*rapid.T){
			"":            m.check,
			"enter":       m.enter,
			"finish":      m.finish,
			"finish more": m.finish,
			"withdraw":    m.withdraw,
			"next":        m.next,
			"recorded":    m.recorded,
			"notify":      func(*rapid.T) { m.js.Notify(); m.changed = true },
			"changed": func(t *rapid.T) {
				if got := m.js.TakeChanged(); got != m.changed {
					t.Fatalf("changed: got %v, want %v", got, m.changed)
				}
				m.changed = false
			},
		})
	})
}

// A hold waits for the rows that were in flight when it began, and for no later ones.
func TestHoldsAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := NewHolds[int]()
		flight, waits := map[string]map[int]bool{}, map[string]map[int]bool{} // by group
		group := func(t *rapid.T) (string, store.LaneKey) {
			name := rapid.SampledFrom([]string{"g", "h"}).Draw(t, "group")
			if flight[name] == nil {
				flight[name] = map[int]bool{}
			}
			return name, store.LaneKey{Group: store.GroupOf(name)}
		}
		t.Repeat(map[string]func(*rapid.T){
			"start": func(t *rapid.T) {
				name, _ := group(t)
				flight[name][rapid.IntRange(0, 9).Draw(t, "row")] = true
			},
			"end": func(t *rapid.T) {
				name, _ := group(t)
				row := rapid.IntRange(0, 9).Draw(t, "row")
				delete(flight[name], row)
			},
			"hold": func(t *rapid.T) {
				name, key := group(t)
				h.Hold(key, maps.Keys(flight[name]))
				waits[name] = maps.Clone(flight[name])
			},
			"release": func(t *rapid.T) {
				name, key := group(t)
				h.Release(key)
				delete(waits, name)
			},
			"narrow": func(t *rapid.T) {
				name, key := group(t)
				if waits[name] == nil {
					return
				}
				maps.DeleteFunc(waits[name], func(row int, _ bool) bool { return !flight[name][row] })
				if got, want := h.Narrow(key, maps.Keys(flight[name])), len(waits[name]) == 0; got != want {
					t.Fatalf("group %s is quiet: got %v, want %v", name, got, want)
				}
			},
			"": func(t *rapid.T) {
				name, key := group(t)
				rows, held := h.Rows(key)
				if held != (waits[name] != nil) || held && !slices.Equal(slices.Sorted(rows), slices.Sorted(maps.Keys(waits[name]))) || h.Len() != len(waits) {
					t.Fatalf("group %s is held: got %v, %d holds, want %v, %d", name, held, h.Len(), waits[name], len(waits))
				}
			},
		})
	})
}
