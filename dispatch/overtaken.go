package dispatch

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

// Only the checkpoint knows which rows of a table without a state were delivered: a crash
// sends the rows of the log behind it again. A row that is not delivered holds the
// checkpoint. So if later rows were delivered behind it about a second ago, it is spilled, in
// a request or not, and stays in memory. It does not matter whether its lane moves: a lane
// with a long backlog moves and holds the checkpoint as well. If nothing later is delivered,
// nothing is spilled. So reading a backlog costs nothing while its lanes advance together.

const (
	// A delivered row is marked within overtakenInterval, and the rows before it are spilled
	// overtakenAfter later. That leaves 0.3 s of a second to spill them and to save the checkpoint,
	// for which the saver may wait 0.1 s.
	overtakenAfter    = 600 * time.Millisecond
	overtakenInterval = 100 * time.Millisecond
)

// Frontier is the last seq of the delivered rows that only the checkpoint knows. The
// dispatchers of a relay share it, as their rows share the checkpoint. A leg has a mark of its
// own in the checkpoint, so it has a frontier of its own.
type Frontier struct{ seq atomic.Int64 }

func (f *Frontier) raise(to store.Seq) {
	for at := f.seq.Load(); at < int64(to) && !f.seq.CompareAndSwap(at, int64(to)); {
		at = f.seq.Load()
	}
}

// frontiers are the frontiers of the outboxes of a dispatcher.
type frontiers struct {
	memory *lanes.Memory // knows the outboxes whose rows only the log has
	of     map[string]*overtaken
	all    []*overtaken // in a fixed order
	rest   *overtaken   // of outboxes that are not in of; nil if none of their rows is spilled
}

// newFrontiers returns the frontiers of a core whose outboxes share one.
func newFrontiers(memory *lanes.Memory, spill func(*lane, *row)) frontiers {
	o := &overtaken{spill: spill, frontier: new(Frontier)}
	return frontiers{memory: memory, all: []*overtaken{o}, rest: o}
}

// set sets the frontier of each outbox that has one.
func (f *frontiers) set(by map[string]*Frontier) {
	shared := map[*Frontier]*overtaken{}
	spill := f.rest.spill
	f.of, f.all, f.rest = map[string]*overtaken{}, nil, nil
	for _, outbox := range slices.Sorted(maps.Keys(by)) {
		o := shared[by[outbox]]
		if o == nil {
			o = &overtaken{spill: spill, frontier: by[outbox]}
			shared[by[outbox]] = o
			f.all = append(f.all, o)
		}
		f.of[outbox] = o
	}
}

// holding returns what tracks a row that holds the checkpoint because only the log has it; nil if
// it does not.
func (f *frontiers) holding(rw *row) *overtaken {
	if rw.Ticket == nil || !f.memory.LogOnly[rw.Outbox] {
		return nil
	}
	if o := f.of[rw.Outbox]; o != nil {
		return o
	}
	return f.rest
}

// add records a row of the log, of a batch that begins at first.
func (f *frontiers) add(l *lane, rw *row, first store.Seq) {
	if o := f.holding(rw); o != nil {
		o.add(l, rw, first)
	}
}

// done records that a row is done.
func (f *frontiers) done(rw *row) {
	if o := f.holding(rw); o != nil {
		o.frontier.raise(rw.Seq)
	}
}

// due is the time of the next look; false if no row may hold the checkpoint.
func (f *frontiers) due() (at time.Time, ok bool) {
	for _, o := range f.all {
		if due, some := o.due(); some && (!ok || due.Before(at)) {
			at, ok = due, true
		}
	}
	return at, ok
}

// look spills the rows behind which later rows were delivered some time ago.
func (f *frontiers) look(now time.Time) {
	for _, o := range f.all {
		o.look(now)
	}
}

// end spills all rows, and those that come from now on at once.
func (f *frontiers) end() {
	for _, o := range f.all {
		o.ended = true
		o.spillAll()
	}
}

// spillAll spills all rows, so that the checkpoint passes all delivered ones.
func (f *frontiers) spillAll() {
	for _, o := range f.all {
		o.spillAll()
	}
}

// overtaken finds the rows that hold the checkpoint although later rows of a frontier were
// delivered. Each row is visited once or twice, so a look costs as much as the rows that came
// since.
type overtaken struct {
	spill    func(*lane, *row) // spills a row that is only in memory
	frontier *Frontier

	rows     lanes.Fifo[trackedRow] // in order of seq, the delivered ones among them included
	behind   []trackedRow           // rows the frontier had passed overtakenAfter ago, not yet spilled
	marks    []frontierMark         // recent places of the frontier
	nextLook time.Time
	ended    bool
}

// trackedRow is a row that only the log has. A batch is passed as a whole, so the row holds
// all rows from the first of its batch on.
type trackedRow struct {
	lane  *lane
	row   *row
	first store.Seq
}

type frontierMark struct {
	at  time.Time
	seq store.Seq
}

// add records a row of the log, of a batch that begins at first.
func (o *overtaken) add(l *lane, rw *row, first store.Seq) {
	o.rows.Push(trackedRow{l, rw, first})
	if o.ended {
		o.spillAll()
	}
}

// due is the time of the next look; false if no row may hold the checkpoint.
func (o *overtaken) due() (at time.Time, ok bool) {
	return o.nextLook, !o.ended && o.rows.Len()+len(o.behind) > 0
}

// look spills the rows behind which later rows were delivered some time ago.
func (o *overtaken) look(now time.Time) {
	if at, ok := o.due(); !ok || now.Before(at) {
		return
	}
	o.nextLook = now.Add(overtakenInterval)
	seq := store.Seq(o.frontier.seq.Load())
	if n := len(o.marks); n == 0 || o.marks[n-1].seq < seq {
		o.marks = append(o.marks, frontierMark{now, seq})
	}
	passed := 0
	for passed < len(o.marks) && now.Sub(o.marks[passed].at) >= overtakenAfter {
		passed++
	}
	upTo := store.Seq(0)
	if passed > 0 {
		upTo = o.marks[passed-1].seq
		o.marks = o.marks[passed-1:] // the last one holds for rows that come late
	}
	o.spillUpTo(upTo)
}

// spillAll spills all rows.
func (o *overtaken) spillAll() { o.spillUpTo(1<<63 - 1) }

// spillUpTo spills the rows of the batches that begin up to a seq.
func (o *overtaken) spillUpTo(seq store.Seq) {
	for o.rows.Len() > 0 && (o.rows.Items()[0].row.Ticket == nil || o.rows.Items()[0].first <= seq) {
		o.behind = append(o.behind, o.rows.Pop())
	}
	kept := o.behind[:0]
	for _, t := range o.behind {
		if t.row.Ticket == nil {
			continue
		}
		o.spill(t.lane, t.row)
		kept = append(kept, t)
	}
	clear(o.behind[len(kept):])
	o.behind = kept
}
