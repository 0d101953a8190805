package spill

import (
	"cmp"
	"iter"
	"maps"
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
// time. The rows of a lane are in held, first and waiting in this order.
type spills struct {
	waiting lane.Fifo[Pending]

	// held are rows that came first and are held back, by lane. first are lists of rows that go before
	// those waiting, the last list before the others.
	held  map[*lane.Lane][]Pending
	first [][]Pending

	writing []Pending
	count   int // rows that are not in writing
	direct  int // rows that their lanes do not keep
	refused int // rows in memory that the store refuses to spill
}

func (s *spills) add(p Pending) {
	if !p.Copied {
		s.direct++
	}
	s.count++
	s.waiting.Push(p)
}

// addFirst adds a row that its lane keeps, in front of all others.
func (s *spills) addFirst(p Pending) {
	s.count++
	s.first = append(s.first, []Pending{p})
}

// take begins to write the first n rows that are not held back.
func (s *spills) take(n int, heldBack func(*Pending) bool) []Pending {
	s.writing = nil
	for len(s.writing) < n {
		p, some := s.pop()
		if !some {
			break
		}
		if heldBack(&p) {
			s.held[p.Lane] = append(s.held[p.Lane], p)
		} else {
			s.writing = append(s.writing, p)
		}
	}
	s.count -= len(s.writing)
	return s.writing
}

// pop removes and returns the first row that is not in held; false if there is none.
func (s *spills) pop() (p Pending, some bool) {
	for last := len(s.first) - 1; last >= 0; last-- {
		if rows := s.first[last]; len(rows) > 0 {
			s.first[last] = rows[1:]
			return rows[0], true
		}
		s.first = s.first[:last]
	}
	if s.waiting.Len() == 0 {
		return p, false
	}
	return s.waiting.Pop(), true
}

// release puts the rows of a lane that are held back in front of all others.
func (s *spills) release(l *lane.Lane) {
	if rows, some := s.held[l]; some {
		delete(s.held, l)
		s.first = append(s.first, rows)
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

// all iterates over the rows, those being written last.
func (s *spills) all() iter.Seq[*Pending] {
	return func(yield func(*Pending) bool) {
		for _, queue := range slices.Concat(slices.Collect(maps.Values(s.held)), s.first, [][]Pending{s.waiting.Items(), s.writing}) {
			for i := range queue {
				if !yield(&queue[i]) {
					return
				}
			}
		}
	}
}

// takeBack removes and returns the rows that match and are not being written, those of a lane in order.
func (s *spills) takeBack(is func(*Pending) bool) (taken []Pending) {
	for _, l := range slices.SortedFunc(maps.Keys(s.held), func(a, b *lane.Lane) int { return cmp.Compare(b.CreatedOrder, a.CreatedOrder) }) {
		s.release(l)
	}
	match := func(p Pending) bool { return is(&p) }
	for i := len(s.first) - 1; i >= 0; i-- {
		s.first[i] = slices.DeleteFunc(s.first[i], func(p Pending) bool {
			if is(&p) {
				taken = append(taken, p)
				return true
			}
			return false
		})
	}
	taken = append(taken, s.waiting.RemoveAll(match)...)
	s.count -= len(taken)
	return taken
}

// cancel removes and returns the rows that some lanes do not keep and that are not being written, those
// of a lane in order.
func (s *spills) cancel(of map[*lane.Lane]bool) []Pending {
	taken := s.takeBack(func(p *Pending) bool { return of[p.Lane] && !p.Copied })
	s.direct -= len(taken)
	return taken
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
