package spill

import (
	"iter"
	"slices"

	"github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

// Pending is a row on its way to the spilled rows of the store.
type Pending struct {
	Lane *lane.Lane // nil for a delivered row, which is in no lane
	Row  *lane.Row

	// Copied: the lane keeps the row in memory.
	Copied bool
}

// spills holds the rows on their way to the store. They are written in batches, one at a
// time.
type spills struct {
	waiting, writing []Pending
	direct           int // rows that their lanes do not keep
	refused          int // rows in memory that the store refuses to spill
}

func (s *spills) add(p Pending) {
	if !p.Copied {
		s.direct++
	}
	s.waiting = append(s.waiting, p)
}

// take begins to write the first n rows that are not held back.
func (s *spills) take(n int, heldBack func(*Pending) bool) []Pending {
	s.writing = nil
	var left []Pending
	at := 0
	for ; at < len(s.waiting) && len(s.writing) < n; at++ {
		if p := &s.waiting[at]; heldBack(p) {
			left = append(left, *p)
		} else {
			s.writing = append(s.writing, *p)
		}
	}
	s.waiting = append(left, s.waiting[at:]...)
	return s.writing
}

// advance moves the last row in front of the rows of a lane that wait.
func (s *spills) advance(l *lane.Lane) {
	last := len(s.waiting) - 1
	p := s.waiting[last]
	if at := slices.IndexFunc(s.waiting[:last], func(p Pending) bool { return p.Lane == l }); at >= 0 {
		s.waiting = slices.Insert(s.waiting[:last], at, p)
	}
}

// written ends the batch and returns it.
func (s *spills) written() []Pending {
	batch := s.writing
	s.writing = nil
	for i := range batch {
		if !batch[i].Copied {
			s.direct--
		}
	}
	return batch
}

// all iterates over the rows, the waiting ones first.
func (s *spills) all() iter.Seq[*Pending] {
	return func(yield func(*Pending) bool) {
		for _, queue := range [][]Pending{s.waiting, s.writing} {
			for i := range queue {
				if !yield(&queue[i]) {
					return
				}
			}
		}
	}
}

// cancel removes and returns the waiting rows that a lane does not keep.
func (s *spills) cancel(l *lane.Lane) (rows []*lane.Row) {
	s.waiting = slices.DeleteFunc(s.waiting, func(p Pending) bool {
		if p.Lane != l || p.Copied {
			return false
		}
		rows = append(rows, p.Row)
		return true
	})
	s.direct -= len(rows)
	return rows
}

// setCopy sets the state of a row's copy.
func (s *spills) setCopy(rw *lane.Row, to lane.Copy) {
	if rw.Copy == lane.CopyRefused {
		s.refused--
	}
	rw.Copy = to
	if to == lane.CopyRefused {
		s.refused++
	}
}

// allow allows another try to spill a row that the store refused.
func (s *spills) allow(rw *lane.Row) {
	if rw.Copy == lane.CopyRefused {
		s.setCopy(rw, lane.NoCopy)
	}
}

// copies are the spilled rows in the store.
type copies struct {
	rows     int // in the store
	toDelete []store.SpilledRef

	// settling holds the copies whose outcome or delete is in flight, deletedDuringReload
	// those deleted while a reload is in flight; nil if none is.
	settling, deletedDuringReload map[store.SpilledRef]bool
}

// settle records that the outcome of a row is in flight, so that its copy is not reloaded.
func (c *copies) settle(rw *lane.Row) { c.settling[rw.SpilledRef()] = true }

// delete queues the delete of a row's copy.
func (c *copies) delete(rw *lane.Row) {
	c.settle(rw)
	c.toDelete = append(c.toDelete, rw.SpilledRef())
}

// next returns at most limit copies to delete.
func (c *copies) next(limit int) []store.SpilledRef {
	n := min(limit, len(c.toDelete))
	if n == 0 {
		return nil
	}
	refs := c.toDelete[:n:n]
	c.toDelete = c.toDelete[n:]
	return refs
}

// deleted records that a copy is deleted.
func (c *copies) deleted(ref store.SpilledRef) {
	delete(c.settling, ref)
	c.rows--
	if c.deletedDuringReload != nil {
		c.deletedDuringReload[ref] = true
	}
}
