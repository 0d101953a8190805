package verify_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/cmd/internal/verify"
)

// history is what a workload wrote and what its receiver got, without a fault.
type history struct {
	rows     []verify.Row
	arrivals []verify.Arrival
}

// drawHistory draws rows in lanes, and arrivals that keep the order within each lane, with duplicates
// behind the first arrival.
func drawHistory(t *rapid.T) *history {
	h := &history{}
	lanes := rapid.IntRange(1, 4).Draw(t, "lanes")
	waiting := make([][]verify.Row, lanes)
	for i := range rapid.IntRange(1, 40).Draw(t, "rows") {
		lane := rapid.IntRange(0, lanes-1).Draw(t, "lane")
		r := verify.Row{ID: fmt.Sprint("r", i), Lane: fmt.Sprint("lane", lane), Order: int64(i), Sum: fmt.Sprint("sum", i)}
		r.State = rapid.SampledFrom([]verify.State{verify.Completed, verify.Completed, verify.Failed, verify.Waiting}).Draw(t, "state")
		h.rows = append(h.rows, r)
		waiting[lane] = append(waiting[lane], r)
	}
	sources := rapid.IntRange(1, 3).Draw(t, "sources")
	var before []verify.Row
	for len(slices.Concat(waiting...)) > 0 {
		lane := rapid.IntRange(0, lanes-1).Draw(t, "next")
		if len(waiting[lane]) == 0 {
			continue
		}
		r := waiting[lane][0]
		waiting[lane] = waiting[lane][1:]
		if r.State == verify.Completed || rapid.Bool().Draw(t, "arrives") {
			h.arrive(r, rapid.IntRange(1, sources).Draw(t, "source"))
			before = append(before, r)
		}
		if len(before) > 0 && rapid.IntRange(0, 9).Draw(t, "copy") == 0 {
			h.arrive(rapid.SampledFrom(before).Draw(t, "copied"), 1)
		}
	}
	return h
}

func (h *history) arrive(r verify.Row, source int) {
	h.arrivals = append(h.arrivals, verify.Arrival{
		ID: r.ID, Sum: r.Sum, Source: source, At: time.Unix(1000, int64(len(h.arrivals))*1000),
	})
}

// check returns the report of a history whose rows come before its arrivals, or behind them.
func (h *history) check(t *rapid.T) *verify.Report {
	c := verify.New(verify.Options{})
	rows := func() {
		for _, r := range h.rows {
			c.Row(r)
		}
	}
	first := rapid.Bool().Draw(t, "rows first")
	if first {
		rows()
	}
	for _, a := range h.arrivals {
		c.Arrive(a)
	}
	if !first {
		rows()
	}
	return c.Report()
}

// firstArrivals returns the indexes of the first arrivals of rows in a state.
func (h *history) firstArrivals(state verify.State) (at []int) {
	for i, a := range h.arrivals {
		first := slices.IndexFunc(h.arrivals, func(b verify.Arrival) bool { return b.ID == a.ID })
		row := slices.IndexFunc(h.rows, func(r verify.Row) bool { return r.ID == a.ID })
		if first == i && h.rows[row].State == state {
			at = append(at, i)
		}
	}
	return at
}

func (h *history) withdraw(id string) {
	h.arrivals = slices.DeleteFunc(h.arrivals, func(a verify.Arrival) bool { return a.ID == id })
}

func wants(t *rapid.T, r *verify.Report, k verify.Kind, id string) {
	t.Helper()
	if !r.Faulty() && k != verify.Duplicate {
		t.Errorf("planted %s of %s: the report has no fault: %+v", k, id, r)
	}
	if r.Count(k) == 0 || !slices.ContainsFunc(r.Findings, func(f verify.Finding) bool { return f.Kind == k && f.ID == id }) {
		t.Errorf("planted %s of %s: got %+v", k, id, r)
	}
}

// A history without a fault has none, whatever its lanes, sources, duplicates and gaps.
func TestCleanHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t)
		r := h.check(t)
		if r.Faulty() {
			t.Errorf("got faults %+v", r)
		}
		ids := map[string]bool{}
		for _, a := range h.arrivals {
			ids[a.ID] = true
		}
		if r.Rows != len(h.rows) || r.Arrived != len(ids) || r.Duplicates != len(h.arrivals)-len(ids) || r.Unknown != 0 {
			t.Errorf("got %+v, want %d rows, %d arrived, %d duplicates", r, len(h.rows), len(ids), len(h.arrivals)-len(ids))
		}
	})
}

// Each planted fault is found, in any history.
func TestPlantedFaults(t *testing.T) {
	plant := map[verify.Kind]func(*rapid.T, *history) (id string){
		verify.Lost: func(t *rapid.T, h *history) string {
			row := &h.rows[rapid.IntRange(0, len(h.rows)-1).Draw(t, "lost")]
			row.State = verify.Owed
			h.withdraw(row.ID)
			return row.ID
		},
		verify.FalseCompleted: func(t *rapid.T, h *history) string {
			row := &h.rows[rapid.IntRange(0, len(h.rows)-1).Draw(t, "false")]
			row.State = verify.Completed
			h.withdraw(row.ID)
			return row.ID
		},
		verify.Duplicate: func(t *rapid.T, h *history) string {
			h.arrivals = append(h.arrivals, rapid.SampledFrom(h.arrivals).Draw(t, "copy"))
			return h.arrivals[len(h.arrivals)-1].ID
		},
		verify.BodyDiffers: func(t *rapid.T, h *history) string {
			a := &h.arrivals[rapid.IntRange(0, len(h.arrivals)-1).Draw(t, "lie")]
			a.Sum = "another"
			return a.ID
		},
		verify.OutOfOrder: plantSwap,
		verify.Gap: func(t *rapid.T, h *history) string {
			a := rapid.SampledFrom(h.arrivals).Draw(t, "behind")
			for _, a.Chain = range []string{"c;0;0;1", "c;2;2;3"} { // "c;1;1;2" is missing
				h.arrivals = append(h.arrivals, a)
			}
			return a.ID
		},
	}
	for _, kind := range verify.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				h := drawHistory(t)
				if len(h.arrivals) == 0 {
					t.Skip("nothing arrived")
				}
				if id := plant[kind](t, h); id != "" {
					wants(t, h.check(t), kind, id)
				}
			})
		})
	}
}

// plantSwap swaps the first arrivals of two rows of one lane, "" if no lane has two.
func plantSwap(t *rapid.T, h *history) string {
	at := h.firstArrivals(verify.Completed)
	i := rapid.SampledFrom(append(at, 0)).Draw(t, "swapped")
	lane := func(id string) string {
		return h.rows[slices.IndexFunc(h.rows, func(r verify.Row) bool { return r.ID == id })].Lane
	}
	for _, j := range at {
		a, b := h.arrivals[i], h.arrivals[j]
		if j > i && slices.Contains(at, i) && lane(a.ID) == lane(b.ID) {
			early := a.ID
			h.withdraw(a.ID) // with its copies, of which one may be first
			h.arrivals = append(h.arrivals, verify.Arrival{ID: early, Sum: a.Sum, Source: 1, At: time.Unix(2000, 0)})
			return early
		}
	}
	return ""
}

func TestOrder(t *testing.T) {
	check := func(o verify.Options, lane string, arrivals ...string) *verify.Report {
		c := verify.New(o)
		for i, id := range []string{"a", "b", "c"} {
			c.Row(verify.Row{ID: id, Lane: lane, Order: int64(10 * i), State: verify.Completed})
		}
		for _, id := range arrivals {
			c.Arrive(verify.Arrival{ID: id})
		}
		return c.Report()
	}
	for _, tt := range []struct {
		name     string
		options  verify.Options
		lane     string
		arrivals []string
		want     int
	}{
		{"in order, without times", verify.Options{}, "l", []string{"a", "b", "a", "c"}, 0},
		{"a late row counts once", verify.Options{}, "l", []string{"b", "c", "a"}, 1},
		{"a second arrival is no order", verify.Options{}, "l", []string{"a", "b", "c", "a"}, 0},
		{"no lane", verify.Options{}, "", []string{"c", "b", "a"}, 0},
		{"within the slack", verify.Options{Slack: 10}, "l", []string{"b", "a", "c"}, 0},
		{"beyond the slack", verify.Options{Slack: 10}, "l", []string{"c", "b", "a"}, 1},
	} {
		r := check(tt.options, tt.lane, tt.arrivals...)
		if r.OutOfOrder != tt.want {
			t.Errorf("%s: %d out of order, want %d", tt.name, r.OutOfOrder, tt.want)
		}
	}
	r := check(verify.Options{}, "l", "b", "a", "c")
	if want := (verify.Finding{Kind: verify.OutOfOrder, ID: "a", Lane: "l", Behind: "b", Arrivals: 1}); !slices.Contains(r.Findings, want) {
		t.Errorf("findings %+v, want %+v", r.Findings, want)
	}
}

// A source's clock that steps back does not reorder its arrivals.
func TestClockStepsBack(t *testing.T) {
	c := verify.New(verify.Options{})
	for i, at := range []int64{100, 50, 60} {
		id := fmt.Sprint(i)
		c.Row(verify.Row{ID: id, Lane: "l", Order: int64(i), State: verify.Completed})
		c.Arrive(verify.Arrival{ID: id, At: time.Unix(at, 0)})
	}
	if r := c.Report(); r.Faulty() {
		t.Errorf("got %+v", r)
	}
}

// A round reads the rows again, and keeps arrivals that a later round needs.
func TestRounds(t *testing.T) {
	c := verify.New(verify.Options{MaxFindings: 1})
	for _, id := range []string{"a", "deleted", "b"} {
		c.Arrive(verify.Arrival{ID: id, At: time.Unix(10, 0)})
	}
	c.Row(verify.Row{ID: "a", State: verify.Completed})
	c.Row(verify.Row{ID: "late", State: verify.Waiting})
	if r := c.Report(); r.Rows != 2 || r.Unknown != 2 || r.Waiting != 1 || r.Faulty() {
		t.Errorf("first round: %+v", r)
	}

	c.Round(time.Unix(20, 0))
	for _, id := range []string{"a", "late", "other"} {
		c.Row(verify.Row{ID: id, State: verify.Owed})
	}
	if r := c.Report(); r.Rows != 3 || r.Arrived != 1 || r.Unknown != 0 || r.Lost != 2 || len(r.Findings) != 1 {
		t.Errorf("second round: %+v", r)
	}
}

// BenchmarkChecker reports the memory of a row and its arrival.
func BenchmarkChecker(b *testing.B) {
	const rows = 1_000_000
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		c := verify.New(verify.Options{})
		random := rand.New(rand.NewPCG(1, 2))
		for i := range rows {
			id := fmt.Sprintf("%08x-%04x-7000-8000-%012x", i, i&0xffff, random.Uint64()>>16)
			c.Row(verify.Row{ID: id, Lane: fmt.Sprint("lane", i%10_000), Order: int64(i), State: verify.Completed})
			c.Arrive(verify.Arrival{ID: id})
		}
		if r := c.Report(); r.Faulty() {
			b.Fatalf("got %+v", r)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/rows, "B/row")
		runtime.KeepAlive(c)
	}
}
