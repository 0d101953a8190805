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

// IsGap reports whether rows that were committed before a record may be in no partition, only in the tables: the
// database's log was lost, or the topic had another number of partitions for a while.
func (r *Record) IsGap() bool { return r.Kind == Gap || r.Kind == Leader && r.AckedEpoch == 0 }

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
		if p.Epoch > 0 && r.IsGap() {
			return false, &GapError{fmt.Sprintf("the feeder of epoch %d does not know which records this partition has: it had no checkpoint, or one of another number of partitions", r.Epoch)}
		}
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
	return r.Kind == Mark || r.Kind == Idle || r.Kind == Part, nil
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

// Joiner joins the Parts of rows. The zero value is ready.
type Joiner struct {
	epoch store.Epoch // of the row
	parts []byte      // nil between rows
}

// Join reports whether a record is complete. The last Part of a row is replaced by the row. The error is a
// *GapError for a Part that does not follow the one before it.
func (j *Joiner) Join(r *Record) (complete bool, err error) {
	if r.Epoch > j.epoch {
		j.epoch, j.parts = r.Epoch, nil // the former feeder's row is not finished, and written again
	}
	if r.Kind != Part {
		return true, nil
	}
	if r.Epoch < j.epoch || r.First != (j.parts == nil) {
		return false, &GapError{fmt.Sprintf("record %d of epoch %d is a part of a row, and not in its place", r.Number, r.Epoch)}
	}
	if j.parts = append(j.parts, r.Data...); !r.Last {
		return false, nil
	}
	row, err := Parse(j.parts)
	j.parts = nil
	if err == nil && row.Kind != Row {
		err = fmt.Errorf("the parts of a row have kind %d", row.Kind)
	}
	row.Epoch, row.Number = r.Epoch, r.Number
	*r = row
	return err == nil, err
}

// Cursor is how far a shard reads its partition. It joins the Parts of a row.
type Cursor struct {
	Place
	// Whole is the place behind the last record that was no Part with others to come. Only it is a
	// place to begin at.
	Whole Place

	joiner Joiner
}

// NewCursor returns a cursor at a place.
func NewCursor(at Place) Cursor { return Cursor{Place: at, Whole: at} }

// Take advances the cursor behind a record at an offset, as Place.Take does. It replaces the last Part of
// a row by the row.
func (c *Cursor) Take(r *Record, offset int64, compare func(a, b store.Position) int) (fresh bool, err error) {
	number := c.Number
	fresh, err = c.Place.Take(r, compare)
	c.Offset = offset + 1
	if err == nil && c.Number != number { // not a late record
		part := r.Kind == Part
		complete, joinErr := c.joiner.Join(r)
		if err = joinErr; complete && part {
			fresh = c.takeRow(r, compare)
		} else {
			fresh = fresh && complete
		}
	}
	if c.joiner.parts == nil {
		c.Whole = c.Place
	}
	return fresh, err
}
