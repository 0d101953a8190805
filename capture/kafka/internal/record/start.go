package record

import "github.com/sluicebox/sluicebox/store"

// Starter finds a place from which the middle of a partition can be read. The first records there may be late,
// parts of a row, or rows of a transaction that began earlier. For example, the partition may have
// the Leader of epoch 2 before them, and then records of epoch 1 are late.
//
// A record of an epoch is not late in two cases:
//
//   - Until has this epoch. Epochs only rise, so no higher Leader comes before Until.
//   - The next Leader says that a checkpoint of this epoch rests on the record. The database let
//     this feeder save the checkpoint, so no other had raised the epoch, and no higher Leader was written.
//
// The place has no Done, because the records until the next Leader are of one feeder, which repeats
// nothing. The first transaction must be complete by then, because the next feeder may repeat earlier ones.
type Starter struct {
	// Before is an offset. No record from it on may be left out, except late ones and the rest of a
	// transaction that began before the first record.
	Before int64
	// Until is a place that the shard has read up to.
	Until Place

	start  Place // its epoch is 0 until there is a record
	cursor Cursor
	broken bool // the cursor cannot go on
}

// Take takes the next record, and reports whether there is a result.
func (s *Starter) Take(r Record, offset int64, compare func(a, b store.Position) int) (done bool) {
	switch {
	case r.Kind == Leader && r.Number == 0 && r.Epoch > s.start.Epoch:
		saved := r.AckedEpoch == s.start.Epoch && r.Acked > s.start.Number
		open := s.cursor.Done == "" && s.cursor.Index > 0
		if saved && (!open || s.broken) {
			return true
		}
		if offset >= s.Before { // the records so far may be needed, or some that Kafka has lost
			s.start = Place{}
			return true
		}
		s.begin(Place{Offset: offset + 1, Epoch: r.Epoch, Number: 1})
		return s.start.Epoch == s.Until.Epoch
	case r.Epoch > s.start.Epoch: // its Leader is earlier, so all records so far are late
		s.begin(Place{Offset: offset, Epoch: r.Epoch, Number: r.Number})
	}
	if r.Kind == Part && !r.First && r.Epoch == s.start.Epoch && r.Number == s.start.Number {
		s.begin(Place{Offset: offset + 1, Epoch: r.Epoch, Number: r.Number + 1})
		return false
	}
	_, err := s.cursor.Take(&r, offset, compare)
	s.broken = s.broken || err != nil
	return s.start.Epoch == s.Until.Epoch
}

func (s *Starter) begin(at Place) { s.start, s.cursor, s.broken = at, NewCursor(at), false }

// Place returns the result, false if the search has to begin earlier. Without a result up to Until, all
// records are late, or parts of a row that began earlier.
func (s *Starter) Place(done bool) (Place, bool) {
	if !done {
		return s.Until, true
	}
	return s.start, s.start.Epoch > 0
}
