package record

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// Place is how far a shard has read its partition. Its text is a position of the shard's source.
type Place struct {
	Offset int64       // of the next record
	Epoch  store.Epoch // the highest of a Leader so far
	Number uint64      // of the next record of this epoch
	Done   store.Position
	Index  uint64 // rows of the transaction after Done
}

// Position returns the place as text: offset, epoch, number, index, and the database's position.
func (p *Place) Position() store.Position {
	return store.Position(fmt.Sprintf("%d/%d/%d/%d/%s", p.Offset, p.Epoch, p.Number, p.Index, p.Done))
}

// ParsePlace reads a position.
func ParsePlace(at store.Position) (p Place, err error) {
	parts := strings.SplitN(string(at), "/", 5)
	if len(parts) != 5 {
		return p, fmt.Errorf("position %q is not one of a Kafka partition", at)
	}
	numbers := make([]uint64, 4)
	for i := range numbers {
		if numbers[i], err = strconv.ParseUint(parts[i], 10, 63); err != nil {
			return p, fmt.Errorf("position %q is not one of a Kafka partition: %w", at, err)
		}
	}
	return Place{Offset: int64(numbers[0]), Epoch: store.Epoch(numbers[1]), Number: numbers[2], Index: numbers[3], Done: store.Position(parts[4])}, nil
}

// GapError says that a shard cannot continue from its place.
type GapError struct{ Reason string }

func (e *GapError) Error() string { return e.Reason }

// Take advances the place behind a record, and reports whether the shard has not seen it before. The
// caller sets the offset. compare orders positions of the database's log.
//
// A record of an epoch below that of a Leader was late: its feeder no longer led. The feeder of the
// present one begins again at a position up to which all partitions have the rows, so the first
// records of all rows are in the order of commits.
func (p *Place) Take(r *Record, compare func(a, b store.Position) int) (fresh bool, err error) {
	switch {
	case r.Epoch < p.Epoch, r.Epoch == p.Epoch && r.Number < p.Number:
		return false, nil
	case r.Epoch > p.Epoch && r.Kind == Leader && r.Number == 0:
		if p.Epoch < r.AckedEpoch || p.Epoch == r.AckedEpoch && p.Number < r.Acked {
			return false, &GapError{fmt.Sprintf("the partition lacks the records up to number %d of epoch %d, which Kafka had stored; this shard is at number %d of epoch %d", r.Acked-1, r.AckedEpoch, p.Number, p.Epoch)}
		}
		p.Epoch, p.Number = r.Epoch, 1
		return false, nil
	case r.Epoch > p.Epoch:
		return false, &GapError{fmt.Sprintf("the partition has a record of epoch %d, but not its first", r.Epoch)}
	case r.Number > p.Number:
		return false, &GapError{fmt.Sprintf("the partition lacks the records %d to %d of epoch %d, which Kafka had stored", p.Number, r.Number-1, r.Epoch)}
	}
	p.Number++
	switch r.Kind {
	case Gap:
		return false, &GapError{"the database's log was lost, and the rows until then are in its tables only"}
	case Row, End:
		return p.takeRow(r, compare), nil
	}
	return r.Kind == Mark || r.Kind == Idle, nil
}

func (p *Place) takeRow(r *Record, compare func(a, b store.Position) int) (fresh bool) {
	if p.Done != "" && compare(r.After, p.Done) < 0 {
		return false
	}
	if r.Kind == Row && r.Index > p.Index {
		p.Index, fresh = r.Index, true
	}
	if r.End != "" {
		p.Done, p.Index = r.End, 0
	}
	return fresh
}
