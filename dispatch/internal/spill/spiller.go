package spill

import (
	"iter"

	"github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

// Core is what a Spiller needs of the core, which decides the next step of lanes and rows.
type Core interface {
	// Wake queues a lane unless it waits for something else. It removes an empty lane.
	Wake(l *lane.Lane)

	// Unclaim gives back the claim of a row, if it has one.
	Unclaim(rw *lane.Row)

	// Enqueue queues an outcome that waited for its row's copy.
	Enqueue(o lane.Outcome)

	// Left: the row has left memory.
	Left(rw *lane.Row)
}

// Config configures a Spiller.
type Config struct {
	BatchRows  int // maximum rows in a request
	BufferRows int // maximum rows in memory

	// Unwritten: rows with a deferred outcome may be spilled.
	Unwritten bool

	// Whole: a row is spilled only with or after the rows in front of it in its lane, even those
	// in flight. After a crash, rows that were not spilled are appended to the spilled ones if
	// no position tells their place, as while polling.
	Whole bool
}

// Spiller decides which rows leave memory and which are read back. It is not safe for
// concurrent use.
type Spiller struct {
	Reloads Reloads

	cfg   Config
	lanes *lane.Set
	core  Core
	ended bool

	spills spills
	copies copies

	// shrinking holds lanes that evict their rows once those are spilled.
	shrinking map[*lane.Lane]bool
	kinds     kinds
}

// New returns the spiller of a set of lanes. It starts nothing.
func New(cfg Config, lanes *lane.Set, core Core) *Spiller {
	sp := &Spiller{
		cfg: cfg, lanes: lanes, core: core,
		shrinking: map[*lane.Lane]bool{}, copies: copies{settling: map[store.SpilledRef]bool{}},
		spills: spills{held: map[*lane.Lane][]Pending{}},
	}
	sp.Reloads.sp = sp
	return sp
}

// AllowUnwritten lets rows with a deferred outcome be spilled.
func (sp *Spiller) AllowUnwritten() { sp.cfg.Unwritten = true }

// SpillWhole sets Config.Whole.
func (sp *Spiller) SpillWhole() { sp.cfg.Whole = true }

// Lane returns the live lane with a name and creates it if necessary. A lane that was
// spilled continues.
func (sp *Spiller) Lane(name lane.Name) *lane.Lane {
	l, added := sp.lanes.Ensure(name)
	if added {
		sp.restore(l)
	}
	return l
}

// Append puts a row at the end of its lane, behind its spilled rows if there are any.
func (sp *Spiller) Append(l *lane.Lane, rw *lane.Row) {
	if l.HasSpilled {
		sp.queue(l, rw, false)
	} else {
		l.Rows = append(l.Rows, rw)
	}
}

// Forget forgets a lane that was removed.
func (sp *Spiller) Forget(l *lane.Lane) { delete(sp.shrinking, l) }

// HasWork reports whether there are rows to spill, to delete or to reload.
func (sp *Spiller) HasWork() bool {
	return sp.spills.count+len(sp.copies.toDelete)+sp.Reloads.queue.Len() > 0 || sp.kinds.count() > 0
}

// All iterates over the rows that are to be spilled or being spilled.
func (sp *Spiller) All() iter.Seq[*Pending] { return sp.spills.all() }

// Counts are numbers of rows, and of spilled lanes.
type Counts struct {
	Lanes       int // with all their rows in the store
	Stored      int // spilled rows in the store
	Unspillable int // rows in memory that the store refuses to spill
	Waiting     int // to be spilled
	Writing     int // being spilled
	Direct      int // of both, rows that their lanes do not keep
	Settling    int // spilled rows whose outcome or delete is in flight
}

// Counts returns the present numbers.
func (sp *Spiller) Counts() Counts {
	return Counts{
		Lanes:  sp.kinds.count(),
		Stored: sp.copies.rows, Unspillable: sp.spills.refused, Settling: len(sp.copies.settling),
		Waiting: sp.spills.count, Writing: len(sp.spills.writing), Direct: sp.spills.direct,
	}
}

// IsSettling reports whether the outcome or the delete of a spilled row is in flight.
func (sp *Spiller) IsSettling(ref store.SpilledRef) bool { return sp.copies.settling[ref] }

// Shrinking returns the lanes that evict their rows once those are spilled. The map belongs
// to the spiller.
func (sp *Spiller) Shrinking() map[*lane.Lane]bool { return sp.shrinking }

// Knows reports whether a lane is known as spilled, or is being reloaded as one.
func (sp *Spiller) Knows(outbox string, hash store.LaneHash) bool {
	if s := sp.kinds.of(outbox, hash.Kind()); s != nil {
		if _, _, there := s.lanes.find(groupOf(hash)); there {
			return true
		}
	}
	return sp.Reloads.isReading(hash)
}
