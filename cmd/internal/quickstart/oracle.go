package quickstart

import (
	"fmt"
	"sync"
	"time"
)

// oracle knows what was committed and holds against it what arrives. Its methods
// may be called from any goroutine.
type oracle struct {
	mu      sync.Mutex
	groups  []group
	tally   tally
	latency histogram
	// Rows are in one of these between their commit and their arrival, which
	// may be noted in either order.
	waiting      map[order]time.Time // committed and not yet arrived
	arrivedEarly map[order]time.Time // arrived, with the commit not yet noted
	changed      chan struct{}       // closed and replaced with each request
}

// group is what is known of one group.
type group struct {
	begun   int              // the number of the last order that was written
	last    int              // the largest number that arrived
	missing map[int]struct{} // the numbers below it that did not
}

// tally is what happened so far.
type tally struct {
	committed, delivered            int // distinct rows
	duplicates, outOfOrder, unknown int
	lastArrival                     time.Time
	examples                        []string // the first faults, in words
}

// maxExamples is how many faults are kept in words.
const maxExamples = 5

func newOracle(groups int) *oracle {
	return &oracle{
		groups:  make([]group, groups),
		waiting: map[order]time.Time{}, arrivedEarly: map[order]time.Time{},
		changed: make(chan struct{}),
	}
}

// begin returns the next order of a group, about to be written. A group has one
// writer at a time.
func (o *oracle) begin(g int) order {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.groups[g].begun++
	return order{g, o.groups[g].begun}
}

// committed notes that an order's transaction was committed, and when its writer
// knew. Its time does not go into the latency if it is not to be timed.
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
		o.latency.add(arrived.Sub(committed))
	}
}

// recordRequest notes the rows of a request that the receiver takes, in their order.
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
		o.addExample("row %s arrived, which nobody wrote", r.id())
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

// state is the tally with the latencies, at one moment.
type state struct {
	tally
	p50, p99 time.Duration
	// uncommitted are rows that arrived and whose transaction did not commit.
	uncommitted int
	// lost are the ids of some rows that were committed and did not arrive.
	lost []string
}

// currentState returns the state and a channel that is closed when the next request has
// arrived.
func (o *oracle) currentState() (state, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := state{
		tally: o.tally, uncommitted: len(o.arrivedEarly),
		p50: o.latency.quantile(.50), p99: o.latency.quantile(.99),
	}
	for r := range o.waiting {
		if len(s.lost) == maxExamples {
			break
		}
		s.lost = append(s.lost, r.id())
	}
	return s, o.changed
}
