package quickstart

import (
	"fmt"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/histogram"
)

// oracle compares the rows that arrive with the rows that were committed. Its methods
// may be called from any goroutine.
type oracle struct {
	mu      sync.Mutex
	groups  []group
	tally   tally
	latency histogram.Histogram
	// A row is in one of these maps between its commit and its arrival, which may be
	// recorded in either order.
	waiting      map[order]time.Time // committed and not yet arrived
	arrivedEarly map[order]time.Time // arrived, with the commit not yet recorded
	changed      chan struct{}       // closed and replaced with each request
}

// group is the state of one message group.
type group struct {
	begun   int              // the number of the last order written
	last    int              // the largest number that arrived
	missing map[int]struct{} // smaller numbers that have not arrived
}

// tally counts commits, arrivals and faults so far.
type tally struct {
	committed, delivered            int // distinct rows
	duplicates, outOfOrder, unknown int
	lastArrival                     time.Time
	examples                        []string // descriptions of the first faults
}

// maxExamples is the number of faults that are described.
const maxExamples = 5

func newOracle(groups int) *oracle {
	return &oracle{
		groups:  make([]group, groups),
		waiting: map[order]time.Time{}, arrivedEarly: map[order]time.Time{},
		changed: make(chan struct{}),
	}
}

// begin returns the next order of a group, which the caller is about to write. A group
// has one writer at a time.
func (o *oracle) begin(g int) order {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.groups[g].begun++
	return order{g, o.groups[g].begun}
}

// committed records that an order's COMMIT returned at a time. The order counts in the
// latency only if timed is set.
func (o *oracle) committed(r order, at time.Time, timed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tally.committed++
	if arrived, ok := o.arrivedEarly[r]; ok {
		delete(o.arrivedEarly, r)
		o.measure(at, arrived, timed)
		return
	}
	if !timed {
		at = time.Time{}
	}
	o.waiting[r] = at
}

func (o *oracle) measure(committed, arrived time.Time, timed bool) {
	o.tally.delivered++
	if timed && !committed.IsZero() {
		o.latency.Add(arrived.Sub(committed))
	}
}

// recordRequest records the rows of an accepted request, in their order.
func (o *oracle) recordRequest(rows []order, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range rows {
		o.recordRow(r, at)
	}
	o.tally.lastArrival = at
	close(o.changed)
	o.changed = make(chan struct{})
}

func (o *oracle) recordRow(r order, at time.Time) {
	if r.group < 0 || r.group >= len(o.groups) || r.n < 1 || r.n > o.groups[r.group].begun {
		o.tally.unknown++
		o.addExample("row %s arrived but was never written", r.id())
		return
	}

	g := &o.groups[r.group]
	_, missing := g.missing[r.n]
	switch {
	case r.n <= g.last && !missing:
		o.tally.duplicates++
		o.addExample("row %s arrived again", r.id())
		return
	case missing:
		delete(g.missing, r.n)
		o.tally.outOfOrder++
		o.addExample("row %s arrived after row %s", r.id(), order{r.group, g.last}.id())
	default:
		for n := g.last + 1; n < r.n; n++ {
			if g.missing == nil {
				g.missing = map[int]struct{}{}
			}
			g.missing[n] = struct{}{}
		}
		g.last = r.n
	}
	if committed, ok := o.waiting[r]; ok {
		delete(o.waiting, r)
		o.measure(committed, at, true)
		return
	}
	o.arrivedEarly[r] = at
}

func (o *oracle) addExample(format string, args ...any) {
	if len(o.tally.examples) < maxExamples {
		o.tally.examples = append(o.tally.examples, fmt.Sprintf(format, args...))
	}
}

// state is a snapshot of the tally and the latencies.
type state struct {
	tally
	p50, p99 time.Duration
	// uncommitted is the number of rows that arrived without a recorded commit.
	uncommitted int
	// lost has the ids of up to maxExamples rows that were committed and have not
	// arrived.
	lost []string
}

// currentState returns the state and a channel that is closed at the next request.
func (o *oracle) currentState() (state, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := state{
		tally: o.tally, uncommitted: len(o.arrivedEarly),
		p50: o.latency.Quantile(.50), p99: o.latency.Quantile(.99),
	}
	for r := range o.waiting {
		if len(s.lost) == maxExamples {
			break
		}
		s.lost = append(s.lost, r.id())
	}
	return s, o.changed
}
